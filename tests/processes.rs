//! Real processes that are killed in the middle of a transfer, and come back.
//!
//! The other process is this test binary again, told by a variable of the environment to be one side.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use kvferry::{
    Engine, EngineConfig, PushError, ReceiveError, Role,
    kv_plan::{CacheLayout, Dtype, ModelShape, PageId, Side},
    transport_core::{Memory, Shutdown, TransferError},
    transport_quic::{Authentication, Identity, PublicKey, QuicConfig, TrustedKeys},
};

const CHILD: &str = "KVFERRY_TEST_CHILD";

/// What the configuration promises, and what a slow machine may add before the test believes that it was broken.
const BOUND: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_millis(1500);

/// 8 layers of 128 pages of 64 KiB: 64 MiB, so that a transfer takes a while.
fn layout() -> CacheLayout {
    let model = r#"{"model_type": "deepseek_v3", "num_hidden_layers": 8, "kv_lora_rank": 448, "qk_rope_head_dim": 64}"#;
    let model = ModelShape::from_config_json(model).unwrap();
    "pages=128".parse::<Side>().unwrap().layouts(&model, 64, Dtype::Bf16).unwrap().remove(0)
}

fn all_pages() -> Vec<PageId> {
    (0..128).map(PageId).collect()
}

fn engine(role: Role, identity: Identity, trusted: TrustedKeys, listen: SocketAddr) -> Engine {
    let layout = layout();
    let memories = layout.region_lens().iter().map(|len| Memory::host(*len as usize).unwrap()).collect();
    let quic = QuicConfig::default().with_listen(listen).with_peer_loss_timeout(BOUND);
    Engine::builder(role, Authentication::raw_keys(identity, trusted))
        .config(EngineConfig::default().with_quic(quic))
        .cache(layout, memories)
        .build()
        .unwrap()
}

/// The other process. Its standard output carries only what it says to the test.
struct Other {
    child: Child,
    /// Its end tells the other process that the test is gone.
    _input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    /// Starts a process of this role that trusts `key`; for prefill, `address` is where to connect, for decode where to listen.
    fn start(role: Role, identity: &Identity, key: PublicKey, address: SocketAddr) -> Self {
        let secret: String = identity.to_pkcs8_der().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{role} {secret} {key} {address}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, _input: input, output }
    }

    /// Waits until the other process says a word, and gives what follows it.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the other process ended before it said {word:?}");
            // The test harness prints the test's name without an end of line before what we print.
            if let Some((_, rest)) = line.split_once(&format!("@{word}")) {
                return rest.trim().to_owned();
            }
        }
    }

    /// `kill -9`.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(word: &str) {
    println!("@{word}");
    std::io::stdout().flush().unwrap();
}

/// Not a test of its own: the body of the other process. Without the variable it does nothing.
#[test]
fn the_other_process() {
    let Ok(orders) = std::env::var(CHILD) else { return };
    let [role, secret, key, address] = orders.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let secret: Vec<u8> =
        (0..secret.len() / 2).map(|at| u8::from_str_radix(&secret[2 * at..2 * at + 2], 16).unwrap()).collect();
    let identity = Identity::from_pkcs8_der(&secret).unwrap();
    let trusted = TrustedKeys::from_iter([key.parse().unwrap()]);
    let address: SocketAddr = address.parse().unwrap();
    // It never outlives the test.
    std::thread::spawn(|| {
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pages = all_pages();
        match role {
            "prefill" => {
                let engine = engine(Role::Prefill, identity, trusted, "127.0.0.1:0".parse().unwrap());
                let peer = engine.connect(address, None).await.unwrap();
                say("connected");
                for request in 0.. {
                    // Until the test ends.
                    let Ok(push) = peer.push(request, &pages, &pages) else { return };
                    if push.await.is_err() {
                        return;
                    }
                }
            }
            _ => {
                let engine = engine(Role::Decode, identity, trusted, address);
                say(&format!("listening {}", engine.local_addr()));
                engine.wait_for_senders("default", support::LONG).await.unwrap();
                for request in 0.. {
                    let Ok(incoming) = engine.expect(request, "default", &pages) else { return };
                    if incoming.await.is_err() {
                        return;
                    }
                }
            }
        }
    });
}

#[tokio::test]
async fn a_killed_prefill_process_is_noticed_and_its_successor_works_at_once() {
    let (ours, theirs) = (Identity::generate(), Identity::generate());
    let trusted = TrustedKeys::from_iter([theirs.public_key()]);
    let decode = engine(Role::Decode, ours.clone(), trusted, "127.0.0.1:0".parse().unwrap());
    let mut other = Other::start(Role::Prefill, &theirs, ours.public_key(), decode.local_addr());
    other.hear("connected");
    decode.wait_for_senders("default", support::LONG).await.unwrap();
    let pages = all_pages();
    decode.expect(0, "default", &pages).unwrap().await.unwrap();

    // It pushes one request after the other without a pause, so it is killed in the middle of one.
    let unfinished = decode.expect(1_000_000, "default", &pages).unwrap();
    other.kill();
    let killed = Instant::now();
    match unfinished.await {
        Err(ReceiveError::SenderLost { .. }) => {}
        outcome => panic!("{outcome:?}"),
    }
    assert!(killed.elapsed() < BOUND + SLACK, "noticed after {:?}", killed.elapsed());
    assert!(decode.peers().is_empty());

    let mut successor = Other::start(Role::Prefill, &theirs, ours.public_key(), decode.local_addr());
    successor.hear("connected");
    decode.wait_for_senders("default", support::LONG).await.unwrap();
    decode.expect(3, "default", &pages).unwrap().await.unwrap();
    decode.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn a_killed_decode_process_is_noticed_and_its_successor_at_the_same_address_works_at_once() {
    let (ours, theirs) = (Identity::generate(), Identity::generate());
    let trusted = TrustedKeys::from_iter([theirs.public_key()]);
    let prefill = engine(Role::Prefill, ours.clone(), trusted, "127.0.0.1:0".parse().unwrap());
    let mut other = Other::start(Role::Decode, &theirs, ours.public_key(), "127.0.0.1:0".parse().unwrap());
    let address: SocketAddr = other.hear("listening").parse().unwrap();
    let peer = prefill.connect(address, None).await.unwrap();
    let pages = all_pages();
    peer.push(0, &pages, &pages).unwrap().await.unwrap();

    let mut pushes: Vec<_> = (1..5).map(|request| peer.push(request, &pages, &pages).unwrap()).collect();
    while pushes.iter().all(|push| push.progress().0 == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    other.kill();
    let killed = Instant::now();
    let mut failed = 0;
    for push in &mut pushes {
        match push.await {
            Err(PushError::Transfer { cause: TransferError::PeerLost { .. }, .. }) => failed += 1,
            // A request that had arrived before.
            Ok(_) => {}
            outcome => panic!("{outcome:?}"),
        }
    }
    assert!(failed > 0, "nothing was in flight");
    assert!(killed.elapsed() < BOUND + SLACK, "noticed after {:?}", killed.elapsed());
    assert!(!peer.is_connected());

    let mut successor = Other::start(Role::Decode, &theirs, ours.public_key(), address);
    successor.hear("listening");
    let again = prefill.connect(address, None).await.unwrap();
    assert_ne!(again.incarnation(), peer.incarnation());
    again.push(0, &pages, &pages).unwrap().await.unwrap();
    prefill.shutdown(Shutdown::Abort).await;
}

/// A peer that stays alive but whose process is stopped takes nothing and says nothing: it is lost like a dead one.
#[tokio::test]
async fn a_stopped_process_is_noticed_within_the_bound() {
    let (ours, theirs) = (Identity::generate(), Identity::generate());
    let trusted = TrustedKeys::from_iter([theirs.public_key()]);
    let prefill = engine(Role::Prefill, ours.clone(), trusted, "127.0.0.1:0".parse().unwrap());
    let mut other = Other::start(Role::Decode, &theirs, ours.public_key(), "127.0.0.1:0".parse().unwrap());
    let address: SocketAddr = other.hear("listening").parse().unwrap();
    let peer = prefill.connect(address, None).await.unwrap();
    let pages = all_pages();
    let stopped = Command::new("kill").args(["-STOP", &other.child.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let at = Instant::now();
    let outcome = peer.push(0, &pages, &pages).unwrap().await;
    assert!(matches!(outcome, Err(PushError::Transfer { .. })), "{outcome:?}");
    assert!(at.elapsed() < BOUND + SLACK, "noticed after {:?}", at.elapsed());
    other.kill();
}

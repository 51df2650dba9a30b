//! Real processes whose engines write over RDMA, killed and stopped in the middle, and a program without the library.
//!
//! Needs the devices that `KVFERRY_RDMA_DEVICES` names; `tests/softroce/run.sh` runs a command where there are some. The other
//! process is this test binary again, told by a variable of the environment to be one side.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use kvferry::{
    Engine, EngineConfig, Peer, Push, PushError, ReceiveError, Role,
    kv_plan::{CacheLayout, Dtype, ModelShape, PageId, Side},
    transport_core::{Memory, Shutdown, TransferError},
    transport_quic::{Authentication, Identity, PublicKey, QuicConfig, TrustedKeys},
    transport_rdma::{Rail, Rails, RdmaConfig, native::NativeVerbs},
};

const CHILD: &str = "KVFERRY_TEST_CHILD";

/// What the configuration promises, and what an emulated machine may add before the test believes that it was broken.
const BOUND: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_secs(2);

const PAGES: i32 = 32;

/// One test at a time: they share the devices.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 8 layers of 32 pages of 64 KiB: 16 MiB, so that a transfer takes a while.
fn layout() -> CacheLayout {
    let model = r#"{"model_type": "deepseek_v3", "num_hidden_layers": 8, "kv_lora_rank": 448, "qk_rope_head_dim": 64}"#;
    let model = ModelShape::from_config_json(model).unwrap();
    format!("pages={PAGES}").parse::<Side>().unwrap().layouts(&model, 64, Dtype::Bf16).unwrap().remove(0)
}

fn all_pages() -> Vec<PageId> {
    (0..PAGES).map(PageId).collect()
}

/// One device for each role, as if they were on two hosts.
fn rdma(role: Role) -> RdmaConfig {
    let devices = std::env::var("KVFERRY_RDMA_DEVICES")
        .expect("KVFERRY_RDMA_DEVICES names devices; run this with `bash tests/softroce/run.sh COMMAND`");
    let device = match role {
        Role::Prefill => devices.split(',').next(),
        _ => devices.split(',').next_back(),
    };
    RdmaConfig::default().with_rails(Rails::Manual(vec![Rail::new(device.unwrap())])).with_loss_bound(BOUND)
}

struct Node {
    engine: Engine,
    memories: Vec<Memory>,
}

fn node(role: Role, identity: Identity, trusted: TrustedKeys, listen: SocketAddr) -> Node {
    let layout = layout();
    let memories: Vec<Memory> = layout.region_lens().iter().map(|len| Memory::host(*len as usize).unwrap()).collect();
    let quic = QuicConfig::default().with_listen(listen).with_peer_loss_timeout(BOUND);
    let engine = Engine::builder(role, Authentication::raw_keys(identity, trusted))
        .config(EngineConfig::default().with_quic(quic))
        .cache(layout, memories.clone())
        .rdma(rdma(role))
        .build()
        .unwrap();
    Node { engine, memories }
}

impl Node {
    fn fill(&self, value: u8) {
        self.memories.iter().for_each(|memory| memory.fill(0, memory.len(), value).unwrap());
    }

    /// Whether all of the cache holds one value.
    fn holds(&self, value: u8) -> bool {
        self.memories.iter().all(|memory| {
            let mut bytes = vec![0; memory.len() as usize];
            memory.read_at(0, &mut bytes).unwrap();
            // Compared as a whole: byte by byte takes seconds where it is emulated.
            bytes == vec![value; bytes.len()]
        })
    }

    async fn end(&self) {
        self.engine.shutdown(Shutdown::Abort).await;
    }
}

/// What a prefill process has in its cache, and what memory holds in which nothing may land.
const PUSHED: u8 = 0x5a;
const QUIET: u8 = 0xdd;

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
        Self::start_by(Command::new(std::env::current_exe().unwrap()), role, identity, key, address)
    }

    fn start_by(mut command: Command, role: Role, identity: &Identity, key: PublicKey, address: SocketAddr) -> Self {
        let secret: String = identity.to_pkcs8_der().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut child = command
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

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
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
    thread::spawn(|| {
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match role {
            "prefill" => push_for_ever(identity, trusted, address).await,
            _ => receive_for_ever(identity, trusted, address).await,
        }
    });
}

async fn push_for_ever(identity: Identity, trusted: TrustedKeys, address: SocketAddr) {
    let pages = all_pages();
    let node = node(Role::Prefill, identity, trusted, "127.0.0.1:0".parse().unwrap());
    node.fill(PUSHED);
    let peer = node.engine.connect(address, None).await.unwrap();
    say(&format!("connected {}", peer.transport()));
    for request in 0.. {
        let Ok(push) = peer.push(request, &pages, &pages) else { break };
        if push.await.is_err() {
            break;
        }
    }
    say("ended");
}

/// Expects requests from 0 on; and where the sender was lost, those of the next one from the next thousand on.
async fn receive_for_ever(identity: Identity, trusted: TrustedKeys, address: SocketAddr) {
    let pages = all_pages();
    let node = node(Role::Decode, identity, trusted, address);
    say(&format!("listening {}", node.engine.local_addr()));
    for thousand in 0.. {
        if node.engine.wait_for_senders("default", support::LONG).await.is_err() {
            return;
        }
        for request in 1000 * thousand.. {
            let Ok(incoming) = node.engine.expect(request, "default", &pages) else { break };
            if incoming.await.is_err() {
                break;
            }
        }
        say("lost");
    }
}

/// This process and what the other one needs to know of it.
struct Pair {
    ours: Identity,
    theirs: Identity,
    node: Node,
}

impl Pair {
    fn new(role: Role) -> Self {
        let (ours, theirs) = (Identity::generate(), Identity::generate());
        let trusted = TrustedKeys::from_iter([theirs.public_key()]);
        let node = node(role, ours.clone(), trusted, "127.0.0.1:0".parse().unwrap());
        Self { ours, theirs, node }
    }

    /// A prefill process that pushes one request after the other to this one.
    async fn prefill(&self) -> Other {
        let mut other =
            Other::start(Role::Prefill, &self.theirs, self.ours.public_key(), self.node.engine.local_addr());
        assert_eq!(other.hear("connected"), "rdma");
        self.node.engine.wait_for_senders("default", support::LONG).await.unwrap();
        other
    }

    /// A decode process, and where it listens.
    fn decode(&self, address: Option<SocketAddr>) -> (Other, SocketAddr) {
        let address = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        let mut other = Other::start(Role::Decode, &self.theirs, self.ours.public_key(), address);
        let address = other.hear("listening").parse().unwrap();
        (other, address)
    }

    async fn connect(&self, address: SocketAddr) -> Peer {
        let peer = self.node.engine.connect(address, None).await.unwrap();
        assert_eq!(peer.transport(), "rdma", "{:?}", peer.passed_over());
        peer
    }

    /// Receives a request whole.
    async fn receive(&self, request: u64) {
        self.node.fill(0);
        self.node.engine.expect(request, "default", &all_pages()).unwrap().await.unwrap();
        // The sender goes on with requests of the same bytes, so nothing else can be there.
        assert!(self.node.holds(PUSHED));
    }

    /// Waits for the loss of the sender, and asserts that nothing lands from then on, also `after`.
    async fn lose_sender(&self, since: impl FnOnce() -> Instant, after: impl FnOnce()) {
        let unfinished = self.node.engine.expect(1_000_000, "default", &all_pages()).unwrap();
        let since = since();
        match unfinished.await {
            Err(ReceiveError::SenderLost { reason, .. }) => println!("{reason}, {:?} after it", since.elapsed()),
            outcome => panic!("{outcome:?}"),
        }
        assert!(since.elapsed() < BOUND + SLACK, "noticed after {:?}", since.elapsed());
        assert!(self.node.engine.peers().is_empty());
        self.node.fill(QUIET);
        after();
        thread::sleep(Duration::from_secs(1));
        assert!(self.node.holds(QUIET), "bytes of a lost process landed");
    }
}

fn push(peer: &Peer, request: u64) -> Push {
    peer.push(request, &all_pages(), &all_pages()).unwrap()
}

/// Pushes four requests, lets `end` befall the receiver in the middle of one, and asserts that they all end in time, and then the
/// connection. Answers how many failed.
async fn pushes_end(peer: &Peer, end: impl FnOnce()) -> usize {
    let mut pushes: Vec<_> = (1..5).map(|request| push(peer, request)).collect();
    while pushes.iter().all(|push| push.progress().0 == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    end();
    let since = Instant::now();
    let mut failed = 0;
    for push in &mut pushes {
        match push.await {
            Err(PushError::Transfer {
                cause:
                    cause @ (TransferError::PeerLost { .. } | TransferError::Path { .. } | TransferError::Refused { .. }),
                ..
            }) => {
                println!("{cause}, {:?} after it", since.elapsed());
                failed += 1;
            }
            // A request that had arrived before.
            Ok(_) => {}
            outcome => panic!("{outcome:?}"),
        }
    }
    assert!(since.elapsed() < BOUND + SLACK, "noticed after {:?}", since.elapsed());
    // The queue pairs gave up; that the process is gone, the control channel says.
    while peer.is_connected() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(since.elapsed() < BOUND + SLACK, "the peer is still there");
    }
    failed
}

#[tokio::test]
async fn a_killed_receiver_fails_the_pushes_and_its_successor_at_the_same_address_works() {
    let _alone = alone();
    let pair = Pair::new(Role::Prefill);
    let (mut other, address) = pair.decode(None);
    let peer = pair.connect(address).await;
    push(&peer, 0).await.unwrap();
    assert!(pushes_end(&peer, || other.kill()).await > 0, "nothing was in flight");
    let (_successor, _) = pair.decode(Some(address));
    let again = pair.connect(address).await;
    assert_ne!(again.incarnation(), peer.incarnation());
    push(&again, 0).await.unwrap();
    pair.node.end().await;
}

#[tokio::test]
async fn a_killed_sender_fails_the_request_and_leaves_its_memory_quiet() {
    let _alone = alone();
    let pair = Pair::new(Role::Decode);
    let mut other = pair.prefill().await;
    pair.receive(0).await;
    // It pushes one request after the other without a pause, so it is killed in the middle of one.
    let kill = || {
        other.kill();
        Instant::now()
    };
    pair.lose_sender(kill, || {}).await;
    let _successor = pair.prefill().await;
    pair.receive(3).await;
    pair.node.end().await;
}

/// The device goes on with what a stopped process has posted, and the process posts more once it goes on.
#[tokio::test]
async fn a_sender_that_is_stopped_for_too_long_writes_nothing_when_it_goes_on() {
    let _alone = alone();
    let pair = Pair::new(Role::Decode);
    let mut other = pair.prefill().await;
    pair.receive(0).await;
    let stop = || {
        other.signal("-STOP");
        Instant::now()
    };
    pair.lose_sender(stop, || other.signal("-CONT")).await;
    other.hear("ended");
    assert!(pair.node.holds(QUIET), "bytes of a lost process landed");
    drop(other);
    let _successor = pair.prefill().await;
    pair.receive(3).await;
    pair.node.end().await;
}

#[tokio::test]
async fn a_receiver_that_is_stopped_for_too_long_is_lost_and_can_be_met_again() {
    let _alone = alone();
    let pair = Pair::new(Role::Prefill);
    let (mut other, address) = pair.decode(None);
    let peer = pair.connect(address).await;
    push(&peer, 0).await.unwrap();
    // Its device takes what comes also while it is stopped, so a push may be delivered.
    pushes_end(&peer, || other.signal("-STOP")).await;
    assert!(peer.push(5, &all_pages(), &all_pages()).is_err(), "it was lost");
    other.signal("-CONT");
    other.hear("lost");
    let again = pair.connect(address).await;
    assert_eq!(again.incarnation(), peer.incarnation(), "the same process");
    push(&again, 1000).await.unwrap();
    pair.node.end().await;
}

// --- Without the library ---

/// Where this process got libibverbs from.
fn library_folder() -> PathBuf {
    let _verbs = NativeVerbs::open().unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("libibverbs.so")).expect("the library is loaded");
    PathBuf::from(&line[line.find('/').unwrap()..]).parent().unwrap().to_owned()
}

/// Runs its arguments in a mount namespace where a folder has no libibverbs.so.1: a layer above it, which an overlay takes for the
/// deletion of the file. Nothing else on the machine sees that.
const WITHOUT_LIBRARY: &str = r#"
set -e
folder=$0 hidden=$(mktemp -d)
mount -t tmpfs none "$hidden"
mknod "$hidden/libibverbs.so.1" c 0 0
mount -t overlay none -o "lowerdir=$hidden:$folder" "$folder"
[ ! -e "$folder/libibverbs.so.1" ]
exec "$@"
"#;

#[tokio::test]
async fn a_program_with_the_feature_works_where_the_library_is_missing() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        println!("not run: only root can hide a library in a mount namespace");
        return;
    }
    let pair = Pair::new(Role::Prefill);
    let mut hidden = Command::new("unshare");
    hidden.args(["--mount", "bash", "-c", WITHOUT_LIBRARY]).arg(library_folder()).arg(std::env::current_exe().unwrap());
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut other = Other::start_by(hidden, Role::Decode, &pair.theirs, pair.ours.public_key(), listen);
    let address: SocketAddr = other.hear("listening").parse().unwrap();
    let peer = pair.node.engine.connect(address, None).await.unwrap();
    assert_eq!(peer.transport(), "quic");
    let [passed] = peer.passed_over() else { panic!("{:?}", peer.passed_over()) };
    println!("{passed}");
    assert_eq!(passed.transport, "rdma");
    assert!(passed.reason.contains("libibverbs.so.1"), "{passed}");
    push(&peer, 0).await.unwrap();
    pair.node.end().await;
}

/// Else the program would not even start there.
#[test]
fn a_program_with_the_feature_is_not_linked_to_the_library() {
    let output = Command::new("readelf").arg("-d").arg(std::env::current_exe().unwrap()).output().unwrap();
    let dynamic = String::from_utf8(output.stdout).unwrap();
    assert!(dynamic.contains("(NEEDED)") && dynamic.contains("libc.so"), "{dynamic}");
    for library in ["libibverbs", "librdmacm", "libmlx5", "libnl"] {
        assert!(!dynamic.contains(library), "it needs {library}:\n{dynamic}");
    }
}

//! The smallest whole program: two engines in one process, one push, bytes checked.
//!
//! ```text
//! cargo run --example loopback
//! ```

use std::error::Error;

use kvferry::{
    Engine, Role,
    kv_plan::{Dtype, ModelShape, PageId, Side},
    transport_core::{Memory, Shutdown},
    transport_quic::{Authentication, Identity, TrustedKeys},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Both sides: a model of two layers, pages of 16 tokens, 8 pages, one region a buffer.
    let config = r#"{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4}"#;
    let model = ModelShape::from_config_json(config)?;
    let layout = "pages=8".parse::<Side>()?.layouts(&model, 16, Dtype::Bf16)?.remove(0);
    let cache = || layout.region_lens().iter().map(|len| Memory::host(*len as usize)).collect::<Result<Vec<_>, _>>();
    let (prefill_cache, decode_cache) = (cache()?, cache()?);

    // Each side has a key and trusts the other's.
    let (prefill_id, decode_id) = (Identity::generate(), Identity::generate());
    let (prefill_key, decode_key) = (prefill_id.public_key(), decode_id.public_key());
    let prefill =
        Engine::builder(Role::Prefill, Authentication::raw_keys(prefill_id, TrustedKeys::from_iter([decode_key])))
            .cache(layout.clone(), prefill_cache.clone())
            .build()?;
    let decode =
        Engine::builder(Role::Decode, Authentication::raw_keys(decode_id, TrustedKeys::from_iter([prefill_key])))
            .cache(layout.clone(), decode_cache.clone())
            .build()?;

    // They meet: metadata is exchanged and checked on both sides.
    let peer = prefill.connect(decode.local_addr(), None).await?;
    decode.wait_for_senders("default", std::time::Duration::from_secs(5)).await.map_err(|_| "prefill is missing")?;

    // Prefill fills its pages 1 and 2; decode expects request 7 in its pages 5 and 3; prefill pushes.
    prefill_cache.iter().try_for_each(|memory| memory.fill(0, memory.len(), 42))?;
    let incoming = decode.expect(7, "default", PageId::list(&[5, 3]))?;
    let pushed = peer.push(7, PageId::list(&[1, 2]), PageId::list(&[5, 3]))?.await?;
    let received = incoming.await?;

    for (memory, buffer) in decode_cache.iter().zip(&layout.buffers) {
        let mut bytes = vec![0; memory.len() as usize];
        memory.read_at(0, &mut bytes)?;
        for (page, bytes) in bytes.chunks(buffer.page_bytes as usize).enumerate() {
            let expected = if [5, 3].contains(&page) { 42 } else { 0 };
            assert!(bytes.iter().all(|byte| *byte == expected), "{} page {page}", buffer.key);
        }
    }
    println!("{}: {} bytes in {} slices, every byte checked", received.request, received.bytes, pushed.slices);
    prefill.shutdown(Shutdown::Drain).await;
    decode.shutdown(Shutdown::Drain).await;
    Ok(())
}

//! Pages between a pool and device memory, in the order of an engine's stream. The device here is made of memory and threads of
//! this process, under a GPU's rules; `Device::cuda(0, ..)` is a real one.
//!
//!     cargo run -p turnkv-client --example device -- unix:/run/turnkv/turnkv.sock
//!
//! Owns: device memory for two pages. Must not know: sessions.
#![allow(clippy::print_stdout, reason = "an example says what it does")]
#![forbid(unsafe_code)]

use std::error::Error;
use turnkv_client::{
    BlockHash, Client, ClientConfig, Device, DeviceOrder, DevicePriority, HostOptions, NamespaceSpec,
    OffloadOptions, PageSource, PageTarget, ReloadOptions,
};

const LAYERS: usize = 4;
const PAGE_BYTES: usize = 128 << 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("say where the pool is: unix:/path/turnkv.sock")?;
    let client = Client::new(ClientConfig::at(address))?;
    let pages =
        client.open_namespace(NamespaceSpec::opaque("example-device@1", 16, PAGE_BYTES as u64)).await?;
    let device = Device::host(HostOptions::default())?;
    // The stream on which an engine computes.
    let engine = device.driver().new_stream(DevicePriority::Low)?;

    // Two pages in host memory go to the pool by the usual way.
    let first = BlockHash::chain(None, &[1]);
    let hashes = [first, BlockHash::chain(Some(&first), &[2])];
    let host: Vec<Vec<u8>> = (1..=2).map(|fill| vec![fill; PAGE_BYTES]).collect();
    let sources: Vec<PageSource<'_>> = host.iter().map(|page| PageSource::Bytes(page)).collect();
    pages.offload(&OffloadOptions::default(), &hashes, &sources).await?;

    // From the pool to the device, a layer at a time. In device memory a layer of both pages lies side by side.
    let memory = device.allocate(2 * PAGE_BYTES)?;
    let layer_bytes = PAGE_BYTES / LAYERS;
    let plan = |page: usize| {
        let pieces: Vec<_> =
            (0..LAYERS).map(|layer| ((2 * layer + page) * layer_bytes, layer_bytes)).collect();
        memory.plan(&pieces)
    };
    let plans = [plan(0)?, plan(1)?];
    let order = DeviceOrder { after: Some(engine), layers: LAYERS };
    let reload = pages.reload_device(&device, &ReloadOptions::default(), &hashes, &plans, order).await?;
    for layer in 0..LAYERS {
        // What the engine's stream is given from here on comes after this layer; this thread does not wait.
        reload.wait_layer(layer, engine)?;
    }
    println!("reloaded {} pages into device memory, verified there", reload.finished().await?.pages);

    // And back, under other names, after all that the engine's stream was given so far.
    let first = BlockHash::chain(None, &[3]);
    let others = [first, BlockHash::chain(Some(&first), &[4])];
    let stored =
        pages.offload_device(&device, &OffloadOptions::default(), &others, &plans, Some(engine)).await?;
    println!("offloaded {} pages from device memory", stored.stored + stored.present);

    let mut back = vec![vec![0u8; PAGE_BYTES]; 2];
    let mut targets: Vec<PageTarget<'_>> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
    let found = pages.reload(&ReloadOptions::default(), &others, &mut targets).await?;
    if found.pages != 2 || back != host {
        return Err("wrong bytes".into());
    }
    println!("the same bytes came back");
    Ok(())
}

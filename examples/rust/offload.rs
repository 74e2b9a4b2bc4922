//! The smallest use of a pool: three pages go in, come back, and a fourth one is a miss.
//!
//!     cargo run -p turnkv-client --example offload -- unix:/run/turnkv/turnkv.sock
//!
//! Owns: one namespace and its pages. Must not know: sessions, devices.
#![allow(clippy::print_stdout, reason = "an example says what it does")]
#![forbid(unsafe_code)]

use std::error::Error;
use turnkv_client::{
    BlockHash, Client, ClientConfig, NamespaceSpec, OffloadOptions, PageSource, PageTarget, ReloadOptions,
};

const PAGE_TOKENS: u32 = 16;
const PAGE_BYTES: u64 = 128 << 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("say where the pool is: unix:/path/turnkv.sock")?;
    let client = Client::new(ClientConfig::at(address))?;
    // What a page's bytes mean is ours alone here. An engine names its model, dtype, layers and heads instead.
    let spec = NamespaceSpec::opaque("example-model@1", PAGE_TOKENS, PAGE_BYTES);
    let pages = client.open_namespace(spec).await?;

    // A page is named by its tokens and by all tokens before them.
    let tokens: Vec<u32> = (0..4 * PAGE_TOKENS).collect();
    let mut hashes: Vec<BlockHash> = Vec::new();
    for page in tokens.chunks(PAGE_TOKENS as usize) {
        hashes.push(BlockHash::chain(hashes.last(), page));
    }

    // The K and V of the first three pages, as an engine would have computed them.
    let computed: Vec<Vec<u8>> = (1..=3).map(|fill| vec![fill; PAGE_BYTES as usize]).collect();
    let sources: Vec<PageSource<'_>> = computed.iter().map(|page| PageSource::Bytes(page)).collect();
    let stored = pages.offload(&OffloadOptions::default(), &hashes[..3], &sources).await?;
    println!("stored {}, present {}, declined {}", stored.stored, stored.present, stored.declined);

    // The next turn asks for four. Leading pages come back verified; the rest is to be computed.
    let mut memory = vec![vec![0u8; PAGE_BYTES as usize]; 4];
    let mut targets: Vec<PageTarget<'_>> = memory.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
    let found = pages.reload(&ReloadOptions::default(), &hashes, &mut targets).await?;
    println!("reloaded {} of {} pages, then a miss: {:?}", found.pages, hashes.len(), found.miss);
    if memory[..found.pages] != computed[..found.pages] {
        return Err("wrong bytes".into());
    }
    Ok(())
}

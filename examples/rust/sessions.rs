//! A conversation of two turns, a branch of it, and its end: what a pool is told so that it keeps the right pages.
//!
//!     cargo run -p turnkv-client --example sessions -- unix:/run/turnkv/turnkv.sock
//!
//! Owns: what is said of one session. Must not know: how pages are computed.
#![allow(clippy::print_stdout, reason = "an example says what it does")]
#![forbid(unsafe_code)]

use std::error::Error;
use turnkv_client::{
    BlockHash, Client, ClientConfig, EndTurn, Namespace, NamespaceSpec, OffloadOptions, PageSource,
};

const PAGE_TOKENS: u32 = 16;
const PAGE_BYTES: u64 = 64 << 10;

/// Names of pages after `parent`, each of tokens that begin at `first`.
fn chain(parent: Option<BlockHash>, first: u32, pages: u32) -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::new();
    for page in 0..pages {
        let tokens: Vec<u32> = (0..PAGE_TOKENS).map(|token| first + page * PAGE_TOKENS + token).collect();
        hashes.push(BlockHash::chain(hashes.last().or(parent.as_ref()), &tokens));
    }
    hashes
}

/// Stores what a turn computed: pages that go on from `parent`.
async fn store(
    pages: &Namespace,
    session: &str,
    parent: Option<BlockHash>,
    hashes: &[BlockHash],
) -> Result<(), Box<dyn Error>> {
    let page = vec![7u8; PAGE_BYTES as usize];
    let sources: Vec<PageSource<'_>> = hashes.iter().map(|_| PageSource::Bytes(&page)).collect();
    let options = OffloadOptions { session: Some(session.to_owned()), parent, ..OffloadOptions::default() };
    let report = pages.offload(&options, hashes, &sources).await?;
    println!("  {session}: stored {}, declined {}", report.stored, report.declined);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("say where the pool is: unix:/path/turnkv.sock")?;
    let client = Client::new(ClientConfig::at(address))?;
    let pages =
        client.open_namespace(NamespaceSpec::opaque("example-sessions@1", PAGE_TOKENS, PAGE_BYTES)).await?;

    let begun = pages.begin_turn("chat").await?;
    println!("turn {}: {} pages are there", begun.turn, begun.pages);
    let first = chain(None, 0, 4);
    store(&pages, "chat", None, &first).await?;
    // The user is expected back in half a minute: the pages are in DRAM by then.
    let end = EndTurn { hashes: first.clone(), expected_return_ms: 30_000, ..EndTurn::default() };
    println!("the session has {} pages", pages.end_turn("chat", &end).await?);

    let begun = pages.begin_turn("chat").await?;
    println!("turn {}: {} pages are there, {} in DRAM", begun.turn, begun.pages, begun.dram);
    let second = chain(first.last().copied(), 1_000, 2);
    store(&pages, "chat", first.last().copied(), &second).await?;
    // The first four stay as they are; two are new.
    let end = EndTurn { keep: 4, hashes: second, priority: 1, ..EndTurn::default() };
    println!("the session has {} pages", pages.end_turn("chat", &end).await?);

    println!("a branch shares {} pages", pages.fork("chat", "chat-branch", Some(4)).await?);
    let detail = pages.describe_session("chat").await?;
    println!("{} in DRAM, {} shared with others", detail.dram_pages, detail.shared_pages);

    // The answer was regenerated: only the first turn still counts.
    println!("superseded: {} pages are left", pages.supersede("chat", 4).await?);
    pages.close("chat").await?;
    pages.close("chat-branch").await?;
    println!("closed: its pages go before those of sessions that wait");
    Ok(())
}

//! The client that tests kill: offloads chains to the pool at `argv[1]` for ever, from the seed `argv[2]` on; with `hold` as
//! `argv[3]` it maps slots instead, commits half of them, and waits; with `steady` it offloads a few chains in turn, most of its time
//! spent in copying, and lives through the server's restarts.

use anyhow::{Context, Result};
use std::time::Duration;
use turnkv_client::{CommitOptions, DataPlane, OffloadOptions, PageSource, PageSpan};
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::user::User;

const USAGE: &str = "usage: victim ADDRESS SEED [hold|steady]";

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().context(USAGE)?;
    let first: u64 = arguments.next().context(USAGE)?.parse()?;
    let plane = if address.starts_with("tcp://") { DataPlane::Framed } else { DataPlane::Shm };
    match arguments.next().as_deref() {
        Some("hold") => hold(&User::connect(&address, plane, 128 << 10).await?, first).await,
        Some("steady") => steady(&User::connect(&address, plane, 256 << 10).await?, first).await,
        Some(_) => anyhow::bail!(USAGE),
        None => offload(&User::connect(&address, plane, 128 << 10).await?, first).await,
    }
}

async fn offload(user: &User, first: u64) -> Result<()> {
    for seed in (first..).step_by(1_000) {
        user.offload(&OffloadOptions::default(), &chain(seed, 64)).await?;
    }
    Ok(())
}

async fn hold(user: &User, seed: u64) -> Result<()> {
    let mut span = PageSpan::new(&user.namespace, 1, 8, 4)?;
    span.reserve(0, 0, 8, None).await?;
    span.commit(0, 0, &CommitOptions { keep: true, ..CommitOptions::default() }, &chain(seed, 4)).await?;
    std::future::pending().await
}

async fn steady(user: &User, first: u64) -> Result<()> {
    let chains: Vec<_> = (first..first + 8).map(|seed| chain(seed, 56)).collect();
    let of_chain = |chain: &Vec<_>| chain.iter().map(|hash| bytes(hash, 256 << 10)).collect();
    let pages: Vec<Vec<Vec<u8>>> = chains.iter().map(of_chain).collect();
    for (hashes, pages) in chains.iter().zip(&pages).cycle() {
        let sources: Vec<PageSource<'_>> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
        // Whatever became of the server: the next one is tried again.
        if user.namespace.offload(&OffloadOptions::default(), hashes, &sources).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(())
}

//! The client that tests kill: offloads chains to the pool at `argv[1]` for ever, from the seed `argv[2]` on; with `hold` as
//! `argv[3]` it maps slots instead, commits half of them, and waits.

use anyhow::{Context, Result};
use turnkv_client::{CommitOptions, DataPlane, OffloadOptions, PageSpan};
use turnkv_tests::pages::chain;
use turnkv_tests::user::User;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().context("usage: victim ADDRESS SEED [hold]")?;
    let first: u64 = arguments.next().context("usage: victim ADDRESS SEED [hold]")?.parse()?;
    let plane = if address.starts_with("tcp://") { DataPlane::Framed } else { DataPlane::Shm };
    let user = User::connect(&address, plane, 128 << 10).await?;
    if arguments.next().is_some() {
        return hold(&user, first).await;
    }
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

//! The client that `fail_open` kills: offloads chains to the pool at `argv[1]` for ever, from the seed `argv[2]` on.

use anyhow::{Context, Result};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::pages::chain;
use turnkv_tests::user::User;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().context("usage: victim ADDRESS SEED")?;
    let first: u64 = arguments.next().context("usage: victim ADDRESS SEED")?.parse()?;
    let user = User::connect(&address, DataPlane::Shm, 128 << 10).await?;
    for seed in (first..).step_by(1_000) {
        user.offload(&OffloadOptions::default(), &chain(seed, 64)).await?;
    }
    Ok(())
}

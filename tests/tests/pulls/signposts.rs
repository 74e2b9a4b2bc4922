//! Prompts in a cluster that has too many members to ask each of them.

use crate::support::{PAGE, Pools, turn, until};
use anyhow::{Result, ensure};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::pages::chain;
use turnkv_tests::server::Setup;
use turnkv_tests::user::User;

/// One more than are asked one by one, and who asks.
const POOLS: usize = 18;
/// More than a lookup names at once, and no multiple of 64.
const PAGES: usize = 300;
const LOOKUPS: &str = "turnkv_cluster_lookups_total{by=\"asked\"}";

/// Of a prompt with a turn of its own behind it, as much as ends at a signpost is found by whoever knows no session, and over each way
/// to ask.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_is_found_among_many_members() -> Result<()> {
    let setup = Setup { dram_mib: 32, nvme_mib: 0, ..Setup::default() };
    let pools = Pools::start(POOLS, &setup).await?;
    let home = pools.0[3].user().await?;
    let hashes = chain(1, PAGES);
    turn(&home, "talk", 0, &hashes, 0).await?;
    let found = PAGES / 64 * 64;
    for (at, plane) in [(7, DataPlane::Shm), (11, DataPlane::Inline)] {
        let user = User::connect(&pools.0[at].server.address(), plane, PAGE).await?;
        // What the authorities of signposts hear of travels beside the turn.
        until("it is found", async || Ok(user.namespace.lookup(&hashes).await? >= found)).await?;
        let report = user.reload(&hashes[..found]).await?;
        ensure!(report.pages == found && pools.0[at].pulled()? == found as u64, "{report:?}");
        // What is found nowhere is asked for, and an offload asks nobody.
        ensure!(user.namespace.lookup(&chain(3, 200)).await? == 0);
        let asked = pools.0[at].counted(LOOKUPS)?;
        user.offload(&OffloadOptions::default(), &chain(4 + at as u64, 70)).await?;
        ensure!(pools.0[at].counted(LOOKUPS)? == asked);
    }
    Ok(())
}

//! Sessions whose home is gone when their next turn begins, elsewhere: that is their home from then on, also when the other one is back.

use crate::support::{Pools, turn, until};
use anyhow::{Result, ensure};
use turnkv_tests::pages::chain;
use turnkv_tests::server::Setup;
use turnkv_tests::user::User;

/// Sessions of each kind.
const SESSIONS: u64 = 6;
const BEFORE: usize = 6;
const AFTER: usize = 9;

/// A session's turn in which whoever owns it does not say how many have ended: so many pages were found, it is said which turn it is.
async fn goes_on(user: &User, session: &str, seed: u64, had: usize, has: usize) -> Result<(usize, u32)> {
    let hashes = chain(seed, has);
    let begun = user.namespace.begin_turn(session).await?;
    let found = if had == 0 { 0 } else { user.reload(&hashes[..had]).await?.pages };
    crate::support::end(user, session, &begun, &hashes).await?;
    Ok((found, begun.turn))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_home_is_gone_lives_where_its_next_turn_ran() -> Result<()> {
    // It comes back with all that it had.
    let mut pools = Pools::start(3, &Setup { dram_mib: 64, keep: true, ..Setup::default() }).await?;
    let users = pools.users().await?;
    // Told at once that it does not answer, or when nobody lists it any more; asked for again while it is gone, or back.
    let kinds = ["soon-gone", "soon-back", "late-gone", "late-back"];
    let session = |kind: usize, at: u64| (format!("{}-{at}", kinds[kind]), 100 * kind as u64 + at);
    for kind in 0..kinds.len() {
        for (name, seed) in (0..SESSIONS).map(|at| session(kind, at)) {
            turn(&users[1], &name, 0, &chain(seed, BEFORE), 0).await?;
        }
    }
    pools.0[1].server.kill()?;
    let second = async |kind: usize| -> Result<()> {
        let mut counted = 0;
        for (name, seed) in (0..SESSIONS).map(|at| session(kind, at)) {
            let (found, turn) = goes_on(&users[0], &name, seed, BEFORE, AFTER).await?;
            ensure!(found == 0, "{name}: {found} pages of a pool that is gone");
            counted += u64::from(turn == 2);
        }
        // Who answers too late, on a busy machine, is not waited for.
        ensure!(counted > SESSIONS / 2, "{}: {counted} of {SESSIONS} are called turn 2", kinds[kind]);
        Ok(())
    };
    let third = async |kind: usize| -> Result<()> {
        for (name, seed) in (0..SESSIONS).map(|at| session(kind, at)) {
            let (found, turn) = goes_on(&users[2], &name, seed, AFTER, AFTER + 1).await?;
            ensure!(found == AFTER && turn >= 2, "{name}: turn {turn} found {found} of {AFTER} pages");
        }
        Ok(())
    };
    second(0).await?;
    second(1).await?;
    until("it is out of the view", async || {
        Ok(pools.0[0].counted("turnkv_cluster_view_servers")? == 2
            && pools.0[2].counted("turnkv_cluster_view_servers")? == 2)
    })
    .await?;
    second(2).await?;
    second(3).await?;
    third(0).await?;
    third(2).await?;
    pools.0[1].server.restart()?;
    pools.agree().await?;
    third(1).await?;
    third(3).await
}

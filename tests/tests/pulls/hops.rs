//! Sessions that go from pool to pool.

use crate::support::{PAGE, Pools, turn, until};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::time::Duration;
use tonic::Code;
use turnkv_client::{EndTurn, ErrorKind, Prefetched, ReloadOptions};
use turnkv_proto::wire::PrefetchRequest;
use turnkv_proto::wire::sessions_client::SessionsClient;
use turnkv_tests::pages::chain;
use turnkv_tests::proxy::Fault;
use turnkv_tests::server::Setup;

/// Pages that a turn adds.
const STEP: usize = 10;

async fn hop(pools: usize, turns: usize) -> Result<()> {
    let pools = Pools::start(pools, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(1, STEP * turns);
    for at in 0..turns {
        let (pool, user) = (&pools.0[at % users.len()], &users[at % users.len()]);
        let (had, before) = (STEP * at, pool.pulled()?);
        let begun = user.namespace.begin_turn_after("talk", "", at as u32).await?;
        ensure!(begun.turn as usize == at + 1, "turn {at}: {begun:?}");
        ensure!(begun.pages + begun.afar == had, "turn {at}: {begun:?}");
        let found = if had == 0 { 0 } else { user.reload(&hashes[..had]).await?.pages };
        ensure!(found == had, "turn {at}: {found} of {had} pages");
        // What this pool had when the session was here before did not travel again.
        let new = had.min(STEP * (users.len() - 1)) as u64;
        ensure!(pool.pulled()? - before == new, "turn {at}: not {new} pages travelled");
        crate::support::end(user, "talk", &begun, &hashes[..had + STEP]).await?;
    }
    // The next turn on the same pool is local: not a byte travels.
    let last = (turns - 1) % users.len();
    let before = pools.0[last].counted("turnkv_cluster_pull_bytes_total")?;
    let begun = users[last].namespace.begin_turn_after("talk", "", turns as u32).await?;
    ensure!((begun.pages, begun.afar) == (hashes.len(), 0), "{begun:?}");
    ensure!(users[last].reload(&hashes).await?.pages == hashes.len());
    ensure!(pools.0[last].counted("turnkv_cluster_pull_bytes_total")? == before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_hops_between_two_pools_is_found_whole() -> Result<()> {
    hop(2, 7).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_hops_between_three_pools_is_found_whole() -> Result<()> {
    hop(3, 10).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_keeps_its_list_and_its_tail_on_another_host() -> Result<()> {
    let pools = Pools::start(2, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(2, 40);
    let begun = users[0].namespace.begin_turn("talk").await?;
    let options = turnkv_client::OffloadOptions { tail_tokens: 3, ..Default::default() };
    users[0].offload(&options, &hashes).await?;
    let ended = EndTurn { hashes: hashes.clone(), tail_tokens: 3, ..EndTurn::default() };
    ensure!(users[0].namespace.end_turn("talk", &ended).await? == 40, "{begun:?}");
    let begun = users[1].namespace.begin_turn_after("talk", "", 1).await?;
    ensure!((begun.turn, begun.pages, begun.afar) == (2, 0, 40), "{begun:?}");
    ensure!(users[1].reload(&hashes).await?.pages == 40);
    // Its owner names only what is new: the list before it came along.
    pools.0[1].settled().await?;
    let (kept, new) = (39, chain(2, 45));
    users[1].offload(&Default::default(), &new).await?;
    let ended = EndTurn { keep: kept, hashes: new[kept..].to_vec(), ..EndTurn::default() };
    ensure!(users[1].namespace.end_turn("talk", &ended).await? == 45);
    ensure!(turn(&users[0], "talk", 2, &new, 45).await? == 45);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_found_where_its_first_turn_begins() -> Result<()> {
    let pools = Pools::start(3, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(5, 40);
    turn(&users[0], "talk", 0, &hashes, 0).await?;
    for (fork, pages) in [("whole", 40), ("part", 25)] {
        let shared = users[0].namespace.fork("talk", fork, (pages < 40).then_some(pages)).await?;
        ensure!(shared == pages);
        for (at, ended) in [(1, 0), (2, 1)] {
            let begun = users[at].namespace.begin_turn(fork).await?;
            ensure!((begun.turn, begun.pages + begun.afar) == (ended + 1, pages), "{fork}: {begun:?}");
            ensure!(users[at].reload(&hashes[..pages]).await?.pages == pages);
            crate::support::end(&users[at], fork, &begun, &hashes[..pages]).await?;
        }
    }
    // The session that it was forked from lives where it did.
    let begun = users[0].namespace.begin_turn("talk").await?;
    ensure!((begun.turn, begun.pages, begun.afar) == (2, 40, 0), "{begun:?}");
    Ok(())
}

/// Whoever routes says where the next turn begins: its pages are there before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_brought_to_where_its_next_turn_will_begin() -> Result<()> {
    let pools = Pools::start(3, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let (hashes, later) = (chain(6, 80), chain(7, 50));
    turn(&users[0], "talk", 0, &hashes, 0).await?;
    turn(&users[0], "later", 0, &later, 0).await?;
    let begun = users[1].namespace.prefetch("talk").await?;
    ensure!((begun.started, begun.ready) == (80, 0), "{begun:?}");
    until("it has come", async || Ok(pools.0[1].pulled()? == 80)).await?;
    ensure!(
        pools.0[1].counted("turnkv_cluster_second_copy_bytes")? == 0,
        "it is expected, not a copy too many"
    );
    // A second word for the same brings nothing again and says that all is here, and its home is what it was.
    let begun = users[1].namespace.prefetch("talk").await?;
    ensure!((begun.started, begun.ready) == (0, 80), "{begun:?}");
    let begun = users[1].namespace.begin_turn_after("talk", "", 1).await?;
    ensure!((begun.turn, begun.pages, begun.afar) == (2, 80, 0), "{begun:?}");
    ensure!(users[1].reload(&hashes).await?.pages == 80 && pools.0[1].pulled()? == 80);
    // By a time: it comes some seconds before, and not at once.
    let begun = users[2].namespace.prefetch_in("later", 7_000).await?;
    ensure!(begun.started == 0 && pools.0[2].pulled()? == 0, "{begun:?}");
    until("it has come in time", async || Ok(pools.0[2].pulled()? == 50)).await?;
    // What nobody has is unknown, now or by a time.
    let unknown = |begun: turnkv_client::Result<Prefetched>| {
        begun.is_err_and(|error| error.kind == ErrorKind::SessionUnknown)
    };
    ensure!(unknown(users[1].namespace.prefetch("nobody").await));
    ensure!(unknown(users[1].namespace.prefetch_in("nobody", 60_000).await));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_brought_of_a_session_is_told_of_when_its_home_is_gone() -> Result<()> {
    let mut pools = Pools::start(3, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(8, 100);
    turn(&users[0], "talk", 0, &hashes, 0).await?;
    pools.0[0].fail(Fault::None, Fault::Slow(PAGE as usize, Duration::from_millis(10)));
    until("it is on its way", async || {
        Ok(users[1].namespace.prefetch("talk").await.is_ok_and(|it| it.started > 0))
    })
    .await?;
    until("some of it has come", async || Ok(pools.0[1].pulled()? >= 10)).await?;
    pools.0[0].server.kill()?;
    pools.0[1].settled().await?;
    let came = pools.0[1].pulled()? as usize;
    ensure!((10..100).contains(&came), "{came} pages came");
    let begun = users[1].namespace.begin_turn_after("talk", "", 1).await?;
    ensure!((begun.turn, begun.pages, begun.afar) == (2, came, 0), "{begun:?}, and {came} came");
    ensure!(users[1].reload(&hashes[..came]).await?.pages == came);
    crate::support::end(&users[1], "talk", &begun, &hashes).await?;
    ensure!(turn(&users[2], "talk", 2, &hashes, 100).await? == 100);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefetch_that_brings_nothing_says_why() -> Result<()> {
    let pools = Pools::start(2, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    turn(&users[0], "talk", 0, &chain(9, 20), 0).await?;
    // By a time that is far away it is only looked for.
    until("it is known of", async || Ok(users[1].namespace.prefetch_in("talk", 60_000).await.is_ok()))
        .await?;
    users[1].client.drain().await?;
    for in_ms in [0, 60_000] {
        let begun = users[1].namespace.prefetch_in("talk", in_ms).await;
        let error = begun.err().context("a pool that takes nothing says that it begins")?;
        ensure!(error.kind == ErrorKind::Draining && error.message.contains("pool-0"), "{error:?}");
    }
    users[1].client.resume().await?;
    pools.0[0].server.signal(Signal::STOP)?;
    let request = PrefetchRequest {
        namespace: users[1].namespace.id().0.to_vec().into(),
        session: "talk".to_owned(),
        ..PrefetchRequest::default()
    };
    let mut sessions = SessionsClient::connect(pools.0[1].server.address()).await?;
    let silent = sessions.prefetch(request).await.err().context("it is said to begin")?;
    ensure!(silent.code() == Code::Unavailable && silent.message().contains("pool-0"), "{silent:?}");
    // A client does not think the pool sick that says so.
    let told = users[1].namespace.prefetch("talk").await.err().context("it is said to begin")?;
    ensure!(told.kind == ErrorKind::Busy { retry_after_ms: 0 }, "{told:?}");
    pools.0[0].server.signal(Signal::CONT)?;
    until("it is brought", async || {
        Ok(users[1].namespace.prefetch("talk").await.is_ok_and(|it| it.started == 20))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_that_no_session_names_is_found_where_it_is() -> Result<()> {
    let pools = Pools::start(3, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(3, 60);
    users[0].offload(&Default::default(), &hashes).await?;
    // A look has its time, and says then what is known: on a busy machine that may be less.
    until("all of it is found", async || Ok(users[1].namespace.lookup(&hashes).await? == 60)).await?;
    let report = users[1].reload(&hashes).await?;
    ensure!((report.pages, report.miss) == (60, None), "{report:?}");
    ensure!(pools.0[1].pulled()? == 60);
    // Nobody has more of another chain than its beginning.
    let mut other = hashes[..20].to_vec();
    other.extend_from_slice(&chain(4, 5));
    until("its beginning is found", async || Ok(users[2].namespace.lookup(&other).await? == 20)).await?;
    ensure!(users[2].namespace.lookup(&chain(5, 9)).await? == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_that_another_pool_has_as_well_goes_first() -> Result<()> {
    // DRAM for 512 pages at the reader, and nothing behind it.
    let pools = Pools::start(2, &Setup { dram_mib: 32, nvme_mib: 0, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let (prefix, own, new) = (chain(70, 120), chain(71, 200), chain(72, 230));
    users[0].offload(&Default::default(), &prefix).await?;
    // The reader's own pages are older than what it pulls, and so would leave before it.
    users[1].offload(&Default::default(), &own).await?;
    // A page every 10 ms: who asks has been answered long before all have come, and so uses none of them afterwards.
    pools.0[0].fail(Fault::None, Fault::Slow(PAGE as usize, Duration::from_millis(10)));
    // Several ask at once, as for a system prompt: it comes once, and counts once.
    let look = || users[1].namespace.lookup(&prefix);
    let all = (120, 120, 120, 120);
    until("all of it is found", async || Ok(tokio::try_join!(look(), look(), look(), look())? == all))
        .await?;
    until("it has come", async || Ok(pools.0[1].pulled()? == 120)).await?;
    pools.0[1].settled().await?;
    ensure!(pools.0[1].counted("turnkv_cluster_second_copy_bytes")? == 120 * PAGE);
    users[1].offload(&Default::default(), &new).await?;
    let kept = users[1].reload_with(&here_only(), &own).await?.pages;
    let copied = users[1].reload_with(&here_only(), &prefix).await.map_or(0, |report| report.pages);
    ensure!(
        kept == own.len(),
        "{kept} pages of its own are left, and {copied} that another pool has as well"
    );
    ensure!(copied < prefix.len(), "everything had room");
    // What went is where it came from, still.
    ensure!(users[0].reload(&prefix).await?.pages == 120);
    Ok(())
}

fn here_only() -> ReloadOptions {
    ReloadOptions { here_only: true, deadline: Some(Duration::from_secs(20)), ..ReloadOptions::default() }
}

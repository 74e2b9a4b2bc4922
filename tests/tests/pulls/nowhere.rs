//! Prompts that are nowhere: members are asked for them once, and again when there may be something.

use crate::support::{Pool, Pools, end, turn, until};
use anyhow::{Result, ensure};
use std::io::Write;
use std::time::{Duration, Instant};
use turnkv_tests::pages::chain;
use turnkv_tests::proxy::Fault;
use turnkv_tests::server::Setup;

/// Longer than an answer is remembered.
const FORGOTTEN: Duration = Duration::from_millis(1_500);

fn questions(pool: &Pool) -> Result<u64> {
    pool.counted("turnkv_cluster_lookup_questions_total")
}

/// Times of calls, for people: half and one in a hundred took longer.
fn tell_times(what: &str, mut times: Vec<Duration>) -> Result<()> {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    writeln!(std::io::stderr(), "{what}: p50 {:?}, p99 {:?}", at(50), at(99))?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_nowhere_is_asked_for_once_a_while() -> Result<()> {
    let pools = Pools::start(3, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let look = async |seed: u64| -> Result<Duration> {
        let began = Instant::now();
        ensure!(users[0].namespace.lookup(&chain(seed, 60)).await? == 0);
        Ok(began.elapsed())
    };
    let (before, mut first, mut again) = (questions(&pools.0[0])?, Vec::new(), Vec::new());
    for seed in 0..100 {
        first.push(look(1_000 + seed).await?);
        again.push(look(1_000 + seed).await?);
    }
    // Two others are asked about each, in one round. A busy machine forgets one in between.
    let asked = questions(&pools.0[0])? - before;
    ensure!((200..=240).contains(&asked), "{asked} questions for 100 prompts, each looked for twice");
    tell_times("not known yet", first)?;
    tell_times("known to be nowhere", again)?;
    // After a while they are asked again.
    look(2_000).await?;
    tokio::time::sleep(FORGOTTEN).await;
    let before = questions(&pools.0[0])?;
    look(2_000).await?;
    ensure!(questions(&pools.0[0])? == before + 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_slow_is_waited_for_once() -> Result<()> {
    let pools = Pools::start(3, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    pools.0[2].fail(Fault::Delay(Duration::from_millis(60)), Fault::None);
    pools.0[2].proxy.cut();
    let (mut first, mut again) = (Vec::new(), Vec::new());
    for seed in 0..20 {
        for times in [&mut first, &mut again] {
            let began = Instant::now();
            ensure!(users[0].namespace.lookup(&chain(3_000 + seed, 60)).await? == 0);
            times.push(began.elapsed());
        }
    }
    let remembered = pools.0[0].counted("turnkv_cluster_lookups_total{by=\"remembered\"}")?;
    ensure!(remembered >= 18, "{remembered} of 20 were remembered");
    tell_times("not known yet, one member is slow", first)?;
    tell_times("known to be nowhere, one member is slow", again)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_heard_of_is_asked_for_again_at_once() -> Result<()> {
    let pools = Pools::start(2, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    for round in 0..10 {
        let hashes = chain(4_000 + round, 70);
        ensure!(users[1].namespace.lookup(&hashes).await? == 0);
        let began = Instant::now();
        turn(&users[0], &format!("s-{round}"), 0, &hashes, 0).await?;
        until("what was computed elsewhere is found", async || {
            Ok(users[1].namespace.lookup(&hashes).await? == 70)
        })
        .await?;
        let again = pools.0[1].counted("turnkv_cluster_lookups_total{by=\"asked\"}")?;
        ensure!(again >= 2, "members were asked {again} times");
        let report = users[1].reload(&hashes).await?;
        ensure!(report.pages == 70, "{report:?}");
        if began.elapsed() < Duration::from_millis(800) {
            return Ok(()); // sooner than the answer before would have been forgotten
        }
    }
    // Whether it was heard of or forgotten cannot be told here; the cache's own tests tell it.
    writeln!(std::io::stderr(), "LEFT OUT: that it was found at once; this machine is too busy to tell")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_was_found_is_no_reason_to_ask_for_the_rest_again() -> Result<()> {
    let pools = Pools::start(2, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(5_000, 90);
    let begun = users[0].namespace.begin_turn_after("part", "", 0).await?;
    end(&users[0], "part", &begun, &hashes[..40]).await?;
    until("all of it is found", async || Ok(users[1].namespace.lookup(&hashes).await? == 40)).await?;
    ensure!(users[1].reload(&hashes[..40]).await?.pages == 40);
    let began = Instant::now();
    let before = questions(&pools.0[1])?;
    ensure!(users[1].namespace.lookup(&hashes).await? == 40);
    let asked = questions(&pools.0[1])? - before;
    ensure!(asked == 0 || began.elapsed() > Duration::from_millis(500), "{asked} questions");
    Ok(())
}

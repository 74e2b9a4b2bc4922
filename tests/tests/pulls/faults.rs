//! What goes wrong while pages are on their way: less is found, never anything else, and nobody waits longer than they said.

use crate::support::{PAGE, Pools, SLACK, end, number, turn, until};
use anyhow::{Result, ensure};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, DataPlane, OffloadOptions, ReloadOptions, ReloadReport};
use turnkv_mutate::Random;
use turnkv_tests::pages::chain;
use turnkv_tests::proxy::Fault;
use turnkv_tests::server::Setup;
use turnkv_tests::user::User;

/// Pages of a session: 12 MiB.
const PAGES: usize = 192;

fn setup() -> Setup {
    Setup { dram_mib: 64, ..Setup::default() }
}

/// A reload within so long, checked byte by byte; whatever it finds, it returns in time.
async fn reload_within(user: &User, wait: Duration, hashes: &[BlockHash]) -> Result<ReloadReport> {
    let options = ReloadOptions { deadline: Some(wait), ..ReloadOptions::default() };
    let began = Instant::now();
    let report = user.reload_with(&options, hashes).await;
    ensure!(began.elapsed() < wait + SLACK, "a reload took {:?}", began.elapsed());
    // No page at all by the deadline is an error of the call, which says so.
    Ok(report.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_slow_home_are_read_while_later_ones_are_on_their_way() -> Result<()> {
    let pools = Pools::start(2, &setup()).await?;
    let users = pools.users().await?;
    let hashes = chain(11, PAGES);
    turn(&users[0], "talk", 0, &hashes, 0).await?;
    // 64 KiB every 10 ms: about two seconds in all.
    pools.0[0].fail(Fault::None, Fault::Slow(PAGE as usize, Duration::from_millis(10)));
    let begun = users[1].namespace.begin_turn_after("talk", "", 1).await?;
    ensure!(begun.afar == PAGES, "{begun:?}");
    let report = reload_within(&users[1], Duration::from_secs(10), &hashes[..1]).await?;
    ensure!(report.pages == 1, "{report:?}");
    ensure!(pools.0[1].pulled()? < PAGES as u64 / 2, "the first page waited for most of the others");
    let report = reload_within(&users[1], Duration::from_secs(20), &hashes).await?;
    ensure!(report.pages == PAGES, "{report:?}");
    // Who would not wait is told what is here, in time.
    let report = reload_within(&users[1], Duration::from_millis(300), &hashes).await?;
    ensure!(report.pages == PAGES, "{report:?}");
    Ok(())
}

/// What a stopped home has is not known: whoever waits for it goes on with a part of their time left, and nobody else waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_home_that_stands_still_costs_a_part_of_one_call() -> Result<()> {
    const CALL: Duration = Duration::from_secs(6);
    const OTHERS: u64 = 10;
    let pools = Pools::start(3, &setup()).await?;
    let users = pools.users().await?;
    let hashes = chain(13, PAGES);
    turn(&users[0], "talk", 0, &hashes, 0).await?;
    for other in 0..OTHERS {
        turn(&users[0], &format!("other-{other}"), 0, &chain(50 + other, 5), 0).await?;
    }
    pools.0[0].fail(Fault::None, Fault::Slow(PAGE as usize, Duration::from_millis(10)));
    let begun = users[1].namespace.begin_turn_after("talk", "", 1).await?;
    ensure!(begun.afar == PAGES, "{begun:?}");
    pools.0[0].server.signal(Signal::STOP)?;
    let mut times = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        let report = reload_within(&users[1], CALL, &hashes).await?;
        ensure!(report.pages < PAGES, "{report:?}");
        times.push(began.elapsed());
    }
    ensure!(times[0] < CALL * 3 / 4 && times[1] + times[2] < CALL / 4, "{times:?}");
    // What it has not given is computed.
    end(&users[1], "talk", &begun, &hashes).await?;
    // Of others that it is home of, one turn waits for it, or a few on a busy machine.
    pools.0[0].server.signal(Signal::CONT)?;
    pools.agree().await?;
    pools.0[0].server.signal(Signal::STOP)?;
    let mut slow = 0;
    for other in 0..OTHERS {
        let began = Instant::now();
        users[1].namespace.begin_turn_after(&format!("other-{other}"), "", 0).await?;
        slow += u64::from(began.elapsed() > Duration::from_millis(250));
    }
    ensure!(slow < 4, "{slow} of {OTHERS} turns waited for it");
    pools.0[0].server.signal(Signal::CONT)?;
    pools.agree().await?;
    // It is asked again once it answers.
    turn(&users[0], "later", 0, &hashes[..20], 0).await?;
    until("it is asked again", async || {
        let begun = users[1].namespace.begin_turn_after("later", "", 1).await?;
        Ok(begun.pages + begun.afar == 20)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_would_not_wait_for_a_slow_home_goes_on_in_time() -> Result<()> {
    let pools = Pools::start(2, &setup()).await?;
    let users = pools.users().await?;
    let hashes = chain(12, PAGES);
    turn(&users[0], "talk", 0, &hashes, 0).await?;
    pools.0[0].fail(Fault::None, Fault::Slow(4 << 10, Duration::from_millis(20)));
    let began = Instant::now();
    let begun = users[1].namespace.begin_turn_after("talk", "", 1).await?;
    ensure!(began.elapsed() < SLACK, "{begun:?} took {:?}", began.elapsed());
    let report = reload_within(&users[1], Duration::from_millis(400), &hashes).await?;
    ensure!(report.pages < PAGES, "{report:?}");
    end(&users[1], "talk", &begun, &hashes).await?;
    Ok(())
}

/// What is on its way is not here yet. A client over a network asks first which pages it need not send.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_computed_while_it_is_on_its_way_is_kept_over_a_network_too() -> Result<()> {
    let mut pools = Pools::start(2, &setup()).await?;
    let users = pools.users().await?;
    let hashes = chain(14, PAGES);
    turn(&users[0], "talk", 0, &hashes, 0).await?;
    pools.0[0].fail(Fault::None, Fault::Slow(4 << 10, Duration::from_millis(20)));
    let far =
        User::connect(&format!("tcp://{}", pools.0[1].proxy.address()), DataPlane::Framed, PAGE).await?;
    let begun = far.namespace.begin_turn_after("talk", "", 1).await?;
    ensure!(begun.afar == PAGES, "{begun:?}");
    let report = far.offload(&OffloadOptions::default(), &hashes).await?;
    ensure!(report.stored + report.present == PAGES, "{report:?}");
    pools.0[0].server.kill()?;
    let report = reload_within(&users[1], Duration::from_secs(10), &hashes).await?;
    ensure!(report.pages == PAGES, "{report:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bit_that_flips_on_the_way_is_never_a_wrong_page() -> Result<()> {
    let pools = Pools::start(2, &setup()).await?;
    let users = pools.users().await?;
    let mut random = Random::new(7);
    for round in 0..6 {
        let (session, hashes) = (format!("talk-{round}"), chain(20 + round, PAGES / 4));
        turn(&users[0], &session, 0, &hashes, 0).await?;
        let bit = random.below(PAGES / 4 * PAGE as usize * 8) as u64;
        pools.0[0].fail(Fault::None, Fault::Flip(bit));
        pools.0[0].proxy.cut();
        let begun = users[1].namespace.begin_turn_after(&session, "", 1).await?;
        let report = reload_within(&users[1], Duration::from_secs(5), &hashes).await?;
        ensure!(report.pages <= hashes.len(), "{report:?}");
        end(&users[1], &session, &begun, &hashes).await?;
        pools.0[0].fail(Fault::None, Fault::None);
        pools.0[0].proxy.cut();
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_home_that_begins_again_is_asked_again() -> Result<()> {
    let mut pools = Pools::start(2, &setup()).await?;
    let hashes = chain(30, PAGES);
    {
        let users = pools.users().await?;
        turn(&users[0], "talk", 0, &hashes, 0).await?;
        users[0].settle().await?;
    }
    pools.0[0].server.terminate()?;
    pools.0[0].server.restart()?;
    pools.agree().await?;
    let users = pools.users().await?;
    // A namespace that is opened brings its sessions back, and these are published.
    until("the session is found at its home's next life", async || {
        let begun = users[1].namespace.begin_turn_after("talk", "", 1).await?;
        ensure!(begun.turn > 1, "{begun:?}");
        let pages = begun.pages + begun.afar;
        Ok(pages == PAGES && reload_within(&users[1], Duration::from_secs(5), &hashes).await?.pages == PAGES)
    })
    .await
}

/// Kills the home, or the pool that pulls, somewhere on the way; the session is computed again where it must be, and found whole at
/// the third pool.
async fn kill_round(round: u64, random: &mut Random) -> Result<()> {
    let mut pools = Pools::start(3, &setup()).await?;
    let users = pools.users().await?;
    let hashes = chain(100 + round, PAGES);
    turn(&users[0], "talk", 0, &hashes, 0).await?;
    pools.0[0].fail(Fault::None, Fault::Slow(PAGE as usize, Duration::from_micros(500)));
    let begun = users[1].namespace.begin_turn_after("talk", "", 1).await?;
    let kills_home = random.below(2) == 0;
    let pause = Duration::from_millis(random.below(120) as u64);
    if kills_home {
        let (report, killed) =
            tokio::join!(reload_within(&users[1], Duration::from_secs(3), &hashes), async {
                tokio::time::sleep(pause).await;
                pools.0[0].server.kill()
            });
        let report = report?;
        killed?;
        ensure!(report.pages <= PAGES, "{report:?}");
        // What did not come is computed.
        end(&users[1], "talk", &begun, &hashes).await?;
    } else {
        tokio::time::sleep(pause).await;
        pools.0[1].server.kill()?;
        pools.0[0].fail(Fault::None, Fault::None);
    }
    let ended = if kills_home { 2 } else { 1 };
    // On a busy machine whoever is asked may not answer in time: that turn would compute, and the next one finds.
    until(&format!("round {round} finds all, home killed: {kills_home}"), async || {
        let began = users[2].namespace.begin_turn_after("talk", "", ended).await?;
        let report = reload_within(&users[2], Duration::from_secs(10), &hashes).await?;
        if report.pages < PAGES {
            return Ok(false);
        }
        end(&users[2], "talk", &began, &hashes).await?;
        Ok(true)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_killed_on_the_way_takes_nothing_with_it_but_its_own() -> Result<()> {
    let mut random = Random::new(number("TURNKV_PULL_SEED", 1)?);
    for round in 0..number("TURNKV_PULL_KILLS", 20)? {
        kill_round(round, &mut random).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_that_are_full_at_both_ends_give_what_they_have() -> Result<()> {
    // More sessions than both have room for together.
    let small = Setup { dram_mib: 16, nvme_mib: 32, segment_mib: 4, ..Setup::default() };
    let pools = Pools::start(2, &small).await?;
    let users = pools.users().await?;
    for round in 0..24_u64 {
        let session = format!("talk-{}", round % 8);
        let (at, hashes) = ((round % 2) as usize, chain(200 + round % 8, 64));
        let begun = users[at].namespace.begin_turn(&session).await?;
        let report = reload_within(&users[at], Duration::from_secs(5), &hashes).await?;
        ensure!(report.pages <= 64, "{begun:?}, {report:?}");
        let options = turnkv_client::OffloadOptions::default();
        users[at].offload(&options, &hashes).await?;
        let ended = turnkv_client::EndTurn { hashes, ..Default::default() };
        users[at].namespace.end_turn(&session, &ended).await?;
    }
    Ok(())
}

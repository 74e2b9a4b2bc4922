//! Routers that ask one member, whichever, of engines on all hosts.

use crate::support::{Pools, end};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use turnkv_client::{EngineState, Route};
use turnkv_tests::pages::chain;
use turnkv_tests::server::Setup;
use turnkv_tests::user::User;

/// What an engine holds is known by eights of pages. Engines by the hosts on which they are.
const ENGINES: [&str; 3] = ["gpu-0", "gpu-1", "gpu-2"];

async fn turn_at(user: &User, engine: &str, session: &str, pages: usize, seed: u64) -> Result<()> {
    let begun = user.namespace.begin_turn_after(session, engine, 0).await?;
    end(user, session, &begun, &chain(seed, pages)).await
}

fn engines() -> [EngineState; 3] {
    ENGINES.map(|name| EngineState { name: name.to_owned(), capacity_pages: 1_000, ..EngineState::default() })
}

fn best(routed: &Route) -> Result<(&str, u64, bool, usize)> {
    let best = routed.choices.first().context("no choice")?;
    Ok((best.name.as_str(), best.held_pages, best.home, routed.pool_pages))
}

#[tokio::test(flavor = "multi_thread")]
async fn any_member_routes_by_what_all_of_them_know() -> Result<()> {
    let pools = Pools::start(3, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    turn_at(&users[0], "gpu-0", "talk", 32, 1).await?;
    for (at, user) in users.iter().enumerate() {
        let by_session = user.namespace.route(Some("talk"), &[], &engines()).await?;
        ensure!(best(&by_session)? == ("gpu-0", 32, true, 32), "at {at}: {by_session:?}");
        let by_pages = user.namespace.route(None, &chain(1, 32), &engines()).await?;
        ensure!(best(&by_pages)? == ("gpu-0", 32, false, 32), "at {at}: {by_pages:?}");
        let longer = user.namespace.route(Some("talk"), &chain(1, 48), &engines()).await?;
        ensure!(best(&longer)? == ("gpu-0", 32, true, 32), "at {at}: {longer:?}");
    }
    // What runs on each host counts for whoever asks elsewhere: a stranger goes where least lives.
    turn_at(&users[1], "gpu-1", "large", 60, 2).await?;
    for (at, user) in users.iter().enumerate() {
        let stranger = user.namespace.route(None, &chain(9, 20), &engines()).await?;
        ensure!(best(&stranger)? == ("gpu-2", 0, false, 0), "at {at}: {stranger:?}");
    }
    // The session's next turn runs on another host: that engine is its home now, for everybody.
    let begun = users[2].namespace.begin_turn_after("talk", "gpu-2", 1).await?;
    users[2].reload(&chain(1, 32)).await?;
    end(&users[2], "talk", &begun, &chain(1, 40)).await?;
    for (at, user) in users.iter().enumerate() {
        let moved = user.namespace.route(Some("talk"), &[], &engines()).await?;
        ensure!(best(&moved)? == ("gpu-2", 40, true, 40), "at {at}: {moved:?}");
    }
    Ok(())
}

/// Where they are too many to ask each of them, signposts say who has a prompt without a session.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_large_cluster_a_prompt_is_found_by_its_signposts() -> Result<()> {
    let pools = Pools::start(17, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    turn_at(&users[0], "gpu-0", "talk", 136, 1).await?;
    let deadline = Instant::now() + Duration::from_secs(20);
    for user in &users[1..] {
        loop {
            let routed = user.namespace.route(None, &chain(1, 144), &engines()).await?;
            if best(&routed)? == ("gpu-0", 136, false, 136) {
                break;
            }
            ensure!(Instant::now() < deadline, "{routed:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

/// A member that stands still costs what it knew, and a short while.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_member_delays_no_route_for_long() -> Result<()> {
    let pools = Pools::start(3, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    turn_at(&users[0], "gpu-0", "talk", 32, 1).await?;
    turn_at(&users[1], "gpu-1", "other", 24, 2).await?;
    pools.0[0].server.signal(Signal::STOP)?;
    for _ in 0..10 {
        let began = Instant::now();
        let routed = users[1].namespace.route(Some("other"), &[], &engines()).await?;
        ensure!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        ensure!(best(&routed)? == ("gpu-1", 24, true, 24), "{routed:?}");
        let lost = users[2].namespace.route(Some("talk"), &[], &engines()).await?;
        ensure!(began.elapsed() < Duration::from_secs(4) && lost.choices.len() == 3, "{lost:?}");
    }
    pools.0[0].server.signal(Signal::CONT)?;
    Ok(())
}

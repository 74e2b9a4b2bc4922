//! Kept memory keeps its order: what was used longest ago leaves first, as if no server had ended, and what was learned of the
//! traffic is known still. `TURNKV_KILLS` sets how many kills come one after the other (3 unless told).

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, EndTurn, OffloadOptions};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 60 << 10;
const PAGES: usize = 6;
/// Chains that DRAM has room for, with a tenth to spare.
const CHAINS: u64 = 80;

fn kills() -> usize {
    std::env::var("TURNKV_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

fn is_hot(seed: u64) -> bool {
    seed.is_multiple_of(4)
}

/// Fills DRAM, uses some of it again, and has new pages come. Which of the old chains are left then.
async fn left_after_pressure(policy: &str, kills: usize) -> Result<Vec<u64>> {
    let top = format!("policy = \"{policy}\"\n");
    let mut server = Server::start(Setup { dram_mib: 32, nvme_mib: 0, keep: true, top, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for seed in 1..=CHAINS {
        let report = user.offload(&OffloadOptions::default(), &chain(seed, PAGES)).await?;
        ensure!(report.stored == PAGES, "{report:?}");
    }
    // In an order that is neither that of their coming nor that of their names.
    for seed in (1..=CHAINS).map(|at| 1 + at * 37 % CHAINS).filter(|seed| is_hot(*seed)) {
        ensure!(user.reload(&chain(seed, PAGES)).await?.pages == PAGES);
    }
    for _ in 0..kills {
        server.kill()?;
        server.restart()?;
    }
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for seed in 1_000..1_000 + CHAINS / 2 {
        let report = user.offload(&OffloadOptions::default(), &chain(seed, PAGES)).await?;
        ensure!(report.stored == PAGES, "{report:?}");
    }
    let mut left = Vec::new();
    for seed in 1..=CHAINS {
        if user.namespace.lookup(&chain(seed, PAGES)).await? > 0 {
            left.push(seed);
        }
    }
    Ok(left)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_kills_the_pages_used_longest_ago_leave_first_as_without_them() -> Result<()> {
    for policy in ["lru", "session"] {
        let (as_ever, killed) =
            (left_after_pressure(policy, 0).await?, left_after_pressure(policy, kills()).await?);
        println!(
            "{policy}: {} of {CHAINS} chains are left without kills, {} after",
            as_ever.len(),
            killed.len()
        );
        for left in [&as_ever, &killed] {
            let hot = left.iter().filter(|seed| is_hot(**seed)).count() as u64;
            ensure!(hot == CHAINS / 4, "{policy}: {hot} of {} hot chains are left: {left:?}", CHAINS / 4);
            ensure!((left.len() as u64) < CHAINS * 7 / 8, "{policy}: too few left to prove anything");
        }
        // And of the others, those that came last.
        let differ = as_ever.iter().filter(|seed| !killed.contains(seed)).count();
        ensure!(differ <= 2, "{policy}: {as_ever:?} without kills, {killed:?} after");
    }
    Ok(())
}

/// The series of the curve on the metrics page.
fn curve(http: SocketAddr) -> Result<Vec<(String, f64)>> {
    let page = get(http, "/metrics")?.1;
    let series = page.lines().filter(|line| line.starts_with("turnkv_curve_hit_ratio{"));
    let names: Vec<String> = series.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect();
    ensure!(!names.is_empty(), "no curve in:\n{page}");
    names.into_iter().map(|name| Ok((name.clone(), value(&page, &name)?))).collect()
}

/// Sessions in turn, each sending all that it has.
async fn turns(user: &User, numbers: std::ops::RangeInclusive<usize>) -> Result<()> {
    for number in numbers {
        for session in 0..12u64 {
            let (name, hashes) = (format!("session-{session}"), chain(session, number * 4));
            user.namespace.begin_turn(&name).await?;
            let found = user.reload(&hashes).await?.pages;
            if found < hashes.len() {
                user.offload(&OffloadOptions::default(), &hashes).await?;
            }
            user.namespace.end_turn(&name, &EndTurn { hashes, ..EndTurn::default() }).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_miss_ratio_curve_and_the_prefill_rate_go_on_after_a_kill() -> Result<()> {
    for nvme_mib in [0, 128] {
        let http = free_address()?;
        let metrics = Some(http.to_string());
        let mut server =
            Server::start(Setup { dram_mib: 32, nvme_mib, keep: true, metrics, ..Setup::default() })?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        turns(&user, 1..=6).await?;
        user.namespace.report_prefill(10_000, Duration::from_secs(5)).await?;
        let before = curve(http)?;
        ensure!(before.iter().any(|(_, ratio)| *ratio > 0.3), "{before:?}");
        // What was learned is saved every two seconds.
        tokio::time::sleep(Duration::from_millis(3_500)).await;
        server.kill()?;
        server.restart()?;
        let after = curve(http)?;
        ensure!(after.len() == before.len(), "{after:?}");
        for ((name, had), (_, has)) in before.iter().zip(&after) {
            ensure!((had - has).abs() < 0.01, "{name} was {had}, is {has}: {}", server.log());
        }
        // It goes on from there: six turns of as many sessions count as the same traffic did.
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        turns(&user, 6..=7).await?;
        let later = curve(http)?;
        ensure!(later.iter().any(|(_, ratio)| *ratio > 0.3), "{later:?}");
        ensure!(!server.log().contains("learning begins anew"), "{}", server.log());
    }
    Ok(())
}

/// Another policy makes nothing of what one had learned, and says so in one line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_policy_had_learned_is_said_to_begin_anew() -> Result<()> {
    let setup = || Setup { dram_mib: 32, nvme_mib: 0, keep: true, ..Setup::default() };
    let mut server = Server::start(setup())?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    turns(&user, 1..=2).await?;
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    server.kill()?;
    server.restart_with(Setup { top: "policy = \"lru\"\n".to_owned(), ..setup() })?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !server.log().contains("learning begins anew") {
        ensure!(Instant::now() < deadline, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // All namespaces, and this one.
    ensure!(server.log().matches("learning begins anew").count() == 2, "{}", server.log());
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let report = user.reload(&chain(3, 8)).await?;
    ensure!((report.pages, report.from_dram) == (8, 8), "{report:?}");
    user.client.stats().await?.tiers.first().context("a DRAM tier")?;
    Ok(())
}

//! A restart does not shrink what fits: what was given up before it stays given up, and who was to leave first still is.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions};
use turnkv_tests::http::{free_address, get_soon, value};
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 60 << 10;
const PAGES: usize = 16;

/// Room for about 600 pages that stay.
fn setup(http: SocketAddr) -> Setup {
    let metrics = Some(http.to_string());
    Setup { metrics, dram_mib: 16, nvme_mib: 64, segment_mib: 4, ..Setup::default() }
}

fn durable(session: Option<String>) -> OffloadOptions {
    OffloadOptions { durable: true, wait: Duration::from_secs(20), session, ..OffloadOptions::default() }
}

async fn store(user: &User, seed: u64) -> Result<Vec<BlockHash>> {
    let hashes = chain(seed, PAGES);
    let report = user.offload(&durable(None), &hashes).await?;
    ensure!(report.durable && report.stored == PAGES, "{report:?}");
    Ok(hashes)
}

async fn turn(user: &User, session: &str, seed: u64) -> Result<Vec<BlockHash>> {
    let hashes = chain(seed, PAGES);
    user.namespace.begin_turn(session).await?;
    let report = user.offload(&durable(Some(session.to_owned())), &hashes).await?;
    ensure!(report.durable && report.stored == PAGES, "{session}: {report:?}");
    user.namespace.end_turn(session, &EndTurn { hashes: hashes.clone(), ..EndTurn::default() }).await?;
    Ok(hashes)
}

async fn present(user: &User, chains: &[Vec<BlockHash>]) -> Result<usize> {
    let mut pages = 0;
    for hashes in chains {
        pages += user.namespace.lookup(hashes).await?;
    }
    Ok(pages)
}

fn gauge(http: SocketAddr, series: &str) -> Result<f64> {
    value(&get_soon(http, "/metrics")?.1, series)
}

/// Waits until all that changed is in the catalog.
async fn saved(http: SocketAddr) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    let mut looks = 0;
    while looks < 5 {
        ensure!(Instant::now() < until, "the catalog is never up to date");
        tokio::time::sleep(Duration::from_millis(200)).await; // two ticks
        let waiting = gauge(http, "turnkv_queue_waiting_operations{queue=\"catalog\"}")?;
        looks = if waiting > 0.0 { 0 } else { looks + 1 };
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_dropped_before_a_kill_does_not_push_out_what_is_needed() -> Result<()> {
    let http = free_address()?;
    let mut server = Server::start(setup(http))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let mut live = Vec::new();
    for round in 0..24u64 {
        live.push(store(&user, round).await?);
        let id = user.client.open_namespace(namespace(&format!("passes {}", round % 3), PAGE)).await?;
        let passing = User { client: user.client.clone(), namespace: id };
        for seed in 0..2 {
            store(&passing, 1000 + round * 2 + seed).await?;
        }
        user.client.evict(Some(passing.namespace.id()), None).await?;
    }
    ensure!(present(&user, &live).await? == 24 * PAGES, "all that is needed fits");
    saved(http).await?;
    server.kill()?;
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await.context("after the kill")?;
    let found = gauge(http, "turnkv_pool_index_pages")?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let evicted = gauge(http, "turnkv_pool_evicted_pages_total")?;
    let left = present(&user, &live).await?;
    ensure!(
        (found, evicted, left) == ((24 * PAGES) as f64, 0.0, 24 * PAGES),
        "found {found}, evicted {evicted} with nobody asking, {left} of {} left\n{}",
        24 * PAGES,
        server.log()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_closed_before_a_restart_make_way_for_those_that_wait() -> Result<()> {
    for clean in [false, true] {
        let http = free_address()?;
        let mut server = Server::start(setup(http))?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        let (mut waiting, mut next) = (Vec::new(), 1000);
        for name in 0..12u64 {
            waiting.push(turn(&user, &format!("waits {name}"), name).await?);
            for _ in 0..2 {
                next += 1;
                turn(&user, &format!("closed {next}"), next).await?;
                user.namespace.close(&format!("closed {next}")).await?;
            }
        }
        saved(http).await?;
        if clean {
            server.terminate()?
        } else {
            server.kill()?
        }
        server.restart()?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await.context("the next life")?;
        let before = present(&user, &waiting).await?;
        for _ in 0..48 {
            next += 1;
            turn(&user, &format!("passes {next}"), next).await?;
            user.namespace.close(&format!("passes {next}")).await?;
        }
        let left = present(&user, &waiting).await?;
        ensure!(before == 12 * PAGES && left == before, "{left} of {before} pages are left, clean: {clean}");
    }
    Ok(())
}

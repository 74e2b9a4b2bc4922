//! What NVMe keeps while far more comes than it has room for: sessions that wait stay, closed ones go, and what was acknowledged as
//! durable and is still served is there after a kill -9 too.

use anyhow::{Context, Result, ensure};
use std::time::Duration;
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions};
use turnkv_proto::wire;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 60 << 10;

/// One durable turn.
async fn turn(user: &User, session: &str, hashes: &[BlockHash]) -> Result<()> {
    let options = OffloadOptions {
        durable: true,
        wait: Duration::from_secs(20),
        session: Some(session.to_owned()),
        ..OffloadOptions::default()
    };
    user.namespace.begin_turn(session).await?;
    let report = user.offload(&options, hashes).await?;
    ensure!(report.durable && report.stored == hashes.len(), "{session}: {report:?}");
    user.namespace.end_turn(session, &EndTurn { hashes: hashes.to_vec(), ..EndTurn::default() }).await?;
    Ok(())
}

async fn present(user: &User, chains: &[Vec<BlockHash>]) -> Result<usize> {
    let mut pages = 0;
    for hashes in chains {
        pages += user.namespace.lookup(hashes).await?;
    }
    Ok(pages)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_stays_and_what_was_acknowledged_is_there_or_counted() -> Result<()> {
    let http = free_address()?;
    let metrics = Some(http.to_string());
    let setup = Setup { metrics, dram_mib: 16, nvme_mib: 64, segment_mib: 4, ..Setup::default() };
    let mut server = Server::start(setup)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let (mut waiting, mut closed) = (Vec::new(), Vec::new());
    // A sixth of the tier waits; six times the tier comes and is closed.
    for name in 0..24 {
        waiting.push(chain(10_000 + name, 8));
        turn(&user, &format!("waits-{name}"), &waiting[name as usize]).await?;
        for other in 0..12 {
            let seed = 20_000 + name * 100 + other;
            let hashes = chain(seed, 24);
            turn(&user, &format!("closed-{seed}"), &hashes).await?;
            user.namespace.close(&format!("closed-{seed}")).await?;
            closed.push(hashes);
        }
        // Some of what waits is served from DRAM.
        let read = user.reload(&waiting[name as usize / 2]).await?;
        ensure!(read.pages == 8, "session {} of {name}: {read:?}", name / 2);
    }
    let waits = present(&user, &waiting).await?;
    ensure!(waits == 24 * 8, "{waits} pages of those who wait are left");
    let all = waits + present(&user, &closed).await?;
    let (_, page) = get(http, "/metrics")?;
    let gone = value(&page, "turnkv_pool_evicted_pages_total")?;
    let stored = 24.0 * (8.0 + 12.0 * 24.0);
    ensure!(stored - gone == all as f64, "{all} of {stored} pages are here, {gone} were evicted");
    ensure!(value(&page, "turnkv_nvme_let_go_pages_total")? == 0.0, "all were acknowledged as durable");
    server.kill()?;
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await.context("after the kill")?;
    // What was evicted in the last second may be found again, where its segment was not emptied yet.
    let left = present(&user, &waiting).await? + present(&user, &closed).await?;
    let gone = value(&get(http, "/metrics")?.1, "turnkv_pool_evicted_pages_total")?;
    ensure!(
        left as f64 + gone >= all as f64,
        "{left} of {all} pages are here after a kill -9, {gone} were evicted"
    );
    Ok(())
}

/// Durable pages are a quarter of the tier, and most of the rest is dead: emptying segments is all that is needed.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_durable_stays_while_most_of_the_tier_is_dead() -> Result<()> {
    const TIER: u64 = 64 << 20;
    const KEEPS: u64 = 16 << 10;
    const PASSES: u64 = 12 << 10;
    let http = free_address()?;
    let metrics = Some(http.to_string());
    let setup = Setup { metrics, dram_mib: 16, nvme_mib: TIER >> 20, segment_mib: 4, ..Setup::default() };
    let server = Server::start(setup)?;
    let keeps = User::connect(&server.address(), DataPlane::Shm, KEEPS).await?;
    let passes = User::connect(&server.address(), DataPlane::Shm, PASSES).await?;
    let channel = tonic::transport::Endpoint::from_shared(server.address())?.connect().await?;
    let mut admin = wire::admin_client::AdminClient::new(channel);
    let wait = Duration::from_secs(20);
    let durable = OffloadOptions { durable: true, wait, ..OffloadOptions::default() };
    let passing = OffloadOptions::default();
    let (mut kept, mut kept_bytes, mut came, mut number) = (Vec::new(), 0, 0, 0);
    while came < 5 * TIER {
        number += 1;
        if number % 4 == 1 {
            let (_, page) = get(http, "/metrics")?;
            let live = value(&page, "turnkv_nvme_live_bytes")? + value(&page, "turnkv_pool_dirty_bytes")?;
            if live > 0.33 * TIER as f64 {
                let namespace = bytes::Bytes::copy_from_slice(&passes.namespace.id().0);
                admin.evict(wire::EvictRequest { namespace, ..Default::default() }).await?;
            }
        }
        let pages = 1 + number % 9;
        if number % 5 < 2 && kept_bytes < TIER / 4 {
            let hashes = chain(50_000 + number, pages as usize);
            let report = keeps.offload(&durable, &hashes).await?;
            if report.durable && report.declined == 0 {
                kept_bytes += pages * KEEPS;
                kept.push(hashes);
            }
            came += pages * KEEPS;
        } else {
            passes.offload(&passing, &chain(90_000 + number, pages as usize)).await?;
            came += pages * PASSES;
        }
    }
    let stored: usize = kept.iter().map(Vec::len).sum();
    let left = present(&keeps, &kept).await?;
    ensure!(kept_bytes > TIER / 5 && left == stored, "{left} of {stored} durable pages are left");
    Ok(())
}

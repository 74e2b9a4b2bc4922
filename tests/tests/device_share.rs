//! Reloads into device memory of more pages than an engine may lease at once, on the host device: what has landed makes room for what
//! follows, in whatever order pages are wanted.

use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use turnkv_client::{
    BlockHash, DataPlane, DeviceOrder, HostOptions, OffloadOptions, ReloadOptions, ReloadReport,
};
use turnkv_tests::gpu::Gpu;
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 96 << 10;
const PIECE: usize = 4 << 10;
/// 37.5 MiB.
const PAGES: usize = 400;
/// Of which an engine may lease half.
const DRAM_MIB: u64 = 32;

/// A pool with these pages, all of them on NVMe and some of them in DRAM, and a device for them.
async fn rig(setup: Setup) -> Result<(Server, User, Gpu, Vec<BlockHash>)> {
    let server = Server::start(setup)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let delays = HostOptions { delay_max: Duration::from_micros(300), seed: 11, ..HostOptions::default() };
    let gpu = Gpu::new(delays, PAGES, PAGE as usize)?;
    let hashes = chain(31, PAGES);
    for some in hashes.chunks(40) {
        let report = user.offload(&OffloadOptions::default(), some).await?;
        ensure!(report.stored == some.len(), "{report:?}");
        user.settle().await?;
    }
    ensure!(user.namespace.lookup(&hashes).await? == PAGES);
    Ok((server, user, gpu, hashes))
}

async fn reload(user: &User, gpu: &Gpu, hashes: &[BlockHash], layers: usize) -> Result<ReloadReport> {
    let order = DeviceOrder { after: Some(gpu.engine), layers };
    let options = ReloadOptions { deadline: Some(Duration::from_secs(30)), ..ReloadOptions::default() };
    let targets = gpu.pages(0, hashes.len(), PIECE)?;
    let reload = user.namespace.reload_device(&gpu.device, &options, hashes, &targets, order).await?;
    for layer in 0..layers.max(1) {
        reload.wait_layer(layer, gpu.engine)?;
    }
    Ok(reload.finished().await?)
}

async fn holds(gpu: &Gpu, hashes: &[BlockHash]) -> Result<()> {
    for (page, hash) in hashes.iter().enumerate() {
        let place = gpu.page(page, PIECE)?;
        ensure!(gpu.get(&place).await? == bytes(hash, PAGE as usize), "WRONG BYTES for page {page}");
        gpu.put(&place, &vec![0; PAGE as usize]).await?;
    }
    Ok(())
}

async fn no_lease(user: &User) -> Result<()> {
    let began = Instant::now();
    while user.client.stats().await?.leases > 0 {
        ensure!(began.elapsed() < Duration::from_secs(10), "leases are held by nobody's call");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_an_engine_may_lease_comes_whole() -> Result<()> {
    let (_server, user, gpu, hashes) = rig(Setup { dram_mib: DRAM_MIB, ..Setup::default() }).await?;
    for layers in [0, 24, 3] {
        let began = Instant::now();
        let report = reload(&user, &gpu, &hashes, layers).await?;
        ensure!((report.pages, report.miss) == (PAGES, None), "in {layers} layers: {report:?}");
        ensure!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        holds(&gpu, &hashes).await?;
        no_lease(&user).await?;
    }
    gpu.check()
}

/// Each wants more than it may have, and all of them together more than there is.
#[tokio::test(flavor = "multi_thread")]
async fn several_at_once_wait_for_one_another_and_come_whole() -> Result<()> {
    let (_server, user, gpu, hashes) = rig(Setup { dram_mib: DRAM_MIB, ..Setup::default() }).await?;
    let reloads = [0, 24, 3].map(|layers| {
        let (user, gpu, hashes) = (&user, &gpu, &hashes);
        async move { reload(user, gpu, hashes, layers).await }
    });
    let [one, two, three] = reloads;
    let (one, two, three) = tokio::try_join!(one, two, three)?;
    for report in [one, two, three] {
        ensure!((report.pages, report.miss) == (PAGES, None), "{report:?}");
    }
    holds(&gpu, &hashes).await?;
    no_lease(&user).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_dropped_while_it_waits_leaves_no_lease() -> Result<()> {
    let (_server, user, gpu, hashes) = rig(Setup { dram_mib: DRAM_MIB, ..Setup::default() }).await?;
    for layers in [0, 24] {
        gpu.control.hold(gpu.engine);
        let waiting = tokio::time::timeout(Duration::from_millis(300), reload(&user, &gpu, &hashes, layers));
        ensure!(waiting.await.is_err(), "its copies wait for the engine, so its leases do");
        gpu.control.let_go();
        no_lease(&user).await?;
        let report = reload(&user, &gpu, &hashes, layers).await?;
        ensure!((report.pages, report.miss) == (PAGES, None), "{report:?}");
        holds(&gpu, &hashes).await?;
    }
    gpu.check()
}

//! Calls on a device that end early: what has been told as failed is neither written nor read any more, so that an engine may
//! give its memory to another request.

use anyhow::{Result, ensure};
use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};
use turnkv_client::{
    BlockHash, DataPlane, DeviceOptions, DeviceOrder, DevicePriority, ErrorKind, GpuPagePool, HostOptions,
    MissCause, OffloadOptions, ReloadOptions,
};
use turnkv_tests::gpu::Gpu;
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 96 << 10;
const PIECE: usize = 4 << 10;
const PAGES: usize = 24;
const DEADLINE: Duration = Duration::from_millis(300);

/// Staging memory that a few pages fill: while its streams are held, a lane's thread waits for room.
fn staged() -> HostOptions {
    let device = DeviceOptions { staging_bytes: 1 << 20, ..DeviceOptions::default() };
    HostOptions { device, registers: false, ..HostOptions::default() }
}

async fn rig(options: HostOptions) -> Result<(Server, User, Gpu)> {
    let server = Server::start(Setup::default())?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    Ok((server, user, Gpu::new(options, 2 * PAGES, PAGE as usize)?))
}

/// The engine's memory as it is now.
async fn look(gpu: &Gpu) -> Result<Vec<Vec<u8>>> {
    let mut pages = Vec::new();
    for page in 0..PAGES {
        pages.push(gpu.get(&gpu.page(page, PIECE)?).await?);
    }
    Ok(pages)
}

async fn quiet(gpu: &Gpu) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while gpu.device.stats().flights > 0 {
        ensure!(Instant::now() < deadline, "copies are under way for ever");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Runs a call whose copies are held up far beyond its deadline. What it wrote must be there when it tells its end.
async fn told<T>(gpu: &Gpu, call: impl Future<Output = T>) -> Result<T> {
    let mut call = pin!(call);
    let early = tokio::time::timeout(3 * DEADLINE, &mut call).await;
    let before = if early.is_ok() { Some(look(gpu).await?) } else { None };
    gpu.control.let_go();
    let (end, before) = match (early, before) {
        (Ok(end), Some(before)) => (end, before),
        _ => (call.await, look(gpu).await?),
    };
    quiet(gpu).await?;
    ensure!(before == look(gpu).await?, "WRONG: bytes landed after the end of the call was told");
    gpu.check()?;
    Ok(end)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_misses_its_deadline_writes_nothing_after_it_has_said_so() -> Result<()> {
    for layers in [0, PAGE as usize / PIECE] {
        let (_server, user, gpu) = rig(staged()).await?;
        let hashes = chain(50, PAGES);
        user.offload(&OffloadOptions::default(), &hashes).await?;
        let targets = gpu.pages(0, PAGES, PIECE)?;
        for page in &targets {
            gpu.put(page, &vec![0xEE; PAGE as usize]).await?;
        }
        gpu.control.hold_priority(DevicePriority::High);
        let options = ReloadOptions { deadline: Some(DEADLINE), ..ReloadOptions::default() };
        let order = DeviceOrder { layers, ..DeviceOrder::default() };
        let reload = user.namespace.reload_device(&gpu.device, &options, &hashes, &targets, order);
        let end = told(&gpu, reload).await?;
        let error = end.err().ok_or_else(|| anyhow::anyhow!("the device was held up"))?;
        ensure!(error.kind == ErrorKind::Device && error.message.contains("deadline"), "{error:?}");
        let last = &look(&gpu).await?[PAGES - 1][PAGE as usize - PIECE..];
        ensure!(last == [0xEE; PIECE], "it went on after its deadline");
        let options = ReloadOptions::default();
        let again = user.namespace.reload_device(&gpu.device, &options, &hashes, &targets, order).await?;
        ensure!(again.finished().await?.pages == PAGES, "the device is well");
        holds(&gpu, &hashes).await?;
        gpu.check()?;
    }
    Ok(())
}

async fn holds(gpu: &Gpu, hashes: &[BlockHash]) -> Result<()> {
    for (page, hash) in hashes.iter().enumerate() {
        let found = gpu.get(&gpu.page(page, PIECE)?).await?;
        ensure!(found == bytes(hash, PAGE as usize), "WRONG BYTES on the device for page {page}");
    }
    Ok(())
}

/// A lane that is busy with others: a reload that has not begun by its deadline never does, and says so at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_waits_behind_others_ends_at_its_deadline() -> Result<()> {
    let (_server, user, gpu) = rig(staged()).await?;
    let hashes = chain(51, PAGES);
    user.offload(&OffloadOptions::default(), &hashes).await?;
    let (targets, others) = (gpu.pages(0, PAGES, PIECE)?, gpu.pages(PAGES, PAGES, PIECE)?);
    for page in &targets {
        gpu.put(page, &vec![0xEE; PAGE as usize]).await?;
    }
    gpu.control.hold_priority(DevicePriority::High);
    let (patient, order) = (ReloadOptions::default(), DeviceOrder::default());
    let mut first = pin!(user.namespace.reload_device(&gpu.device, &patient, &hashes, &others, order));
    ensure!(tokio::time::timeout(DEADLINE, &mut first).await.is_err(), "the device is held up");
    let options = ReloadOptions { deadline: Some(DEADLINE), ..ReloadOptions::default() };
    let begun = Instant::now();
    let late = user.namespace.reload_device(&gpu.device, &options, &hashes, &targets, order).await;
    ensure!(late.is_err() && begun.elapsed() < 10 * DEADLINE, "{:?}", begun.elapsed());
    let before = look(&gpu).await?;
    gpu.control.let_go();
    ensure!(first.await?.finished().await?.pages == PAGES);
    quiet(&gpu).await?;
    ensure!(before == look(&gpu).await?, "WRONG: bytes landed after the error was told");
    gpu.check()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offload_that_misses_its_deadline_reads_nothing_after_it_has_said_so() -> Result<()> {
    let (_server, user, gpu) = rig(staged()).await?;
    let (hashes, pages) = (chain(52, PAGES), gpu.pages(0, PAGES, PIECE)?);
    gpu.control.hold_priority(DevicePriority::Low);
    let options = OffloadOptions { deadline: Some(DEADLINE), ..OffloadOptions::default() };
    let mut offload = pin!(user.namespace.offload_device(&gpu.device, &options, &hashes, &pages, None));
    if let Ok(end) = tokio::time::timeout(3 * DEADLINE, &mut offload).await {
        ensure!(end.is_err());
        // The engine uses its memory for something else: whoever still reads it does so without any order.
        gpu.put(&pages[0], &vec![0xEE; PAGE as usize]).await?;
        gpu.check()?;
    }
    gpu.control.let_go();
    let error = offload.await.err().ok_or_else(|| anyhow::anyhow!("the device was held up"))?;
    ensure!(error.kind == ErrorKind::Device && error.message.contains("deadline"), "{error:?}");
    ensure!(gpu.device.stats().flights == 0, "it is told, and copies go on");
    ensure!(user.namespace.lookup(&hashes).await? == 0, "what was not filled was not committed");
    let again = OffloadOptions::default();
    let report = user.namespace.offload_device(&gpu.device, &again, &hashes, &pages, None).await?;
    ensure!(report.stored == PAGES, "{report:?}");
    gpu.check()
}

/// A call that is dropped while the device reads pages of a GPU page pool: they stay where they are until it is done.
#[tokio::test(flavor = "multi_thread")]
async fn pages_on_their_way_out_stay_when_their_call_is_dropped() -> Result<()> {
    let (_server, user, gpu) = rig(HostOptions::default()).await?;
    let pool = GpuPagePool::new(&gpu.device, PAGE as usize, 8)?;
    let (ours, others) = (chain(54, 8), chain(55, 8));
    ensure!(pool.put(None, &ours, &gpu.pages(0, 8, PIECE)?, None).await? == 8);
    gpu.control.hold_priority(DevicePriority::Low);
    {
        let offload = OffloadOptions::default();
        let call = pool.write_through(&user.namespace, &offload, &ours);
        ensure!(tokio::time::timeout(DEADLINE, call).await.is_err(), "the device was held up");
    }
    ensure!(gpu.device.stats().flights == 1);
    pool.retire(&ours);
    let put = pool.put(None, &others, &gpu.pages(8, 8, PIECE)?, None).await?;
    ensure!(put == 0, "pages that are being read gave way to {put} others");
    gpu.check()?;
    gpu.control.let_go();
    quiet(&gpu).await?;
    ensure!(pool.put(None, &others, &gpu.pages(8, 8, PIECE)?, None).await? == 8, "they are kept for ever");
    gpu.check()
}

/// Windows pile up behind a device that is held up: what was begun before the deadline is told, and the rest is a miss.
#[tokio::test(flavor = "multi_thread")]
async fn windows_that_were_begun_count_and_the_others_are_a_miss() -> Result<()> {
    const SMALL: usize = 4 << 10;
    let server = Server::start(Setup::default())?;
    let user = User::connect(&server.address(), DataPlane::Shm, SMALL as u64).await?;
    let pages = 7 * 1024;
    let gpu = Gpu::new(HostOptions::default(), pages, SMALL)?;
    let hashes = chain(56, pages);
    user.offload(&OffloadOptions::default(), &hashes).await?;
    let targets = gpu.pages(0, pages, SMALL)?;
    gpu.control.hold_priority(DevicePriority::High);
    let options = ReloadOptions { deadline: Some(Duration::from_secs(1)), ..ReloadOptions::default() };
    let order = DeviceOrder::default();
    let reload = user.namespace.reload_device(&gpu.device, &options, &hashes, &targets, order);
    let held = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        gpu.control.let_go();
    };
    let (reload, ()) = tokio::join!(reload, held);
    if let Ok(reload) = reload {
        let begun = reload.pages_begun();
        let report = reload.finished().await?;
        ensure!(report.pages == begun && begun < pages, "{begun} begun, {report:?}");
        ensure!(report.miss == Some(MissCause::Unavailable), "{report:?}");
    }
    ensure!(gpu.device.stats().flights == 0, "it is told, and copies go on");
    gpu.check()
}

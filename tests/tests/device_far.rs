//! Device memory and a pool of another host, on the host device: pages go through host memory that the device and the server reach, in
//! the engine's order, the same bytes as by the CPU forms, and whatever goes wrong costs a miss or a decline.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use turnkv_client::{
    BlockHash, DataPlane, DeviceOrder, DevicePriority, Error, ErrorKind, HostOptions, MissCause,
    OffloadOptions, OffloadReport, Plane, ReloadOptions, ReloadReport, TierKind,
};
use turnkv_tests::counts;
use turnkv_tests::gpu::Gpu;
use turnkv_tests::http::free_address;
use turnkv_tests::mapped::Mapped;
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::proxy::{Fault, Proxy};
use turnkv_tests::secured::{self, Place};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 96 << 10;
const PIECE: usize = 4 << 10;
const SOON: Duration = Duration::from_secs(30);

fn usual() -> HostOptions {
    HostOptions { delay_max: Duration::from_micros(300), seed: 17, ..HostOptions::default() }
}

/// A server with a port.
fn start(setup: Setup) -> Result<(Server, SocketAddr)> {
    let tcp = free_address()?;
    Ok((Server::start(Setup { tcp: Some(tcp.to_string()), ..setup })?, tcp))
}

async fn connect(at: SocketAddr) -> Result<User> {
    User::connect(&format!("tcp://{at}"), DataPlane::Framed, PAGE).await
}

/// Writes the true bytes of pages where the device has them.
async fn put(gpu: &Gpu, page_bytes: usize, first: usize, hashes: &[BlockHash]) -> Result<()> {
    for (page, hash) in (first..).zip(hashes) {
        gpu.put(&gpu.page(page, PIECE)?, &bytes(hash, page_bytes)).await?;
    }
    Ok(())
}

/// Checks these pages, and overwrites them.
async fn holds(gpu: &Gpu, page_bytes: usize, first: usize, hashes: &[BlockHash]) -> Result<()> {
    for (page, hash) in (first..).zip(hashes) {
        let place = gpu.page(page, PIECE)?;
        ensure!(
            gpu.get(&place).await? == bytes(hash, page_bytes),
            "WRONG BYTES on the device for page {page}"
        );
        gpu.put(&place, &vec![0; page_bytes]).await?;
    }
    Ok(())
}

async fn offload(user: &User, gpu: &Gpu, first: usize, hashes: &[BlockHash]) -> Result<OffloadReport> {
    let (options, pages) = (OffloadOptions::default(), gpu.pages(first, hashes.len(), PIECE)?);
    Ok(user.namespace.offload_device(&gpu.device, &options, hashes, &pages, Some(gpu.engine)).await?)
}

async fn reload(
    user: &User,
    gpu: &Gpu,
    first: usize,
    hashes: &[BlockHash],
    layers: usize,
) -> Result<ReloadReport> {
    let order = DeviceOrder { after: Some(gpu.engine), layers };
    let options = ReloadOptions { deadline: Some(SOON), ..ReloadOptions::default() };
    let targets = gpu.pages(first, hashes.len(), PIECE)?;
    let reload = user.namespace.reload_device(&gpu.device, &options, hashes, &targets, order).await?;
    for layer in 0..layers.max(1) {
        reload.wait_layer(layer, gpu.engine)?;
    }
    Ok(reload.finished().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ways_are_the_bytes_of_the_cpu_forms() -> Result<()> {
    for (kernels, registers) in [(true, true), (false, true), (true, false)] {
        let (server, tcp) = start(Setup { dram_mib: 64, ..Setup::default() })?;
        let user = connect(tcp).await?;
        let gpu = Gpu::new(HostOptions { kernels, registers, ..usual() }, 240, PAGE as usize)?;
        // 11 MiB each: some pieces, and asked for what is there before.
        let (ours, theirs) = (chain(1, 120), chain(2, 120));
        put(&gpu, PAGE as usize, 0, &ours).await?;
        let report = offload(&user, &gpu, 0, &ours[..50]).await?;
        ensure!((report.stored, report.declined) == (50, 0), "{report:?}");
        let report = offload(&user, &gpu, 0, &ours).await?;
        ensure!((report.stored, report.present, report.declined) == (70, 50, 0), "{report:?}");
        ensure!(report.plane == Some(Plane::Framed), "{report:?}");
        ensure!(user.reload(&ours).await?.pages == 120, "the CPU form reads what the device gave");
        let local = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        ensure!(local.reload(&ours).await?.pages == 120, "one pool, whichever the door");
        local.offload(&OffloadOptions::default(), &theirs).await?;
        user.settle().await?;
        for (number, layers) in [0, 24, 3].into_iter().enumerate() {
            if number == 1 {
                user.client.evict(None, Some(TierKind::Dram)).await?;
            }
            let report = reload(&user, &gpu, 120, &theirs, layers).await?;
            ensure!(
                (report.pages, report.miss, report.plane) == (120, None, Some(Plane::Framed)),
                "{report:?}"
            );
            ensure!(report.from_nvme == if number == 1 { 120 } else { 0 }, "{report:?}");
            holds(&gpu, PAGE as usize, 120, &theirs).await?;
        }
        let report = reload(&user, &gpu, 0, &[&ours[..], &chain(3, 4)].concat(), 0).await?;
        ensure!((report.pages, report.miss) == (120, Some(MissCause::Absent)), "{report:?}");
        gpu.check()?;
        counts::slots_are_back(&server, SOON).await?;
    }
    Ok(())
}

/// More than a client lends to servers at a time: what has landed is lent again.
#[tokio::test(flavor = "multi_thread")]
async fn more_than_may_be_lent_goes_and_comes_whole() -> Result<()> {
    const LARGE: usize = 1 << 20;
    let (server, tcp) = start(Setup { dram_mib: 700, nvme_mib: 0, ..Setup::default() })?;
    let user = User::connect(&format!("tcp://{tcp}"), DataPlane::Framed, LARGE as u64).await?;
    let gpu = Gpu::new(usual(), 300, LARGE)?;
    let hashes = chain(5, 300);
    put(&gpu, LARGE, 0, &hashes).await?;
    let report = offload(&user, &gpu, 0, &hashes).await?;
    ensure!((report.stored, report.declined) == (300, 0), "{report:?}");
    for layers in [0, 16] {
        let report = reload(&user, &gpu, 0, &hashes, layers).await?;
        ensure!((report.pages, report.miss) == (300, None), "in {layers} layers: {report:?}");
        holds(&gpu, LARGE, 0, &hashes).await?;
    }
    gpu.check()?;
    counts::slots_are_back(&server, SOON).await
}

#[tokio::test(flavor = "multi_thread")]
async fn under_tls_too() -> Result<()> {
    let place = Place::start()?;
    let (engine, page) = (place.engine().await?, secured::PAGE as usize);
    let (gpu, hashes) = (Gpu::new(usual(), 40, page)?, chain(6, 40));
    put(&gpu, page, 0, &hashes).await?;
    ensure!(offload(&engine, &gpu, 0, &hashes).await?.stored == 40);
    ensure!(engine.reload(&hashes).await?.pages == 40, "the CPU form reads what the device gave");
    for layers in [0, 16] {
        ensure!(reload(&engine, &gpu, 0, &hashes, layers).await?.pages == 40);
        holds(&gpu, page, 0, &hashes).await?;
    }
    gpu.check()
}

/// A call that is dropped while the device fills memory for it: that memory is no other call's before the device is done.
#[tokio::test(flavor = "multi_thread")]
async fn memory_that_a_device_still_fills_is_lent_to_nobody() -> Result<()> {
    let (server, tcp) = start(Setup { dram_mib: 64, ..Setup::default() })?;
    let user = connect(tcp).await?;
    let gpu = Gpu::new(usual(), 40, PAGE as usize)?;
    let (dropped, others) = (chain(7, 40), chain(8, 40));
    put(&gpu, PAGE as usize, 0, &dropped).await?;
    gpu.control.hold_priority(DevicePriority::Low);
    let late = tokio::time::timeout(Duration::from_millis(300), offload(&user, &gpu, 0, &dropped)).await;
    ensure!(late.is_err(), "the device was held up");
    ensure!(user.offload(&OffloadOptions::default(), &others).await?.stored == 40);
    let racing = async {
        gpu.control.let_go();
        let (options, wait) = (OffloadOptions::default(), Duration::from_millis(1));
        for seed in 0..40 {
            ensure!(user.offload(&options, &chain(100 + seed, 10)).await?.stored == 10);
            tokio::time::sleep(wait).await;
        }
        Ok(())
    };
    racing.await?;
    ensure!(user.reload(&others).await?.pages == 40, "every byte of what others offloaded meanwhile");
    for seed in 0..40 {
        ensure!(user.reload(&chain(100 + seed, 10)).await?.pages == 10);
    }
    ensure!(user.namespace.lookup(&dropped).await? == 0, "what was not asked for is not there");
    ensure!(offload(&user, &gpu, 0, &dropped).await?.stored == 40, "the device is well");
    gpu.check()?;
    counts::slots_are_back(&server, SOON).await
}

/// A large reload whose engine computes for long: its pages wait in lent memory, and others' calls go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_waits_for_its_engine_leaves_room_to_others() -> Result<()> {
    const LARGE: usize = 1 << 20;
    let (_server, tcp) = start(Setup { dram_mib: 800, nvme_mib: 0, ..Setup::default() })?;
    let user = User::connect(&format!("tcp://{tcp}"), DataPlane::Framed, LARGE as u64).await?;
    let gpu = Gpu::new(usual(), 300, LARGE)?;
    let hashes = chain(16, 300);
    user.offload(&OffloadOptions::default(), &hashes).await?;
    for layers in [0, 16] {
        gpu.control.hold(gpu.engine);
        let waiting = reload(&user, &gpu, 0, &hashes, layers);
        let others = async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            let mut slowest = Duration::ZERO;
            for seed in 0..8 {
                let began = Instant::now();
                let report = user.offload(&OffloadOptions::default(), &chain(500 + seed, 8)).await?;
                ensure!(report.declined == 0, "{report:?}");
                ensure!(user.reload(&chain(500 + seed, 8)).await?.pages == 8);
                slowest = slowest.max(began.elapsed());
            }
            gpu.control.let_go();
            Ok(slowest)
        };
        let (report, slowest) = tokio::try_join!(waiting, others)?;
        ensure!(slowest < Duration::from_secs(5), "others waited for {slowest:?}");
        ensure!((report.pages, report.miss) == (300, None), "in {layers} layers: {report:?}");
        holds(&gpu, LARGE, 0, &hashes).await?;
    }
    gpu.check()
}

/// A call that misses its deadline while the device is held up: what was told as failed is neither read nor written any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_kept_when_nothing_goes_on_any_more() -> Result<()> {
    let (_server, tcp) = start(Setup::default())?;
    let user = connect(tcp).await?;
    let gpu = Gpu::new(usual(), 24, PAGE as usize)?;
    let (hashes, pages) = (chain(9, 24), gpu.pages(0, 24, PIECE)?);
    user.offload(&OffloadOptions::default(), &hashes).await?;
    let quickly = Some(Duration::from_millis(300));
    for priority in [DevicePriority::Low, DevicePriority::High] {
        gpu.control.hold_priority(priority);
        let held = async {
            tokio::time::sleep(Duration::from_millis(900)).await;
            gpu.control.let_go();
        };
        let call = async {
            if priority == DevicePriority::Low {
                let options = OffloadOptions { deadline: quickly, ..OffloadOptions::default() };
                let others = chain(10, 24);
                let call = user.namespace.offload_device(&gpu.device, &options, &others, &pages, None);
                call.await.err()
            } else {
                let options = ReloadOptions { deadline: quickly, ..ReloadOptions::default() };
                let order = DeviceOrder::default();
                let call = user.namespace.reload_device(&gpu.device, &options, &hashes, &pages, order);
                let reload = call.await;
                if let Ok(reload) = reload { reload.finished().await.err() } else { reload.err() }
            }
        };
        let (error, ()) = tokio::join!(call, held);
        let late = |error: &Error| matches!(error.kind, ErrorKind::Device | ErrorKind::Deadline);
        let as_told = error.as_ref().is_none_or(late);
        ensure!(as_told, "{priority:?}: {error:?}");
        ensure!(gpu.device.stats().flights == 0, "it is told, and copies go on");
        gpu.check()?;
    }
    ensure!(reload(&user, &gpu, 0, &hashes, 24).await?.pages == 24, "the device is well");
    holds(&gpu, PAGE as usize, 0, &hashes).await
}

/// One bit turns on a data rail: a page that does not verify is no page, and the next call is served.
#[tokio::test(flavor = "multi_thread")]
async fn a_bit_that_turned_on_the_way_is_a_miss() -> Result<()> {
    let (server, tcp) = start(Setup { dram_mib: 64, nvme_mib: 0, ..Setup::default() })?;
    let gpu = Gpu::new(usual(), 24, PAGE as usize)?;
    let local = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let (there, page_bits) = (chain(11, 12), PAGE * 8);
    local.offload(&OffloadOptions::default(), &there).await?;
    let mut missed = 0;
    for turn in 0..12 {
        let fault = Fault::Flip(turn * page_bits + 70_001 * (turn + 1));
        // The first connection speaks gRPC, the second frames, the third is a data rail.
        let plan = move |number| if number == 2 { (fault, fault) } else { (Fault::None, Fault::None) };
        let proxy = Proxy::to(tcp, plan)?;
        let user = connect(proxy.address()).await?;
        let own = chain(300 + turn, 12);
        put(&gpu, PAGE as usize, 0, &own).await?;
        // The server asks once more for a page that it got damaged.
        drop(offload(&user, &gpu, 0, &own).await);
        if let Ok(report) = reload(&user, &gpu, 12, &there, if turn % 2 == 0 { 0 } else { 24 }).await {
            holds(&gpu, PAGE as usize, 12, &there[..report.pages]).await?;
            missed += usize::from(report.pages < there.len());
        }
        drop(proxy);
        let found = local.namespace.lookup(&own).await?;
        ensure!(local.reload(&own[..found]).await?.pages == found, "every byte of what was taken");
        ensure!(
            local.reload(&there).await?.pages == there.len(),
            "what was damaged on the wire is in the pool"
        );
    }
    ensure!(missed > 0, "no bit turned in a page");
    gpu.check()?;
    counts::slots_are_back(&server, SOON).await
}

/// One bit of a page in the pool's DRAM is another one: the device finds it where it landed, and the server looks at it the next time.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_wrong_in_the_pool_is_a_miss_and_then_gone() -> Result<()> {
    let (server, tcp) = start(Setup { nvme_mib: 0, ..Setup::default() })?;
    let user = connect(tcp).await?;
    let gpu = Gpu::new(usual(), 8, PAGE as usize)?;
    let hashes = chain(12, 8);
    let mapped = Mapped::connect(&server, &user.namespace.id().0, PAGE as usize)?;
    let pages: Vec<Vec<u8>> = hashes.iter().map(|hash| bytes(hash, PAGE as usize)).collect();
    let slots = mapped.offload(&hashes, &pages)?;
    let mut wrong = pages[5].clone();
    wrong[54_321] ^= 0x10;
    slots.get(5).context("a slot")?.claim()?.fill(&wrong);
    let report = reload(&user, &gpu, 0, &hashes, 0).await?;
    ensure!((report.pages, report.miss) == (5, Some(MissCause::Checksum)), "{report:?}");
    let report = reload(&user, &gpu, 0, &hashes, 24).await?;
    ensure!((report.pages, report.miss) == (5, Some(MissCause::Checksum)), "{report:?}");
    holds(&gpu, PAGE as usize, 0, &hashes[..5]).await?;
    let began = Instant::now();
    while user.namespace.lookup(&hashes).await? != 5 {
        ensure!(began.elapsed() < SOON, "the server did not look");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A server that dies, and a network that ends, under calls in both directions.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_or_network_that_ends_costs_pages_and_nothing_else() -> Result<()> {
    let (mut server, tcp) = start(Setup { dram_mib: 128, nvme_mib: 0, ..Setup::default() })?;
    let gpu = Gpu::new(usual(), 480, PAGE as usize)?;
    let (ours, there) = (chain(13, 240), chain(14, 240));
    put(&gpu, PAGE as usize, 0, &ours).await?;
    for round in 0..12 {
        let local = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        ensure!(local.offload(&OffloadOptions::default(), &there).await?.declined == 0);
        let slow = Fault::Slow(1 << 20, Duration::from_millis(1));
        let proxy = Proxy::to(tcp, move |_| (slow, slow))?;
        let user = connect(proxy.address()).await?;
        let layers = if round % 2 == 0 { 0 } else { 24 };
        let calls =
            async { tokio::join!(offload(&user, &gpu, 0, &ours), reload(&user, &gpu, 240, &there, layers)) };
        let ending = async {
            tokio::time::sleep(Duration::from_millis(3 * round)).await;
            if round % 3 == 0 {
                return server.kill();
            }
            proxy.cut();
            Ok(())
        };
        let ((gone, back), ended) = tokio::join!(calls, ending);
        ended?;
        if let Ok(report) = back {
            holds(&gpu, PAGE as usize, 240, &there[..report.pages]).await?;
        }
        drop(gone);
        gpu.check()?;
        if round % 3 == 0 {
            server.restart()?;
        }
        let local = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        let found = local.namespace.lookup(&ours).await?;
        ensure!(local.reload(&ours[..found]).await?.pages == found, "every byte of what was taken");
        local.client.evict(None, None).await?;
    }
    counts::slots_are_back(&server, SOON).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_speaks_no_frames_is_told_of_in_words() -> Result<()> {
    let (_server, tcp) = start(Setup::default())?;
    let user = User::connect(&format!("http://{tcp}"), DataPlane::Inline, PAGE).await?;
    let gpu = Gpu::new(usual(), 2, PAGE as usize)?;
    let pages = chain(15, 2);
    let error = offload(&user, &gpu, 0, &pages).await.err().context("no way for it")?;
    ensure!(error.to_string().contains("speaks frames"), "{error}");
    user.offload(&OffloadOptions::default(), &pages).await?;
    let error = reload(&user, &gpu, 0, &pages, 0).await.err().context("no way for it")?;
    ensure!(error.to_string().contains("speaks frames"), "{error}");
    Ok(())
}

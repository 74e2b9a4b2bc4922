//! Offloads from and reloads into device memory, through a real server, on the host device: the same bytes as the CPU forms, in
//! the engine's order, and whatever goes wrong costs a miss or a decline.

use anyhow::{Context, Result, ensure};
use prost::Message;
use rustix::process::Signal;
use std::time::{Duration, Instant};
use turnkv_client::{
    BlockHash, DataPlane, Decline, DeviceErrorKind, DeviceOptions, DeviceOrder, ErrorKind, GpuPagePool,
    HostOptions, MissCause, OffloadOptions, ReloadOptions, TierKind,
};
use turnkv_proto::wire::{self, Verb};
use turnkv_tests::gpu::Gpu;
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::limits::{STAGING_BYTES_USUAL, TABLE_BYTES};
use turnkv_transfer::{FLAG_MORE, LocalSocket, Region};

const PAGE: u64 = 96 << 10;
const PIECE: usize = 4 << 10;

fn usual() -> HostOptions {
    HostOptions { delay_max: Duration::from_micros(300), seed: 7, ..HostOptions::default() }
}

fn layers(layers: usize) -> DeviceOrder {
    DeviceOrder { layers, ..DeviceOrder::default() }
}

async fn rig(setup: Setup, options: HostOptions, pages: usize) -> Result<(Server, User, Gpu)> {
    let server = Server::start(setup)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    Ok((server, user, Gpu::new(options, pages, PAGE as usize)?))
}

async fn put(gpu: &Gpu, first: usize, hashes: &[BlockHash]) -> Result<()> {
    for (page, hash) in hashes.iter().enumerate() {
        gpu.put(&gpu.page(first + page, PIECE)?, &bytes(hash, PAGE as usize)).await?;
    }
    Ok(())
}

async fn holds(gpu: &Gpu, first: usize, hashes: &[BlockHash]) -> Result<()> {
    for (page, hash) in hashes.iter().enumerate() {
        let found = gpu.get(&gpu.page(first + page, PIECE)?).await?;
        ensure!(found == bytes(hash, PAGE as usize), "WRONG BYTES on the device for page {page}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ways_are_the_bytes_of_the_cpu_forms() -> Result<()> {
    for (kernels, registers) in [(true, true), (false, true), (true, false)] {
        let options = HostOptions { kernels, registers, ..usual() };
        let (_server, user, gpu) = rig(Setup::default(), options, 48).await?;
        let (ours, theirs) = (chain(1, 24), chain(2, 24));
        put(&gpu, 0, &ours).await?;
        let pages = gpu.pages(0, 24, PIECE)?;
        let offload = OffloadOptions::default();
        let report =
            user.namespace.offload_device(&gpu.device, &offload, &ours, &pages, Some(gpu.engine)).await?;
        ensure!((report.stored, report.declined) == (24, 0), "{report:?}");
        ensure!(user.reload(&ours).await?.pages == 24, "the CPU form reads what the device wrote");
        let again = user.namespace.offload_device(&gpu.device, &offload, &ours, &pages, None).await?;
        ensure!((again.stored, again.present) == (0, 24), "{again:?}");
        user.offload(&offload, &theirs).await?;
        user.settle().await?;
        for (number, order) in [layers(0), layers(24), layers(3)].into_iter().enumerate() {
            let targets = gpu.pages(24, 24, PIECE)?;
            if number == 1 {
                user.client.evict(None, Some(TierKind::Dram)).await?;
            }
            let order = DeviceOrder { after: Some(gpu.engine), ..order };
            let options = ReloadOptions::default();
            let reload =
                user.namespace.reload_device(&gpu.device, &options, &theirs, &targets, order).await?;
            ensure!(reload.pages_begun() == 24);
            for layer in 0..order.layers.max(1) {
                reload.wait_layer(layer, gpu.engine)?;
            }
            let report = reload.finished().await?;
            ensure!((report.pages, report.miss) == (24, None), "{report:?}");
            ensure!(report.from_nvme == if number == 1 { 24 } else { 0 }, "{report:?}");
            holds(&gpu, 24, &theirs).await?;
            for page in &targets {
                gpu.put(page, &vec![0; PAGE as usize]).await?;
            }
        }
        gpu.check()?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_past_what_is_there_names_the_miss() -> Result<()> {
    let (_server, user, gpu) = rig(Setup::default(), usual(), 8).await?;
    let hashes = chain(3, 8);
    user.offload(&OffloadOptions::default(), &hashes[..5]).await?;
    for order in [layers(0), layers(24)] {
        let options = ReloadOptions::default();
        let targets = gpu.pages(0, 8, PIECE)?;
        let reload = user.namespace.reload_device(&gpu.device, &options, &hashes, &targets, order).await?;
        ensure!(reload.pages_begun() == 5);
        let report = reload.finished().await?;
        ensure!((report.pages, report.miss) == (5, Some(MissCause::Absent)), "{report:?}");
    }
    let (options, targets) = (ReloadOptions::default(), gpu.pages(0, 8, PIECE)?);
    let bad = user.namespace.reload_device(&gpu.device, &options, &hashes, &targets, layers(7));
    ensure!(bad.await.is_err_and(|error| error.kind == ErrorKind::Invalid), "24 pieces are not 7 layers");
    Ok(())
}

/// Nothing is read from the device before the engine's stream has done what it was given, and no slot is taken meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_slow_holds_up_its_own_pages_only() -> Result<()> {
    let (_server, user, gpu) = rig(Setup::default(), usual(), 8).await?;
    let (slow, quick) = (chain(4, 4), chain(5, 4));
    put(&gpu, 0, &slow).await?;
    put(&gpu, 4, &quick).await?;
    gpu.control.hold(gpu.engine);
    let (slow_pages, quick_pages) = (gpu.pages(0, 4, PIECE)?, gpu.pages(4, 4, PIECE)?);
    let offload = OffloadOptions::default();
    let waiting = user.namespace.offload_device(&gpu.device, &offload, &slow, &slow_pages, Some(gpu.engine));
    let mut waiting = std::pin::pin!(waiting);
    ensure!(
        tokio::time::timeout(Duration::from_millis(150), &mut waiting).await.is_err(),
        "it was not waited for"
    );
    let report = user.namespace.offload_device(&gpu.device, &offload, &quick, &quick_pages, None).await?;
    ensure!(report.stored == 4, "another offload waits behind it: {report:?}");
    ensure!(user.client.stats().await?.leases == 0, "slots are held while the engine computes");
    gpu.control.let_go();
    ensure!(waiting.await?.stored == 4);
    ensure!(user.reload(&slow).await?.pages == 4);
    // The other way: what a stream was given before is done before its pages are overwritten.
    gpu.control.hold(gpu.engine);
    let order = DeviceOrder { after: Some(gpu.engine), layers: 0 };
    let options = ReloadOptions::default();
    let reload = user.namespace.reload_device(&gpu.device, &options, &slow, &quick_pages, order).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    ensure!(!reload.is_done(), "targets are written before the engine is done with them");
    gpu.control.let_go();
    ensure!(reload.finished().await?.pages == 4);
    holds(&gpu, 4, &slow).await?;
    gpu.check()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_ends_its_lease_when_the_device_is_done() -> Result<()> {
    let (_server, user, gpu) = rig(Setup::default(), usual(), 8).await?;
    let (hashes, pages) = (chain(6, 8), gpu.pages(0, 8, PIECE)?);
    put(&gpu, 0, &hashes).await?;
    gpu.control.hold_all();
    {
        let offload = OffloadOptions::default();
        let under_way = user.namespace.offload_device(&gpu.device, &offload, &hashes, &pages, None);
        let under_way = tokio::time::timeout(Duration::from_millis(200), under_way).await;
        ensure!(under_way.is_err(), "the device was held");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stats = user.client.stats().await?;
    ensure!(stats.leases == 1, "the slots are free while the device writes to them: {stats:?}");
    ensure!(gpu.device.stats().flights == 1);
    gpu.control.let_go();
    no_lease(&user).await?;
    ensure!(gpu.device.stats().flights == 0);
    ensure!(user.namespace.lookup(&hashes).await? == 0, "what was abandoned was not committed");
    user.offload(&OffloadOptions::default(), &hashes).await?;
    gpu.control.hold_all();
    let options = ReloadOptions::default();
    drop(user.namespace.reload_device(&gpu.device, &options, &hashes, &pages, layers(24)).await?);
    ensure!(user.client.stats().await?.leases == 1);
    gpu.control.let_go();
    no_lease(&user).await?;
    gpu.check()
}

async fn no_lease(user: &User) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while user.client.stats().await?.leases > 0 {
        ensure!(Instant::now() < deadline, "the lease did not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_breaks_costs_a_call_and_its_slots() -> Result<()> {
    let setup = Setup { limits: "lease_ms = 200\nlease_grace_ms = 100\n".to_owned(), ..Setup::default() };
    let (_server, user, gpu) = rig(setup, usual(), 8).await?;
    let (hashes, pages) = (chain(8, 8), gpu.pages(0, 8, PIECE)?);
    put(&gpu, 0, &hashes).await?;
    gpu.control.hold_all();
    let offload = OffloadOptions::default();
    let under_way = user.namespace.offload_device(&gpu.device, &offload, &hashes, &pages, None);
    let breaking = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        gpu.control.break_device("fell off the bus");
    };
    let (result, ()) = tokio::join!(under_way, breaking);
    let error = result.err().ok_or_else(|| anyhow::anyhow!("the device broke, and the offload did not"))?;
    ensure!(error.kind == ErrorKind::Device && error.message.contains("fell off the bus"), "{error:?}");
    let lost = 8 * PAGE + (TABLE_BYTES + STAGING_BYTES_USUAL / 2) as u64;
    ensure!(gpu.device.stats().quarantined_bytes == lost, "{:?}", gpu.device.stats());
    ensure!(gpu.device.check().is_err_and(|error| error.kind == DeviceErrorKind::Broken));
    tokio::time::sleep(Duration::from_millis(600)).await;
    let stats = user.client.stats().await?;
    ensure!(stats.leases == 1, "slots are given to others that a lost device may write to: {stats:?}");
    let began = Instant::now();
    let refused = user.namespace.offload_device(&gpu.device, &offload, &hashes, &pages, None).await;
    ensure!(
        refused.is_err_and(|error| error.kind == ErrorKind::Device)
            && began.elapsed() < Duration::from_millis(100)
    );
    let options = ReloadOptions::default();
    let refused = user.namespace.reload_device(&gpu.device, &options, &hashes, &pages, layers(0));
    ensure!(refused.await.is_err_and(|error| error.kind == ErrorKind::Device));
    let other = chain(9, 4);
    ensure!(user.offload(&offload, &other).await?.stored == 4, "the pool is well");
    ensure!(user.reload(&other).await?.pages == 4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_during_the_copy_is_a_miss_or_a_decline() -> Result<()> {
    let setup = Setup { limits: "lease_ms = 300\nlease_grace_ms = 100\n".to_owned(), ..Setup::default() };
    let (_server, user, gpu) = rig(setup, usual(), 8).await?;
    let (hashes, pages) = (chain(10, 4), gpu.pages(0, 4, PIECE)?);
    put(&gpu, 0, &hashes).await?;
    let late = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        gpu.control.let_go();
    };
    gpu.control.hold_all();
    let offload = OffloadOptions::default();
    let (report, ()) =
        tokio::join!(user.namespace.offload_device(&gpu.device, &offload, &hashes, &pages, None), late);
    let report = report?;
    ensure!((report.stored, report.first_decline) == (0, Some(Decline::LeaseExpired)), "{report:?}");
    user.offload(&offload, &hashes).await?;
    gpu.control.hold_all();
    let options = ReloadOptions::default();
    let reload = user.namespace.reload_device(&gpu.device, &options, &hashes, &pages, layers(24)).await?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    gpu.control.let_go();
    let report = reload.finished().await?;
    ensure!((report.pages, report.miss) == (0, Some(MissCause::LeaseExpired)), "{report:?}");
    gpu.check()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_or_stops_costs_no_more_than_pages() -> Result<()> {
    let (mut server, user, gpu) = rig(Setup::default(), usual(), 16).await?;
    let (hashes, pages) = (chain(11, 8), gpu.pages(0, 8, PIECE)?);
    let durable = OffloadOptions { durable: true, ..OffloadOptions::default() };
    put(&gpu, 0, &hashes).await?;
    let report = user.namespace.offload_device(&gpu.device, &durable, &hashes, &pages, None).await?;
    ensure!(report.durable, "{report:?}");
    gpu.control.hold_all();
    let targets = gpu.pages(8, 8, PIECE)?;
    let options = ReloadOptions { deadline: Some(Duration::from_secs(2)), ..ReloadOptions::default() };
    let reload = user.namespace.reload_device(&gpu.device, &options, &hashes, &targets, layers(24)).await?;
    server.kill()?;
    gpu.control.let_go();
    let report = reload.finished().await?;
    ensure!(report.pages == 8, "the slabs outlive their server: {report:?}");
    holds(&gpu, 8, &hashes).await?;
    server.restart()?;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let reload = user.namespace.reload_device(&gpu.device, &options, &hashes, &targets, layers(0)).await;
        if let Ok(reload) = reload {
            ensure!(reload.finished().await?.pages == 8, "the new server, the old pages");
            break;
        }
        ensure!(Instant::now() < deadline, "it does not work again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    holds(&gpu, 8, &hashes).await?;
    server.signal(Signal::STOP)?;
    let began = Instant::now();
    let offload = OffloadOptions { deadline: Some(Duration::from_millis(400)), ..OffloadOptions::default() };
    let fresh = chain(12, 8);
    let stopped = user.namespace.offload_device(&gpu.device, &offload, &fresh, &pages, None).await;
    ensure!(stopped.is_err() && began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    server.signal(Signal::CONT)?;
    gpu.check()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_said_at_once() -> Result<()> {
    let (server, user, gpu) = rig(Setup::default(), usual(), 4).await?;
    let (hashes, pages) = (chain(13, 4), gpu.pages(0, 4, PIECE)?);
    let inline = User::connect(&server.address(), DataPlane::Inline, PAGE).await?;
    let offload = OffloadOptions::default();
    let refused = inline.namespace.offload_device(&gpu.device, &offload, &hashes, &pages, None).await;
    ensure!(refused.is_err_and(|error| error.kind == ErrorKind::Invalid && error.message.contains("frames")));
    let few = user.namespace.offload_device(&gpu.device, &offload, &hashes, &pages[..2], None).await;
    ensure!(few.is_err_and(|error| error.kind == ErrorKind::Invalid));
    let device = DeviceOptions { staging_bytes: 1 << 10, ..DeviceOptions::default() };
    let tight = Gpu::new(HostOptions { device, ..usual() }, 1, PAGE as usize);
    ensure!(tight.is_err_and(|error| error.to_string().contains("staging_bytes")));
    let poor = Gpu::new(HostOptions { pinned_bytes: 1 << 20, ..usual() }, 1, PAGE as usize);
    ensure!(poor.is_err_and(|error| error.to_string().contains("pinned memory")));
    let small = Gpu::new(HostOptions { memory_bytes: 1 << 20, ..usual() }, 64, PAGE as usize);
    ensure!(small.is_err_and(|error| error.to_string().contains("are free")));
    Ok(())
}

/// One bit of a page in DRAM is flipped, as by another process that maps the slab: the device finds it where the page landed.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_a_slot_is_a_miss() -> Result<()> {
    for (kernels, order) in [(true, layers(0)), (true, layers(24)), (false, layers(0))] {
        let setup = Setup { nvme_mib: 0, ..Setup::default() };
        let (server, user, gpu) = rig(setup, HostOptions { kernels, ..usual() }, 8).await?;
        let (hashes, pages) = (chain(40, 8), gpu.pages(0, 8, PIECE)?);
        put(&gpu, 0, &hashes).await?;
        let offload = OffloadOptions::default();
        user.namespace.offload_device(&gpu.device, &offload, &hashes, &pages, None).await?;
        flip(&server, &user, &hashes, 5)?;
        let options = ReloadOptions::default();
        let reload = user.namespace.reload_device(&gpu.device, &options, &hashes, &pages, order).await?;
        ensure!(reload.pages_begun() == 8);
        let report = reload.finished().await?;
        ensure!((report.pages, report.miss) == (5, Some(MissCause::Checksum)), "{report:?}");
        holds(&gpu, 0, &hashes[..5]).await?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while user.namespace.lookup(&hashes).await? != 5 {
            ensure!(Instant::now() < deadline, "the pool was not told");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}

/// Maps the slot of a page as a client does, and flips a bit in it.
fn flip(server: &Server, user: &User, hashes: &[BlockHash], page: usize) -> Result<()> {
    let by = || Instant::now() + Duration::from_secs(10);
    let socket = LocalSocket::connect(&server.local_socket(), by())?;
    let ask = |verb: Verb, body: Vec<u8>| {
        socket.send_by(verb as u8, 0, &body, &[], by())?;
        Ok::<_, anyhow::Error>(socket.recv(Some(by()))?)
    };
    let hello = ask(Verb::Hello, wire::HelloRequest { protocol: 1, ..Default::default() }.encode_to_vec())?;
    let client = wire::HelloReply::decode(&hello.body[..])?.client;
    let namespace = bytes::Bytes::copy_from_slice(&user.namespace.id().0);
    let hashes = turnkv_proto::pack_hashes(hashes).into();
    let begin =
        wire::BeginReloadRequest { namespace: namespace.clone(), hashes, client, ..Default::default() };
    let mut slots = Vec::new();
    let mut frame = ask(Verb::BeginReload, begin.encode_to_vec())?;
    loop {
        let reply = wire::BeginReloadReply::decode(&frame.body[..])?;
        slots.extend(reply.pages.into_iter().filter_map(|page| page.slot));
        if frame.flags & FLAG_MORE == 0 {
            break;
        }
        frame = socket.recv(Some(by()))?;
    }
    let slot = slots.get(page).context("the page has a slot")?;
    let attach = wire::AttachSlabRequest { namespace, slab: slot.slab, generation: slot.generation };
    let mut frame = ask(Verb::AttachSlab, attach.encode_to_vec())?;
    let slab_bytes = wire::AttachSlabReply::decode(&frame.body[..])?.slab_bytes;
    let region = Region::from_fd(frame.fd.take().context("a descriptor")?, slab_bytes.try_into()?)?;
    let slot = region.slot(slot.offset.try_into()?, PAGE as usize).context("inside the slab")?;
    let mut bytes = slot.page().to_vec();
    bytes[54_321] ^= 0x10;
    slot.claim()?.fill(&bytes);
    Ok(())
}

/// Pages in device memory above the pool: written through, copied out, pushed out, brought back.
#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_page_pool_is_a_tier_above_the_pool() -> Result<()> {
    let (_server, user, gpu) = rig(Setup::default(), usual(), 16).await?;
    let pool = GpuPagePool::new(&gpu.device, PAGE as usize, 12)?;
    let (ours, others) = (chain(30, 8), chain(31, 8));
    put(&gpu, 0, &ours).await?;
    ensure!(pool.put(None, &ours, &gpu.pages(0, 8, PIECE)?, Some(gpu.engine)).await? == 8);
    let offload = OffloadOptions::default();
    ensure!(pool.write_through(&user.namespace, &offload, &ours).await?.stored == 8);
    ensure!(user.reload(&ours).await?.pages == 8, "the CPU form reads what was written through");
    let order = DeviceOrder { after: Some(gpu.engine), layers: 24 };
    let hit = pool.get(&ours, &gpu.pages(8, 8, PIECE)?, order).await?;
    hit.wait_layer(23, gpu.engine)?;
    ensure!(hit.finished().await? == 8);
    holds(&gpu, 8, &ours).await?;
    user.offload(&offload, &others).await?;
    let reload = ReloadOptions::default();
    let report = pool.fill(&user.namespace, &reload, None, &others).await?;
    ensure!((report.pages, report.miss) == (8, None), "{report:?}");
    ensure!(pool.lookup(&ours) == 4, "the older conversation gave its tail");
    let targets = gpu.pages(8, 8, PIECE)?;
    ensure!(pool.get(&others, &targets, layers(0)).await?.finished().await? == 8);
    holds(&gpu, 8, &others).await?;
    let report = pool.fill(&user.namespace, &reload, None, &ours).await?;
    ensure!(report.pages == 4, "only what is missing is read: {report:?}");
    ensure!(pool.get(&ours, &targets, layers(0)).await?.finished().await? == 8);
    holds(&gpu, 8, &ours).await?;
    let stats = pool.stats();
    ensure!((stats.pages, stats.pinned, stats.evicted) == (12, 0, 8), "{stats:?}");
    gpu.check()
}

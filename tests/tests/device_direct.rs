//! A GPU's pages that NICs read and write themselves, through CUDA's driver with a library in its place that is this machine's memory
//! (`server/transfer/tests/kernels/libcuda.cpp`).
//!
//! What the driver exports and copies is tested where there is a C++ compiler. Whole sessions between a server and a client's GPU are in
//! virtual machines with a software NIC (`tests/rdma/run.sh device`), where `TURNKV_DEVICE_WAY` says how their pages are to go: `direct`;
//! `host`, since that NIC has no dma-bufs by itself; or `broken`, where a NIC knows the memory and cannot get at it.

use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use turnkv_client::{
    BlockHash, DeviceMemoryChoice, DeviceOrder, DeviceWay, Fabric, FabricChoice, FabricConfig, MissCause,
    OffloadOptions, OffloadReport, Plane, ReloadOptions, ReloadReport, TierKind,
};
use turnkv_tests::fabric::{Rig, SOON, connect_with};
use turnkv_tests::gpu::Gpu;
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::server::Setup;
use turnkv_tests::user::User;
use turnkv_transfer::device::{PageSlot, SlotPage};

const PAGE: usize = 96 << 10;
const PIECE: usize = 4 << 10;
/// Set in the process that finds the library.
const INSIDE: &str = "TURNKV_DEVICE_INSIDE";

/// Runs a test once more in a process that finds the library; says so where it cannot be made.
fn with_library(name: &str, settings: &[(&str, &str)], test: impl Future<Output = Result<()>>) -> Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        return tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(test);
    }
    let folder = tempfile::tempdir()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/transfer/tests/kernels/libcuda.cpp");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut build = Command::new(compiler);
    build.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas", "-U_FORTIFY_SOURCE"]);
    let Ok(built) = build.arg(source).arg("-o").arg(folder.path().join("libcuda.so.1")).output() else {
        // Past the harness, which keeps what passing tests print.
        writeln!(std::io::stderr(), "LEFT OUT: device_direct {name}: there is no C++ compiler")?;
        return Ok(());
    };
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").env("LD_LIBRARY_PATH", folder.path());
    command.envs(settings.iter().copied());
    ensure!(command.status()?.success(), "it failed in its own process: see above");
    Ok(())
}

#[test]
fn a_gpus_memory_is_exported_filled_and_drained() -> Result<()> {
    with_library("a_gpus_memory_is_exported_filled_and_drained", &[], async {
        let gpu = Gpu::cuda(8, PAGE)?;
        let hashes = chain(1, 8);
        put(&gpu, 0, &hashes).await?;
        let lent = gpu.device.export(8 * PAGE)?;
        let target = lent.target()?;
        let (nic, offset) = (File::from(target.dma_buf.try_clone()?), target.offset);
        let pages = || -> Result<Vec<SlotPage>> {
            let page = |page: usize| {
                let slot = PageSlot::Device(lent.slot(page * PAGE, PAGE).context("it lies inside")?);
                Ok(SlotPage { slot, plan: gpu.page(page, PIECE)? })
            };
            (0..8).map(page).collect()
        };
        let filled = gpu.device.fill(pages()?, Some(gpu.device.mark(gpu.engine)?))?.landed().await?;
        let theirs = chain(2, 8);
        for (page, hash) in hashes.iter().enumerate() {
            let (expected, mut read) = (bytes(hash, PAGE), vec![0; PAGE]);
            let at = offset + (page * PAGE) as u64;
            nic.read_exact_at(&mut read, at)?;
            ensure!(read == expected && filled.checksums[page] == turnkv_transfer::checksum(&expected));
            nic.write_all_at(&bytes(&theirs[page], PAGE), at)?;
        }
        let drained = gpu.device.drain(pages()?, None, 0, true)?.landed().await?;
        for (page, hash) in theirs.iter().enumerate() {
            let expected = bytes(hash, PAGE);
            ensure!(drained.checksums[page] == turnkv_transfer::checksum(&expected));
            ensure!(gpu.get(&gpu.page(page, PIECE)?).await? == expected, "WRONG BYTES in page {page}");
        }
        Ok(())
    })
}

#[test]
fn a_gpu_without_dma_bufs_says_so() -> Result<()> {
    with_library("a_gpu_without_dma_bufs_says_so", &[("TEST_CUDA_DMA_BUF", "0")], async {
        let refused = Gpu::cuda(1, PAGE)?.device.export(1).err().context("it has none")?;
        ensure!(refused.message.contains("open kernel modules"), "{refused}");
        Ok(())
    })
}

/// How a client's pages are to go in this run; none: not in a machine for that.
fn expected(name: &str, ways: &[&str]) -> Result<Option<String>> {
    let way = std::env::var("TURNKV_DEVICE_WAY").unwrap_or_default();
    if ways.contains(&way.as_str()) {
        return Ok(Some(way));
    }
    writeln!(std::io::stderr(), "LEFT OUT: device_direct {name}: tests/rdma/run.sh device runs it")?;
    Ok(None)
}

async fn connect(rig: &Rig, choice: FabricChoice, device_memory: DeviceMemoryChoice) -> Result<User> {
    let fabric = FabricConfig { choice, device_memory, ..FabricConfig::default() };
    connect_with(&rig.tcp.to_string(), fabric, PAGE as u64).await
}

/// Writes the true bytes of pages where the GPU has them.
async fn put(gpu: &Gpu, first: usize, hashes: &[BlockHash]) -> Result<()> {
    for (page, hash) in (first..).zip(hashes) {
        gpu.put(&gpu.page(page, PIECE)?, &bytes(hash, PAGE)).await?;
    }
    Ok(())
}

/// Checks these pages, and overwrites them.
async fn holds(gpu: &Gpu, first: usize, hashes: &[BlockHash]) -> Result<()> {
    for (page, hash) in (first..).zip(hashes) {
        let place = gpu.page(page, PIECE)?;
        ensure!(gpu.get(&place).await? == bytes(hash, PAGE), "WRONG BYTES on the GPU for page {page}");
        gpu.put(&place, &vec![0; PAGE]).await?;
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
    let (options, pages) = (ReloadOptions::default(), gpu.pages(first, hashes.len(), PIECE)?);
    let order = DeviceOrder { after: Some(gpu.engine), layers };
    let reload = user.namespace.reload_device(&gpu.device, &options, hashes, &pages, order).await?;
    Ok(reload.finished().await?)
}

/// Whole sessions of a GPU over verbs, to the byte: by its own memory, or by the host's where the NIC does not take it.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_go_and_come_back() -> Result<()> {
    let Some(way) = expected("sessions_go_and_come_back", &["direct", "host"])? else { return Ok(()) };
    let rig = Rig::with_nics(Setup { dram_mib: 96, ..Setup::default() })?;
    let user = connect(&rig, FabricChoice::Verbs, DeviceMemoryChoice::Auto).await?;
    let (gpu, count) = (Gpu::cuda(80, PAGE)?, 40);
    let (ours, theirs) = (chain(1, count), chain(2, count));
    put(&gpu, 0, &ours).await?;
    user.offload(&OffloadOptions::default(), &theirs).await?; // by a CPU
    if way == "direct" {
        direct_again(&user, &gpu, count, &theirs).await?;
    }
    let before = gpu.device.stats();
    let report = offload(&user, &gpu, 0, &ours).await?;
    ensure!((report.stored, report.plane) == (count, Some(Plane::Framed)), "{report:?}");
    ensure!(user.reload(&ours).await?.pages == count, "a CPU reads what the GPU gave");
    holds(&gpu, 0, &ours).await?;
    for layers in [0, 24] {
        let report = reload(&user, &gpu, 0, &ours, layers).await?;
        ensure!((report.pages, report.miss) == (count, None), "in {layers} layers: {report:?}");
        holds(&gpu, 0, &ours).await?;
        let report = reload(&user, &gpu, count, &theirs, layers).await?;
        ensure!((report.pages, report.miss) == (count, None), "in {layers} layers: {report:?}");
        holds(&gpu, count, &theirs).await?;
    }
    user.settle().await?;
    user.client.evict(None, Some(TierKind::Dram)).await?;
    let report = reload(&user, &gpu, 0, &[&ours[..], &chain(3, 4)].concat(), 0).await?;
    ensure!((report.pages, report.miss) == (count, Some(MissCause::Absent)), "{report:?}");
    ensure!(report.from_nvme == count, "{report:?}");
    holds(&gpu, 0, &ours).await?;
    let (state, lent) = (user.client.state(), gpu.device.stats().lent_bytes - before.lent_bytes);
    match (way.as_str(), &state.device_way) {
        ("direct", Some(DeviceWay::Direct)) => {
            ensure!(lent == (6 * count * PAGE) as u64, "{lent} bytes went through lent memory of the GPU");
        }
        ("host", Some(DeviceWay::ThroughHost(why))) => {
            ensure!(why.contains("rxe0") && why.contains("memory of this kind"), "{why}");
            ensure!(lent == 0, "{lent}");
        }
        _ => bail!("{way}: {state:?}"),
    }
    ensure!(state.fabric == Some(Fabric::Verbs), "{state:?}");
    ensure!(rig.moved(Fabric::Verbs, "read")? == (2 * count * PAGE) as f64);
    ensure!(rig.moved(Fabric::Framed, "read")? + rig.moved(Fabric::Framed, "written")? == 0.0);
    rig.slots_are_back().await?;
    // Turned off, it is not tried.
    let user = connect(&rig, FabricChoice::Verbs, DeviceMemoryChoice::Host).await?;
    ensure!(reload(&user, &gpu, 0, &ours, 0).await?.pages == count);
    holds(&gpu, 0, &ours).await?;
    let off = DeviceWay::ThroughHost("device_memory is \"host\"".to_owned());
    ensure!(user.client.state().device_way == Some(off), "{:?}", user.client.state());
    Ok(())
}

/// Reloads pages until they go directly. No call waits long for memory of the device; and where a call was dropped its rail ends, and
/// others go by the host's memory for a while.
async fn direct_again(user: &User, gpu: &Gpu, first: usize, hashes: &[BlockHash]) -> Result<()> {
    let began = Instant::now();
    loop {
        let report = reload(user, gpu, first, hashes, 0).await?;
        holds(gpu, first, &hashes[..report.pages]).await?;
        if user.client.state().device_way == Some(DeviceWay::Direct) {
            return Ok(());
        }
        ensure!(began.elapsed() < 2 * SOON, "{:?}", user.client.state());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Calls that are dropped at any moment: what was lent is taken back from the NIC, and no other call's page is touched.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_calls_leave_others_pages_alone() -> Result<()> {
    let Some(_) = expected("dropped_calls_leave_others_pages_alone", &["direct"])? else { return Ok(()) };
    let rig = Rig::with_nics(Setup { dram_mib: 96, nvme_mib: 0, ..Setup::default() })?;
    let user = connect(&rig, FabricChoice::Auto, DeviceMemoryChoice::Auto).await?;
    let gpu = Gpu::cuda(60, PAGE)?;
    let (ours, theirs) = (chain(4, 20), chain(5, 20));
    put(&gpu, 0, &ours).await?;
    ensure!(offload(&user, &gpu, 0, &ours).await?.stored == 20);
    for turn in 0..6u64 {
        direct_again(&user, &gpu, 0, &ours).await?;
        let fresh = chain(100 + turn, 20);
        put(&gpu, 40, &fresh).await?;
        let calls =
            async { tokio::join!(offload(&user, &gpu, 40, &fresh), reload(&user, &gpu, 20, &ours, 0)) };
        drop(tokio::time::timeout(Duration::from_millis(12 * turn), calls).await);
        ensure!(user.offload(&OffloadOptions::default(), &theirs).await?.declined == 0);
        let kept = user.namespace.lookup(&fresh).await?;
        ensure!(user.reload(&fresh[..kept]).await?.pages == kept, "every byte of what was taken");
        ensure!(user.reload(&theirs).await?.pages == 20);
        let began = Instant::now();
        while gpu.device.stats().flights > 0 {
            ensure!(began.elapsed() < SOON, "copies do not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    direct_again(&user, &gpu, 0, &ours).await?;
    rig.slots_are_back().await
}

/// A NIC that knows the memory and fails in each transfer: calls go on by the host's memory, over whatever rail there is.
#[tokio::test(flavor = "multi_thread")]
async fn a_nic_that_cannot_get_at_the_memory_costs_a_try() -> Result<()> {
    let name = "a_nic_that_cannot_get_at_the_memory_costs_a_try";
    let Some(_) = expected(name, &["broken"])? else { return Ok(()) };
    let rig = Rig::with_nics(Setup { dram_mib: 96, nvme_mib: 0, ..Setup::default() })?;
    let user = connect(&rig, FabricChoice::Auto, DeviceMemoryChoice::Auto).await?;
    let (gpu, began) = (Gpu::cuda(40, PAGE)?, Instant::now());
    let failed = |user: &User| {
        let way = user.client.state().device_way;
        matches!(way, Some(DeviceWay::ThroughHost(why)) if why.contains("failed a moment ago"))
    };
    // Both ways find out by themselves: an offload, and a reload of what a CPU offloaded.
    for (turn, seed) in [(0, 10), (1, 30)] {
        let mut tried = false;
        for seed in seed..seed + 20 {
            let hashes = chain(seed, 20);
            if turn == 0 {
                put(&gpu, 0, &hashes).await?;
                let report = offload(&user, &gpu, 0, &hashes).await?;
                ensure!(report.stored == 20, "the call's own retry goes by the host's memory: {report:?}");
            } else {
                ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.stored == 20);
            }
            let report = reload(&user, &gpu, 20, &hashes, 0).await?;
            ensure!((report.pages, report.miss) == (20, None), "{report:?}");
            holds(&gpu, 20, &hashes).await?;
            tried |= failed(&user);
            if tried && !failed(&user) {
                break;
            }
            ensure!(began.elapsed() < 2 * SOON, "{:?}", user.client.state());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        ensure!(tried, "it was never tried: {:?}", user.client.state());
    }
    rig.slots_are_back().await
}

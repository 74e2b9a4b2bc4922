//! What a client does to its slots after the commit, what a disk that is smaller than it was promised does to writes, and what
//! a process out of descriptors does to the tier: nothing of it makes a wrong page durable, or a good one lost.

use anyhow::{Context, Result, ensure};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions, TierKind};
use turnkv_proto::wire::NotDurable;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::mapped::Mapped;
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 64 << 10;
const CORRUPT: &str = "turnkv_pool_corrupt_pages_total";

fn metrics() -> Result<(Option<String>, std::net::SocketAddr)> {
    let address = free_address()?;
    Ok((Some(address.to_string()), address))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_its_client_wrote_to_after_the_commit_is_never_durable() -> Result<()> {
    let (metrics, http) = metrics()?;
    // Pages are written only when somebody insists: the client has time to write to them first.
    let nvme = "admit = \"reused\"\n".to_owned();
    let mut server = Server::start(Setup { metrics, nvme, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let mapped = Mapped::connect(&server, &user.namespace.id().0, PAGE as usize)?;
    let (good, bad) = (chain(1, 4), chain(2, 4));
    for hashes in [&good, &bad] {
        let pages: Vec<Vec<u8>> = hashes.iter().map(|hash| bytes(hash, PAGE as usize)).collect();
        let slots = mapped.offload(hashes, &pages)?;
        if hashes == &bad {
            slots[2].claim()?.fill_at(100, &[0xAA; 8]);
        }
    }
    let kept = mapped.make_durable(&good)?;
    ensure!(kept.durable && kept.not_durable() == NotDurable::Unspecified, "{kept:?}");
    let lost = mapped.make_durable(&bad)?;
    ensure!(!lost.durable && lost.not_durable() == NotDurable::Changed, "{lost:?}");
    let (_, page) = get(http, "/metrics")?;
    ensure!(value(&page, &format!("{CORRUPT}{{found=\"write\"}}"))? == 1.0, "it is counted");
    ensure!(user.reload(&good).await?.pages == 4);
    ensure!(user.reload(&bad).await?.pages == 2, "a miss, and what hung on it");
    server.kill()?;
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    ensure!(user.reload(&good).await?.pages == 4 && user.reload(&bad).await?.pages == 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_verify_always_a_page_that_changed_in_memory_is_a_miss_before_it_is_read() -> Result<()> {
    for (verify, found) in [("tiers", "reader"), ("always", "dram")] {
        let (metrics, http) = metrics()?;
        let top = format!("verify = \"{verify}\"\n");
        let server = Server::start(Setup { metrics, top, nvme_mib: 0, ..Setup::default() })?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        let mapped = Mapped::connect(&server, &user.namespace.id().0, PAGE as usize)?;
        let hashes = chain(1, 6);
        let pages: Vec<Vec<u8>> = hashes.iter().map(|hash| bytes(hash, PAGE as usize)).collect();
        let slots = mapped.offload(&hashes, &pages)?;
        ensure!(user.reload(&hashes).await?.pages == 6);
        slots[3].claim()?.fill_at(0, &[0xAA; 8]);
        let report = user.reload(&hashes).await?;
        ensure!(report.pages == 3, "{verify}: {report:?}");
        counted(http, &format!("{CORRUPT}{{found=\"{found}\"}}")).await.context(verify)?;
        ensure!(user.namespace.lookup(&hashes).await? == 3, "{verify}: it is dropped");
    }
    Ok(())
}

/// Waits until one page is counted: a reader tells of what it found after it has answered.
async fn counted(http: std::net::SocketAddr, series: &str) -> Result<()> {
    let began = Instant::now();
    while value(&get(http, "/metrics")?.1, series)? != 1.0 {
        ensure!(began.elapsed() < Duration::from_secs(10), "{series} is not 1");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A tier on a file system of 64 MiB, where this machine lets a test mount one.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_smaller_than_promised_stalls_nobody() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64m", "turnkv-test"])
        .arg(folder.path())
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: this machine does not let a test mount a file system (small_disk.rs of the tier runs everywhere)"
        );
        return Ok(());
    }
    let outcome = on_small_disk(folder.path()).await;
    let unmounted = std::process::Command::new("umount").arg("--lazy").arg(folder.path()).status();
    outcome?;
    ensure!(unmounted?.success());
    Ok(())
}

async fn on_small_disk(folder: &std::path::Path) -> Result<()> {
    let (metrics, http) = metrics()?;
    let setup = Setup {
        metrics,
        dram_mib: 16,
        nvme_mib: 256,
        segment_mib: 8,
        nvme_dir: Some(folder.join("nvme")),
        ..Setup::default()
    };
    let mut server = Server::start(setup)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let options =
        OffloadOptions { durable: true, wait: Duration::from_secs(10), ..OffloadOptions::default() };
    let mut slowest = Duration::ZERO;
    for round in 0..2 {
        // Three times what the disk has room for.
        for seed in 0..96 {
            let began = Instant::now();
            let report = user.offload(&options, &chain(1_000 * round + seed, 32)).await?;
            slowest = slowest.max(began.elapsed());
            ensure!(
                report.durable && report.stored == 32,
                "round {round}, {seed}: {report:?}\n{}",
                server.log()
            );
        }
        let (_, page) = get(http, "/metrics")?;
        ensure!(value(&page, "turnkv_nvme_full_devices")? == 1.0);
        let capacity = value(&page, "turnkv_tier_capacity_bytes{tier=\"nvme\"}")?;
        ensure!(capacity < f64::from(64 << 20), "the gauge says what there is: {capacity}");
        server.terminate()?;
        server.restart()?; // the next round begins on a disk without a free byte
    }
    ensure!(slowest < Duration::from_secs(15), "the slowest offload took {slowest:?}");
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    ensure!(user.reload(&chain(1_095, 32)).await?.pages == 32, "what came last is there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_use_up_descriptors_do_not_reach_the_tier() -> Result<()> {
    let tcp = free_address()?;
    let (metrics, http) = metrics()?;
    let setup = Setup { tcp: Some(tcp.to_string()), metrics, files_max: Some(512), ..Setup::default() };
    let server = Server::start(setup)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, 16)).await?;
    let mut idle = Vec::new();
    for _ in 0..600 {
        idle.push(TcpStream::connect_timeout(&tcp, Duration::from_secs(5)));
    }
    // More than one segment after another, with no descriptor to be had.
    let options = OffloadOptions { wait: Duration::from_secs(10), ..OffloadOptions::default() };
    for seed in 10..50 {
        let report = user.offload(&options, &chain(seed, 32)).await?;
        ensure!(report.stored == 32, "{seed}: {report:?}\n{}", server.log());
    }
    user.settle().await?;
    drop(idle);
    let deadline = Instant::now() + Duration::from_secs(20);
    let page = loop {
        match get(http, "/metrics") {
            Ok((200, page)) => break page,
            other => ensure!(Instant::now() < deadline, "the metrics door stays shut: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    ensure!(value(&page, "turnkv_nvme_poisoned_devices")? == 0.0, "{}", server.log());
    user.client.evict(None, Some(TierKind::Dram)).await?;
    for seed in 10..50 {
        let report = user.reload(&chain(seed, 32)).await?;
        ensure!(report.pages == 32, "{seed}: {report:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lower_capacity_is_reached_while_pages_are_served() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nvme_dir = Some(folder.path().join("nvme"));
    let (metrics, http) = metrics()?;
    let large = Setup { dram_mib: 16, nvme_mib: 256, nvme_dir: nvme_dir.clone(), ..Setup::default() };
    let mut server = Server::start(large)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let options = OffloadOptions { wait: Duration::from_secs(10), ..OffloadOptions::default() };
    for seed in 0..88 {
        user.offload(&options, &chain(seed, 32)).await?;
    }
    user.settle().await?;
    server.terminate()?;
    let small = Setup { dram_mib: 16, nvme_mib: 128, nvme_dir, metrics, ..Setup::default() };
    let server = Server::start(small)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let surplus = || -> Result<f64> { value(&get(http, "/metrics")?.1, "turnkv_nvme_surplus_segments") };
    let deadline = Instant::now() + Duration::from_secs(90);
    while surplus()? > 0.0 {
        ensure!(Instant::now() < deadline, "{} segments are left\n{}", surplus()?, server.log());
        user.reload(&chain(87, 32)).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut on_disk = 0;
    for entry in std::fs::read_dir(folder.path().join("nvme"))? {
        let entry = entry?;
        if entry.file_name().to_str().context("a name")?.starts_with("segment-") {
            on_disk += entry.metadata()?.len();
        }
    }
    ensure!(on_disk <= 128 << 20, "{on_disk} bytes of segments");
    let mut whole = 0;
    for seed in 0..88 {
        whole += usize::from(user.reload(&chain(seed, 32)).await?.pages == 32);
    }
    ensure!(whole >= 30, "{whole} of 88 chains are left in half the space");
    ensure!(user.reload(&chain(87, 32)).await?.pages == 32, "the newest");
    Ok(())
}

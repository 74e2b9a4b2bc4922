//! A dead, stopped, full or cut pool costs an engine a bounded time and a miss or a decline; the next turn works after
//! recovery. A dead client costs the pool nothing.

use anyhow::{Result, ensure};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use turnkv_client::{Client, ClientConfig, DataPlane, OffloadOptions, ReloadOptions};
use turnkv_tests::child::Running;
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 128 << 10;
const DEADLINE: Duration = Duration::from_millis(400);
/// The deadline, and what a busy machine may add to it.
const PATIENCE: Duration = Duration::from_millis(1_500);

fn offload_options() -> OffloadOptions {
    OffloadOptions { deadline: Some(DEADLINE), ..OffloadOptions::default() }
}

fn reload_options() -> ReloadOptions {
    ReloadOptions { deadline: Some(DEADLINE), ..ReloadOptions::default() }
}

/// Both verbs return in time, whatever they say; a reload that says "here" is checked byte by byte.
async fn both_verbs_return(user: &User, seed: u64) -> Result<()> {
    let began = Instant::now();
    match user.offload(&offload_options(), &chain(seed, 8)).await {
        Ok(report) => ensure!(report.stored + report.present + report.declined == 8),
        Err(error) => ensure!(!error.to_string().is_empty()),
    }
    ensure!(began.elapsed() < PATIENCE, "offload took {:?}", began.elapsed());
    let began = Instant::now();
    if let Err(error) = user.reload_with(&reload_options(), &chain(1, 8)).await {
        ensure!(!error.to_string().contains("WRONG"), "{error}");
    }
    ensure!(began.elapsed() < PATIENCE, "reload took {:?}", began.elapsed());
    Ok(())
}

async fn works_again(user: &User, seed: u64) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let stored =
            user.offload(&offload_options(), &chain(seed, 8)).await.is_ok_and(|report| report.declined == 0);
        if stored
            && user
                .reload_with(&reload_options(), &chain(seed, 8))
                .await
                .is_ok_and(|report| report.pages == 8)
        {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the pool does not work again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_costs_its_deadline_and_no_more() -> Result<()> {
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let server = Server::start(Setup::default())?;
        let user = User::connect(&server.address(), plane, PAGE).await?;
        user.offload(&offload_options(), &chain(1, 8)).await?;
        server.signal(Signal::STOP)?;
        for seed in 10..16 {
            both_verbs_return(&user, seed).await?;
        }
        server.signal(Signal::CONT)?;
        works_again(&user, 20).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_stopped_mid_call_costs_no_more_either() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&offload_options(), &chain(1, 8)).await?;
    for moment in 0..20u64 {
        let stop = async {
            tokio::time::sleep(Duration::from_micros(moment * 150)).await;
            server.signal(Signal::STOP)
        };
        let (verbs, stopped) = tokio::join!(both_verbs_return(&user, 100 + moment), stop);
        stopped?;
        verbs?;
        server.signal(Signal::CONT)?;
        works_again(&user, 200 + moment).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_a_miss_and_its_successor_serves() -> Result<()> {
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let mut server = Server::start(Setup::default())?;
        let user = User::connect(&server.address(), plane, PAGE).await?;
        let durable = OffloadOptions { durable: true, ..OffloadOptions::default() };
        ensure!(user.offload(&durable, &chain(1, 8)).await?.durable);
        server.kill()?;
        for seed in 10..16 {
            both_verbs_return(&user, seed).await?;
        }
        server.restart()?;
        works_again(&user, 20).await?;
        ensure!(
            user.reload(&chain(1, 8)).await?.pages == 8,
            "the same client, the new server, the old pages"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_socket_and_a_pool_that_never_was() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&offload_options(), &chain(1, 8)).await?;
    std::fs::remove_file(server.socket())?;
    std::fs::remove_file(server.local_socket())?;
    both_verbs_return(&user, 2).await?; // open connections may go on: either is right
    let nobody = Client::new(ClientConfig::at("unix:/nonexistent/turnkv.sock"))?;
    let began = Instant::now();
    ensure!(nobody.open_namespace(namespace("m", PAGE)).await.is_err());
    ensure!(began.elapsed() < PATIENCE);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_full_of_leases_declines_and_recovers() -> Result<()> {
    let limits = "client_slots_percent = 100\nlease_ms = 1500\nlease_grace_ms = 200\n".to_owned();
    let server = Server::start(Setup { dram_mib: 16, nvme_mib: 64, limits, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let mut leases = Vec::new();
    for seed in 0..40 {
        let hashes = chain(seed, 8);
        user.offload(&OffloadOptions { wait: Duration::from_millis(200), ..offload_options() }, &hashes)
            .await?;
        if let Ok(lease) = user.namespace.lease(&reload_options(), &hashes).await {
            leases.push(lease);
        }
    }
    let began = Instant::now();
    let report = user.offload(&offload_options(), &chain(1_000, 64)).await?;
    ensure!(report.declined > 0, "memory is full of leases: {report:?}");
    ensure!(began.elapsed() < PATIENCE);
    ensure!(user.client.stats().await?.declined_pages > 0, "declines are counted");
    // Nobody ends these leases: time does (they are readers').
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    works_again(&user, 2_000).await?;
    drop(leases);
    works_again(&user, 2_001).await
}

/// A full disk: the tier gets less than it was promised. Needs a file system of its own, so root.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_back_pressure_not_an_error() -> Result<()> {
    let Some(disk) = SmallDisk::mount(24)? else {
        println!("not root: a full disk cannot be made here");
        return Ok(());
    };
    let setup =
        Setup { nvme_mib: 64, segment_mib: 4, nvme_dir: Some(disk.path().join("nvme")), ..Setup::default() };
    let server = Server::start(setup)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let (mut stored, mut served) = (0, 0);
    for seed in 0..80 {
        if let Ok(report) = user.offload(&offload_options(), &chain(seed, 8)).await {
            stored += report.stored;
        }
        served += user.reload_with(&reload_options(), &chain(seed, 8)).await.map_or(0, |report| report.pages);
    }
    ensure!(stored > 100 && served > 100, "stored {stored}, served {served}\n{}", server.log());
    works_again(&user, 5_000).await
}

/// A small file system in a file, mounted for one test.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(mib: u64) -> Result<Option<SmallDisk>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let dir = tempfile::tempdir()?;
        let target = dir.path().join("disk");
        std::fs::create_dir(&target)?;
        let size = format!("size={mib}m");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&target)
            .status()?;
        Ok(mounted.success().then_some(SmallDisk { dir }))
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("disk")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazy: the server that uses it may still be on its way out.
        drop(std::process::Command::new("umount").arg("-l").arg(self.path()).status());
    }
}

/// A client killed in the middle of an offload: its slots come back, nothing half-written is visible.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_client_leaves_nothing_behind() -> Result<()> {
    let server = Server::start(Setup { dram_mib: 16, nvme_mib: 64, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let before = user.client.stats().await?;
    for victim in 0..10u64 {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_victim"));
        let mut child = Running::start(command.args([server.address(), (900 + victim).to_string()]))?;
        tokio::time::sleep(Duration::from_millis(60 + victim * 35)).await;
        child.kill()?;
        child.wait()?;
        // What is visible verifies (the reload checks), and is a prefix.
        user.reload(&chain(900 + victim, 64)).await?;
    }
    for _ in 0..100 {
        let stats = user.client.stats().await?;
        if stats.leases == before.leases && stats.quarantined_bytes == 0 {
            return works_again(&user, 3_000).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    anyhow::bail!("the dead clients' leases are still held: {:?}", user.client.stats().await?)
}

//! Kept memory that changes its size when its server is killed: every acknowledged page is served afterwards, and memory is what
//! gauges and the kernel say. `TURNKV_KILLS` sets how many kills (20 unless told), `TURNKV_RESIZE_MIB` the smaller size (48 unless
//! told, 255 at most, as slabs have 4 MiB up to there); the larger one is four times that.

use anyhow::{Result, ensure};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::process::slab_bytes;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 128 << 10;
const PAGES: usize = 8;
/// Chains of one writer in one life of the server, at most: NVMe has room for all of them.
const CHAINS_A_LIFE: u64 = 24;

fn from_env(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// What writers were told, in all lives.
#[derive(Default)]
struct Told {
    stop: AtomicBool,
    life: AtomicU64,
    stored: Mutex<Vec<u64>>,
}

impl Told {
    fn stored(&self) -> Result<MutexGuard<'_, Vec<u64>>> {
        self.stored.lock().map_err(|_| anyhow::anyhow!("poisoned"))
    }
}

/// Offloads chains and reads some back through all lives of the server. Only wrong bytes are an error.
async fn write(address: String, writer: u64, told: Arc<Told>) -> Result<()> {
    let user = User::connect(&address, DataPlane::Shm, PAGE).await?;
    let options = OffloadOptions { wait: Duration::from_secs(2), ..OffloadOptions::default() };
    let (mut life, mut at) = (0, 0);
    while !told.stop.load(Ordering::Relaxed) {
        let now = told.life.load(Ordering::Relaxed);
        (life, at) = if now == life { (life, at + 1) } else { (now, 0) };
        let seed = 1 + writer * 1_000_000 + life * 1_000 + at.min(CHAINS_A_LIFE - 1);
        if at < CHAINS_A_LIFE
            && user.offload(&options, &chain(seed, PAGES)).await.is_ok_and(|report| report.stored == PAGES)
        {
            told.stored()?.push(seed);
        }
        match user.reload(&chain(seed, PAGES)).await {
            Err(error) if error.to_string().contains("WRONG BYTES") => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_moment_of_a_resize_loses_nothing_that_was_acknowledged() -> Result<()> {
    let (kills, mib, http) =
        (from_env("TURNKV_KILLS", 20), from_env("TURNKV_RESIZE_MIB", 48), free_address()?);
    let written_mib = (kills + 1) * 2 * CHAINS_A_LIFE * PAGES as u64 * PAGE / MIB;
    let metrics = Some(http.to_string());
    let mut server = Server::start(Setup {
        dram_mib: mib,
        nvme_mib: written_mib * 2 + 256,
        keep: true,
        metrics,
        ..Setup::default()
    })?;
    let told = Arc::new(Told::default());
    let writers: Vec<_> =
        (0..2u64).map(|writer| tokio::spawn(write(server.address(), writer, Arc::clone(&told)))).collect();
    let mut dice = 0x9E37_79B9_7F4A_7C15u64;
    for kill in 0..kills {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Up and down by turns; each start is to have the smaller size, whatever it finds.
        for size in if kill % 2 == 0 { vec![4 * mib] } else { vec![4 * mib, mib / 2, 3 * mib] } {
            let mut resize = Command::new(server_binary()?);
            resize.args([
                "resize",
                "--address",
                &server.address(),
                "--dram",
                &format!("{size}MiB"),
                "--wait-s",
                "1",
            ]);
            let mut resize = resize.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            tokio::time::sleep(Duration::from_micros(2_000 + (dice >> 33) % 60_000)).await;
            drop(resize.kill());
            resize.wait()?;
        }
        server.kill()?;
        told.life.fetch_add(1, Ordering::Relaxed);
        server.restart()?;
        ensure!(!server.log().contains("begins cold"), "kill {kill}: {}", server.log());
        let stored: Vec<u64> = told.stored()?.clone();
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        let every = stored.len() / 16 + 1;
        for seed in stored.iter().rev().take(24).chain(stored.iter().step_by(every)) {
            let report = user.reload(&chain(*seed, PAGES)).await?; // checks every byte
            ensure!(
                report.pages == PAGES,
                "kill {kill}: chain {seed} was acknowledged: {report:?}\n{}",
                server.log()
            );
        }
    }
    told.stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await??;
    }
    has_its_size(&server, http, mib).await?;
    let stored: Vec<u64> = told.stored()?.clone();
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for seed in &stored {
        let report = user.reload(&chain(*seed, PAGES)).await?;
        ensure!(report.pages == PAGES, "chain {seed} was acknowledged: {report:?}\n{}", server.log());
    }
    let stats = user.client.stats().await?;
    ensure!(stats.corrupt_pages == 0, "{} pages did not verify", stats.corrupt_pages);
    ensure!(stored.len() as u64 >= kills, "only {} chains were acknowledged", stored.len());
    println!("{kills} kills, {} chains of {PAGES} pages, all served", stored.len());
    Ok(())
}

/// Memory becomes what the file says; then gauges, the kernel, and what is kept agree.
async fn has_its_size(server: &Server, http: std::net::SocketAddr, mib: u64) -> Result<()> {
    let gauge = |name: &str| -> Result<u64> { Ok(value(&get(http, "/metrics")?.1, name)? as u64) };
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let has = (
            gauge("turnkv_dram_present_bytes")?,
            slab_bytes(server.pid())?,
            gauge("turnkv_dram_wanted_bytes")?,
            gauge("turnkv_dram_leaving_slabs")?,
        );
        if has == (mib * MIB, mib * MIB, mib * MIB, 0) {
            break;
        }
        ensure!(Instant::now() < deadline, "{has:?} for {mib} MiB\n{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Every slab, the table, and three listening sockets at least.
    let slabs = mib / 4;
    let kept = gauge("turnkv_keep_kept_descriptors")?;
    ensure!((slabs + 1..slabs + 8).contains(&kept), "{kept} descriptors are kept of {slabs} slabs");
    Ok(())
}

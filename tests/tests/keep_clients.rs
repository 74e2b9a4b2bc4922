//! Clients that live through a server's end: what they were writing then is in quarantine until they say that they do not any
//! more, and free as soon as they do. `TURNKV_KILLS` sets how many kills (20 unless told).

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::child::Running;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 60 << 10;
const PAGES: usize = 6;
/// Of the frozen client: a slab has more of these than end with a chain, so that it has pages beside what is being written.
const LARGE: u64 = 256 << 10;
const MANY: usize = 56;

fn setup(dram_mib: u64) -> Setup {
    // What comes is taken, however often its place was given to others.
    Setup { dram_mib, nvme_mib: 0, keep: true, top: "policy = \"lru\"\n".to_owned(), ..Setup::default() }
}

/// Waits until so many bytes are in quarantine, or any.
async fn quarantined(user: &User, server: &Server, wanted: u64) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let stats = user.client.stats().await?;
        if stats.quarantined_bytes == wanted {
            return Ok(());
        }
        let bytes = stats.quarantined_bytes;
        ensure!(Instant::now() < deadline, "{bytes} bytes in quarantine, not {wanted}: {}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_live_through_kills_leave_nothing_in_quarantine() -> Result<()> {
    let kills = std::env::var("TURNKV_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20u64);
    let mut server = Server::start(setup(32))?;
    let users = [
        User::connect(&server.address(), DataPlane::Shm, PAGE).await?,
        User::connect(&server.address(), DataPlane::Shm, PAGE).await?,
    ]
    .map(Arc::new);
    let (stop, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..4u64)
        .map(|writer| {
            let user = Arc::clone(&users[writer as usize % 2]);
            tokio::spawn(write(user, writer << 32 | 1, Arc::clone(&stop), Arc::clone(&stored)))
        })
        .collect();
    for kill in 0..kills {
        tokio::time::sleep(Duration::from_micros(20_000 + kill * 7_919 % 60_000)).await;
        server.kill()?;
        server.restart()?;
        // All of them are with the new server before it is killed in its turn.
        let (before, deadline) = (stored.load(Ordering::Relaxed), Instant::now() + Duration::from_secs(30));
        while stored.load(Ordering::Relaxed) < before + 8 {
            ensure!(Instant::now() < deadline, "kill {kill}: nobody goes on\n{}", server.log());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await??;
    }
    // One that has not seen the others' calls fail: its breaker is closed.
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    quarantined(&user, &server, 0).await?;
    user.client.evict(None, None).await?;
    let stats = user.client.stats().await?;
    let dram = stats.tiers.first().context("a DRAM tier")?;
    ensure!((dram.used_bytes, dram.leased_bytes) == (0, 0), "slots are lost: {dram:?}\n{}", server.log());
    ensure!(stats.corrupt_pages == 0, "{} pages did not verify", stats.corrupt_pages);
    println!("{kills} kills, {} chains", stored.load(Ordering::Relaxed));
    Ok(())
}

/// Offloads chains and reads them back, whatever becomes of the server. Only wrong bytes are an error.
async fn write(user: Arc<User>, first: u64, stop: Arc<AtomicBool>, stored: Arc<AtomicU64>) -> Result<()> {
    for seed in first.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let options = OffloadOptions { wait: Duration::from_secs(1), ..Default::default() };
        let kept = user.offload(&options, &chain(seed, PAGES)).await.map_or(0, |report| report.stored);
        stored.fetch_add(u64::from(kept == PAGES), Ordering::Relaxed);
        match user.reload(&chain(seed, PAGES)).await {
            Err(error) if error.to_string().contains("WRONG BYTES") => return Err(error),
            // Its breaker may be open: what fails at once leaves time for others.
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            Ok(_) => {}
        }
    }
    Ok(())
}

struct Steady {
    process: Running,
    pid: Pid,
}

impl Steady {
    fn start(server: &Server, seed: u64) -> Result<Steady> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_victim"));
        let process = Running::start(command.args([&server.address(), &seed.to_string(), "steady"]))?;
        let pid = Pid::from_raw(process.id().try_into()?).context("pid 0")?;
        Ok(Steady { process, pid })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.pid, signal)?)
    }

    /// Freezes it while it copies, and has the server end and come again. Returns what is in quarantine then.
    async fn freeze_in_a_copy(&self, server: &mut Server) -> Result<(User, u64)> {
        for attempt in 0..60 {
            tokio::time::sleep(Duration::from_millis(20 + attempt * 7)).await;
            self.signal(Signal::STOP)?;
            server.kill()?;
            server.restart()?;
            let user = User::connect(&server.address(), DataPlane::Shm, LARGE).await?;
            let bytes = user.client.stats().await?.quarantined_bytes;
            if bytes > 0 {
                return Ok((user, bytes));
            }
            self.signal(Signal::CONT)?;
        }
        anyhow::bail!("it was never in a copy: {}", server.log())
    }
}

/// Everything else of DRAM is given to others, and none of it is wrong; what it may still write is not.
async fn others_are_served(user: &User, server: &Server, bytes: u64, first: u64) -> Result<()> {
    for seed in first..first + 8 {
        let hashes = chain(seed, MANY);
        let report = user.offload(&OffloadOptions::default(), &hashes).await?;
        ensure!(report.stored == MANY, "{report:?}");
        ensure!(user.reload(&hashes).await?.pages == MANY);
    }
    quarantined(user, server, bytes).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_frozen_in_a_copy_keeps_its_slots_until_it_goes_on_or_is_gone() -> Result<()> {
    let mut server = Server::start(setup(96))?;
    let mut steady = Steady::start(&server, 1)?;
    let (user, bytes) = steady.freeze_in_a_copy(&mut server).await?;
    others_are_served(&user, &server, bytes, 1_000).await?;
    // Also over another end of the server.
    server.kill()?;
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Shm, LARGE).await?;
    others_are_served(&user, &server, bytes, 2_000).await?;
    // It goes on: it ends the copy, into memory that is still its own, and says so to the server that is there now.
    steady.signal(Signal::CONT)?;
    quarantined(&user, &server, 0).await?;
    for seed in (2_004..2_008).chain(1..9) {
        user.reload(&chain(seed, MANY)).await?; // checks every byte of what is there
    }
    let (user, bytes) = steady.freeze_in_a_copy(&mut server).await?;
    others_are_served(&user, &server, bytes, 3_000).await?;
    steady.process.kill()?;
    steady.process.wait()?;
    quarantined(&user, &server, 0).await?;
    let stats = user.client.stats().await?;
    ensure!(stats.corrupt_pages == 0, "{} pages did not verify", stats.corrupt_pages);
    Ok(())
}

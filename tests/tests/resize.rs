//! A server whose page memory grows and shrinks while it serves: what was acknowledged stays, nobody waits longer than they said,
//! the gauges say what the kernel says, and what cannot leave is told. `TURNKV_RESIZE_MIB` sets the smaller size (64 unless
//! told); the larger one is four times that.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_proto::wire;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::local::Local;
use turnkv_tests::pages::chain;
use turnkv_tests::process::slab_bytes;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;
use wire::Verb;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 256 << 10;
/// Pages of a chain that one call offloads.
const PAGES: usize = 8;
/// What an offload may wait for slots.
const WAIT: Duration = Duration::from_secs(5);
/// Beyond that: the copies, the answer, and two busy cores.
const SLACK: Duration = Duration::from_secs(5);

fn smaller_mib() -> u64 {
    std::env::var("TURNKV_RESIZE_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(64)
}

fn command(server: &Server, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(server_binary()?);
    command.arg("resize").args(["--address", &server.address()]).args(arguments);
    Ok(command)
}

fn resize(server: &Server, arguments: &[&str]) -> Result<Output> {
    Ok(command(server, arguments)?.output()?)
}

/// The last line that was printed.
fn last(output: &Output) -> Result<serde_json::Value> {
    let text = String::from_utf8(output.stdout.clone())?;
    Ok(serde_json::from_str(text.lines().last().with_context(|| format!("nothing printed: {output:?}"))?)?)
}

fn gauge(http: SocketAddr, name: &str) -> Result<u64> {
    Ok(value(&get(http, "/metrics")?.1, name)? as u64)
}

/// What several writers did.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    /// Bytes that may still be written: NVMe has room for all of it.
    budget: AtomicU64,
    declined: AtomicU64,
    slowest_us: AtomicU64,
}

/// Offloads chains, reads them and older ones back, until it is stopped. The seeds of those that were acknowledged.
async fn write(address: String, first: u64, load: Arc<Load>) -> Result<Vec<u64>> {
    let user = User::connect(&address, DataPlane::Shm, PAGE).await?;
    let mut kept = Vec::new();
    let options = OffloadOptions { wait: WAIT, ..OffloadOptions::default() };
    let mut seed = first;
    while !load.stop.load(Ordering::Relaxed) {
        let bytes = PAGES as u64 * PAGE;
        let spend = |left: u64| left.checked_sub(bytes);
        if load.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok() {
            seed += 1;
            let began = Instant::now();
            let report = user.offload(&options, &chain(seed, PAGES)).await?;
            load.slowest_us.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            load.declined.fetch_add(report.declined as u64, Ordering::Relaxed);
            if report.stored == PAGES {
                kept.push(seed);
            }
        }
        for seed in
            kept.iter().rev().take(1).chain(kept.iter().skip((seed as usize * 7) % kept.len().max(1)).take(1))
        {
            let found = user.reload(&chain(*seed, PAGES)).await?;
            ensure!(found.pages == PAGES, "chain {seed} was acknowledged and is lost: {found:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(kept)
}

/// Resizes by the command; while it runs, the gauge and the kernel say the same but for the slab that comes or goes at that moment.
async fn resize_and_compare(server: &Server, http: SocketAddr, mib: u64, slab: u64) -> Result<()> {
    let size = format!("{mib}MiB");
    let mut running =
        command(server, &["--dram", &size, "--json"])?.stdout(std::process::Stdio::piped()).spawn()?;
    let deadline = Instant::now() + Duration::from_secs(300);
    while running.try_wait()?.is_none() {
        ensure!(Instant::now() < deadline, "to {size} takes too long\n{}", server.log());
        let before = gauge(http, "turnkv_dram_present_bytes")?;
        let kernel = slab_bytes(server.pid())?;
        let after = gauge(http, "turnkv_dram_present_bytes")?;
        let (low, high) = (before.min(after), before.max(after));
        ensure!(
            kernel + 2 * slab >= low && kernel <= high + 2 * slab,
            "{low} to {high}, the kernel says {kernel}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let output = running.wait_with_output()?;
    ensure!(output.status.success(), "{output:?}\n{}", server.log());
    let said = last(&output)?;
    ensure!(said["done"] == true && said["present_bytes"] == mib * MIB, "{said}");
    // The ring lets go of a slab on its own thread.
    let deadline = Instant::now() + Duration::from_secs(5);
    while slab_bytes(server.pid())? != mib * MIB {
        ensure!(Instant::now() < deadline, "the kernel says {} after {size}", slab_bytes(server.pid())?);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for name in
        ["turnkv_dram_present_bytes", "turnkv_dram_wanted_bytes", "turnkv_tier_capacity_bytes{tier=\"dram\"}"]
    {
        ensure!(gauge(http, name)? == mib * MIB, "{name} after {size}: {}", gauge(http, name)?);
    }
    ensure!(gauge(http, "turnkv_dram_leaving_slabs")? == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_while_memory_grows_and_shrinks_under_load() -> Result<()> {
    for keep in [false, true] {
        println!("{}", grow_and_shrink_under_load(keep).await?);
    }
    Ok(())
}

async fn grow_and_shrink_under_load(keep: bool) -> Result<String> {
    let (http, mib) = (free_address()?, smaller_mib());
    let server = Server::start(Setup {
        dram_mib: mib,
        nvme_mib: 12 * mib,
        segment_mib: 16,
        keep,
        metrics: Some(http.to_string()),
        ..Setup::default()
    })?;
    let slab = (mib * MIB / 64).clamp(4 * MIB, 1 << 30);
    let load = Arc::new(Load { budget: AtomicU64::new(6 * mib * MIB), ..Load::default() });
    let writers: Vec<_> = (0..3u64)
        .map(|writer| tokio::spawn(write(server.address(), 1_000_000 * (writer + 1), Arc::clone(&load))))
        .collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    for size in [4 * mib, mib, 2 * mib, mib / 2] {
        resize_and_compare(&server, http, size, slab).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    load.stop.store(true, Ordering::Relaxed);
    let mut kept = Vec::new();
    for writer in writers {
        kept.extend(writer.await??);
    }
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for seed in &kept {
        let found = user.reload(&chain(*seed, PAGES)).await?; // checks every byte
        ensure!(
            found.pages == PAGES,
            "chain {seed} of {} was acknowledged and is lost: {found:?}",
            kept.len()
        );
    }
    let slowest = Duration::from_micros(load.slowest_us.load(Ordering::Relaxed));
    ensure!(slowest < WAIT + SLACK, "an offload that may wait {WAIT:?} took {slowest:?}");
    ensure!(kept.len() >= 16, "too few chains to prove anything: {}", kept.len());
    Ok(format!(
        "{mib} MiB, kept: {keep}: {} chains of {PAGES} pages acknowledged and all served, slowest offload {slowest:?}, {} pages declined",
        kept.len(),
        load.declined.load(Ordering::Relaxed)
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_mapped_is_said_and_leaves_when_that_ends() -> Result<()> {
    let server = Server::start(Setup { dram_mib: 64, nvme_mib: 0, ..Setup::default() })?;
    let local = Local::connect(&server, PAGE).await?;
    let (mut held, mut slots) = (Vec::new(), 0);
    while slots < 96 {
        let reply: wire::ReserveReply = local.ask(Verb::Reserve, &local.reserve(16, 0))?;
        ensure!(local.renew(reply.lease)?.refused.is_empty() && !reply.slots.is_empty(), "{slots} are held");
        slots += reply.slots.len();
        held.push(reply);
    }
    // More is mapped than the new size has room for.
    let output = resize(&server, &["--dram", "16MiB", "--json", "--wait-s", "2"])?;
    let (said, error) = (last(&output)?, String::from_utf8_lossy(&output.stderr).into_owned());
    ensure!(!output.status.success() && error.contains("the server goes on"), "{output:?}");
    ensure!(said["done"] == false && said["leased_bytes"].as_u64() > Some(0), "{said}");
    ensure!(said["note"].as_str().is_some_and(|note| note.contains("are leased")), "{said}");
    ensure!(said["present_bytes"].as_u64() < Some(64 * MIB), "what is not mapped has left: {said}");
    for reply in &held {
        let positions = (reply.first..reply.first + reply.slots.len() as u32).collect();
        let release =
            wire::ReleaseRequest { lease: reply.lease, client: local.client, positions, corrupt: vec![] };
        local.tell(Verb::Release, &release)?;
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let said = last(&resize(&server, &["--json"])?)?;
        if said["done"] == true {
            ensure!(said["present_bytes"] == 16 * MIB && said["note"] == "", "{said}");
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "it does not finish: {said}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_refused_and_the_latest_wish_counts() -> Result<()> {
    let server = Server::start(Setup { dram_mib: 64, nvme_mib: 0, ..Setup::default() })?;
    for (size, why) in
        [("1MiB", "is not within"), ("900TiB", "is not within"), ("250GiB", "available"), ("much", "size")]
    {
        let output = resize(&server, &["--dram", size])?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && error.contains(why), "{size}: {output:?}");
    }
    ensure!(slab_bytes(server.pid())? == 64 * MIB, "nothing changed");
    let first = command(&server, &["--dram", "512MiB"])?.stdout(std::process::Stdio::piped()).spawn()?;
    tokio::time::sleep(Duration::from_millis(30)).await;
    let output = resize(&server, &["--dram", "96MiB", "--json"])?;
    ensure!(output.status.success() && last(&output)?["present_bytes"] == 96 * MIB, "{output:?}");
    drop(first.wait_with_output()?); // it was done already, or says that somebody asked for another size
    ensure!(slab_bytes(server.pid())? == 96 * MIB, "{}", slab_bytes(server.pid())?);
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.go_and_come_back(&chain(3, 40)).await
}

/// The server reads this as its configuration, and says something that it had not said.
fn hang_up(server: &Server, path: &Path, text: &str, said: &str) -> Result<()> {
    let before = server.log().matches(said).count();
    std::fs::write(path, text)?;
    server.signal(rustix::process::Signal::HUP)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.log().matches(said).count() == before {
        ensure!(Instant::now() < deadline, "not said: {said}\n{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_has_the_file_read_again() -> Result<()> {
    let server = Server::start(Setup { dram_mib: 64, nvme_mib: 64, segment_mib: 4, ..Setup::default() })?;
    let path = server.socket().with_file_name("turnkv.toml");
    let good = std::fs::read_to_string(&path)?;
    let hang_up = |text: &str, said: &str| hang_up(&server, &path, text, said);
    hang_up("listen = [broken", "nothing changes")?;
    ensure!(slab_bytes(server.pid())? == 64 * MIB);
    let other = good.replace("64MiB\"\nlock", "128MiB\"\nlock");
    hang_up(&format!("policy = \"lru\"\n{other}"), "the configuration file is in force")?;
    ensure!(server.log().contains("key=\"policy\""), "what takes a restart is named: {}", server.log());
    let deadline = Instant::now() + Duration::from_secs(20);
    while slab_bytes(server.pid())? != 128 * MIB {
        ensure!(Instant::now() < deadline, "{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let notes = user.client.stats().await?.notes;
    ensure!(notes.iter().any(|note| note.contains("take a restart: policy")), "{notes:?}");
    user.go_and_come_back(&chain(3, 40)).await
}

/// Memory that is kept changes its size as any does, and a start takes over what is kept whatever the file says by then.
#[tokio::test(flavor = "multi_thread")]
async fn memory_that_is_kept_is_resized_too_and_a_start_has_it_as_the_file_says() -> Result<()> {
    let mut server = Server::start(Setup { dram_mib: 32, nvme_mib: 0, keep: true, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, 60)).await?;
    let path = server.socket().with_file_name("turnkv.toml");
    let other = std::fs::read_to_string(&path)?.replace("32MiB\"\nlock", "1GiB\"\nlock");
    hang_up(&server, &path, &other, "page memory has its size")?;
    ensure!(slab_bytes(server.pid())? == 1024 * MIB);
    for seed in 2..40 {
        user.offload(&OffloadOptions::default(), &chain(seed, 60)).await?;
    }
    // Each start writes the file anew, with 32 MiB: all of it is found, and then leaves in the order of its use.
    server.kill()?;
    server.restart()?;
    ensure!(!server.log().contains("begins cold"), "{}", server.log());
    let deadline = Instant::now() + Duration::from_secs(20);
    while slab_bytes(server.pid())? != 32 * MIB {
        ensure!(Instant::now() < deadline, "{} bytes\n{}", slab_bytes(server.pid())?, server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let report = user.reload(&chain(39, 60)).await?;
    ensure!((report.pages, report.from_dram) == (60, 60), "what was used last is there: {report:?}");
    // More than was kept, in slabs of the size that these have.
    server.kill()?;
    server.restart_with(Setup { dram_mib: 1024, nvme_mib: 0, keep: true, ..Setup::default() })?;
    ensure!(slab_bytes(server.pid())? == 1024 * MIB, "{}", slab_bytes(server.pid())?);
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let report = user.reload(&chain(39, 60)).await?;
    ensure!((report.pages, report.from_dram) == (60, 60), "{report:?}\n{}", server.log());
    Ok(())
}

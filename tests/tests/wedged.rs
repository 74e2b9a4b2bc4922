//! Clients that lease all they can and then stand still, or take all anew: whoever comes next still has its pages kept, and the
//! gauges say who stands in the way. And what a client has leased, nobody else ends.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_proto::{ErrorKind, pack_hashes, wire};
use turnkv_tests::child::Running;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::local::Local;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use wire::Verb;

const PAGE: u64 = 64 << 10;
const DRAM_BYTES: u64 = 32 << 20;

/// A process that leased all it could; killed when it goes out of scope.
struct Hog {
    child: Running,
    slots: u64,
    client: u64,
    /// The lease it made last.
    lease: u64,
}

impl Hog {
    /// Starts one that says Hello so often and writes, waits until it has all it gets, and stops it.
    fn wedged(server: &Server, hellos: usize, seed: u64) -> Result<Hog> {
        let hog = Hog::start(server, hellos, seed, "write", 64)?;
        hog.stop()?;
        Ok(hog)
    }

    /// Starts one that leases so many pages at a time, and waits until it has all it gets.
    fn start(server: &Server, hellos: usize, seed: u64, mode: &str, pages: usize) -> Result<Hog> {
        let mut hog = Command::new(env!("CARGO_BIN_EXE_hog"));
        hog.arg(server.address())
            .arg(server.local_socket())
            .args([&hellos.to_string(), &seed.to_string(), mode, &pages.to_string()])
            .stdout(Stdio::piped());
        let mut child = Running::start(&mut hog)?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::parse);
        let mut word = || Ok::<u64, anyhow::Error>(words.next().context("it said too little")??);
        Ok(Hog { slots: word()?, client: word()?, lease: word()?, child })
    }

    fn stop(&self) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?).context("pid 0")?;
        Ok(kill_process(pid, Signal::STOP)?)
    }
}

fn start() -> Result<(Server, std::net::SocketAddr)> {
    start_with("lease_ms = 300\nlease_grace_ms = 100\n")
}

fn start_with(limits: &str) -> Result<(Server, std::net::SocketAddr)> {
    let metrics = free_address()?;
    let setup = Setup {
        nvme_mib: 0,
        limits: limits.to_owned(),
        metrics: Some(metrics.to_string()),
        ..Setup::default()
    };
    Ok((Server::start(setup)?, metrics))
}

async fn eventually(address: std::net::SocketAddr, series: &str, good: impl Fn(f64) -> bool) -> Result<f64> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let now = value(&get(address, "/metrics")?.1, series)?;
        if good(now) {
            return Ok(now);
        }
        ensure!(Instant::now() < deadline, "{series} is {now}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hellos_of_one_process_have_one_share() -> Result<()> {
    let (server, metrics) = start()?;
    let hog = Hog::wedged(&server, 4, 1_000)?;
    ensure!(hog.slots * PAGE <= DRAM_BYTES / 2, "{} slots for one process", hog.slots);
    ensure!(hog.slots * PAGE >= DRAM_BYTES / 4, "{} slots are no share", hog.slots);
    let pid = eventually(metrics, "turnkv_lease_fullest_process_id", |pid| pid > 0.0).await?;
    ensure!(pid as u32 == hog.child.id(), "process {pid}, not {}", hog.child.id());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_next_finds_room() -> Result<()> {
    let (server, metrics) = start()?;
    let mut hogs = Vec::new();
    for at in 0..4 {
        hogs.push(Hog::wedged(&server, 2, 1_000 + at * 100_000)?);
    }
    let leased: u64 = hogs.iter().map(|hog| hog.slots * PAGE).sum();
    ensure!(leased < DRAM_BYTES * 95 / 100, "{leased} bytes leased by those who stand still");
    let quarantined = |bytes: f64| bytes as u64 == leased;
    eventually(metrics, "turnkv_pool_quarantined_bytes", quarantined).await?;
    let page = get(metrics, "/metrics")?.1;
    ensure!(value(&page, "turnkv_lease_lasting_bytes")? as u64 == leased);
    ensure!(value(&page, "turnkv_lease_fullest_client_bytes")? as u64 == hogs[0].slots * PAGE);
    ensure!(value(&page, "turnkv_lease_fullest_process_id")? as u32 == hogs[0].child.id());
    ensure!(value(&page, "turnkv_lease_fullest_user_bytes")? as u64 == leased, "they are one user's");
    ensure!(leased as f64 <= value(&page, "turnkv_lease_lasting_limit_bytes")?);

    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let user = User::connect(&server.address(), plane, PAGE).await?;
        let options = OffloadOptions {
            wait: Duration::from_secs(5),
            deadline: Some(Duration::from_secs(10)),
            ..OffloadOptions::default()
        };
        let turn = chain(7, 16);
        let report = user.offload(&options, &turn).await?;
        ensure!(report.stored + report.present == 16, "a client that works is starved: {report:?}");
        ensure!(user.reload(&turn).await?.pages == 16);
    }
    drop(hogs);
    eventually(metrics, "turnkv_lease_lasting_bytes", |bytes| bytes == 0.0).await?;
    Ok(())
}

/// Offloads and reloads, by both data planes.
async fn both_planes_work(server: &Server) -> Result<()> {
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let user = User::connect(&server.address(), plane, PAGE).await?;
        let turn = chain(7, 4);
        let report = user.offload(&OffloadOptions::default(), &turn).await?;
        ensure!(report.stored + report.present == 4, "a client that works is starved: {report:?}");
        ensure!(user.reload(&turn).await?.pages == 4);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_cannot_take_every_lease_and_be_stopped() -> Result<()> {
    let (server, metrics) = start_with("lease_ms = 300\nlease_grace_ms = 100\nleases_max = 64\n")?;
    let hog = Hog::start(&server, 1, 1_000, "write", 1)?;
    hog.stop()?;
    both_planes_work(&server).await?;
    eventually(metrics, "turnkv_pool_quarantined_bytes", |bytes| bytes as u64 == hog.slots * PAGE).await?;
    both_planes_work(&server).await?;
    let page = get(metrics, "/metrics")?.1;
    ensure!(hog.slots == 32 && value(&page, "turnkv_lease_fullest_client_leases")? == 32.0, "{}", hog.slots);
    ensure!(value(&page, "turnkv_lease_fullest_process_id")? as u32 == hog.child.id());
    ensure!(value(&page, "turnkv_lease_limit_leases")? == 64.0);
    ensure!(value(&page, "turnkv_lease_refused_total")? > 0.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_cannot_take_every_lease_by_reading_one_page() -> Result<()> {
    let (server, metrics) = start_with("lease_ms = 60000\nleases_max = 64\n")?;
    let local = Local::connect(&server, PAGE).await?;
    let ask = wire::BeginOffloadRequest {
        namespace: local.ns.clone(),
        hashes: pack_hashes(&chain(5, 1)).into(),
        client: local.client,
        ..Default::default()
    };
    let lease = local.ask::<wire::BeginOffloadReply>(Verb::BeginOffload, &ask)?.lease;
    let (client, pages, checksums) = (local.client, vec![0], vec![7]);
    let commit = wire::CommitOffloadRequest { lease, client, pages, checksums, ..Default::default() };
    local.ask::<wire::CommitOffloadReply>(Verb::CommitOffload, &commit)?;
    let hog = Hog::start(&server, 1, 5, "read", 1)?;
    both_planes_work(&server).await?;
    let page = get(metrics, "/metrics")?.1;
    ensure!(hog.slots == 32 && value(&page, "turnkv_lease_fullest_client_leases")? == 32.0, "{}", hog.slots);
    ensure!(value(&page, "turnkv_lease_fullest_process_id")? as u32 == hog.child.id());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_ended_by_nobody_but_its_client() -> Result<()> {
    let (server, metrics) = start_with("lease_ms = 60000\n")?;
    let hog = Hog::start(&server, 1, 1_000, "write", 4)?;
    let leases = value(&get(metrics, "/metrics")?.1, "turnkv_pool_leases")?;
    let other = Local::connect(&server, PAGE).await?;
    let (client, lease) = (hog.client, hog.lease);
    ensure!(other.client != client && lease > 0);
    other.tell(Verb::AbortOffload, &wire::AbortOffloadRequest { lease, client })?;
    other.tell(Verb::EndReload, &wire::EndReloadRequest { lease, client, ..Default::default() })?;
    other.tell(Verb::Release, &wire::ReleaseRequest { lease, client, ..Default::default() })?;
    // These have no answer; the next one comes after them.
    let renew = wire::RenewRequest { client, leases: vec![lease] };
    other.refused(Verb::Renew, &renew, ErrorKind::LeaseUnknown, "a lease of another client")?;
    let after = value(&get(metrics, "/metrics")?.1, "turnkv_pool_leases")?;
    ensure!(leases == after, "{after} of {leases} leases are left");
    Ok(())
}

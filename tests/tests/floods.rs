//! Thousands of connections that ask nothing, or stop half way, at every door: the server's descriptors, threads and processor
//! time stay bounded, a user beside them is served, and what was taken comes back without anybody's help.
//!
//! 5,000 idle and 1,000 half-sent connections where this process may open so many files, else as many as it may; one door at
//! a time.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::flood::{Knock, PREFACE, Target, flood, raise_open_files};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::process::Holdings;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 64 << 10;
/// One flood at a time: each takes most of what this process may open.
static TURN: Mutex<()> = Mutex::const_new(());
/// What the server says it does within 10 s; busy machines get more.
const DEADLINES: Duration = Duration::from_secs(25);
/// What one call of the user beside a flood may take at most.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Processor time a second that a server may use while a flood lies there.
const CPU_SHARE_MAX: f64 = 0.5;

struct Rig {
    server: Server,
    tcp: SocketAddr,
    http: SocketAddr,
}

impl Rig {
    fn start(files_max: Option<u64>) -> Result<Rig> {
        let (tcp, http) = (free_address()?, free_address()?);
        let setup = Setup {
            tcp: Some(tcp.to_string()),
            metrics: Some(http.to_string()),
            files_max,
            ..Setup::default()
        };
        Ok(Rig { server: Server::start(setup)?, tcp, http })
    }

    /// Places at all doors, and at one.
    fn limits(&self, door: &str) -> Result<(usize, usize)> {
        let (_, page) = get(self.http, "/metrics")?;
        let limit = |door: &str| value(&page, &format!("turnkv_door_limit_connections{{door=\"{door}\"}}"));
        let all = limit("local")? + limit("grpc_unix")? + limit("grpc_tcp")? + limit("http")?;
        Ok((all as usize, limit(door)? as usize))
    }

    fn series(&self, name: &str) -> Result<f64> {
        value(&get(self.http, "/metrics")?.1, name)
    }

    /// Waits until a door has at most `most` connections.
    async fn emptied(&self, door: &str, most: f64) -> Result<Duration> {
        let began = Instant::now();
        loop {
            let open = self.series(&format!("turnkv_door_open_connections{{door=\"{door}\"}}"))?;
            if open <= most {
                return Ok(began.elapsed());
            }
            ensure!(began.elapsed() < DEADLINES, "{open} connections stay open\n{}", self.server.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Calls of every kind, over connections that were there before and over new ones; the longest one.
async fn use_it(rig: &Rig, old: &User, seed: u64) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    let mut timed = |began: Instant| longest = longest.max(began.elapsed());
    for round in 0..20 {
        let hashes = chain(seed * 1_000 + round, 4);
        let began = Instant::now();
        ensure!(old.offload(&OffloadOptions::default(), &hashes).await?.stored == 4);
        timed(began);
        let began = Instant::now();
        ensure!(old.reload(&hashes).await?.pages == 4);
        timed(began);
        let began = Instant::now();
        old.client.stats().await?;
        timed(began);
    }
    let address = rig.server.address();
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let began = Instant::now();
        // As long as all of a flood is young, a new connection may be refused: it may be asked for again.
        while let Err(error) = new_user(&address, plane, seed).await {
            ensure!(began.elapsed() < CALL_MAX, "a new user is not served: {error:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        timed(began);
    }
    let began = Instant::now();
    while !matches!(get(rig.http, "/healthz"), Ok((200, _))) {
        ensure!(began.elapsed() < CALL_MAX, "/healthz is not served");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    timed(began);
    Ok(longest)
}

async fn new_user(address: &str, plane: DataPlane, seed: u64) -> Result<()> {
    let user = User::connect(address, plane, PAGE).await?;
    ensure!(user.reload(&chain(seed * 1_000, 4)).await?.pages == 4);
    Ok(())
}

/// Floods one door, and checks what the module's text says.
async fn flooded(door: &str, parts: &[&[u8]], target: impl Fn(&Rig) -> Target) -> Result<String> {
    let _turn = TURN.lock().await;
    let may = raise_open_files()?.saturating_sub(300);
    let (idle, half) = (may.min(6_000) * 5 / 6, may.min(6_000) / 6);
    let rig = Rig::start(None)?;
    let user = User::connect(&rig.server.address(), DataPlane::Shm, PAGE).await?;
    use_it(&rig, &user, 1).await?;
    let (all, own) = rig.limits(door)?;
    let before = Holdings::of(rig.server.pid())?;
    let target = target(&rig);
    let began = Instant::now();
    let mut knocks: Vec<Knock> = flood(&target, idle, &[])?;
    knocks.extend(flood(&target, half, parts)?);
    let opened_in = began.elapsed();
    let during = Holdings::of(rig.server.pid())?;
    ensure!(during.descriptors <= before.descriptors + 2 * all, "{before:?} -> {during:?}, {all} places");
    ensure!(during.threads <= before.threads + own.min(512) + 16, "{before:?} -> {during:?}");
    let longest = use_it(&rig, &user, 2).await?;
    ensure!(longest < CALL_MAX, "a call took {longest:?} beside the flood");
    let (lies, at) = (Holdings::of(rig.server.pid())?, Instant::now());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let share = (Holdings::of(rig.server.pid())?.cpu - lies.cpu).as_secs_f64() / at.elapsed().as_secs_f64();
    ensure!(share < CPU_SHARE_MAX, "{share:.2} of a core while the flood lies there");
    // Nobody hangs up but the server.
    let emptied_in = rig.emptied(door, 20.0).await?;
    // What was told to end is gone a moment later.
    let began = Instant::now();
    let mut after = Holdings::of(rig.server.pid())?;
    while after.descriptors > before.descriptors + 30 || after.threads > before.threads + 30 {
        ensure!(began.elapsed() < DEADLINES, "{before:?} -> {after:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        after = Holdings::of(rig.server.pid())?;
    }
    let refused = rig.series(&format!("turnkv_door_refused_total{{door=\"{door}\",cause=\"room\"}}"))?;
    let ended =
        |cause: &str| rig.series(&format!("turnkv_door_ended_total{{door=\"{door}\",cause=\"{cause}\"}}"));
    let (silent, room) = (ended("silent")?, ended("room")?);
    let seen = (refused + silent + room) as usize + own.min(20);
    // Some of a burst over TCP may not have been accepted at all.
    ensure!(seen * 10 >= (idle + half) * 9, "{refused} refused, {silent} silent, {room} made room");
    drop(knocks);
    use_it(&rig, &user, 3).await?;
    Ok(format!(
        "{door}: {idle} idle and {half} half-sent connections in {opened_in:.1?}: {} -> {} -> {} descriptors, {} -> {} -> {} threads, \
         {share:.2} of a core, longest call {longest:.0?}, {refused} refused, {silent} silent, {room} made room, empty again after {emptied_in:.1?}",
        before.descriptors,
        during.descriptors,
        after.descriptors,
        before.threads,
        during.threads,
        after.threads,
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_at_the_local_door() -> Result<()> {
    // Half a header; a header of a Hello and half of it; a large frame hardly begun.
    let parts: [&[u8]; 3] =
        [&[2, 0, 0], &[20, 0, 0, 0, 1, 0, 0, 0, 8, 1], &[0, 0, 0x3f, 0, 4, 0, 0, 0, 9, 9]];
    println!("{}", flooded("local", &parts, |rig| Target::Unix(rig.server.local_socket())).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_at_the_grpc_socket() -> Result<()> {
    let whole_preface = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let half_header = [&whole_preface[..], &[0, 0, 200, 1, 4, 0, 0, 0, 1, 0x83, 0x86]].concat();
    let parts: [&[u8]; 3] = [&PREFACE[..11], &whole_preface, &half_header];
    println!("{}", flooded("grpc_unix", &parts, |rig| Target::Unix(rig.server.socket())).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_at_the_grpc_address() -> Result<()> {
    let half_header = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], &[0, 0, 200, 1, 4, 0, 0, 0, 1]].concat();
    let parts: [&[u8]; 2] = [&PREFACE[..11], &half_header];
    println!("{}", flooded("grpc_tcp", &parts, |rig| Target::Tcp(rig.tcp)).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_at_the_http_door() -> Result<()> {
    let parts: [&[u8]; 2] = [b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "];
    println!("{}", flooded("http", &parts, |rig| Target::Tcp(rig.http)).await?);
    Ok(())
}

/// More idle connections than the server may open files: nothing of that is the disk's fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_at_the_limit_of_open_files_leaves_the_tiers_alone() -> Result<()> {
    let _turn = TURN.lock().await;
    raise_open_files()?;
    let rig = Rig::start(Some(512))?;
    let user = User::connect(&rig.server.address(), DataPlane::Shm, PAGE).await?;
    let knocks = flood(&Target::Tcp(rig.tcp), 600, &[])?;
    let (lies, at) = (Holdings::of(rig.server.pid())?, Instant::now());
    ensure!(lies.descriptors <= 512);
    let durable = OffloadOptions { durable: true, ..OffloadOptions::default() };
    for seed in 0..60 {
        // More than DRAM: segments are made and read meanwhile.
        let report = user.offload(&durable, &chain(seed, 16)).await?;
        ensure!(report.declined == 0, "{report:?}");
    }
    ensure!(user.reload(&chain(0, 16)).await?.pages == 16);
    let stats = user.client.stats().await?;
    ensure!(stats.tiers.iter().all(|tier| !tier.poisoned), "{stats:?}\n{}", rig.server.log());
    let fresh = User::connect(&rig.server.address(), DataPlane::Shm, PAGE).await?;
    ensure!(fresh.reload(&chain(0, 16)).await?.pages == 16, "the local door has room");
    ensure!(get(rig.http, "/healthz")?.0 == 200);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = (Holdings::of(rig.server.pid())?.cpu - lies.cpu).as_secs_f64() / at.elapsed().as_secs_f64();
    println!("{used:.2} of a core, {} descriptors", lies.descriptors);
    ensure!(!rig.server.log().contains("Too many open files"), "{}", rig.server.log());
    drop(knocks);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_peer_is_told_why() -> Result<()> {
    let _turn = TURN.lock().await;
    raise_open_files()?;
    let (tcp, http) = (free_address()?, free_address()?);
    let limits = "connections_max = 16\n".to_owned();
    let setup =
        Setup { tcp: Some(tcp.to_string()), metrics: Some(http.to_string()), limits, ..Setup::default() };
    let server = Server::start(setup)?;
    let targets = [
        Target::Unix(server.local_socket()),
        Target::Unix(server.socket()),
        Target::Tcp(tcp),
        Target::Tcp(http),
    ];
    for target in targets {
        // All are young, so none of them makes room.
        let mut knocks = flood(&target, 8, &[])?;
        let last = knocks.last_mut().context("eight")?;
        let (closed, said) = last.listen(Duration::from_secs(5))?;
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(closed && said.contains("limits.connections_max"), "{target:?}: {said:?}");
    }
    Ok(())
}

//! Many forks of one long session: what each costs in memory, in the catalog, at the next start, and to another client's
//! lookups meanwhile. The figures of a large one:
//! `cargo test --locked -p turnkv-tests --test session_bomb -- --ignored --nocapture`.

use anyhow::{Result, ensure};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, EndTurn, OffloadOptions};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A bomb, and what it may cost.
struct Bomb {
    pages: usize,
    forks: usize,
    nvme_mib: u64,
    memory_bytes_max: u64,
    catalog_bytes_max: u64,
    lookup_max: Duration,
    start_max: Duration,
}

/// What it did cost.
#[derive(Debug)]
#[allow(dead_code, reason = "printed")]
struct Cost {
    memory_mib: u64,
    gauge_mib: f64,
    catalog_mib: u64,
    forks_took: Duration,
    saved_after: Duration,
    lookups: usize,
    lookup_p50: Duration,
    lookup_p99: Duration,
    lookup_max: Duration,
    start_took: Duration,
    whole_after_start: usize,
    memory_after_start_mib: u64,
}

/// Another client's lookups, timed until told to stop.
async fn watch(user: User, stop: Arc<AtomicBool>) -> Result<Vec<Duration>> {
    let list = chain(2, 16);
    let mut took = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        ensure!(user.namespace.lookup(&list).await? == list.len());
        took.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    took.sort();
    Ok(took)
}

/// Waits until nothing is left to be saved, and says what the metrics were then.
async fn until_saved(http: SocketAddr, server: &Server) -> Result<String> {
    let catalog = server.nvme_dir().join("catalog.redb");
    let (until, mut written) = (Instant::now() + Duration::from_secs(120), None);
    loop {
        tokio::time::sleep(Duration::from_millis(700)).await; // longer than from one flush to the next
        let (_, page) = get(http, "/metrics")?;
        let last = written.replace(std::fs::metadata(&catalog)?.modified()?);
        let waiting = value(&page, "turnkv_queue_waiting_operations{queue=\"catalog\"}")?;
        if waiting == 0.0 && last == written {
            return Ok(page);
        }
        ensure!(Instant::now() < until, "sessions were not saved within two minutes");
    }
}

async fn explode(bomb: &Bomb) -> Result<Cost> {
    let http = free_address()?;
    let dram_mib = (bomb.pages as u64 * PAGE / MIB + 8).next_multiple_of(16) * 2;
    let limits = "client_slots_percent = 90\n".to_owned();
    let setup = Setup {
        dram_mib,
        nvme_mib: bomb.nvme_mib,
        metrics: Some(http.to_string()),
        limits,
        ..Setup::default()
    };
    let mut server = Server::start(setup)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let list = chain(1, bomb.pages);
    user.namespace.begin_turn("trunk").await?;
    let mut parent = None;
    for part in list.chunks(2_000) {
        let options = OffloadOptions {
            session: Some("trunk".to_owned()),
            parent,
            wait: Duration::from_secs(20),
            deadline: Some(Duration::from_secs(60)),
            ..OffloadOptions::default()
        };
        ensure!(user.offload(&options, part).await?.declined == 0);
        parent = part.last().copied();
    }
    user.namespace.end_turn("trunk", &EndTurn { hashes: list.clone(), ..EndTurn::default() }).await?;
    let other = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    other.offload(&OffloadOptions::default(), &chain(2, 16)).await?;
    user.settle().await?;
    until_saved(http, &server).await?;

    let before = server.rss_anon_bytes()?;
    let stop = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watch(other, Arc::clone(&stop)));
    let began = Instant::now();
    for fork in 0..bomb.forks {
        ensure!(user.namespace.fork("trunk", &format!("fork-{fork}"), None).await? == bomb.pages);
    }
    let forks_took = began.elapsed();
    let page = until_saved(http, &server).await?;
    let saved_after = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let lookups = watching.await??;
    let memory = server.rss_anon_bytes()?.saturating_sub(before);
    let catalog = std::fs::metadata(server.nvme_dir().join("catalog.redb"))?.len();
    let gauge = value(&page, "turnkv_pool_session_bytes")?;

    server.kill()?;
    let began = Instant::now();
    server.restart()?;
    let start_took = began.elapsed();
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let listed = user.client.sessions(None, 0).await?;
    let whole = listed.sessions.iter().filter(|session| session.pages == bomb.pages).count();
    Ok(Cost {
        memory_mib: memory / MIB,
        gauge_mib: gauge / MIB as f64,
        catalog_mib: catalog / MIB,
        forks_took,
        saved_after,
        lookups: lookups.len(),
        lookup_p50: lookups[lookups.len() / 2],
        lookup_p99: lookups[lookups.len() * 99 / 100],
        lookup_max: lookups[lookups.len() - 1],
        start_took,
        whole_after_start: whole,
        memory_after_start_mib: server.rss_anon_bytes()? / MIB,
    })
}

#[allow(clippy::print_stdout, reason = "whoever runs it wants the figures")]
async fn holds(bomb: Bomb) -> Result<()> {
    let cost = explode(&bomb).await?;
    println!("{} forks of {} pages: {cost:#?}", bomb.forks, bomb.pages);
    ensure!(cost.whole_after_start == bomb.forks + 1, "sessions were lost: {cost:?}");
    ensure!(cost.memory_mib * MIB <= bomb.memory_bytes_max, "memory: {cost:?}");
    ensure!(cost.catalog_mib * MIB <= bomb.catalog_bytes_max, "catalog: {cost:?}");
    ensure!(cost.lookup_max <= bomb.lookup_max, "another client waited: {cost:?}");
    ensure!(cost.start_took <= bomb.start_max, "the next start: {cost:?}");
    ensure!(
        cost.memory_after_start_mib * MIB <= bomb.memory_bytes_max * 2,
        "memory of the next start: {cost:?}"
    );
    Ok(())
}

/// As lists of their own these forks would be 58 MiB of memory and more than 230 MiB of catalog.
#[tokio::test(flavor = "multi_thread")]
async fn forks_of_a_long_session_cost_next_to_nothing() -> Result<()> {
    holds(Bomb {
        pages: 8_000,
        forks: 950,
        nvme_mib: 128,
        memory_bytes_max: 40 * MIB,
        catalog_bytes_max: 16 * MIB,
        lookup_max: Duration::from_millis(800),
        start_max: Duration::from_secs(20),
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes in a debug build: the figures of a large bomb"]
async fn a_large_bomb() -> Result<()> {
    holds(Bomb {
        pages: 40_000,
        forks: 1_500,
        nvme_mib: 512,
        memory_bytes_max: 64 * MIB,
        catalog_bytes_max: 32 * MIB,
        lookup_max: Duration::from_secs(1),
        start_max: Duration::from_secs(30),
    })
    .await
}

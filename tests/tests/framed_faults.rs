//! Pages over a network that fails, seed by seed: no wrong page, no call over its deadline, every slot back in the end.
//!
//! `TURNKV_FAULT_SEEDS` seeds from `TURNKV_FAULT_FIRST` on; `make simulate-network` runs 2,000. A run: a client behind a proxy of its
//! own offloads a chain and reloads it, some times, while connections are delayed, stalled, cut in half or whole, lead nowhere, or flip
//! bits. What a seed chooses is the same each time; which connection meets it depends on the machine.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, Client, ClientConfig, DataPlane, OffloadOptions, ReloadOptions};
use turnkv_mutate::Random;
use turnkv_tests::counts::slots_are_back;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::proxy::{Proxy, draw_fault};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 96 << 10;
/// As many as go over rails, and as few as come with their request or answer.
const PAGES: usize = 6;
const FEW: usize = 3;
/// Within so many bytes of a direction a fault strikes: somewhat more than a run moves.
const FAULT_WITHIN: usize = 900 << 10;
/// What a call may take.
const DEADLINE: Duration = Duration::from_millis(400);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(2_500);
/// Runs at a time: most of their time they wait.
const AT_ONCE: u64 = 6;
/// Rails that lead nowhere are dead after ten seconds without progress.
const SLOTS_BACK: Duration = Duration::from_secs(40);

#[derive(Default)]
struct Tally {
    calls: AtomicU64,
    failed: AtomicU64,
    pages: AtomicU64,
    slowest_ms: AtomicU64,
}

fn setting(name: &str, usual: u64) -> Result<u64> {
    std::env::var(name).map_or(Ok(usual), |text| text.parse().with_context(|| format!("{name} = {text}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_promise_is_broken_by_the_network() -> Result<()> {
    let (http, tcp) = (free_address()?, free_address()?);
    let limits = "lease_ms = 1000\nlease_grace_ms = 100\n".to_owned();
    let (metrics, door) = (Some(http.to_string()), Some(tcp.to_string()));
    let setup = Setup { dram_mib: 96, nvme_mib: 0, limits, metrics, tcp: door, ..Setup::default() };
    let server = Arc::new(Server::start(setup)?);
    let tally = Arc::new(Tally::default());
    let (first, seeds) = (setting("TURNKV_FAULT_FIRST", 0)?, setting("TURNKV_FAULT_SEEDS", 40)?);
    let workers: Vec<_> = (0..AT_ONCE)
        .map(|worker| {
            let (server, tally) = (Arc::clone(&server), Arc::clone(&tally));
            tokio::spawn(async move {
                for seed in (first + worker..first + seeds).step_by(AT_ONCE as usize) {
                    run(&server, tcp, seed, &tally).await.with_context(|| format!("seed {seed}"))?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for worker in workers {
        worker.await??;
    }
    slots_are_back(&server, SLOTS_BACK).await?;
    let damaged = value(&get(http, "/metrics")?.1, "turnkv_remote_damaged_pages_total")?;
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (calls, failed, pages) = (of(&tally.calls), of(&tally.failed), of(&tally.pages));
    println!(
        "{seeds} seeds: {calls} calls, {failed} failed, {pages} pages came back, {damaged} arrived damaged at the server, the slowest call took {} ms",
        of(&tally.slowest_ms)
    );
    ensure!(
        pages > seeds * PAGES as u64 / 2 && failed > 0,
        "too little came back, or failed, to prove anything"
    );
    Ok(())
}

async fn run(server: &Server, tcp: SocketAddr, seed: u64, tally: &Tally) -> Result<()> {
    let proxy = Proxy::to(tcp, move |number| {
        let mut random = Random::new(seed.wrapping_mul(1_000_003) ^ number);
        (draw_fault(&mut random, FAULT_WITHIN), draw_fault(&mut random, FAULT_WITHIN))
    })?;
    let call_ms = DEADLINE.as_millis() as u64;
    let address = format!("tcp://{}", proxy.address());
    let config = ClientConfig { call_ms, connect_ms: 100, ..ClientConfig::at(address) };
    let client = Client::new(config)?;
    let opened = timed(tally, client.open_namespace(namespace("test-model", PAGE))).await?;
    let hashes = chain(50_000 + seed, PAGES);
    if let Ok(namespace) = opened {
        let user = User { client, namespace };
        let mut random = Random::new(seed);
        for _ in 0..3 {
            let options = OffloadOptions { deadline: Some(DEADLINE), ..OffloadOptions::default() };
            let pages = if random.one_in(2) { FEW } else { PAGES };
            let own = random.one_in(2);
            let offloading = async {
                if own {
                    user.offload_own(&options, &hashes[..pages]).await
                } else {
                    user.offload(&options, &hashes[..pages]).await
                }
            };
            may_fail(timed(tally, offloading).await?)?;
            if random.one_in(8) {
                proxy.cut();
            }
            if random.one_in(8) {
                proxy.partition(true);
            }
            let pages = if random.one_in(2) { FEW } else { PAGES };
            reload(&user, &hashes[..pages], random.one_in(2), tally).await?;
            proxy.partition(false);
        }
    }
    drop(proxy);
    // What the pool has of it, as a client of its own host sees it.
    let local = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    local.reload(&hashes).await?;
    Ok(())
}

/// Reloads, and checks every byte; that the call failed is no matter.
async fn reload(user: &User, hashes: &[BlockHash], own: bool, tally: &Tally) -> Result<()> {
    let options = ReloadOptions { deadline: Some(DEADLINE), ..ReloadOptions::default() };
    let reloading = async {
        if own { user.reload_own(&options, hashes).await } else { user.reload_with(&options, hashes).await }
    };
    let report = may_fail(timed(tally, reloading).await?)?;
    tally.pages.fetch_add(report.map_or(0, |report| report.pages as u64), Ordering::Relaxed);
    Ok(())
}

/// A call may fail, but neither give wrong pages nor keep what was lent.
fn may_fail<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error)
            if ["WRONG BYTES", "stay lent"].iter().any(|broken| error.to_string().contains(broken)) =>
        {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}

/// Checks that a call ends by its deadline.
async fn timed<T, E>(tally: &Tally, call: impl Future<Output = Result<T, E>>) -> Result<Result<T, E>> {
    let began = Instant::now();
    let done = call.await;
    let took = began.elapsed();
    ensure!(took < DEADLINE + SLACK, "a call with {DEADLINE:?} took {took:?}");
    tally.calls.fetch_add(1, Ordering::Relaxed);
    tally.failed.fetch_add(u64::from(done.is_err()), Ordering::Relaxed);
    tally.slowest_ms.fetch_max(took.as_millis() as u64, Ordering::Relaxed);
    Ok(done)
}

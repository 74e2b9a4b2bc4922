//! Everything at once, and the server killed in the middle of it: writers over shared memory and inline, sessions, pins, prefetch,
//! reads from NVMe, pages that a process has mapped, room that is made all the time. Whatever was acknowledged is served with its
//! exact bytes, from DRAM where it just was there; nothing is written into what is mapped; no slot is lost. Before every fourth kill the
//! keeper is killed as well, and another one has everything. `TURNKV_KILLS` sets how many kills (25 unless told).

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions, PageSpan, PinFor, ReloadOptions};
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 64 << 10;
const PAGES: usize = 6;
/// Pages that a process has mapped throughout, and slots that it has to write into.
const HELD: usize = 24;
const RESERVED: usize = 4;
/// Writers: two over shared memory, one inline.
const WRITERS: u64 = 3;
/// Chains of one writer in one life of the server, at most: NVMe has room for all of them, DRAM has not.
const CHAINS_A_LIFE: u64 = 40;
const DRAM_MIB: u64 = 64;

fn kills() -> u64 {
    std::env::var("TURNKV_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(25)
}

/// What the clients know of one another, in all lives.
#[derive(Default)]
struct Told {
    stop: AtomicBool,
    life: AtomicU64,
    /// Chains that were acknowledged whole.
    stored: Mutex<Vec<u64>>,
}

impl Told {
    fn stored(&self) -> Result<MutexGuard<'_, Vec<u64>>> {
        self.stored.lock().map_err(|_| anyhow::anyhow!("poisoned"))
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// One of the chains, by a number.
    fn some(&self, at: u64) -> Result<Option<u64>> {
        let stored = self.stored()?;
        Ok(stored.get(at.wrapping_mul(2_654_435_761) as usize % stored.len().max(1)).copied())
    }
}

fn name(seed: u64) -> String {
    format!("session-{seed}")
}

/// Only wrong bytes are an error: calls fail when the server is killed.
fn unless_wrong<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.to_string().contains("WRONG BYTES") => Err(error),
        result => Ok(result.ok()),
    }
}

/// Turns of sessions, each a chain of its own, through all lives of the server.
async fn write(address: String, writer: u64, told: Arc<Told>) -> Result<()> {
    let plane = if writer + 1 == WRITERS { DataPlane::Inline } else { DataPlane::Shm };
    let user = User::connect(&address, plane, PAGE).await?;
    let options = OffloadOptions { wait: Duration::from_secs(2), ..OffloadOptions::default() };
    let (mut life, mut at) = (0, 0);
    while !told.is_over() {
        let now = told.life.load(Ordering::Relaxed);
        (life, at) = if now == life { (life, at + 1) } else { (now, 0) };
        if at >= CHAINS_A_LIFE {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let seed = 1 + writer * 1_000_000 + life * 1_000 + at;
        let hashes = chain(seed, PAGES);
        drop(user.namespace.begin_turn(&name(seed)).await);
        if user.offload(&options, &hashes).await.is_ok_and(|report| report.stored == PAGES) {
            told.stored()?.push(seed);
        }
        let end = EndTurn { hashes, priority: u32::from(at % 8 == 0), ttl_ms: 2_000, ..EndTurn::default() };
        drop(user.namespace.end_turn(&name(seed), &end).await);
        unless_wrong(user.reload(&chain(seed, PAGES)).await)?;
    }
    Ok(())
}

/// Reads what was written before, ahead of time or not, and pins some of it for a while.
async fn read(address: String, told: Arc<Told>) -> Result<()> {
    let user = User::connect(&address, DataPlane::Shm, PAGE).await?;
    let mut at = 0;
    while !told.is_over() {
        at += 1;
        let Some(seed) = told.some(at)? else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        match at % 4 {
            0 => drop(user.namespace.prefetch(&name(seed)).await),
            1 => drop(user.namespace.pin(&chain(seed, PAGES)[..2], PinFor::ms(1_000)).await),
            _ => {
                unless_wrong(user.reload(&chain(seed, PAGES)).await)?;
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Pages that this process has mapped, and what it has written behind them.
struct Held {
    span: PageSpan,
    hashes: Vec<BlockHash>,
    memory: File,
}

impl Held {
    async fn of(user: &User, hashes: Vec<BlockHash>) -> Result<Held> {
        let mut span = PageSpan::new(&user.namespace, 1, hashes.len() + RESERVED, 1)?;
        let report = span.hold(0, 0, &ReloadOptions::default(), &hashes).await?;
        ensure!(report.pages == hashes.len(), "{report:?}");
        ensure!(span.reserve(0, hashes.len(), RESERVED, None).await? == RESERVED);
        let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
        Ok(Held { span, hashes, memory })
    }

    fn scribble(&self, number: u64) -> Result<()> {
        for at in 0..RESERVED {
            let page = bytes(&chain(50_000_000 + number, RESERVED)[at], PAGE as usize);
            let address = self.span.memory().address(self.hashes.len() + at) as u64;
            self.memory.write_all_at(&page, address)?;
        }
        Ok(())
    }

    fn check(&self, number: u64, when: &str) -> Result<()> {
        let written = chain(50_000_000 + number, RESERVED);
        for (place, hash) in self.hashes.iter().chain(&written).enumerate() {
            let mut page = vec![0; PAGE as usize];
            self.memory.read_exact_at(&mut page, self.span.memory().address(place) as u64)?;
            ensure!(
                page == bytes(hash, PAGE as usize),
                "WRONG BYTES: place {place} of what is mapped, {when}"
            );
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_in_the_middle_of_everything_lose_nothing_and_mix_nothing_up() -> Result<()> {
    // Which pages are in DRAM is known where those used last are; the usual policy has its own reasons.
    for (policy, last_in_dram) in [("lru", true), ("session", false)] {
        let lived = live_through_kills(policy, last_in_dram).await;
        println!("{policy}: {}", lived.with_context(|| format!("policy {policy}"))?);
    }
    Ok(())
}

async fn live_through_kills(policy: &str, last_in_dram: bool) -> Result<String> {
    let written_mib = ((kills() + 1) * WRITERS * CHAINS_A_LIFE * PAGES as u64 * PAGE) >> 20;
    let mut server = Server::start(Setup {
        dram_mib: DRAM_MIB,
        nvme_mib: written_mib * 2 + 256,
        keep: true,
        top: format!("policy = \"{policy}\"\n"),
        limits: "free_slots_percent = 10\n".to_owned(),
        ..Setup::default()
    })?;
    let owner = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let held = chain(40_000_000, HELD);
    ensure!(owner.offload(&OffloadOptions::default(), &held).await?.stored == HELD);
    owner.namespace.pin(&held, PinFor::ms(0)).await?;
    let mut held = Held::of(&owner, held).await?;
    held.scribble(0)?;
    let told = Arc::new(Told::default());
    let mut clients: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(write(server.address(), writer, Arc::clone(&told)))).collect();
    clients.push(tokio::spawn(read(server.address(), Arc::clone(&told))));
    let (mut dice, mut from_dram) = (0x9E37_79B9_7F4A_7C15u64, 0);
    for kill in 0..kills() {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tokio::time::sleep(Duration::from_micros(30_000 + (dice >> 33) % 300_000)).await;
        if kill % 4 == 3 {
            kill_keeper(&server)?;
        }
        server.kill()?;
        held.check(kill, "nobody serves")?;
        held.scribble(kill + 1)?;
        let stored: Vec<u64> = told.stored()?.clone();
        told.life.fetch_add(1, Ordering::Relaxed);
        server.restart()?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        from_dram += served(&user, &stored, last_in_dram)
            .await
            .with_context(|| format!("kill {kill}: {}", server.log()))?;
        held.check(kill + 1, "others were served")?;
        ensure!(user.reload(&held.hashes).await?.from_dram == HELD, "kill {kill}: {}", server.log());
    }
    told.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await??;
    }
    let stored: Vec<u64> = told.stored()?.clone();
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for seed in &stored {
        let report = user.reload(&chain(*seed, PAGES)).await?;
        ensure!(report.pages == PAGES, "chain {seed} was acknowledged: {report:?}\n{}", server.log());
    }
    held.check(kills(), "all were read")?;
    held.span.release_all()?;
    nothing_is_left(&server).await?;
    Ok(format!(
        "{} kills, {} chains of {PAGES} pages, {from_dram} pages of the last ones from DRAM",
        kills(),
        stored.len()
    ))
}

/// Kills the keeper under the load, and waits until another one has everything.
fn kill_keeper(server: &Server) -> Result<()> {
    let kept_again = || server.log().matches("page memory is kept again").count();
    let before = kept_again();
    server.kill_keeper()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while kept_again() == before {
        ensure!(Instant::now() < deadline, "DRAM is not kept again: {}", server.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// What was acknowledged is served: all of what came last, and a sample. How many pages of the former come from DRAM.
async fn served(user: &User, stored: &[u64], last_in_dram: bool) -> Result<usize> {
    let mut from_dram = 0;
    for seed in stored.iter().rev().take(6) {
        let report = user.reload(&chain(*seed, PAGES)).await?; // checks every byte
        ensure!(
            report.pages == PAGES && (!last_in_dram || report.from_dram == PAGES),
            "chain {seed} was acknowledged last: {report:?}"
        );
        from_dram += report.from_dram;
    }
    for seed in stored.iter().step_by(stored.len() / 12 + 1) {
        let report = user.reload(&chain(*seed, PAGES)).await?;
        ensure!(report.pages == PAGES, "chain {seed} was acknowledged: {report:?}");
    }
    Ok(from_dram)
}

/// Once leases and pins are over nothing takes slots: all of DRAM can be filled again.
async fn nothing_is_left(server: &Server) -> Result<()> {
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.namespace.unpin(chain(40_000_000, HELD).last().context("a last page")?).await?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        user.client.evict(None, None).await?;
        let stats = user.client.stats().await?;
        let dram = stats.tiers.first().context("a DRAM tier")?;
        if (dram.used_bytes, dram.leased_bytes, stats.quarantined_bytes) == (0, 0, 0) {
            ensure!(stats.corrupt_pages == 0, "{} pages did not verify", stats.corrupt_pages);
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "slots are lost: {stats:?}\n{}", server.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

//! Pages that one process has mapped twice, over the end of its server: one mapping is given back, all of DRAM is given to others, and
//! what the other mapping shows does not change; then that one is given back too, and no slot is lost. Two spans of one client, or of
//! two clients of the process; a `kill -9` or an upgrade; given back before, after, or while nobody serves. `TURNKV_KILLS` sets how many
//! rounds (8 unless told), `TURNKV_SEED` the first one's seed.

use anyhow::{Result, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, DataPlane, OffloadOptions, PageSpan, ReloadOptions};
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 128 << 10;
const HELD: usize = 12;

fn setup() -> Setup {
    let limits = "lease_ms = 1000\nlease_grace_ms = 300\n".to_owned();
    // What comes is taken, however often its place was given to others.
    let top = "policy = \"lru\"\n".to_owned();
    Setup { dram_mib: 16, nvme_mib: 0, keep: true, top, limits, ..Setup::default() }
}

fn number(name: &str, unless: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(unless)
}

/// What a round does.
#[derive(Debug)]
struct Plan {
    two_clients: bool,
    upgrade: bool,
    /// When one of the two is given back.
    given_back: When,
    /// Which one.
    first: usize,
    /// It is given back page by page, from here on first.
    from: usize,
}

#[derive(Debug, PartialEq)]
enum When {
    Before,
    /// Only after a `kill -9`: in an upgrade there is no such moment to wait for.
    NobodyServes,
    After,
}

impl Plan {
    fn of(seed: u64) -> Plan {
        // splitmix64: neighbouring seeds differ in every choice.
        let mut word = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        let upgrade = word & 2 != 0;
        let given_back = match (word >> 8) % 4 {
            0 => When::Before,
            1 if !upgrade => When::NobodyServes,
            _ => When::After,
        };
        let (first, from) = ((word >> 16) as usize % 2, (word >> 24) as usize % HELD);
        Plan { two_clients: word & 1 != 0, upgrade, given_back, first, from }
    }
}

/// The process's own view of pages that it has mapped.
struct View {
    span: PageSpan,
    hashes: Vec<BlockHash>,
    memory: File,
}

impl View {
    async fn hold(user: &User, hashes: &[BlockHash]) -> Result<View> {
        let mut span = PageSpan::new(&user.namespace, 1, hashes.len(), 1)?;
        let report = span.hold(0, 0, &ReloadOptions::default(), hashes).await?;
        ensure!(report.pages == hashes.len() && span.counts().held as usize == hashes.len(), "{report:?}");
        Ok(View { span, hashes: hashes.to_vec(), memory: File::open("/proc/self/mem")? })
    }

    fn check(&self, when: &str) -> Result<()> {
        let mut page = vec![0; PAGE as usize];
        for (place, hash) in self.hashes.iter().enumerate() {
            self.memory.read_exact_at(&mut page, self.span.memory().address(place) as u64)?;
            ensure!(page == bytes(hash, PAGE as usize), "WRONG BYTES: {when}: page {place}");
        }
        Ok(())
    }

    /// Page by page, in an order that begins somewhere.
    fn give_back(&mut self, from: usize) -> Result<()> {
        for place in (from..HELD).chain(0..from) {
            self.span.vacate(0, place, 1)?;
        }
        self.hashes.clear();
        Ok(())
    }
}

/// Waits until this is so of the bytes that are leased, and of those in quarantine.
async fn leased(user: &User, server: &Server, wanted: impl Fn(u64, u64) -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let stats = user.client.stats().await?;
        let (leased, quarantined) =
            (stats.tiers.first().map_or(0, |dram| dram.leased_bytes), stats.quarantined_bytes);
        if wanted(leased, quarantined) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{leased} leased, {quarantined} in quarantine: {}", server.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Gives all of DRAM to others, more than once.
async fn crowd(user: &User, first: u64) -> Result<()> {
    for seed in first..first + 4 {
        let report = user.offload(&OffloadOptions::default(), &chain(seed, 64)).await?;
        ensure!(report.stored == 64, "{report:?}");
        ensure!(user.reload(&chain(seed, 64)).await?.pages == 64);
    }
    Ok(())
}

async fn round(server: &mut Server, seed: u64) -> Result<()> {
    let plan = Plan::of(seed);
    let one = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let two = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let hashes = chain(seed * 1_000, HELD);
    one.offload(&OffloadOptions::default(), &hashes).await?;
    let other = if plan.two_clients { &two } else { &one };
    let mut views = [View::hold(&one, &hashes).await?, View::hold(other, &hashes).await?];
    let (first, last) = (plan.first, 1 - plan.first);
    if plan.given_back == When::Before {
        views[first].give_back(plan.from)?;
    }
    if plan.upgrade {
        ensure!(server.upgrade(&[])?.status.success(), "{}", server.log());
    } else {
        server.kill()?;
        views[last].check("nobody serves")?;
        if plan.given_back == When::NobodyServes {
            views[first].give_back(plan.from)?;
        }
        server.restart()?;
    }
    let crowding = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    if plan.given_back == When::After {
        crowd(&crowding, seed * 1_000 + 100).await?;
        views[first].check("both are mapped")?;
        views[first].give_back(plan.from)?;
    }
    for time in 0..2 {
        crowd(&crowding, seed * 1_000 + 200 + time * 100).await?;
        views[last].check("one of the two was given back")?;
    }
    // It is the process's own again, and stays as it is.
    leased(&crowding, server, |leased, quarantined| (leased, quarantined) == (HELD as u64 * PAGE, 0)).await?;
    crowd(&crowding, seed * 1_000 + 400).await?;
    views[last].check("one of the two was given back")?;
    ensure!(!views[last].span.is_lost());
    views[last].give_back(0)?;
    leased(&crowding, server, |leased, quarantined| (leased, quarantined) == (0, 0)).await?;
    crowding.client.evict(None, None).await?;
    let stats = crowding.client.stats().await?;
    ensure!(stats.tiers[0].used_bytes == 0, "slots are lost: {stats:?}\n{}", server.log());
    ensure!(stats.corrupt_pages == 0, "{} pages did not verify", stats.corrupt_pages);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_are_mapped_twice_are_safe_until_both_mappings_are_gone() -> Result<()> {
    let mut server = Server::start(setup())?;
    let first = number("TURNKV_SEED", 1);
    for seed in first..first + number("TURNKV_KILLS", 8) {
        let done = round(&mut server, seed).await;
        done.map_err(|error| error.context(format!("seed {seed}: {:?}", Plan::of(seed))))?;
    }
    Ok(())
}

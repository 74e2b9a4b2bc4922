//! Sessions of very many pages, on a machine that has other things to do.

use crate::support::Pools;
use anyhow::{Result, ensure};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, EndTurn, OffloadOptions, TurnBegun};
use turnkv_tests::pages::chain;
use turnkv_tests::server::Setup;
use turnkv_tests::user::User;

/// The smallest that takes no more memory than a machine of tests has.
const SMALL_PAGE: u64 = 512;
const PAGES: usize = 60_000;
/// Offloaded in one call.
const PART: usize = 4_000;

/// How long the begin of a turn may take, beside what it may wait for others.
const BEGIN_MAX: Duration = Duration::from_millis(1_000);
const TRIES_MAX: usize = 10;

/// Begins the next turn of the session somewhere else.
async fn begin(user: &User) -> Result<(TurnBegun, Duration)> {
    let began = Instant::now();
    let begun = user.namespace.begin_turn_after("long", "", 1).await?;
    Ok((begun, began.elapsed()))
}

/// Threads that do nothing, all the time, twice as many as there are processors.
struct BusyLoops {
    ends: Arc<AtomicBool>,
    loops: Vec<std::thread::JoinHandle<()>>,
}

impl BusyLoops {
    fn start() -> Result<BusyLoops> {
        let ends = Arc::new(AtomicBool::new(false));
        let count = 2 * std::thread::available_parallelism()?.get();
        let busy = |ends: Arc<AtomicBool>| move || while !ends.load(Ordering::Relaxed) {};
        let loops = (0..count).map(|_| std::thread::spawn(busy(Arc::clone(&ends)))).collect();
        Ok(BusyLoops { ends, loops })
    }

    fn end(self) -> Result<()> {
        self.ends.store(true, Ordering::Relaxed);
        self.loops.into_iter().try_for_each(|busy| busy.join().map_err(|_| anyhow::anyhow!("it panicked")))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_very_many_pages_is_named_in_time_beside_busy_loops() -> Result<()> {
    let setup =
        Setup { dram_mib: 320, nvme_mib: 0, limits: "pages_max = 262144\n".to_owned(), ..Setup::default() };
    let pools = Pools::start(3, &setup).await?;
    let mut users = Vec::new();
    for pool in &pools.0 {
        users.push(User::connect(&pool.server.address(), DataPlane::Shm, SMALL_PAGE).await?);
    }
    let hashes = chain(60, PAGES);
    users[0].namespace.begin_turn("long").await?;
    for (at, part) in hashes.chunks(PART).enumerate() {
        let parent = at.checked_sub(1).map(|_| hashes[at * PART - 1]);
        let options = OffloadOptions { parent, ..OffloadOptions::default() };
        let report = users[0].offload(&options, part).await?;
        ensure!(report.stored == part.len(), "{at}: {report:?}");
    }
    let ended = EndTurn { hashes: hashes.clone(), ..EndTurn::default() };
    ensure!(users[0].namespace.end_turn("long", &ended).await? == PAGES);
    // Whatever its home does, the begin of a turn takes the time that it may, and a little for being scheduled.
    let busy = BusyLoops::start()?;
    let (begun, took) = begin(&users[2]).await?;
    busy.end()?;
    ensure!(took < BEGIN_MAX, "{begun:?} in {took:?}");
    // Where there is time for it, all of it is found: a machine of tests may need another try.
    let mut tries = Vec::new();
    while tries.last().is_none_or(|(begun, _): &(TurnBegun, Duration)| begun.pages + begun.afar < PAGES) {
        let finds = pools.0[1].counted("turnkv_cluster_finds_total{at=\"elsewhere\"}")?;
        ensure!(tries.len() < TRIES_MAX, "{tries:?}, {finds} times found elsewhere");
        tries.push(begin(&users[1]).await?);
    }
    ensure!(tries.iter().all(|(_, took)| *took < BEGIN_MAX), "{tries:?}");
    Ok(())
}

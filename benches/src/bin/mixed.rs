//! BeginReload of sessions that are in DRAM, while others offload in bursts, pages are demoted and reloaded from NVMe: its tail
//! against the same calls on an idle pool, and on an idle pool beside threads that copy as much memory and know no pool: what the
//! machine alone costs. Round by round; first with a processor that only the call's two threads run on, then with all threads
//! wherever the kernel puts them, and then once more without the time that the two waited for a processor.
//! Must not know: how the server puts foreground first.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Parser;
use turnkv_benches::connection::{Connection, page_hashes};
use turnkv_benches::options::Common;
use turnkv_benches::queued::Queued;
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::stats::{Series, Table, quantile};
use turnkv_benches::threads::{Processors, Threads};
use turnkv_client::DataPlane;

const PAGE_BYTES: usize = 64 << 10;
/// Sessions that are reloaded over and over, and pages of each.
const SESSIONS: u64 = 16;
const PAGES: usize = 32;
/// Pages of one burst of offloads: 16 MiB.
const BURST: usize = 256;
const PAUSE: Duration = Duration::from_millis(50);
/// Between two reloads: engines compute meanwhile.
const PACE: Duration = Duration::from_micros(500);

/// BeginReload under mixed load.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Reloads of one round, idle and loaded each.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    reloads: u32,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let budget = Budget { nvme_bytes: 2 << 30, ..Budget::dram(256 << 20) };
    let server = Server::start(&options.common, budget)?;
    let connection = Connection::open(&server.address(), DataPlane::Shm, PAGE_BYTES)?;
    let page = vec![3u8; PAGE_BYTES];
    for session in 0..SESSIONS {
        connection.offload_all(None, &page_hashes(session, 0..PAGES), &vec![page.as_slice(); PAGES])?;
    }
    connection.wait_until_clean()?;
    let answerers = Threads::named(server.process(), "turnkv-local")?;
    let place = Place { server: server.process(), answerers: &answerers, processors: Processors::split()? };
    let reloads = Reloads { connection: &connection, queued: Queued::watch(&answerers)? };
    // The load's connections come after ours, so that it is known who answers us.
    let connect = || Connection::open(&server.address(), DataPlane::Shm, PAGE_BYTES);
    let (offloading, reloading) = (connect()?, connect()?);
    let (loading, stop, bursts) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let load = Load { loading: &loading, stop: &stop, bursts: &bursts };
    std::thread::scope(|scope| -> Result<()> {
        let threads = [
            scope.spawn(|| load.offload_bursts(&offloading)),
            scope.spawn(|| load.reload_from_nvme(&reloading)),
        ];
        let measured = [true, false].into_iter().try_for_each(|apart| {
            place.all(apart)?;
            let tails = rounds(&options, &reloads, &loading, || place.beside(apart))?;
            tails.tell(apart, bursts.load(Ordering::Relaxed));
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("the load died"))??;
        }
        measured
    })
}

/// Who runs where.
struct Place<'a> {
    server: u32,
    answerers: &'a Threads,
    processors: Processors,
}

impl Place<'_> {
    /// The calling thread and those that answer it apart from all others, or all together.
    fn all(&self, apart: bool) -> Result<()> {
        Threads::of(self.server)?.without(self.answerers).run_on(self.processors.others(apart))?;
        Threads::of(std::process::id())?.without(&Threads::this()).run_on(self.processors.others(apart))?;
        self.answerers.run_on(self.processors.own(apart))?;
        Threads::this().run_on(self.processors.own(apart))
    }

    /// The calling thread with the others.
    fn beside(&self, apart: bool) -> Result<()> {
        Threads::this().run_on(self.processors.others(apart))
    }
}

/// Tails of the same calls: idle, beside threads that copy, under load.
#[derive(Default)]
struct Tails {
    idle: Tail,
    copying: Tail,
    loaded: Tail,
}

fn rounds(
    options: &Options,
    reloads: &Reloads<'_>,
    loading: &AtomicBool,
    beside: impl Fn() -> Result<()> + Sync,
) -> Result<Tails> {
    let mut tails = Tails::default();
    for _ in 0..options.common.rounds {
        tails.idle.note(&reloads.run(options.reloads)?);
        tails.copying.note(&beside_copies(&beside, || reloads.run(options.reloads))?);
        loading.store(true, Ordering::Relaxed);
        let calls = reloads.run(options.reloads);
        loading.store(false, Ordering::Relaxed);
        tails.loaded.note(&calls?);
        reloads.connection.wait_until_clean()?;
    }
    Ok(tails)
}

impl Tails {
    fn tell(&self, apart: bool, bursts: u64) {
        let mut table = Table::new(format!(
            "BeginReload + EndReload of {PAGES} pages in DRAM, {}; {bursts} bursts of {} MiB so far",
            if apart {
                "its two threads on a processor of their own"
            } else {
                "all threads on all processors"
            },
            (BURST * PAGE_BYTES) >> 20
        ));
        let Tails { idle, copying, loaded } = self;
        for (at, (what, promise)) in WHAT.into_iter().enumerate() {
            table.row(&format!("{what}, idle"), "us", &idle.0[at], "");
            table.row(&format!("{what}, beside copies"), "us", &copying.0[at], "");
            table.row(&format!("{what}, loaded"), "us", &loaded.0[at], "");
            table.row(&format!("{what}, loaded / idle"), "x", &loaded.0[at].over(&idle.0[at]), promise);
            table.row(
                &format!("{what}, loaded / beside copies"),
                "x",
                &loaded.0[at].over(&copying.0[at]),
                "",
            );
        }
        println!("{table}");
    }
}

/// What is told of each round's calls, and what is wanted of loaded against idle.
const WHAT: [(&str, &str); 3] = [("p50", ""), ("p99", "<= 2"), ("p99 less waits for a processor", "<= 2")];

#[derive(Default)]
struct Tail([Series; WHAT.len()]);

impl Tail {
    fn note(&mut self, calls: &Calls) {
        self.0[0].push(quantile(&calls.micros, 0.5));
        self.0[1].push(quantile(&calls.micros, 0.99));
        self.0[2].push(quantile(&calls.running_micros, 0.99));
    }
}

/// How long each call took, and without what its threads waited for a processor.
struct Calls {
    micros: Vec<f64>,
    running_micros: Vec<f64>,
}

struct Reloads<'a> {
    connection: &'a Connection,
    queued: Queued,
}

impl Reloads<'_> {
    /// Reloads sessions in turn, in place: no copy is part of the time.
    fn run(&self, count: u32) -> Result<Calls> {
        let chains: Vec<_> = (0..SESSIONS).map(|session| page_hashes(session, 0..PAGES)).collect();
        let mut calls = Calls { micros: Vec::new(), running_micros: Vec::new() };
        for (_, chain) in (0..count).zip(chains.iter().cycle()) {
            let before = self.queued.waited()?;
            let started = Instant::now();
            let lease = self.connection.lease(chain)?;
            self.connection.finish(lease)?;
            let micros = started.elapsed().as_secs_f64() * 1e6;
            let waited = self.queued.waited()?.since(&before);
            calls.micros.push(micros);
            calls.running_micros.push((micros - waited).max(0.0));
            std::thread::sleep(PACE);
        }
        Ok(calls)
    }
}

/// Measures while two threads copy bursts of memory, with pauses like the load's: an offload's bytes are copied once and
/// summed once, a reload's too.
fn beside_copies(
    beside: &(impl Fn() -> Result<()> + Sync),
    measure: impl FnOnce() -> Result<Calls>,
) -> Result<Calls> {
    let stop = AtomicBool::new(false);
    let copy = || -> Result<()> {
        beside()?;
        let source = vec![7u8; BURST * PAGE_BYTES];
        let mut target = vec![0u8; BURST * PAGE_BYTES];
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..2 {
                target.copy_from_slice(std::hint::black_box(&source));
                std::hint::black_box(&mut target);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(copy), scope.spawn(copy)];
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a copying thread died"))??;
        }
        measured
    })
}

/// What others do meanwhile, each with a client of its own.
struct Load<'a> {
    loading: &'a AtomicBool,
    stop: &'a AtomicBool,
    bursts: &'a AtomicU64,
}

impl Load<'_> {
    /// Bursts of new pages: DRAM is full after some, so each demotes what older ones left.
    fn offload_bursts(&self, connection: &Connection) -> Result<()> {
        let page = vec![5u8; PAGE_BYTES];
        self.while_loading(|| {
            let burst = self.bursts.fetch_add(1, Ordering::Relaxed);
            let hashes = page_hashes(1_000 + burst, 0..BURST);
            connection.offload_all(None, &hashes, &vec![page.as_slice(); BURST])
        })
    }

    /// Older bursts come back: most of them from NVMe.
    fn reload_from_nvme(&self, connection: &Connection) -> Result<()> {
        let mut pages = vec![vec![0u8; PAGE_BYTES]; BURST];
        let mut oldest = 0;
        self.while_loading(|| {
            let burst = self.bursts.load(Ordering::Relaxed);
            if burst <= oldest + 20 {
                return Ok(());
            }
            let hashes = page_hashes(1_000 + oldest, 0..BURST);
            oldest += 1;
            if connection.lookup(&hashes)? < BURST {
                return Ok(()); // NVMe was full of newer ones
            }
            let mut targets: Vec<&mut [u8]> = pages.iter_mut().map(Vec::as_mut_slice).collect();
            connection.reload_all(&hashes, &mut targets).map(drop)
        })
    }

    fn while_loading(&self, mut act: impl FnMut() -> Result<()>) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            if self.loading.load(Ordering::Relaxed) {
                act()?;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

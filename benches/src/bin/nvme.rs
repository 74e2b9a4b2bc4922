//! The NVMe tier against the disk itself: sustained offload, reload from NVMe alone, and gets over a working set four
//! times the DRAM tier, uniform and Zipf. The limit is measured on the same file system with the same bytes in flight.
//! Must not know: how the tier lays out its bytes.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use clap::Parser;
use turnkv_benches::connection::{Connection, page_hashes};
use turnkv_benches::disk::{Direction, Disk};
use turnkv_benches::memory::with_huge_pages;
use turnkv_benches::options::{Common, PageSize};
use turnkv_benches::pages::{Pages, check_ends, check_whole};
use turnkv_benches::sampling::{Random, Zipf};
use turnkv_benches::server::{Budget, Codec, Server};
use turnkv_benches::stats::{Series, Table};
use turnkv_benches::workers::in_step;
use turnkv_client::DataPlane;

/// Share of the working set that fits the DRAM tier.
const DRAM_SHARE: f64 = 0.25;
const ZIPF_EXPONENT: f64 = 0.9;

/// The NVMe tier against the disk.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    page: PageSize,
    /// Clients, each with one batch in flight.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    clients: u8,
    /// Bytes of one batch, in MiB.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    batch_mib: u8,
    /// Pages of bf16 values instead of random bytes: the server can make them smaller.
    #[arg(long)]
    values: bool,
    /// The server's `nvme.codec`.
    #[arg(long, value_enum, default_value = "auto")]
    codec: Codec,
}

impl Options {
    fn batch_bytes(&self) -> usize {
        usize::from(self.batch_mib) << 20
    }

    /// What the clients together have in flight, and what the disk's limit is measured with.
    fn inflight_bytes(&self) -> usize {
        self.batch_bytes() * usize::from(self.clients)
    }
}

/// One client and its buffers. The working set is cut into batches; each is one chain of pages, got as a whole.
struct Worker {
    connection: Connection,
    source: Pages,
    target: Pages,
    batch: usize,
    /// Batches that this client offloads.
    mine: std::ops::Range<usize>,
    /// Batches that it gets next.
    wanted: Vec<usize>,
}

impl Worker {
    fn offload(&mut self, round: u64) -> Result<()> {
        for at in self.mine.clone().map(|batch| batch * self.batch) {
            let pages = self.source.stamped(at..at + self.batch);
            self.connection.offload_all(None, &page_hashes(round, at..at + self.batch), &pages)?;
        }
        Ok(())
    }

    /// Gets every wanted batch; returns how many pages came from NVMe. `whole`: compare every byte.
    fn get(&mut self, round: u64, whole: bool) -> Result<usize> {
        let mut from_nvme = 0;
        for at in self.wanted.iter().map(|batch| batch * self.batch) {
            let mut targets = self.target.targets(at, self.batch);
            from_nvme +=
                self.connection.reload_all(&page_hashes(round, at..at + self.batch), &mut targets)?;
            check_ends(&targets, at)?;
            if whole {
                check_whole(&targets, &self.source.stamped(at..at + self.batch))?;
            }
        }
        Ok(from_nvme)
    }
}

fn main() -> Result<()> {
    with_huge_pages()?;
    let options = Options::parse();
    ensure!(
        options.batch_bytes().is_multiple_of(options.page.bytes()),
        "a batch must be a number of whole pages"
    );
    let total = options.common.total_bytes();
    let budget = Budget {
        nvme_bytes: total * 4,
        inflight_bytes: options.inflight_bytes(),
        codec: options.codec,
        ..Budget::dram((total as f64 * DRAM_SHARE) as usize)
    };
    let server = Server::start(&options.common, budget)?;
    let disk = Disk::new(server.folder(), total)?;
    let mut workers = workers(&server, &options)?;
    let mut results = Results::default();
    for round in 0..u64::from(options.common.rounds) {
        measure_round(round, &options, &disk, &mut workers, &mut results)?;
    }
    results.print(&options, &disk);
    Ok(())
}

fn workers(server: &Server, options: &Options) -> Result<Vec<Worker>> {
    let clients = usize::from(options.clients);
    let each = batches(options) / clients;
    ensure!(each > 0, "--total-mib is less than one batch a client");
    let ring = (256 << 20) / clients / options.batch_bytes() * options.batch_bytes();
    let worker = |client: usize| -> Result<Worker> {
        Ok(Worker {
            connection: Connection::open(&server.address(), DataPlane::Shm, options.page.bytes())?,
            source: match options.values {
                true => Pages::of_values(ring.max(options.batch_bytes()), options.page.bytes()),
                false => Pages::filled(ring.max(options.batch_bytes()), options.page.bytes()),
            },
            target: Pages::empty(ring.max(options.batch_bytes()), options.page.bytes()),
            batch: options.batch_bytes() / options.page.bytes(),
            mine: client * each..(client + 1) * each,
            wanted: Vec::new(),
        })
    };
    (0..clients).map(worker).collect()
}

fn batches(options: &Options) -> usize {
    options.common.total_bytes() / options.batch_bytes()
}

/// One sample a round of everything.
#[derive(Default)]
struct Results {
    disk_write: Series,
    disk_read: Series,
    offload: Series,
    reload: Series,
    uniform: Gets,
    zipf: Gets,
}

#[derive(Default)]
struct Gets {
    rate: Series,
    /// Rate that the disk allows if the DRAM tier hit as often as the best fixed choice of pages.
    allowed: Series,
    /// Rate that the disk allows at the share of pages that really came from NVMe.
    allowed_here: Series,
    nvme_percent: Series,
}

fn measure_round(
    round: u64,
    options: &Options,
    disk: &Disk,
    workers: &mut [Worker],
    results: &mut Results,
) -> Result<()> {
    let (total, request, inflight) =
        (options.common.total_bytes(), options.page.bytes(), options.inflight_bytes());
    let stored: usize = workers.iter().map(|worker| worker.mine.len()).sum::<usize>() * options.batch_bytes();

    // Sustained offload: until the last page is on NVMe, so that the DRAM tier lends no speed.
    let started = std::time::Instant::now();
    in_step(workers, |worker| worker.offload(round))?;
    workers[0].connection.wait_until_clean()?;
    results.offload.push(stored as f64 / started.elapsed().as_secs_f64() / 1e9);
    results.disk_write.push(disk.measure(Direction::Write, total, request, inflight)? / 1e9);

    // Reload of every page from NVMe.
    workers[0].connection.demote_all()?;
    let mut random = Random::new(round);
    for worker in workers.iter_mut() {
        worker.wanted =
            random.order(worker.mine.len()).into_iter().map(|at| worker.mine.start + at).collect();
    }
    let (seconds, from_nvme) = get(workers, round)?;
    let pages = stored / options.page.bytes();
    ensure!(
        from_nvme * 100 >= pages * 99,
        "only {from_nvme} of {pages} pages came from NVMe: nothing is measured"
    );
    results.reload.push(stored as f64 / seconds / 1e9);
    results.disk_read.push(disk.measure(Direction::Read, total, request, inflight)? / 1e9);

    // Gets over the whole set: the DRAM tier holds a quarter of it. One unmeasured pass brings it into its usual state.
    let disk_read = disk.measure(Direction::Read, total, request, inflight)?;
    let held = stored / options.batch_bytes();
    let choices = [
        (Zipf::new(held, 0.0, &mut random), &mut results.uniform),
        (Zipf::new(held, ZIPF_EXPONENT, &mut random), &mut results.zipf),
    ];
    for (choice, gets) in choices {
        for measured in [false, true] {
            for worker in workers.iter_mut() {
                worker.wanted = (0..worker.mine.len()).map(|_| choice.draw(&mut random)).collect();
            }
            let (seconds, from_nvme) = get(workers, round)?;
            if measured {
                let missed = (from_nvme as f64 / pages as f64).max(1e-3);
                gets.rate.push(stored as f64 / seconds / 1e9);
                gets.allowed.push(disk_read / (1.0 - choice.top(DRAM_SHARE)) / 1e9);
                gets.allowed_here.push(disk_read / missed / 1e9);
                gets.nvme_percent.push(missed * 100.0);
            }
        }
    }

    // Every byte of every page, untimed; then room for the next round.
    for worker in workers.iter_mut() {
        worker.wanted = worker.mine.clone().collect();
    }
    in_step(workers, |worker| worker.get(round, true).map(|_| ()))?;
    workers[0].connection.drop_all()
}

/// Seconds, and pages that came from NVMe.
fn get(workers: &mut [Worker], round: u64) -> Result<(f64, usize)> {
    let from_nvme = AtomicUsize::new(0);
    let seconds = in_step(workers, |worker| {
        from_nvme.fetch_add(worker.get(round, false)?, Ordering::Relaxed);
        Ok(())
    })?;
    Ok((seconds, from_nvme.into_inner()))
}

impl Results {
    fn print(&self, options: &Options, disk: &Disk) {
        let total = options.common.total_mib;
        let mut table = Table::new(format!(
            "NVMe: {total} MiB in pages of {} KiB, DRAM tier {} MiB, {} client(s), {} MiB in flight; limit by {}",
            options.page.page_kib,
            total / 4,
            options.clients,
            options.inflight_bytes() >> 20,
            disk.engine()
        ));
        table.row("disk write", "GB/s", &self.disk_write, "");
        table.row("sustained offload, until on NVMe", "GB/s", &self.offload, "");
        table.row("offload / disk write", "x", &self.offload.over(&self.disk_write), "1");
        table.row("disk read", "GB/s", &self.disk_read, "");
        table.row("reload from NVMe", "GB/s", &self.reload, "");
        table.row("reload / disk read", "x", &self.reload.over(&self.disk_read), ">= 0.95");
        for (what, gets) in [("uniform", &self.uniform), ("Zipf 0.9", &self.zipf)] {
            table.row(&format!("{what} gets"), "GB/s", &gets.rate, "");
            table.row(&format!("{what}: pages from NVMe"), "%", &gets.nvme_percent, "");
            let ideal = gets.rate.over(&gets.allowed);
            table.row(
                &format!("{what} / disk read over the best fixed choice's misses"),
                "x",
                &ideal,
                ">= 0.9",
            );
            let here = gets.rate.over(&gets.allowed_here);
            table.row(&format!("{what} / disk read over the misses seen"), "x", &here, "");
        }
        println!("{table}");
        println!("Every page was stored, none was lost or refused, and every byte was verified.");
    }
}

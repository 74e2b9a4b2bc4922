//! Shared memory against memcpy: batches of large pages with one client and with several, one small page a call, and
//! leases that copy nothing.
//! Must not know: the disk.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use turnkv_benches::connection::{Connection, page_hash, page_hashes};
use turnkv_benches::memory::{Buffer, with_huge_pages};
use turnkv_benches::options::Common;
use turnkv_benches::pages::{Pages, check_ends, check_whole};
use turnkv_benches::sampling::Random;
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::stats::{Series, Table, quantile};
use turnkv_benches::workers::in_step;
use turnkv_client::{DataPlane, LeasedPage};

/// Source and target buffers of all clients together, each: more than the last-level cache holds.
const RING_BYTES: usize = 256 << 20;
const SMALL_PAGE_BYTES: usize = 128 << 10;
const LARGE_PAGE_BYTES: usize = 2 << 20;
/// Calls of one round with one small page each.
const SINGLES: usize = 2048;
/// Leases of one size in a round.
const LEASES: usize = 200;

/// Shared memory against memcpy.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Pages of 2 MiB in one call.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=32))]
    batch: u16,
    /// Numbers of clients to measure.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    clients: Vec<usize>,
}

fn main() -> Result<()> {
    with_huge_pages()?;
    let options = Options::parse();
    for clients in &options.clients {
        batches(&options, *clients)?;
    }
    singles(&options)?;
    leases(&options)
}

/// One client: its connection, its buffers, its share of the pages, and the arena that memcpy copies to and from.
struct Worker {
    connection: Connection,
    source: Pages,
    target: Pages,
    arena: Buffer,
    first: usize,
    batch: usize,
    order: Vec<usize>,
}

impl Worker {
    fn new(server: &Server, options: &Options, clients: usize, client: usize) -> Result<Worker> {
        let batch = usize::from(options.batch);
        let batches = options.common.total_bytes() / clients / LARGE_PAGE_BYTES / batch;
        ensure!(batches > 0, "--total-mib is less than one batch a client");
        let ring = (RING_BYTES / clients).max(batch * LARGE_PAGE_BYTES);
        Ok(Worker {
            connection: Connection::open(&server.address(), DataPlane::Shm, LARGE_PAGE_BYTES)?,
            source: Pages::filled(ring, LARGE_PAGE_BYTES),
            target: Pages::empty(ring, LARGE_PAGE_BYTES),
            arena: Buffer::new(batches * batch * LARGE_PAGE_BYTES),
            first: client * batches * batch,
            batch,
            order: Random::new(client as u64).order(batches),
        })
    }

    fn bytes(&self) -> usize {
        self.arena.bytes().len()
    }

    /// Stamps every batch, in a random order, and hands it to `store` with the place of its first page in the arena.
    fn each_source(
        &mut self,
        store: impl Fn(&Connection, &mut Buffer, usize, usize, &[&[u8]]) -> Result<()>,
    ) -> Result<()> {
        for at in self.order.iter().map(|at| at * self.batch) {
            let number = self.first + at;
            let pages = self.source.stamped(number..number + self.batch);
            store(&self.connection, &mut self.arena, at, number, &pages)?;
        }
        Ok(())
    }

    /// Lets `load` fill the buffers of every batch, in another order, and checks both ends of every page.
    fn each_target(
        &mut self,
        load: impl Fn(&Connection, &Buffer, usize, usize, &mut [&mut [u8]]) -> Result<()>,
    ) -> Result<()> {
        for at in self.order.iter().rev().map(|at| at * self.batch) {
            let number = self.first + at;
            let mut targets = self.target.targets(number, self.batch);
            load(&self.connection, &self.arena, at, number, &mut targets)?;
            check_ends(&targets, number)?;
        }
        Ok(())
    }

    fn copy_in(&mut self) -> Result<()> {
        self.each_source(|_, arena, at, _, pages| {
            let places = arena.bytes_mut()[at * LARGE_PAGE_BYTES..].chunks_mut(LARGE_PAGE_BYTES);
            places.zip(pages).for_each(|(place, page)| place.copy_from_slice(page));
            Ok(())
        })
    }

    fn copy_out(&mut self) -> Result<()> {
        self.each_target(|_, arena, at, _, targets| {
            let places = arena.bytes()[at * LARGE_PAGE_BYTES..].chunks(LARGE_PAGE_BYTES);
            targets.iter_mut().zip(places).for_each(|(target, place)| target.copy_from_slice(place));
            Ok(())
        })
    }

    fn offload(&mut self, round: u64) -> Result<()> {
        self.each_source(|connection, _, _, number, pages| {
            connection.offload_all(None, &page_hashes(round, number..number + pages.len()), pages)
        })
    }

    fn reload(&mut self, round: u64) -> Result<()> {
        self.each_target(|connection, _, _, number, targets| {
            let hashes = page_hashes(round, number..number + targets.len());
            connection.reload_all(&hashes, targets).map(|_| ())
        })
    }

    /// Every byte of every page, outside the timed parts.
    fn verify(&mut self, round: u64) -> Result<()> {
        for at in self.order.iter().map(|at| at * self.batch) {
            let number = self.first + at;
            let mut targets = self.target.targets(number, self.batch);
            self.connection.reload_all(&page_hashes(round, number..number + self.batch), &mut targets)?;
            check_whole(&targets, &self.source.stamped(number..number + self.batch))?;
        }
        Ok(())
    }
}

/// Rounds that are not counted: every client maps every slab it is granted slots in, and its pages are faulted in once.
const WARM_ROUNDS: u64 = 3;

fn batches(options: &Options, clients: usize) -> Result<()> {
    let total = options.common.total_bytes();
    let server = Server::start(&options.common, Budget::dram(total / 4 * 5 + (128 << 20)))?;
    let mut workers = (0..clients)
        .map(|client| Worker::new(&server, options, clients, client))
        .collect::<Result<Vec<_>>>()?;
    let gb = workers.iter().map(Worker::bytes).sum::<usize>() as f64 / 1e9;
    let mut rates = [const { Series::new() }; 4];
    for round in 0..WARM_ROUNDS + u64::from(options.common.rounds) {
        let seconds = [
            in_step(&mut workers, Worker::copy_in)?,
            in_step(&mut workers, |worker| worker.offload(round))?,
            in_step(&mut workers, Worker::copy_out)?,
            in_step(&mut workers, |worker| worker.reload(round))?,
        ];
        in_step(&mut workers, |worker| worker.verify(round))?;
        workers[0].connection.drop_all()?;
        if round >= WARM_ROUNDS {
            rates.iter_mut().zip(seconds).for_each(|(rate, seconds)| rate.push(gb / seconds));
        }
    }
    let [copy_in, offload, copy_out, reload] = rates;
    let what = format!("batches of {} x 2 MiB, {clients} client(s), every page verified", options.batch);
    let mut table = Table::new(what);
    table.row("memcpy in", "GB/s", &copy_in, "");
    table.row("offload", "GB/s", &offload, "");
    table.row("offload / memcpy", "x", &offload.over(&copy_in), ">= 1");
    table.row("memcpy out", "GB/s", &copy_out, "");
    table.row("reload", "GB/s", &reload, "");
    table.row("reload / memcpy", "x", &reload.over(&copy_out), ">= 1");
    println!("{table}");
    Ok(())
}

/// One small page a call, one client: median microseconds of a copy, an offload and a reload.
fn singles(options: &Options) -> Result<()> {
    let bytes = SINGLES * SMALL_PAGE_BYTES;
    let server = Server::start(&options.common, Budget::dram(2 * bytes))?;
    let connection = Connection::open(&server.address(), DataPlane::Shm, SMALL_PAGE_BYTES)?;
    let (mut source, mut target) =
        (Pages::filled(bytes, SMALL_PAGE_BYTES), Pages::empty(bytes, SMALL_PAGE_BYTES));
    let mut arena = Buffer::new(bytes);
    let mut medians = [const { Series::new() }; 4];
    let mut tails = [const { Series::new() }; 4];
    for round in 0..=u64::from(options.common.rounds) {
        let mut micros = [const { Vec::new() }; 4];
        // A pass each, in an order each: no copy may warm the caches for the next one.
        let order = |pass: u64| Random::new(round * 4 + pass).order(SINGLES);
        for number in order(0) {
            let page = source.stamped(number..number + 1)[0];
            let place = &mut arena.bytes_mut()[number * SMALL_PAGE_BYTES..][..SMALL_PAGE_BYTES];
            timed(&mut micros[0], || place.copy_from_slice(page));
        }
        for number in order(1) {
            let (pages, hash) = (source.stamped(number..number + 1), [page_hash(round, number)]);
            timed(&mut micros[1], || connection.offload_all(None, &hash, &pages))?;
        }
        for number in order(2) {
            let place = &arena.bytes()[number * SMALL_PAGE_BYTES..][..SMALL_PAGE_BYTES];
            timed(&mut micros[2], || target.targets(number, 1)[0].copy_from_slice(place));
        }
        for number in order(3) {
            let (mut targets, hash) = (target.targets(number, 1), [page_hash(round, number)]);
            timed(&mut micros[3], || connection.reload_all(&hash, &mut targets))?;
        }
        for number in 0..SINGLES {
            check_whole(&target.targets(number, 1), &source.stamped(number..number + 1))?;
        }
        connection.drop_all()?;
        if round > 0 {
            medians.iter_mut().zip(&micros).for_each(|(series, micros)| series.push(quantile(micros, 0.5)));
            tails.iter_mut().zip(&micros).for_each(|(series, micros)| series.push(quantile(micros, 0.99)));
        }
    }
    let mut table = Table::new("one 128 KiB page a call, one client, every page verified");
    for (at, what) in ["memcpy in", "offload", "memcpy out", "reload"].iter().enumerate() {
        let wanted = if at % 2 == 1 { "<= 35" } else { "" };
        table.row(&format!("{what}, p50"), "us", &medians[at], wanted);
        table.row(&format!("{what}, p99"), "us", &tails[at], "");
    }
    table.row("offload / memcpy, p50", "x", &medians[1].over(&medians[0]), "");
    table.row("reload / memcpy, p50", "x", &medians[3].over(&medians[2]), "");
    println!("{table}");
    Ok(())
}

/// Zero-copy reads: from asking for the lease until the last page's first byte is in hand, whatever the size.
fn leases(options: &Options) -> Result<()> {
    let batch = usize::from(options.batch);
    let cases = [(SMALL_PAGE_BYTES, 1), (LARGE_PAGE_BYTES, 1), (LARGE_PAGE_BYTES, batch)];
    let mut table = Table::new("zero-copy reads: a lease on slots, one client, stamps checked in place");
    for (page_bytes, pages) in cases {
        let bytes = 2 * pages * page_bytes;
        let server = Server::start(&options.common, Budget::dram((4 * bytes).max(256 << 20)))?;
        let connection = Connection::open(&server.address(), DataPlane::Shm, page_bytes)?;
        let mut source = Pages::filled(bytes, page_bytes);
        let hashes = page_hashes(0, 0..pages);
        connection.offload_all(None, &hashes, &source.stamped(0..pages))?;
        let (mut medians, mut whole) = (Series::new(), Series::new());
        for round in 0..=options.common.rounds {
            let (mut opened, mut ended) = (Vec::new(), Vec::new());
            for _ in 0..LEASES {
                let started = Instant::now();
                let lease = connection.lease(&hashes)?;
                let mut first = [0];
                let last = lease.page(pages - 1).map(|page| page.copy_to(0, &mut first)).transpose()?;
                opened.push(started.elapsed().as_secs_f64() * 1e6);
                // Both ends of each, and no more: a copy of all would be what is timed next, in cold caches.
                let ends: Vec<[u8; 16]> =
                    (0..pages).filter_map(|at| lease.page(at)).map(ends).collect::<Result<_>>()?;
                let views: Vec<&[u8]> = ends.iter().map(<[u8; 16]>::as_slice).collect();
                check_ends(&views, 0)?;
                ensure!(last.is_some() && views.len() == pages, "LOST PAGES: a leased page is not there");
                let ending = Instant::now();
                connection.finish(lease)?;
                ended.push(opened[opened.len() - 1] + ending.elapsed().as_secs_f64() * 1e6);
            }
            if round > 0 {
                medians.push(quantile(&opened, 0.5));
                whole.push(quantile(&ended, 0.5));
            }
        }
        let what = format!("{pages} x {} KiB", page_bytes >> 10);
        table.row(&format!("{what}: until readable, p50"), "us", &medians, "<= 15");
        table.row(&format!("{what}: and given back, p50"), "us", &whole, "");
    }
    println!("{table}");
    Ok(())
}

/// The first and the last bytes of a leased page, where its stamps are.
fn ends(page: LeasedPage<'_>) -> Result<[u8; 16]> {
    let mut ends = [0; 16];
    page.copy_to(0, &mut ends[..8])?;
    page.copy_to(page.len() - 8, &mut ends[8..])?;
    Ok(ends)
}

fn timed<T>(micros: &mut Vec<f64>, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = work();
    micros.push(started.elapsed().as_secs_f64() * 1e6);
    done
}

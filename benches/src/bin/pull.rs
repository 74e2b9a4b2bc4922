//! A session whose turn begins on another pool of its cluster, against a bare stream that carries the same bytes between the same two
//! places, in the same rounds. Must not know: how pools pull.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use turnkv_benches::connection::{Connection, page_hashes};
use turnkv_benches::memory::with_huge_pages;
use turnkv_benches::network::Network;
use turnkv_benches::options::{Common, PageSize};
use turnkv_benches::pages::{Pages, check_ends};
use turnkv_benches::raw::{self, RAW_END, RawEnd, RawStream};
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::stats::{Series, Table};
use turnkv_client::{BlockHash, DataPlane};

const RING_BYTES: usize = 256 << 20;

/// A turn that begins on another pool.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    page: PageSize,
    /// Pages in one call of the engine.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    batch: u16,
    /// Where the servers listen, and the bare stream's other end.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == RAW_END) {
        return raw::serve(&arguments[1..]);
    }
    with_huge_pages()?;
    println!("{}", measure(&Options::parse())?);
    Ok(())
}

/// An engine on each of two hosts, and a bare stream between these.
struct Hosts {
    home: Connection,
    other: Connection,
    raw: RawStream,
    source: Pages,
    target: Pages,
    batch: usize,
    pages: usize,
}

/// What one round came to, in seconds.
struct Round {
    raw: f64,
    checked: f64,
    first: f64,
    last: f64,
    local: f64,
}

fn measure(options: &Options) -> Result<Table> {
    let (page_bytes, batch) = (options.page.bytes(), usize::from(options.batch));
    let pages = options.common.total_bytes() / (page_bytes * batch) * batch;
    let bytes = pages * page_bytes;
    let place = || Network::new(&options.common.server, &options.host, None, false);
    let (mut one, mut other) = (place()?, place()?);
    let members = format!(
        "members = [{{ id = \"home\", endpoint = \"{}\" }}, {{ id = \"other\", endpoint = \"{}\" }}]\n",
        one.address(),
        other.address()
    );
    one.more = format!("[cluster]\nid = \"home\"\n{members}");
    other.more = format!("[cluster]\nid = \"other\"\n{members}");
    let budget = Budget::dram(bytes / 4 * 5 + (128 << 20));
    let servers = [
        Server::start_on(&options.common, budget, &one)?,
        Server::start_on(&options.common, budget, &other)?,
    ];
    let end = RawEnd::start(&one, bytes)?;
    let mut hosts = Hosts {
        home: Connection::open(&servers[0].address(), DataPlane::Auto, page_bytes)?,
        other: Connection::open(&servers[1].address(), DataPlane::Auto, page_bytes)?,
        raw: end.connect(&one)?,
        source: Pages::filled(RING_BYTES.min(bytes), page_bytes),
        target: Pages::empty(RING_BYTES.min(bytes), page_bytes),
        batch,
        pages,
    };
    let mut series = [const { Series::new() }; 5];
    for round in 0..=u64::from(options.common.rounds) {
        let Round { raw, checked, first, last, local } = hosts.round(round)?;
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        if round > 0 {
            let samples = [rate(raw), rate(checked), first * 1e3, rate(last), rate(local)];
            series.iter_mut().zip(samples).for_each(|(series, sample)| series.push(sample));
        }
    }
    drop(servers);
    Ok(table(options, pages, series))
}

fn table(options: &Options, pages: usize, [raw, checked, first, last, local]: [Series; 5]) -> Table {
    let what = format!(
        "a session of {pages} x {} KiB whose turn begins on another pool, the loopback, every page verified",
        options.page.page_kib
    );
    let mut table = Table::new(what);
    table.row("raw TCP", "GB/s", &raw, "");
    table.row("the same, checksums at both ends", "GB/s", &checked, "");
    table.row("begin to first page", "ms", &first, "");
    table.row("begin to last page", "GB/s", &last, "");
    table.row("begin to last page / raw TCP", "x", &last.over(&raw), ">= 0.9");
    table.row("begin to last page / with checksums", "x", &last.over(&checked), "");
    table.row("the next turn there", "GB/s", &local, "");
    table
}

impl Hosts {
    fn round(&mut self, round: u64) -> Result<Round> {
        let (session, hashes) = (format!("session-{round}"), page_hashes(round, 0..self.pages));
        self.home.begin_turn(&session)?;
        self.offload(&hashes)?;
        self.home.end_turn(&session, &hashes, 0)?;
        self.keep_raw()?;
        let began = Instant::now();
        self.raw_get(false)?;
        let raw = began.elapsed().as_secs_f64();
        let began = Instant::now();
        self.raw_get(true)?;
        let checked = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let begun = self.other.begin_turn_after(&session, 1)?;
        ensure!(begun.pages + begun.afar == self.pages, "LOST PAGES: {begun:?}");
        self.reload(&hashes[..1])?;
        let first = began.elapsed().as_secs_f64();
        self.reload(&hashes)?;
        let last = began.elapsed().as_secs_f64();
        self.other.end_turn(&session, &hashes, 0)?;
        let began = Instant::now();
        let begun = self.other.begin_turn_after(&session, 2)?;
        ensure!((begun.pages, begun.afar) == (self.pages, 0), "LOST PAGES: {begun:?}");
        self.reload(&hashes)?;
        let local = began.elapsed().as_secs_f64();
        self.other.drop_all()?;
        self.home.drop_all()?;
        Ok(Round { raw, checked, first, last, local })
    }

    fn offload(&mut self, hashes: &[BlockHash]) -> Result<()> {
        for at in (0..hashes.len()).step_by(self.batch) {
            let pages = self.source.stamped(at..at + self.batch);
            let parent = at.checked_sub(1).map(|before| hashes[before]);
            self.home.offload_all(parent, &hashes[at..at + self.batch], &pages)?;
        }
        Ok(())
    }

    fn reload(&mut self, hashes: &[BlockHash]) -> Result<()> {
        for (part, hashes) in hashes.chunks(self.batch).enumerate() {
            let mut targets = self.target.targets(part * self.batch, hashes.len());
            self.other.reload_all(hashes, &mut targets)?;
            check_ends(&targets, part * self.batch)?;
        }
        Ok(())
    }

    fn keep_raw(&mut self) -> Result<()> {
        for at in (0..self.pages).step_by(self.batch) {
            let pages = self.source.stamped(at..at + self.batch);
            self.raw.put(at * pages[0].len(), &pages, true)?;
        }
        Ok(())
    }

    fn raw_get(&mut self, checked: bool) -> Result<()> {
        for at in (0..self.pages).step_by(self.batch) {
            let mut targets = self.target.targets(at, self.batch);
            self.raw.get(at * targets[0].len(), &mut targets, checked)?;
            check_ends(&targets, at)?;
        }
        Ok(())
    }
}

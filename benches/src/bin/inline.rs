//! The inline data plane (gRPC streams over TCP) against one bare TCP stream that carries the same pages.
//! Must not know: shared memory, the disk.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result};
use clap::Parser;
use turnkv_benches::connection::{Connection, page_hashes};
use turnkv_benches::memory::{Buffer, with_huge_pages};
use turnkv_benches::options::Common;
use turnkv_benches::pages::{Pages, check_ends, check_whole};
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::stats::{Series, Table};
use turnkv_benches::workers::in_step;
use turnkv_client::DataPlane;

const RING_BYTES: usize = 256 << 20;

/// The inline data plane against raw TCP.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Bytes of a page, in KiB.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=65536))]
    page_kib: u32,
    /// Pages in one call.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    batch: u16,
}

fn main() -> Result<()> {
    with_huge_pages()?;
    let options = Options::parse();
    let page_bytes = (options.page_kib as usize) << 10;
    let batch = usize::from(options.batch);
    let total = options.common.total_bytes() / (page_bytes * batch) * page_bytes * batch;
    let budget = Budget { tcp: true, ..Budget::dram(total / 4 * 5 + (128 << 20)) };
    let server = Server::start(&options.common, budget)?;
    let address = server.tcp_address().context("the server was asked to serve TCP")?;
    let mut lane = Lane {
        connection: Connection::open(&address, DataPlane::Inline, page_bytes)?,
        raw: raw_server(total)?,
        source: Pages::filled(RING_BYTES.min(total), page_bytes),
        target: Pages::empty(RING_BYTES.min(total), page_bytes),
        batch,
        starts: (0..total / page_bytes).step_by(batch).collect(),
    };
    let mut rates = [const { Series::new() }; 4];
    for round in 0..=u64::from(options.common.rounds) {
        let mut seconds =
            |work: fn(&mut Lane, u64) -> Result<()>| in_step(&mut [&mut lane], |lane| work(lane, round));
        let seconds = [seconds(raw_put)?, seconds(Lane::offload)?, seconds(raw_get)?, seconds(Lane::reload)?];
        lane.verify(round)?;
        lane.connection.drop_all()?;
        if round > 0 {
            rates.iter_mut().zip(seconds).for_each(|(rate, seconds)| rate.push(total as f64 / seconds / 1e9));
        }
    }
    let [put, offload, get, reload] = rates;
    let what = format!(
        "inline over TCP: batches of {batch} x {} KiB, one client, every page verified",
        options.page_kib
    );
    let mut table = Table::new(what);
    table.row("raw TCP put", "GB/s", &put, "");
    table.row("offload", "GB/s", &offload, "");
    table.row("offload / raw TCP", "x", &offload.over(&put), ">= 0.5");
    table.row("raw TCP get", "GB/s", &get, "");
    table.row("reload", "GB/s", &reload, "");
    table.row("reload / raw TCP", "x", &reload.over(&get), ">= 0.5");
    println!("{table}");
    Ok(())
}

/// One client with both ways to the other side.
struct Lane {
    connection: Connection,
    raw: TcpStream,
    source: Pages,
    target: Pages,
    batch: usize,
    /// First page of every batch.
    starts: Vec<usize>,
}

impl Lane {
    fn offload(&mut self, round: u64) -> Result<()> {
        for at in self.starts.iter().copied() {
            let pages = self.source.stamped(at..at + self.batch);
            self.connection.offload_all(None, &page_hashes(round, at..at + self.batch), &pages)?;
        }
        Ok(())
    }

    fn reload(&mut self, round: u64) -> Result<()> {
        for at in self.starts.iter().copied() {
            let mut targets = self.target.targets(at, self.batch);
            self.connection.reload_all(&page_hashes(round, at..at + self.batch), &mut targets)?;
            check_ends(&targets, at)?;
        }
        Ok(())
    }

    fn verify(&mut self, round: u64) -> Result<()> {
        for at in self.starts.iter().copied() {
            let mut targets = self.target.targets(at, self.batch);
            self.connection.reload_all(&page_hashes(round, at..at + self.batch), &mut targets)?;
            check_whole(&targets, &self.source.stamped(at..at + self.batch))?;
        }
        Ok(())
    }
}

fn raw_put(lane: &mut Lane, _round: u64) -> Result<()> {
    for at in lane.starts.iter().copied() {
        let pages = lane.source.stamped(at..at + lane.batch);
        send(&lane.raw, b'p', at * pages[0].len(), pages.iter().map(|page| page.len()).sum())?;
        pages.iter().try_for_each(|page| lane.raw.write_all(page))?;
        lane.raw.read_exact(&mut [0u8; 1])?;
    }
    Ok(())
}

fn raw_get(lane: &mut Lane, _round: u64) -> Result<()> {
    for at in lane.starts.iter().copied() {
        let mut targets = lane.target.targets(at, lane.batch);
        send(&lane.raw, b'g', at * targets[0].len(), targets.iter().map(|page| page.len()).sum())?;
        targets.iter_mut().try_for_each(|page| lane.raw.read_exact(page))?;
        check_ends(&targets, at)?;
    }
    Ok(())
}

/// A request to the bare server: what, from which byte of its memory, how many.
fn send(mut stream: &TcpStream, what: u8, from: usize, bytes: usize) -> Result<()> {
    let mut head = [what; 17];
    head[1..9].copy_from_slice(&(from as u64).to_le_bytes());
    head[9..].copy_from_slice(&(bytes as u64).to_le_bytes());
    Ok(stream.write_all(&head)?)
}

/// A thread that keeps `total` bytes and does what [`send`] asks for; the stream to it.
fn raw_server(total: usize) -> Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (mut stream, _) = listener.accept()?;
    client.set_nodelay(true)?;
    stream.set_nodelay(true)?;
    let mut arena = Buffer::new(total);
    // It ends with the stream, when the bench does.
    std::thread::Builder::new().name("raw-tcp".to_owned()).spawn(move || -> std::io::Result<()> {
        let mut head = [0u8; 17];
        loop {
            stream.read_exact(&mut head)?;
            let number = |at: usize| {
                head[at..at + 8].iter().rev().fold(0usize, |sum, byte| (sum << 8) | usize::from(*byte))
            };
            let part = &mut arena.bytes_mut()[number(1)..number(1) + number(9)];
            if head[0] == b'p' {
                stream.read_exact(part)?;
                stream.write_all(b"k")?;
            } else {
                stream.write_all(part)?;
            }
        }
    })?;
    Ok(client)
}

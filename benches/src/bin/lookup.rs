//! Lookup of a long prompt's pages at the client, and what the index costs in memory.
//! Must not know: how long copies take; pages are small here.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use turnkv_benches::connection::{Connection, page_hash, page_hashes};
use turnkv_benches::options::Common;
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::stats::{Series, Table, quantile};
use turnkv_client::DataPlane;

/// The index's default bound counts on pages of at least this size.
const PAGE_BYTES: usize = 16 << 10;
/// Lookups in a round.
const LOOKUPS: usize = 500;
/// Pages of one offload.
const BATCH: usize = 512;

/// Lookup of a long prompt.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Pages of the prompt; 8,900 pages of 16 tokens are 142,400 tokens.
    #[arg(long, default_value_t = 8_900, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pages: u32,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let pages = options.pages as usize;
    let server = Server::start(&options.common, Budget::dram((pages * PAGE_BYTES * 2).max(128 << 20)))?;
    let connection = Connection::open(&server.address(), DataPlane::Shm, PAGE_BYTES)?;
    let hashes = page_hashes(0, 0..pages);
    let page = vec![7u8; PAGE_BYTES];
    let mut parent = None;
    for batch in hashes.chunks(BATCH) {
        connection.offload_all(parent, batch, &vec![page.as_slice(); batch.len()])?;
        parent = batch.last().copied();
    }
    // A prompt of the same length that leaves the stored one at a third of its pages.
    let shared = pages / 3;
    let mut branched = hashes[..shared].to_vec();
    branched.extend((shared..pages).map(|number| page_hash(1, number)));

    let mut table = Table::new(format!("lookup of {pages} hashes at the client, local socket"));
    for (what, asked, present) in [("all present", &hashes, pages), ("a third present", &branched, shared)] {
        let (mut p50, mut p99) = (Series::new(), Series::new());
        for _ in 0..options.common.rounds {
            let mut micros = Vec::new();
            for _ in 0..LOOKUPS {
                let started = Instant::now();
                let found = connection.lookup(asked)?;
                micros.push(started.elapsed().as_secs_f64() * 1e6);
                ensure!(found == present, "WRONG ANSWER: {found} pages found, {present} are there");
            }
            p50.push(quantile(&micros, 0.5));
            p99.push(quantile(&micros, 0.99));
        }
        table.row(&format!("{what}, p50"), "us", &p50, "<= 100");
        table.row(&format!("{what}, p99"), "us", &p99, "");
    }
    let stats = connection.stats()?;
    let mut index = Series::new();
    index.push(stats.index_bytes as f64 / stats.index_pages.max(1) as f64);
    table.row(&format!("index, {} pages", stats.index_pages), "bytes a page", &index, "<= 128");
    println!("{table}");
    Ok(())
}

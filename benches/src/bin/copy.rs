//! The copy of a page with its checksum, by every kernel that this processor runs, against memcpy.
//! Must not know: servers, sockets.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use turnkv_benches::memory::{Buffer, with_huge_pages};
use turnkv_benches::stats::{Series, Table};
use turnkv_transfer::{checksum, copy_kernels, copy_streaming_by};

/// Copies of pages, one after another over memory that no cache holds.
#[derive(Parser, Debug)]
struct Options {
    /// Rounds; each measures memcpy and every kernel once, one after the other
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Bytes of each buffer, in MiB
    #[arg(long, default_value_t = 256)]
    buffer_mib: usize,
    /// Bytes of a page, in KiB
    #[arg(long, default_values_t = [128, 2048])]
    page_kib: Vec<usize>,
}

fn main() -> Result<()> {
    with_huge_pages()?;
    let options = Options::parse();
    let mut source = Buffer::new(options.buffer_mib << 20);
    source
        .bytes_mut()
        .iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = (at.wrapping_mul(2_654_435_761) >> 13) as u8);
    let mut target = Buffer::new(options.buffer_mib << 20);
    for page_kib in &options.page_kib {
        println!("{}", measure(&options, page_kib << 10, source.bytes(), target.bytes_mut())?);
    }
    Ok(())
}

fn measure(options: &Options, page_bytes: usize, source: &[u8], target: &mut [u8]) -> Result<Table> {
    let kernels = copy_kernels();
    let mut rates = vec![Series::new(); kernels.len() + 1];
    let expected: Vec<u64> = source.chunks(page_bytes).map(checksum).collect();
    for _ in 0..options.rounds {
        let rate = |started: Instant| source.len() as f64 / 1e9 / started.elapsed().as_secs_f64();
        let started = Instant::now();
        for (from, to) in source.chunks(page_bytes).zip(target.chunks_mut(page_bytes)) {
            to.copy_from_slice(from);
        }
        rates[0].push(rate(started));
        for (kernel, rates) in kernels.iter().zip(&mut rates[1..]) {
            target[..page_bytes].fill(0);
            let started = Instant::now();
            let pages = source.chunks(page_bytes).zip(target.chunks_mut(page_bytes));
            let sums: Vec<Option<u64>> =
                pages.map(|(from, to)| copy_streaming_by(kernel, from, to)).collect();
            rates.push(rate(started));
            ensure!(
                sums.iter().zip(&expected).all(|(sum, expected)| *sum == Some(*expected)),
                "WRONG CHECKSUM: {kernel}"
            );
            ensure!(source == target, "WRONG BYTES: {kernel}");
        }
    }
    let mut table = Table::new(format!("copy and checksum, pages of {} KiB, one thread", page_bytes >> 10));
    table.row("memcpy", "GB/s", &rates[0], "");
    for (kernel, rate) in kernels.iter().zip(&rates[1..]) {
        table.row(kernel, "GB/s", rate, "");
        let wanted = if *kernel == kernels[0] { ">= 1.3" } else { "" };
        table.row(&format!("{kernel} / memcpy"), "x", &rate.over(&rates[0]), wanted);
    }
    Ok(table)
}

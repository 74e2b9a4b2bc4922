//! Sessions that said when they return: how many find all their pages in DRAM when their turn begins, with the disk half busy
//! with others' writes; beside the same sessions saying nothing. Must not know: when the server reads ahead.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Parser;
use turnkv_benches::connection::{Connection, page_hashes};
use turnkv_benches::options::Common;
use turnkv_benches::sampling::Random;
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::stats::{Series, Table};
use turnkv_client::DataPlane;

const PAGE_BYTES: usize = 256 << 10;
/// Pages of a session: 8 MiB.
const PAGES: usize = 32;
const SESSIONS: u64 = 24;
/// DRAM holds half of the sessions.
const DRAM_BYTES: usize = 96 << 20;
/// What others write at once, and over which length of a file.
const BATCH_BYTES: usize = 4 << 20;
const FILE_BYTES: u64 = 256 << 20;

/// The first turns are not counted.
const WARM_UP: Duration = Duration::from_secs(9);

/// Prefetch by expected return.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Seconds of one round, with and without hints each.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(10..=3600))]
    seconds: u64,
    /// How busy the disk is kept by others, percent of the rate at which it takes synced writes alone.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=90))]
    load_percent: u64,
}

/// What came of one round.
struct Round {
    turns: u64,
    ready: u64,
    dram_pages: u64,
    wait_ms: f64,
    /// Bytes that the others wrote, of those that the disk could have taken.
    load_percent: f64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut rows: BTreeMap<&str, [Series; 4]> = BTreeMap::new();
    for _ in 0..options.common.rounds {
        for (name, hints) in [("told", true), ("not told", false)] {
            let round = run(&options, hints)?;
            let series = rows.entry(name).or_default();
            series[0].push(100.0 * round.ready as f64 / round.turns.max(1) as f64);
            series[1].push(100.0 * round.dram_pages as f64 / (round.turns.max(1) * PAGES as u64) as f64);
            series[2].push(round.wait_ms / round.turns.max(1) as f64);
            series[3].push(round.load_percent);
        }
    }
    let mut table = Table::new(format!(
        "{SESSIONS} sessions of {} MiB over {} MiB of DRAM, returning after 5 to 9 s",
        (PAGES * PAGE_BYTES) >> 20,
        DRAM_BYTES >> 20
    ));
    for (name, series) in &rows {
        let promise = if *name == "told" { ">= 95" } else { "" };
        table.row(&format!("{name}: turns that find all in DRAM"), "%", &series[0], promise);
        table.row(&format!("{name}: pages in DRAM"), "%", &series[1], "");
        table.row(&format!("{name}: reload of a turn, mean"), "ms", &series[2], "");
        table.row(&format!("{name}: the disk's load by others"), "%", &series[3], "50");
    }
    println!("{table}");
    Ok(())
}

fn run(options: &Options, hints: bool) -> Result<Round> {
    let budget = Budget { nvme_bytes: 4 << 30, ..Budget::dram(DRAM_BYTES) };
    let server = Server::start(&options.common, budget)?;
    let connection = Connection::open(&server.address(), DataPlane::Shm, PAGE_BYTES)?;
    let bytes_s = write_rate(server.folder())?;
    let page = vec![3u8; PAGE_BYTES];
    for session in 0..SESSIONS {
        let hashes = page_hashes(session, 0..PAGES);
        connection.offload_all(None, &hashes, &vec![page.as_slice(); PAGES])?;
        connection.begin_turn(&name(session))?;
        connection.end_turn(&name(session), &hashes, 0)?;
    }
    connection.wait_until_clean()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<Round> {
        let others = scope.spawn(|| load(server.folder(), bytes_s * options.load_percent / 100, &stop));
        let round = turns(&connection, options.seconds, hints);
        stop.store(true, Ordering::Relaxed);
        let written = others.join().map_err(|_| anyhow!("the others died"))??;
        let share = written / bytes_s as f64;
        round.map(|round| Round { load_percent: 100.0 * share, ..round })
    })
}

/// Turns as they fall due, each after the wait that its session told, or kept to itself.
fn turns(connection: &Connection, seconds: u64, hints: bool) -> Result<Round> {
    let mut random = Random::new(7);
    let mut wait = || Duration::from_millis(5_000 + random.bits() % 4_000);
    let began = Instant::now();
    let mut due: Vec<(Instant, u64)> = Vec::new();
    for session in 0..SESSIONS {
        // Not all at once: over the time that their waits will spread them to.
        let wait = WARM_UP.mul_f64((session + 1) as f64 / SESSIONS as f64);
        tell(connection, session, hints, wait)?;
        due.push((Instant::now() + wait, session));
    }
    let mut round = Round { turns: 0, ready: 0, dram_pages: 0, wait_ms: 0.0, load_percent: 0.0 };
    let mut pages = vec![vec![0u8; PAGE_BYTES]; PAGES];
    while began.elapsed() < WARM_UP + Duration::from_secs(seconds) {
        due.sort_unstable();
        let (at, session) = due.remove(0);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let dram = connection.begin_turn(&name(session))?;
        let started = Instant::now();
        let mut targets: Vec<&mut [u8]> = pages.iter_mut().map(Vec::as_mut_slice).collect();
        connection.reload_all(&page_hashes(session, 0..PAGES), &mut targets)?;
        if began.elapsed() > WARM_UP {
            round.wait_ms += started.elapsed().as_secs_f64() * 1e3;
            round.turns += 1;
            round.ready += u64::from(dram == PAGES);
            round.dram_pages += dram as u64;
        }
        let wait = wait();
        tell(connection, session, hints, wait)?;
        due.push((Instant::now() + wait, session));
    }
    Ok(round)
}

fn tell(connection: &Connection, session: u64, hints: bool, wait: Duration) -> Result<()> {
    let wait_ms = if hints { wait.as_millis() as u64 } else { 0 };
    connection.end_turn(&name(session), &page_hashes(session, 0..PAGES), wait_ms)
}

/// Keeps the disk busy with others' bytes at a rate until told to stop. Returns bytes a second.
fn load(folder: &Path, bytes_s: u64, stop: &AtomicBool) -> Result<f64> {
    let mut file = File::create(folder.join("others"))?;
    let began = Instant::now();
    let mut written = 0u64;
    while !stop.load(Ordering::Relaxed) && bytes_s > 0 {
        if written.is_multiple_of(FILE_BYTES) {
            file.seek(SeekFrom::Start(0))?;
        }
        written += write_batch(&mut file)?;
        let target = Duration::from_secs_f64(written as f64 / bytes_s as f64);
        std::thread::sleep(target.saturating_sub(began.elapsed()));
    }
    Ok(written as f64 / began.elapsed().as_secs_f64())
}

/// How fast the disk takes such bytes when it does nothing else.
fn write_rate(folder: &Path) -> Result<u64> {
    let mut file = File::create(folder.join("others"))?;
    let (began, mut written) = (Instant::now(), 0);
    while written < FILE_BYTES {
        written += write_batch(&mut file)?;
    }
    Ok((written as f64 / began.elapsed().as_secs_f64()) as u64)
}

fn write_batch(file: &mut File) -> Result<u64> {
    file.write_all(&vec![5u8; BATCH_BYTES])?;
    file.sync_data()?;
    Ok(BATCH_BYTES as u64)
}

fn name(session: u64) -> String {
    format!("session-{session}")
}

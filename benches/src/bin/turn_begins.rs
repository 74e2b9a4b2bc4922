//! How long a turn takes to begin in a cluster: where its session is, at another member, and where nobody has it. Must not know: how
//! members find one another's sessions.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use turnkv_benches::connection::{Connection, page_hashes};
use turnkv_benches::network::Network;
use turnkv_benches::options::Common;
use turnkv_benches::pages::Pages;
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::stats::{Series, Table, quantile};
use turnkv_client::{BlockHash, DataPlane};

const PAGE_BYTES: usize = 64 << 10;
const DRAM_BYTES: usize = 128 << 20;
/// How long members may take to know one another.
const SETTLE_MAX: Duration = Duration::from_secs(30);
const SETTLE_PAUSE: Duration = Duration::from_millis(200);
/// Rounds in which they do have numbers of their own.
const SETTLE_ROUNDS: u64 = 1 << 10;

/// How a turn begins in a cluster.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Members.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=16))]
    members: u8,
    /// Sessions of a round.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(100..=2000))]
    sessions: u16,
    /// Pages of a session.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    pages: u8,
}

/// An engine beside each member.
struct Hosts {
    engines: Vec<Connection>,
    source: Pages,
    pages: usize,
}

/// How long begins took, in ms.
#[derive(Default)]
struct Begins {
    at_home: Vec<f64>,
    elsewhere: Vec<f64>,
    new: Vec<f64>,
}

fn main() -> Result<()> {
    println!("{}", measure(&Options::parse())?);
    Ok(())
}

fn measure(options: &Options) -> Result<Table> {
    let places: Result<Vec<Network>> = (0..options.members)
        .map(|_| Network::new(&options.common.server, "127.0.0.1", None, false))
        .collect();
    let mut places = places?;
    let entry = |(at, place): (usize, &Network)| {
        format!("{{ id = \"member-{at}\", endpoint = \"{}\" }}", place.address())
    };
    let members: Vec<String> = places.iter().enumerate().map(entry).collect();
    for (at, place) in places.iter_mut().enumerate() {
        place.more = format!("[cluster]\nid = \"member-{at}\"\nmembers = [{}]\n", members.join(", "));
    }
    let servers: Result<Vec<Server>> = places
        .iter()
        .map(|place| Server::start_on(&options.common, Budget::dram(DRAM_BYTES), place))
        .collect();
    let servers = servers?;
    let engines: Result<Vec<Connection>> = servers
        .iter()
        .map(|server| Connection::open(&server.address(), DataPlane::Auto, PAGE_BYTES))
        .collect();
    let (pages, sessions) = (usize::from(options.pages), usize::from(options.sessions));
    let source = Pages::filled(pages * PAGE_BYTES, PAGE_BYTES);
    let mut hosts = Hosts { engines: engines?, source, pages };
    let kinds = ["where its session is", "where another member has it", "of a new session"];
    let mut series = [const { [const { Series::new() }; 2] }; 3];
    hosts.settle()?;
    for round in 0..u64::from(options.common.rounds) {
        let begins = hosts.round(round, sessions)?;
        for (series, took) in series.iter_mut().zip([begins.at_home, begins.elsewhere, begins.new]) {
            series[0].push(quantile(&took, 0.5));
            series[1].push(quantile(&took, 0.99));
        }
    }
    drop(servers);
    let mut table = Table::new(format!(
        "a turn begins, {} members, {sessions} sessions of {pages} pages a round, one call at a time",
        options.members
    ));
    for (kind, [p50, p99]) in kinds.iter().zip(series) {
        table.row(&format!("{kind}, p50"), "ms", &p50, "");
        table.row(&format!("{kind}, p99"), "ms", &p99, "");
    }
    Ok(table)
}

impl Hosts {
    /// Waits until members know one another: a session goes from each to the next.
    fn settle(&mut self) -> Result<()> {
        let until = Instant::now() + SETTLE_MAX;
        for attempt in SETTLE_ROUNDS.. {
            match self.round(attempt, self.engines.len()) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => std::thread::sleep(SETTLE_PAUSE),
            }
        }
        Ok(())
    }

    fn round(&mut self, round: u64, sessions: usize) -> Result<Begins> {
        let mut begins = Begins::default();
        for number in 0..sessions {
            let session = format!("session-{round}-{number}");
            let hashes = page_hashes(round << 12 | number as u64, 0..self.pages);
            let (home, other) = (number % self.engines.len(), (number + 1) % self.engines.len());
            begins.new.push(self.begin(home, &session, 0, 0)?);
            let pages = self.source.stamped(0..self.pages);
            self.engines[home].offload_all(None, &hashes, &pages)?;
            self.engines[home].end_turn(&session, &hashes, 0)?;
            begins.at_home.push(self.turn(home, &session, 1, &hashes)?);
            begins.elsewhere.push(self.turn(other, &session, 2, &hashes)?);
        }
        self.engines.iter().try_for_each(Connection::drop_all)?;
        Ok(begins)
    }

    /// A turn that reads all pages of its session. How long its begin took.
    fn turn(&self, at: usize, session: &str, ended: u32, hashes: &[BlockHash]) -> Result<f64> {
        let took = self.begin(at, session, ended, self.pages)?;
        let mut bytes = vec![0; self.pages * PAGE_BYTES];
        let mut targets: Vec<&mut [u8]> = bytes.chunks_mut(PAGE_BYTES).collect();
        self.engines[at].reload_all(hashes, &mut targets)?;
        self.engines[at].end_turn(session, hashes, 0)?;
        Ok(took)
    }

    fn begin(&self, at: usize, session: &str, ended: u32, pages: usize) -> Result<f64> {
        let began = Instant::now();
        let begun = self.engines[at].begin_turn_after(session, ended)?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        ensure!(begun.pages + begun.afar == pages, "LOST PAGES: {begun:?} of {pages}");
        Ok(took)
    }
}

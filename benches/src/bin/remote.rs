//! A pool on a network (rails, or gRPC streams; plain, or under TLS) against bare streams of the same number that carry the same
//! pages between the same two places. Must not know: shared memory, the disk.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use anyhow::Result;
use clap::{Parser, ValueEnum};
use turnkv_benches::connection::{Connection, page_hashes};
use turnkv_benches::memory::with_huge_pages;
use turnkv_benches::network::Network;
use turnkv_benches::options::{Common, PageSize};
use turnkv_benches::own::OwnPages;
use turnkv_benches::pages::{Pages, check_ends, check_whole};
use turnkv_benches::raw::{self, RAW_END, RawEnd, RawStream};
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::stats::{Series, Table};
use turnkv_benches::workers::in_step;
use turnkv_client::DataPlane;

const RING_BYTES: usize = 256 << 20;

/// A pool on a network against bare streams.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    page: PageSize,
    /// Pages in one call.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    batch: u16,
    /// Clients that move pages at the same time, each with a bare stream of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    clients: Vec<usize>,
    /// How pages travel.
    #[arg(long, value_enum, default_value_t = Plane::Framed)]
    plane: Plane,
    /// Under TLS, as the bare streams.
    #[arg(long)]
    tls: bool,
    /// From and into memory that is borrowed for a call, to and from which pages are copied; else from and into memory with an owner,
    /// which is lent to the pool as it is.
    #[arg(long)]
    borrowed: bool,
    /// Where the server listens, and the bare streams' other end.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The network namespace in which these two run (`ip netns`; needs root).
    #[arg(long)]
    netns: Option<String>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Plane {
    /// Rails.
    Framed,
    /// gRPC streams.
    Inline,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == RAW_END) {
        return raw::serve(&arguments[1..]);
    }
    with_huge_pages()?;
    let options = Options::parse();
    for &clients in &options.clients {
        println!("{}", measure(&options, clients)?);
    }
    Ok(())
}

fn measure(options: &Options, clients: usize) -> Result<Table> {
    let (page_bytes, batch) = (options.page.bytes(), usize::from(options.batch));
    let piece = page_bytes * batch * clients;
    let (total, each) = (
        options.common.total_bytes() / piece * piece,
        options.common.total_bytes() / piece * page_bytes * batch,
    );
    let network = Network::new(&options.common.server, &options.host, options.netns.clone(), options.tls)?;
    let end = RawEnd::start(&network, each)?;
    let budget = Budget::dram(total / 4 * 5 + (128 << 20));
    let server = Server::start_on(&options.common, budget, &network)?;
    let plane = match options.plane {
        Plane::Framed => DataPlane::Framed,
        Plane::Inline => DataPlane::Inline,
    };
    let mut lanes = Vec::new();
    for client in 0..clients {
        let ring = (RING_BYTES / clients).min(each);
        let mut source = Pages::filled(ring, page_bytes);
        let own = if options.borrowed {
            None
        } else {
            let target = OwnPages::like(&mut Pages::empty(ring, page_bytes), page_bytes)?;
            Some([OwnPages::like(&mut source, page_bytes)?, target])
        };
        lanes.push(Lane {
            connection: Connection::open_on(&network, plane, page_bytes)?,
            raw: end.connect(&network)?,
            client: client as u64,
            source,
            target: Pages::empty(ring, page_bytes),
            own,
            batch,
            starts: (0..each / page_bytes).step_by(batch).collect(),
        });
    }
    let mut rates = [const { Series::new() }; 6];
    for round in 0..=u64::from(options.common.rounds) {
        let mut seconds =
            |work: fn(&mut Lane, u64) -> Result<()>| in_step(&mut lanes, |lane| work(lane, round));
        let seconds = [
            seconds(Lane::raw_put)?,
            seconds(Lane::checked_put)?,
            seconds(Lane::offload)?,
            seconds(Lane::raw_get)?,
            seconds(Lane::checked_get)?,
            seconds(Lane::reload)?,
        ];
        for lane in &mut lanes {
            lane.verify(round)?;
        }
        lanes[0].connection.drop_all()?;
        if round > 0 {
            rates.iter_mut().zip(seconds).for_each(|(rate, seconds)| rate.push(total as f64 / seconds / 1e9));
        }
    }
    drop(server);
    Ok(table(options, clients, rates))
}

fn table(options: &Options, clients: usize, rates: [Series; 6]) -> Table {
    let wire = if options.tls { "TLS" } else { "TCP" };
    let place = options.netns.as_ref().map_or("the loopback", |_| "veth between two network namespaces");
    let memory = if options.borrowed { "borrowed memory" } else { "memory with an owner" };
    let what = format!(
        "{:?} over {wire}, {place}: {clients} client(s), batches of {} x {} KiB, {memory}, every page verified",
        options.plane, options.batch, options.page.page_kib
    );
    let promise = if options.plane == Plane::Framed { ">= 0.9" } else { ">= 0.5" };
    let mut table = Table::new(what);
    let [put, checked_put, offload, get, checked_get, reload] = &rates;
    let ways = [("put", "offload", put, checked_put, offload), ("get", "reload", get, checked_get, reload)];
    for (bare, verb, raw, checked, pool) in ways {
        table.row(&format!("raw {wire} {bare}"), "GB/s", raw, "");
        table.row("the same, checksums at both ends", "GB/s", checked, "");
        table.row(verb, "GB/s", pool, "");
        table.row(&format!("{verb} / raw {wire}"), "x", &pool.over(raw), promise);
        table.row(&format!("{verb} / with checksums"), "x", &pool.over(checked), "");
    }
    table
}

/// One client with both ways to the other side.
struct Lane {
    connection: Connection,
    raw: RawStream,
    /// Its number: its pages are its own.
    client: u64,
    source: Pages,
    target: Pages,
    /// Where the pool's pages come from and go, if not from and into these.
    own: Option<[OwnPages; 2]>,
    batch: usize,
    /// First page of every batch.
    starts: Vec<usize>,
}

impl Lane {
    /// Names a batch of a round.
    fn hashes(&self, round: u64, at: usize) -> Vec<turnkv_client::BlockHash> {
        page_hashes(round << 16 | self.client, at..at + self.batch)
    }

    fn offload(&mut self, round: u64) -> Result<()> {
        for at in self.starts.clone() {
            let hashes = self.hashes(round, at);
            match &self.own {
                Some([source, _]) => {
                    self.connection.offload_own(&hashes, &source.stamped(at..at + self.batch)?)?;
                }
                None => {
                    let pages = self.source.stamped(at..at + self.batch);
                    self.connection.offload_all(None, &hashes, &pages)?;
                }
            }
        }
        Ok(())
    }

    fn reload(&mut self, round: u64) -> Result<()> {
        for at in self.starts.clone() {
            let hashes = self.hashes(round, at);
            match &self.own {
                Some([_, target]) => {
                    let (first, targets) = target.targets(at, self.batch)?;
                    self.connection.reload_own(&hashes, &targets)?;
                    target.check_ends(first, at, self.batch)?;
                }
                None => {
                    let mut targets = self.target.targets(at, self.batch);
                    self.connection.reload_all(&hashes, &mut targets)?;
                    check_ends(&targets, at)?;
                }
            }
        }
        Ok(())
    }

    fn verify(&mut self, round: u64) -> Result<()> {
        for at in self.starts.clone() {
            let hashes = self.hashes(round, at);
            let wanted = self.source.stamped(at..at + self.batch);
            match &self.own {
                Some([_, target]) => {
                    let (first, targets) = target.targets(at, self.batch)?;
                    self.connection.reload_own(&hashes, &targets)?;
                    target.check_whole(first, &wanted)?;
                }
                None => {
                    let mut targets = self.target.targets(at, self.batch);
                    self.connection.reload_all(&hashes, &mut targets)?;
                    check_whole(&targets, &wanted)?;
                }
            }
        }
        Ok(())
    }

    fn raw_put(&mut self, _round: u64) -> Result<()> {
        self.put(false)
    }

    fn checked_put(&mut self, _round: u64) -> Result<()> {
        self.put(true)
    }

    fn raw_get(&mut self, _round: u64) -> Result<()> {
        self.get(false)
    }

    fn checked_get(&mut self, _round: u64) -> Result<()> {
        self.get(true)
    }

    fn put(&mut self, checked: bool) -> Result<()> {
        for at in self.starts.iter().copied() {
            let pages = self.source.stamped(at..at + self.batch);
            self.raw.put(at * pages[0].len(), &pages, checked)?;
        }
        Ok(())
    }

    fn get(&mut self, checked: bool) -> Result<()> {
        for at in self.starts.iter().copied() {
            let mut targets = self.target.targets(at, self.batch);
            self.raw.get(at * targets[0].len(), &mut targets, checked)?;
            check_ends(&targets, at)?;
        }
        Ok(())
    }
}

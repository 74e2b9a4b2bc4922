//! Rails over TCP or TLS (the framed engine of a pool's remote data plane) against bare streams of the same kind that carry
//! the same bytes, both over the loopback in the same rounds. Must not know: servers, pages, leases.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use rustls::StreamOwned;
use turnkv_benches::memory::Buffer;
use turnkv_benches::stats::{Series, Table};
use turnkv_benches::streams::{Trust, connected};
use turnkv_transfer::fabric::framed::{FramedDomain, FramedInitiator, FramedStream, FramedTarget};
use turnkv_transfer::fabric::{
    Access, CompletionQueue, Domain, HostMemory, Initiator, Op, Operation, Outcome, RegionKey, RemoteSpan,
    TargetMemory,
};
use turnkv_transfer::limits::FRAMED_STALL;
use turnkv_transfer::{HugePages, Region, RegionOptions};

/// The framed engine against raw TCP.
#[derive(Parser, Debug)]
struct Options {
    /// Rounds; each measures raw TCP and the rails once, one after the other.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Bytes moved in one measurement, in MiB.
    #[arg(long, default_value_t = 512)]
    total_mib: usize,
    /// Bytes of the memory at each end, in MiB.
    #[arg(long, default_value_t = 256)]
    memory_mib: usize,
    /// Bytes of a span, in KiB.
    #[arg(long, default_values_t = [2048, 128])]
    span_kib: Vec<usize>,
    /// Rails, and as many raw streams.
    #[arg(long, default_values_t = [1, 4])]
    rails: Vec<usize>,
    /// Spans under way on a rail.
    #[arg(long, default_value_t = 16)]
    under_way: usize,
    /// Under TLS, against bare rustls streams.
    #[arg(long)]
    tls: bool,
}

/// TLS of bare streams, as rustls gives it, and of rails, as a pool has it.
struct Secured {
    bare: Trust,
    rails: Trust,
}

impl Secured {
    fn new() -> Result<Self> {
        let bare = Trust::new(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))?;
        Ok(Self { bare, rails: Trust::new(turnkv_transfer::tls::provider())? })
    }
}

/// Which way bytes go between client and server.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// To the server: it reads from the client's memory.
    Put,
    /// To the client: the server writes into its memory.
    Get,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let secured = options.tls.then(Secured::new).transpose()?;
    for &rails in &options.rails {
        for &span_kib in &options.span_kib {
            println!("{}", measure(&options, secured.as_ref(), rails, span_kib << 10)?);
        }
    }
    Ok(())
}

fn measure(options: &Options, secured: Option<&Secured>, rails: usize, span_bytes: usize) -> Result<Table> {
    let (memory_bytes, total) = (options.memory_mib << 20, options.total_mib << 20);
    ensure!(
        memory_bytes.is_multiple_of(span_bytes * rails),
        "every rail's part of the memory holds whole spans"
    );
    let mut costs = [const { Costs::new() }; 4];
    for round in 0..=options.rounds {
        // Opened anew: where the memory of both happens to lie decides up to a third of a rate.
        let mut raw = Raw::open(secured.map(|secured| &secured.bare), rails, memory_bytes)?;
        let trust = secured.map(|secured| &secured.rails);
        let framed = Framed::open(trust, rails, memory_bytes, span_bytes, options.under_way)?;
        let measured = [
            raw.run(Way::Put, total, span_bytes)?,
            framed.run(Way::Put, total, round)?,
            raw.run(Way::Get, total, span_bytes)?,
            framed.run(Way::Get, total, round)?,
        ];
        if round > 0 {
            costs.iter_mut().zip(measured).for_each(|(costs, cost)| costs.push(cost, total));
        }
    }
    let wire = if secured.is_some() { "TLS" } else { "TCP" };
    let what = format!("{rails} rail(s) over {wire}, spans of {} KiB, every byte verified", span_bytes >> 10);
    let mut table = Table::new(what);
    let [raw_put, put, raw_get, get] = costs;
    for (way, raw, rails) in [("put", raw_put, put), ("get", raw_get, get)] {
        table.row(&format!("raw {wire} {way}"), "GB/s", &raw.rate, "");
        table.row(way, "GB/s", &rails.rate, "");
        table.row(&format!("{way} / raw {wire}"), "x", &rails.rate.over(&raw.rate), ">= 0.9");
        table.row(&format!("raw {wire} {way}, processor time"), "ms/GB", &raw.processor, "");
        let ratio = rails.processor.over(&raw.processor);
        table.row(&format!("{way} / raw {wire}, processor time"), "x", &ratio, "");
    }
    Ok(table)
}

/// What one measurement came to.
#[derive(Clone, Copy)]
struct Cost {
    seconds: f64,
    /// Of all threads of both ends: on a busy machine it says more than the clock does.
    processor_seconds: f64,
}

impl Cost {
    fn of<T>(work: impl FnOnce() -> Result<T>) -> Result<Cost> {
        let (began, processor) = (Instant::now(), processor_seconds());
        work()?;
        let processor_seconds = processor_seconds() - processor;
        Ok(Cost { seconds: began.elapsed().as_secs_f64(), processor_seconds })
    }
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Costs of the rounds.
struct Costs {
    rate: Series,
    processor: Series,
}

impl Costs {
    const fn new() -> Costs {
        Costs { rate: Series::new(), processor: Series::new() }
    }

    fn push(&mut self, cost: Cost, bytes: usize) {
        let gigabytes = bytes as f64 / 1e9;
        self.rate.push(gigabytes / cost.seconds);
        self.processor.push(cost.processor_seconds * 1e3 / gigabytes);
    }
}

/// Rails between one client and one server, and the memory of both.
struct Framed {
    queue: Arc<CompletionQueue>,
    rails: Vec<FramedInitiator>,
    /// The other ends: they serve for as long as they live.
    _targets: Vec<FramedTarget>,
    memory: Arc<Region>,
    key: RegionKey,
    slab: Arc<Region>,
    span_bytes: usize,
}

impl Framed {
    fn open(
        trust: Option<&Trust>,
        rails: usize,
        memory_bytes: usize,
        span_bytes: usize,
        under_way: usize,
    ) -> Result<Self> {
        let queue = CompletionQueue::new(under_way * rails);
        let domain = FramedDomain::new();
        let (mut initiators, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..rails {
            let (client, server) = match trust {
                None => {
                    let (client, server) = connected()?;
                    (FramedStream::plain(client)?, FramedStream::plain(server)?)
                }
                Some(trust) => {
                    let (client, server) = trust.shaken()?;
                    (
                        FramedStream::tls(client.stream, client.tls)?,
                        FramedStream::tls(server.stream, server.tls)?,
                    )
                }
            };
            initiators.push(FramedInitiator::open(server, &queue, FRAMED_STALL)?);
            targets.push(FramedTarget::open(client, &domain, FRAMED_STALL)?);
        }
        let (memory, slab) = (region(memory_bytes)?, region(memory_bytes)?);
        let owner: Arc<dyn HostMemory> = Arc::<Region>::clone(&memory);
        let key = domain.register(TargetMemory::Host(owner), Access::ReadWrite)?;
        Ok(Self { queue, rails: initiators, _targets: targets, memory, key, slab, span_bytes })
    }

    /// Moves so many bytes, each span on the rail that has the least to do; then looks at all of them.
    fn run(&self, way: Way, total: usize, round: usize) -> Result<Cost> {
        let (from, to) = match way {
            Way::Put => (&self.memory, &self.slab),
            Way::Get => (&self.slab, &self.memory),
        };
        stamp(from, self.span_bytes, round)?;
        let cost = Cost::of(|| self.move_all(way, total / self.span_bytes))?;
        for at in (0..total.min(from.len())).step_by(self.span_bytes) {
            let sum =
                |region: &Arc<Region>| region.slot(at, self.span_bytes).map(|slot| slot.page().checksum());
            ensure!(sum(from) == sum(to), "WRONG BYTES at {at}");
        }
        Ok(cost)
    }

    fn move_all(&self, way: Way, spans: usize) -> Result<()> {
        let (mut posted, mut done, mut taken) = (0, 0, Vec::new());
        while done < spans {
            while posted < spans && self.queue.admitted() < self.queue.operations_max() {
                self.post(way, posted)?;
                posted += 1;
            }
            done += self.queue.poll(&mut taken, Duration::from_secs(10));
            ensure!(taken.drain(..).all(|done| done.outcome == Outcome::Done), "A TRANSFER FAILED");
        }
        Ok(())
    }

    fn post(&self, way: Way, number: usize) -> Result<()> {
        let at = number * self.span_bytes % self.slab.len();
        let remote =
            RemoteSpan::new(self.key, at as u64, self.span_bytes as u32).context("it lies inside")?;
        let local = self.slab.slot(at, self.span_bytes).context("it lies inside")?;
        let op = Op(number as u64);
        let operation = match way {
            Way::Put => Operation::read(remote, local, op),
            Way::Get => Operation::write(local, remote, op),
        };
        let rail = self.rails.iter().min_by_key(|rail| rail.queued_bytes()).context("there are rails")?;
        let posted = rail.post(operation.context("both have one length")?);
        posted.map_err(|unposted| anyhow::anyhow!("NOT POSTED: {:?}", unposted.why))
    }
}

/// Bare streams, and a buffer at each end of each.
struct Raw {
    streams: Vec<RawStream>,
}

struct RawStream {
    client: (Box<dyn Wire>, Buffer),
    server: (Box<dyn Wire>, Buffer),
}

trait Wire: Read + Write + Send {}

impl<T: Read + Write + Send> Wire for T {}

impl Raw {
    fn open(trust: Option<&Trust>, streams: usize, memory_bytes: usize) -> Result<Self> {
        let open = |_| {
            let (client, server): (Box<dyn Wire>, Box<dyn Wire>) = match trust {
                None => {
                    let (client, server) = connected()?;
                    (Box::new(client), Box::new(server))
                }
                Some(trust) => {
                    let (client, server) = trust.shaken()?;
                    let client = StreamOwned::new(client.tls, client.stream);
                    (Box::new(client), Box::new(StreamOwned::new(server.tls, server.stream)))
                }
            };
            let buffer = || Buffer::new(memory_bytes / streams);
            Ok(RawStream { client: (client, buffer()), server: (server, buffer()) })
        };
        Ok(Self { streams: (0..streams).map(open).collect::<Result<_>>()? })
    }

    fn run(&mut self, way: Way, total: usize, span_bytes: usize) -> Result<Cost> {
        let each = total / self.streams.len();
        Cost::of(|| self.move_all(way, each, span_bytes))
    }

    fn move_all(&mut self, way: Way, each: usize, span_bytes: usize) -> Result<()> {
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for RawStream { client, server } in &mut self.streams {
                let (from, to) = if way == Way::Put { (client, server) } else { (server, client) };
                threads.push(scope.spawn(move || -> Result<()> {
                    let spans = from.1.bytes().chunks(span_bytes).cycle().take(each / span_bytes);
                    for span in spans {
                        from.0.write_all(span)?;
                    }
                    from.0.flush()?;
                    Ok(())
                }));
                threads.push(scope.spawn(move || -> Result<()> {
                    let room = to.1.bytes().len();
                    for number in 0..each / span_bytes {
                        let at = number * span_bytes % room;
                        to.0.read_exact(&mut to.1.bytes_mut()[at..at + span_bytes])?;
                    }
                    Ok(())
                }));
            }
            threads.into_iter().try_for_each(|thread| {
                thread.join().map_err(|_| anyhow::anyhow!("a thread of the raw streams panicked"))?
            })
        })
    }
}

fn region(bytes: usize) -> Result<Arc<Region>> {
    let options = RegionOptions {
        bytes,
        // As the raw streams' buffers: whether there are huge pages for all of them is chance.
        huge_pages: HugePages::Off,
        touch: true,
        lock: false,
        name: "turnkv-bench".to_owned(),
    };
    Ok(Region::create(&options)?.0)
}

/// Both ends of every span say which round it is of.
fn stamp(region: &Arc<Region>, span_bytes: usize, round: usize) -> Result<()> {
    for at in (0..region.len()).step_by(span_bytes) {
        let stamp = ((round << 40) + at).to_le_bytes();
        for at in [at, at + span_bytes - 8] {
            region.slot(at, 8).context("it lies inside")?.claim()?.fill(&stamp);
        }
    }
    Ok(())
}

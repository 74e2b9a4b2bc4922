//! `turnkv simulate`: traces, policies and sizes in, hit ratios out. Owns: arguments, files, the progress bar.
//! Must not know: how a pool is played or a table drawn (turnkv-sim has both).

use crate::report::misused;
use anyhow::Context;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::path::{Path, PathBuf};
use turnkv_sim::capacity::Capacity;
use turnkv_sim::device::Speed;
use turnkv_sim::drive::{Admission, Admit};
use turnkv_sim::generate::{AGENTIC_SEED, Shape, generate};
use turnkv_sim::grid::{Cell, Machine, Workload, run_grid};
use turnkv_sim::hints::HintRules;
use turnkv_sim::policy::{self, Policy};
use turnkv_sim::trace::Trace;
use turnkv_sim::{cluster, plot, render, routing};

/// What to simulate.
#[derive(Args)]
pub(crate) struct SimulateArguments {
    /// Request traces: JSON lines, gzip or plain. First {"trace", "block_tokens"}, then a request a line.
    traces: Vec<PathBuf>,
    /// Generate a trace of this shape as well.
    #[arg(long, value_enum)]
    generate: Option<Generated>,
    /// Seed of the generated trace. Without one: the seed whose trace is nearest to the published figures.
    #[arg(long)]
    seed: Option<u64>,
    /// Requests of the generated trace.
    #[arg(long, default_value_t = Shape::AGENTIC.requests)]
    requests: u32,
    /// Write the generated trace to this file (gzip).
    #[arg(long, value_name = "FILE", requires = "generate")]
    save: Option<PathBuf>,
    /// Policies to compare. Without any: all of them.
    #[arg(long, value_delimiter = ',', value_parser = parse_policy)]
    policy: Vec<Policy>,
    /// Sizes of DRAM: 5% (of the trace's unique blocks), 550 (blocks) or 64GiB.
    #[arg(long, value_delimiter = ',', default_value = "1%,2%,5%,10%,30%")]
    dram: Vec<Capacity>,
    /// Sizes of NVMe, likewise; each is combined with each size of DRAM.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    nvme: Vec<Capacity>,
    /// Run policies that know sessions a second time with hints: expected returns, closed sessions.
    #[arg(long)]
    hints: bool,
    /// With hints: how long after its last request a session is closed, in seconds.
    #[arg(long, default_value_t = HintRules::default().close_after_ms / 1000)]
    close_after_s: u64,
    /// Split the memory among so many private pools, each session staying with one.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    private: u32,
    /// Compare ways to route requests to the `--private` engines, each with its share of DRAM, instead of policies: the first
    /// of them, and the first size.
    #[arg(long)]
    routes: bool,
    /// Compare so many hosts with private pools, the same as a cluster, and one pool of all their DRAM, under each way to route;
    /// the first policy, and the first size, which is that of all hosts together.
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["private", "routes"], value_parser = clap::value_parser!(u32).range(1..=256))]
    cluster: Option<u32>,
    /// Bytes of KV cache a token has in the real model: sizes in bytes need it, and NVMe's times.
    #[arg(long)]
    bytes_per_token: Option<u64>,
    /// Megabytes that NVMe reads in a second. Without: reads take no time.
    #[arg(long, requires = "bytes_per_token")]
    nvme_read_mb_s: Option<u64>,
    /// Megabytes that NVMe writes in a second. Without: writes take no time.
    #[arg(long, requires = "bytes_per_token")]
    nvme_write_mb_s: Option<u64>,
    /// Which new pages are written to NVMe at once, as `nvme.admit` says it to a server.
    #[arg(long, value_enum, default_value_t = Admitted::All)]
    admit: Admitted,
    /// Bytes that may be written to NVMe in a day, rewrites included, such as 3.6TiB; as `nvme.write_bytes_per_day` says it to a
    /// server. Needs --bytes-per-token. Without: no bound.
    #[arg(long, requires = "bytes_per_token", value_parser = parse_bytes)]
    write_bytes_per_day: Option<u64>,
    /// Threads. Without: one a core.
    #[arg(long)]
    threads: Option<usize>,
    /// Write everything as JSON to this file; `-` prints it instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write everything as CSV to this file; `-` prints it instead of the table.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw hit ratio against capacity into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Generated {
    /// Half of the requests in sessions of many turns, 14 to 21 alive at a time, as published for agentic traffic.
    Agentic,
}

#[derive(Clone, Copy, ValueEnum)]
enum Admitted {
    /// All.
    All,
    /// Those of sessions that came back, or are expected.
    Reused,
}

/// Runs every cell and prints the table.
pub(crate) fn run(arguments: &SimulateArguments) -> anyhow::Result<()> {
    let cells = cells(arguments)?;
    if arguments.routes {
        return routes(arguments, &cells[0]);
    }
    if let Some(hosts) = arguments.cluster {
        return clusters(arguments, hosts, &cells[0]);
    }
    let machine = Machine {
        bytes_per_token: arguments.bytes_per_token.unwrap_or(1),
        speed: Speed {
            read_bytes_s: arguments.nvme_read_mb_s.map(|rate| rate.saturating_mul(1_000_000)),
            write_bytes_s: arguments.nvme_write_mb_s.map(|rate| rate.saturating_mul(1_000_000)),
        },
        admission: Admission {
            admit: match arguments.admit {
                Admitted::All => Admit::All,
                Admitted::Reused => Admit::Reused,
            },
            write_bytes_per_day: arguments.write_bytes_per_day.unwrap_or(0),
        },
    };
    let workloads: Vec<Workload> =
        traces(arguments)?.into_iter().map(|trace| Workload::new(trace, arguments.private)).collect();
    let requests: usize = workloads.iter().map(|workload| workload.trace.requests.len()).sum();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bar = ProgressBar::new((requests * cells.len()) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:40} {percent:>3} %  {pos}/{len} requests  {eta} left")?);
    let threads = arguments.threads.unwrap_or(cores).min(cores);
    let outcomes = run_grid(&workloads, &cells, &machine, threads, &|| bar.inc(1));
    bar.finish_and_clear();
    let rows = render::rows(&workloads, &outcomes?);
    let mut printed = false;
    let files = [
        (&arguments.json, render::json(&rows)?),
        (&arguments.csv, render::csv(&rows)?),
        (&arguments.svg, plot::svg(&rows)),
    ];
    for (path, text) in files {
        if let Some(path) = path {
            printed |= path == Path::new("-");
            write_text(path, &text)?;
        }
    }
    if !printed {
        write_text(Path::new("-"), &render::table(&rows))?;
    }
    Ok(())
}

/// The table of ways to route, for every trace.
fn routes(arguments: &SimulateArguments, cell: &Cell) -> anyhow::Result<()> {
    let engines = arguments.private;
    for trace in traces(arguments)? {
        let (name, each) = (trace.name.clone(), pages_each(arguments, cell, &trace, engines));
        let outcomes = routing::compare(trace, engines, each, cell.policy)?;
        let table = routing::table(&name, engines, each, &outcomes);
        write_text(Path::new("-"), &format!("{table}\n"))?;
    }
    Ok(())
}

/// The table of private pools, a cluster and one pool, for every trace.
fn clusters(arguments: &SimulateArguments, hosts: u32, cell: &Cell) -> anyhow::Result<()> {
    for trace in traces(arguments)? {
        let (name, each) = (trace.name.clone(), pages_each(arguments, cell, &trace, hosts));
        let block_bytes =
            arguments.bytes_per_token.map(|bytes| bytes.saturating_mul(trace.block_tokens.into()));
        let outcomes = cluster::compare(trace, hosts, each, cell.policy)?;
        let table = cluster::table(&name, hosts, each, block_bytes, &outcomes);
        write_text(Path::new("-"), &format!("{table}\n"))?;
    }
    Ok(())
}

/// The share of DRAM that each of some pools has.
fn pages_each(arguments: &SimulateArguments, cell: &Cell, trace: &Trace, pools: u32) -> u64 {
    let bytes_per_token = arguments.bytes_per_token.unwrap_or(1);
    let pages = cell.dram.pages(u64::from(trace.unique_blocks), trace.block_tokens, bytes_per_token);
    (pages / u64::from(pools)).max(1)
}

/// Every policy with every size, and with hints as well where they can matter.
fn cells(arguments: &SimulateArguments) -> anyhow::Result<Vec<Cell>> {
    let mut sizes = arguments.dram.iter().chain(&arguments.nvme);
    let in_bytes = sizes.any(|size| matches!(size, Capacity::Bytes(bytes) if *bytes > 0));
    if in_bytes && arguments.bytes_per_token.is_none() {
        return Err(misused(
            "sizes in bytes say nothing of tokens",
            "give --bytes-per-token, or sizes in blocks or per cent",
        ));
    }
    if arguments.dram.iter().any(Capacity::is_zero) {
        return Err(misused("a pool needs DRAM", "give --dram above 0"));
    }
    let given = arguments.policy.clone();
    let policies = if given.is_empty() { policy::POLICIES.to_vec() } else { given };
    let rules = HintRules { close_after_ms: arguments.close_after_s.saturating_mul(1000) };
    let mut cells = Vec::new();
    for dram in &arguments.dram {
        for nvme in &arguments.nvme {
            for policy in &policies {
                let cell = Cell { policy: *policy, dram: *dram, nvme: *nvme, hints: None };
                cells.push(cell);
                if arguments.hints && policy.sessions {
                    cells.push(Cell { hints: Some(rules), ..cell });
                }
            }
        }
    }
    Ok(cells)
}

fn traces(arguments: &SimulateArguments) -> anyhow::Result<Vec<Trace>> {
    let mut traces = Vec::new();
    for path in &arguments.traces {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let trace = Trace::read(file).with_context(|| format!("cannot read {}", path.display()))?;
        has_blocks(&trace, path)?;
        traces.push(trace);
    }
    if let Some(Generated::Agentic) = arguments.generate {
        let shape = Shape { requests: arguments.requests, ..Shape::AGENTIC };
        let trace = generate("agentic", &shape, arguments.seed.unwrap_or(AGENTIC_SEED));
        if let Some(path) = &arguments.save {
            let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            trace.write(file).with_context(|| format!("cannot write {}", path.display()))?;
        }
        traces.push(trace);
    }
    if traces.is_empty() {
        return Err(misused("there is no trace to play", "name one, or --generate one"));
    }
    Ok(traces)
}

/// Refuses a trace in which nothing can be found.
pub(super) fn has_blocks(trace: &Trace, path: &Path) -> anyhow::Result<()> {
    if trace.touches() > 0 {
        return Ok(());
    }
    let what = format!("{} has no blocks: nothing can be found in it", path.display());
    Err(misused(what, "give a trace whose requests have blocks"))
}

fn write_text(path: &Path, text: &str) -> anyhow::Result<()> {
    if path == Path::new("-") {
        super::print(text)?;
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Why the value of an argument is refused.
#[derive(Debug, thiserror::Error)]
enum ValueRefused {
    #[error("a size above 0 with its unit, such as 500GiB")]
    NoSize,
    #[error("no such policy; there are {}", policy::names())]
    NoPolicy,
}

fn parse_bytes(text: &str) -> Result<u64, ValueRefused> {
    match text.parse() {
        Ok(Capacity::Bytes(bytes)) if bytes > 0 => Ok(bytes),
        _ => Err(ValueRefused::NoSize),
    }
}

fn parse_policy(name: &str) -> Result<Policy, ValueRefused> {
    policy::find(name).ok_or(ValueRefused::NoPolicy)
}

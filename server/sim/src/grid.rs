//! Many simulations at once: traces x policies x sizes x hints, on all cores. Owns: cells, their order, streams of
//! private pools. Must not know: how one pool is played, how results are shown.

use crate::account::Counts;
use crate::bounds::belady_hits;
use crate::capacity::Capacity;
use crate::derive::derive_sessions;
use crate::device::Speed;
use crate::drive::{Admission, PoolModel, SimError, replay};
use crate::hints::HintRules;
use crate::history::History;
use crate::limits::PRIVATE_POOLS_MAX;
use crate::policy::Policy;
use crate::trace::Trace;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(test)]
mod tests;

/// A trace made ready: with sessions, split among pools, with the past of every request.
pub struct Workload {
    /// The trace, every request with a session.
    pub trace: Trace,
    /// The requests of each pool (positions in the trace, by time) and their past.
    pub pools: Vec<(Vec<u32>, History)>,
    /// Blocks that differ, over the whole trace: what shares of it are of.
    pub unique_blocks: u64,
}

/// One simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Who goes first.
    pub policy: Policy,
    /// DRAM of all pools together.
    pub dram: Capacity,
    /// NVMe of all pools together.
    pub nvme: Capacity,
    /// What the engine says about sessions; none: nothing.
    pub hints: Option<HintRules>,
}

/// The machine that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of KV cache a token has.
    pub bytes_per_token: u64,
    /// How fast NVMe is.
    pub speed: Speed,
    /// What may be written to NVMe.
    pub admission: Admission,
}

/// What came of one cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Which workload.
    pub workload: usize,
    /// Which cell.
    pub cell: Cell,
    /// DRAM in pages, of all pools.
    pub dram_pages: u64,
    /// NVMe in pages, of all pools.
    pub nvme_pages: u64,
    /// What the pools did, together.
    pub counts: Counts,
    /// Blocks that Belady's rule would have found with as many pages.
    pub belady_hits: u64,
}

impl Workload {
    /// Makes a trace ready for one shared pool (`private` 0) or so many private ones, each session staying with the
    /// pool that had the least to do when it began.
    pub fn new(mut trace: Trace, private: u32) -> Workload {
        derive_sessions(&mut trace);
        let streams = split(&trace, private.clamp(1, PRIVATE_POOLS_MAX));
        let with_past = |stream: Vec<u32>| {
            let history = History::of(&trace, &stream);
            (stream, history)
        };
        let pools: Vec<(Vec<u32>, History)> = streams.into_iter().map(with_past).collect();
        let unique_blocks = u64::from(trace.unique_blocks);
        Workload { trace, pools, unique_blocks }
    }

    /// Blocks that infinite pools would have found.
    pub fn infinite_hits(&self) -> u64 {
        self.pools.iter().map(|(_, history)| history.infinite_hits).sum()
    }

    /// Blocks sent.
    pub fn blocks(&self) -> u64 {
        self.pools.iter().map(|(_, history)| history.blocks).sum()
    }

    /// Pages of a size, of all pools together.
    pub fn pages(&self, capacity: &Capacity, machine: &Machine) -> u64 {
        capacity.pages(self.unique_blocks, self.trace.block_tokens, machine.bytes_per_token)
    }

    /// Runs one cell. `tick` is called once a request.
    pub fn run(&self, cell: &Cell, machine: &Machine, mut tick: impl FnMut()) -> Result<Counts, SimError> {
        let shares = self.pools.len() as u64;
        let page_bytes = u64::from(self.trace.block_tokens) * machine.bytes_per_token;
        let model = PoolModel {
            dram_pages: (self.pages(&cell.dram, machine) / shares).max(1),
            nvme_pages: self.pages(&cell.nvme, machine) / shares,
            policy: cell.policy,
            hints: cell.hints,
            page_bytes,
            speed: machine.speed,
            admission: machine.admission,
        };
        let mut counts = Counts::default();
        for (stream, history) in &self.pools {
            counts += replay(&self.trace, stream, history, &model, &mut tick)?;
        }
        Ok(counts)
    }

    /// Blocks that Belady's rule would find with so many pages, split among the pools.
    pub fn belady_hits(&self, pages: u64) -> u64 {
        let each = (pages / self.pools.len() as u64).max(1);
        self.pools.iter().map(|(stream, _)| belady_hits(&self.trace, stream, each)).sum()
    }
}

/// Runs every cell on every workload, on so many threads. `tick` is called once a request, from any of them. Outcomes
/// come in the order of workloads, then cells.
pub fn run_grid(
    workloads: &[Workload],
    cells: &[Cell],
    machine: &Machine,
    threads: usize,
    tick: &(impl Fn() + Sync),
) -> Result<Vec<Outcome>, SimError> {
    let bounds = run_bounds(workloads, cells, machine, threads);
    let jobs: Vec<(usize, &Cell)> =
        (0..workloads.len()).flat_map(|at| cells.iter().map(move |cell| (at, cell))).collect();
    let results = in_parallel(jobs.len(), threads, |job| {
        let (workload, cell) = jobs[job];
        workloads[workload].run(cell, machine, tick)
    });
    let outcomes = jobs.iter().zip(results).map(|(&(workload, cell), counts)| {
        let pages = |capacity: &Capacity| workloads[workload].pages(capacity, machine);
        let (dram_pages, nvme_pages) = (pages(&cell.dram), pages(&cell.nvme));
        let belady_hits = bounds[&(workload, dram_pages + nvme_pages)];
        Ok(Outcome { workload, cell: *cell, dram_pages, nvme_pages, counts: counts?, belady_hits })
    });
    outcomes.collect()
}

/// Belady's hits for every workload and size that the cells need, each once.
fn run_bounds(
    workloads: &[Workload],
    cells: &[Cell],
    machine: &Machine,
    threads: usize,
) -> HashMap<(usize, u64), u64> {
    let mut jobs: Vec<(usize, u64)> = Vec::new();
    for (at, workload) in workloads.iter().enumerate() {
        for cell in cells {
            let pages = workload.pages(&cell.dram, machine) + workload.pages(&cell.nvme, machine);
            if !jobs.contains(&(at, pages)) {
                jobs.push((at, pages));
            }
        }
    }
    let hits = in_parallel(jobs.len(), threads, |job| workloads[jobs[job].0].belady_hits(jobs[job].1));
    jobs.into_iter().zip(hits).collect()
}

/// Does jobs on so many threads; results in the order of the jobs.
fn in_parallel<T: Send>(jobs: usize, threads: usize, run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(jobs));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.max(1)) {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    if job >= jobs {
                        return;
                    }
                    let result = run(job);
                    results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((job, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    results.sort_by_key(|(job, _)| *job);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Gives each session to the pool with the fewest blocks so far; its requests follow it.
fn split(trace: &Trace, pools: u32) -> Vec<Vec<u32>> {
    let mut streams = vec![Vec::new(); pools as usize];
    let mut loads = vec![0usize; pools as usize];
    let mut homes: HashMap<Option<u32>, usize> = HashMap::new();
    for (at, request) in trace.requests.iter().enumerate() {
        let idlest = loads.iter().enumerate().min_by_key(|(_, load)| **load).map_or(0, |(pool, _)| pool);
        let home = *homes.entry(request.session).or_insert(idlest);
        loads[home] += trace.blocks(request).len();
        streams[home].push(at as u32);
    }
    streams
}

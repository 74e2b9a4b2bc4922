//! Many engines, each with a cache of its own: who runs which request, and what that costs. Owns: the ways to route, and
//! their comparison. Must not know: how a cache evicts (each is a pool played by `drive`).

use crate::account::percent;
use crate::derive::derive_sessions;
use crate::device::Speed;
use crate::drive::{Admission, PoolModel, SimError, hash_of, replay, session_id};
use crate::history::History;
use crate::policy::Policy;
use crate::trace::Trace;
use std::collections::HashMap;
use std::fmt::Write;
use turnkv_proto::{BlockHash, SessionId};
use turnkv_router::{Candidate, RouteAsk, RouteError, RouteNamespace, Router};

#[cfg(test)]
mod tests;

/// A way to route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// One after the other, sessions unknown.
    RoundRobin,
    /// A session stays with the engine that had been sent the fewest blocks when it began.
    Sticky,
    /// The engine that holds the longest prefix; of equals the one that was sent the fewest blocks.
    CacheAware,
    /// The pool's advice: pages held against load ([`Router::route`]).
    Advised,
}

impl Routing {
    /// Every way, the plainest first.
    pub const ALL: [Routing; 4] =
        [Routing::RoundRobin, Routing::Sticky, Routing::CacheAware, Routing::Advised];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Routing::RoundRobin => "round robin",
            Routing::Sticky => "sticky",
            Routing::CacheAware => "cache-aware",
            Routing::Advised => "advised",
        }
    }
}

/// What came of one way to route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteOutcome {
    /// Which.
    pub routing: Routing,
    /// Blocks found in the caches, of the blocks sent.
    pub hit_percent: f64,
    /// What caches without end would have found with the same routes.
    pub infinite_percent: f64,
    /// Blocks computed by the engine that computed most, against the mean.
    pub busiest: f64,
    /// The same within windows of a hundredth of the trace, the mean of all: what queues feel.
    pub busiest_window: f64,
    /// Turns of a session that another engine ran than its last one.
    pub moved_percent: f64,
}

/// Routes a trace to so many engines of so many pages each in every way, and plays their caches.
pub fn compare(
    mut trace: Trace,
    engines: u32,
    pages_each: u64,
    policy: Policy,
) -> Result<Vec<RouteOutcome>, SimError> {
    derive_sessions(&mut trace);
    let all = Routing::ALL.iter().map(|routing| {
        let homes = assign(&trace, engines, pages_each, *routing)?;
        outcome(&trace, engines, pages_each, policy, *routing, &homes)
    });
    all.collect()
}

/// The comparison as a table.
pub fn table(trace: &str, engines: u32, pages_each: u64, outcomes: &[RouteOutcome]) -> String {
    let mut text = format!("{trace}, {engines} engines of {pages_each} blocks\n\n");
    text += "| routing | hits % | infinite % | busiest engine / mean | in windows | turns moved % |\n|---|---|---|---|---|---|\n";
    for one in outcomes {
        let (name, hits, infinite) = (one.routing.name(), one.hit_percent, one.infinite_percent);
        let (busiest, window, moved) = (one.busiest, one.busiest_window, one.moved_percent);
        let line =
            format!("| {name} | {hits:.1} | {infinite:.1} | {busiest:.2} | {window:.2} | {moved:.1} |");
        writeln!(text, "{line}").unwrap_or_default();
    }
    text
}

/// Which engine runs each request.
pub(crate) fn assign(
    trace: &Trace,
    engines: u32,
    pages_each: u64,
    routing: Routing,
) -> Result<Vec<u32>, RouteError> {
    let names: Vec<String> = (0..engines).map(|at| format!("engine-{at}")).collect();
    let mut candidates = Vec::with_capacity(names.len());
    for name in &names {
        candidates.push(Candidate {
            name,
            capacity_pages: pages_each,
            used_pages: 0,
            running: 0,
            waiting: 0,
        });
    }
    let mut router = Router::default();
    let mut sent = vec![0u64; engines as usize];
    let mut homes: HashMap<Option<u32>, usize> = HashMap::new();
    let mut chosen = Vec::with_capacity(trace.requests.len());
    for (at, request) in trace.requests.iter().enumerate() {
        let now = request.at_ms;
        let hashes: Vec<BlockHash> = trace.blocks(request).iter().map(|block| hash_of(*block)).collect();
        let session: Option<SessionId> = request.session.map(|session| session_id('s', session as usize));
        let ask = RouteAsk {
            ns: RouteNamespace(0),
            session: session.as_ref(),
            hashes: &hashes,
            candidates: &candidates,
        };
        let fewest = (0..sent.len()).min_by_key(|engine| sent[*engine]).unwrap_or(0);
        let engine = match routing {
            Routing::RoundRobin => at % engines as usize,
            Routing::Sticky => *homes.entry(request.session).or_insert(fewest),
            Routing::CacheAware => {
                let ranked = router.route(ask, now)?;
                let best = ranked.iter().max_by_key(|one| (one.held_pages, u64::MAX - sent[one.candidate]));
                best.map_or(fewest, |one| one.candidate)
            }
            Routing::Advised => router.route(ask, now)?.first().map_or(fewest, |one| one.candidate),
        };
        router.ran(ask, &names[engine], now)?;
        sent[engine] += hashes.len() as u64;
        chosen.push(engine as u32);
    }
    Ok(chosen)
}

/// Plays the caches of one way to route.
pub(crate) fn outcome(
    trace: &Trace,
    engines: u32,
    pages_each: u64,
    policy: Policy,
    routing: Routing,
    homes: &[u32],
) -> Result<RouteOutcome, SimError> {
    let model = model_of(pages_each, policy);
    let (mut blocks, mut hits, mut infinite) = (0, 0, 0);
    let mut computed = Vec::new();
    let mut windows = vec![vec![0u64; engines as usize]; WINDOWS];
    for engine in 0..engines {
        let stream: Vec<u32> = (0..homes.len() as u32).filter(|at| homes[*at as usize] == engine).collect();
        let history = History::of(trace, &stream);
        let counts = replay(trace, &stream, &history, &model, || ())?;
        let found = counts.dram_hits + counts.nvme_hits;
        (blocks, hits, infinite) = (blocks + counts.blocks, hits + found, infinite + history.infinite_hits);
        computed.push(counts.blocks - found);
        for (position, at) in stream.iter().enumerate() {
            let sent = trace.blocks(&trace.requests[*at as usize]).len() as u64;
            // What an engine computes is not told by request: what it could not have known is the least of it.
            let least = sent - u64::from(history.known(position));
            windows[*at as usize * WINDOWS / homes.len()][engine as usize] += least;
        }
    }
    let measured: Vec<f64> = windows.iter().filter_map(|window| imbalance(window)).collect();
    let busiest_window = measured.iter().sum::<f64>() / measured.len().max(1) as f64;
    Ok(RouteOutcome {
        routing,
        hit_percent: percent(hits, blocks),
        infinite_percent: percent(infinite, blocks),
        busiest: imbalance(&computed).unwrap_or(1.0),
        busiest_window,
        moved_percent: moved(trace, homes),
    })
}

/// A pool of so many pages, all in DRAM.
pub(crate) fn model_of(pages: u64, policy: Policy) -> PoolModel {
    PoolModel {
        dram_pages: pages,
        nvme_pages: 0,
        policy,
        hints: None,
        page_bytes: 1,
        speed: Speed { read_bytes_s: None, write_bytes_s: None },
        admission: Admission::default(),
    }
}

/// Windows of the trace in which the load is compared.
const WINDOWS: usize = 100;

/// The largest against the mean; none: all are 0.
pub(crate) fn imbalance(loads: &[u64]) -> Option<f64> {
    let sum: u64 = loads.iter().sum();
    let largest = loads.iter().copied().max().unwrap_or(0);
    (sum > 0).then(|| largest as f64 * loads.len() as f64 / sum as f64)
}

fn moved(trace: &Trace, homes: &[u32]) -> f64 {
    let mut last: HashMap<u32, u32> = HashMap::new();
    let (mut turns, mut moves) = (0, 0);
    for (request, home) in trace.requests.iter().zip(homes) {
        let Some(session) = request.session else { continue };
        if let Some(before) = last.insert(session, *home) {
            turns += 1;
            moves += u64::from(before != *home);
        }
    }
    percent(moves, turns)
}

//! One pool and one stream of requests, as an engine's plugin would drive it: begin a turn, reload the leading pages
//! that are there, offload the rest, end the turn. Owns: simulated time and the order of events.
//! Must not know: policies, traces' files, other pools.
//!
//! ```text
//! request --begin_turn, lookup--> reloading --reads landed, more to reload--> reloading
//!                                     \--reads landed, all reloaded--> offload, end_turn
//! ```

mod host;
mod nvme;

use crate::account::Counts;
use crate::device::{Device, Speed};
use crate::hints::{HintRules, Hints};
use crate::history::History;
use crate::limits::{OFFLOAD_CALL_PAGES_MAX, RETRIES_MAX, TIER_PAGES_MAX};
use crate::policy::Policy;
use crate::trace::Trace;
use std::collections::{BTreeMap, HashMap};
pub use turnkv_pool::Admit;
use turnkv_pool::limits::PREFETCH_AHEAD_MS;
use turnkv_pool::{
    ClientId, ConfigError, CurveTuning, EndTurn, LeaseId, Limits, MissRatioCurve, NamespaceDesc,
    NamespaceIndex, Now, NvmePlace, OffloadAsk, Outcome, PageKey, Pass, Pool, PoolConfig, PoolError,
    Promotion, ReloadAsk, ReloadStep,
};
use turnkv_proto::{BlockHash, NamespaceId, SessionId, Shards};
use turnkv_router::RouteError;

/// The only client of a simulated pool.
const CLIENT: ClientId = ClientId(1);
/// Slots are cut in multiples of this.
const SLOT_BYTES: u64 = turnkv_pool::limits::SLOT_ALIGN_BYTES;
/// Longer than any trace lasts, so that no lease runs out.
const LEASE_MS: u32 = u32::MAX - 1;

/// A pool to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolModel {
    /// Pages of DRAM.
    pub dram_pages: u64,
    /// Pages of NVMe; 0: there is none.
    pub nvme_pages: u64,
    /// Who goes first.
    pub policy: Policy,
    /// What the engine says about sessions; none: nothing.
    pub hints: Option<HintRules>,
    /// Bytes of a page as the real model has it: only the device's times depend on it.
    pub page_bytes: u64,
    /// The device's speed.
    pub speed: Speed,
    /// What is written to it.
    pub admission: Admission,
}

/// What may be written to NVMe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Which new pages.
    pub admit: Admit,
    /// Bytes of the real model in a day, rewrites included; 0: no bound.
    pub write_bytes_per_day: u64,
}

/// Why a simulation stopped.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// One request of a cluster led to more messages than `limits::CLUSTER_STEPS_MAX`.
    #[error("a request of the cluster does not come to an end")]
    Endless,
    /// A size that no pool can have.
    #[error("a simulated tier has 1 to {TIER_PAGES_MAX} pages, got {0}")]
    Pages(u64),
    /// The pool refused its configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The pool refused a call: the simulator drives it wrongly.
    #[error("request {request}: the pool refused {call}: {error}")]
    Refused {
        /// Position in the trace.
        request: u32,
        /// Which call.
        call: &'static str,
        /// Why.
        error: PoolError,
    },
    /// The router refused a call: the simulator drives it wrongly.
    #[error("the router refused a call: {0}")]
    Route(#[from] RouteError),
}

/// Plays a stream (positions in the trace, by time) against a new pool. `history` is that of the same stream.
pub fn replay(
    trace: &Trace,
    stream: &[u32],
    history: &History,
    model: &PoolModel,
    mut tick: impl FnMut(),
) -> Result<Counts, SimError> {
    let mut replay = Replay::new(trace, stream, history, model)?;
    replay.run(&mut tick)?;
    Ok(replay.counts)
}

/// [`replay`], with the miss-ratio curve that the pool has kept meanwhile.
pub fn replay_curve(
    trace: &Trace,
    stream: &[u32],
    history: &History,
    model: &PoolModel,
    tuning: CurveTuning,
    mut tick: impl FnMut(),
) -> Result<(Counts, MissRatioCurve), SimError> {
    let mut replay = Replay::new(trace, stream, history, model)?;
    replay.pool.tune_curves(tuning);
    replay.run(&mut tick)?;
    let end = stream.last().map_or(0, |at| trace.requests[*at as usize].at_ms);
    let refused = |error| SimError::Refused { request: 0, call: "miss_ratio_curve", error };
    Ok((replay.counts, replay.pool.miss_ratio_curve(replay.ns, end).map_err(refused)?))
}

/// One pool and its stream under way.
pub(crate) struct Replay<'a> {
    trace: &'a Trace,
    stream: &'a [u32],
    history: &'a History,
    model: &'a PoolModel,
    pool: Pool,
    ns: NamespaceIndex,
    sessions: Vec<SessionId>,
    hints: Option<Hints>,
    device: Option<Device>,
    /// The segment that is being emptied.
    emptying: Option<Pass>,
    /// When reads in flight land.
    reads: HashMap<PageKey, Now>,
    events: BTreeMap<(Now, u64), Event>,
    event_number: u64,
    pub(crate) counts: Counts,
}

enum Event {
    /// The pages that a turn reloads have landed.
    Reloaded(Turn),
    /// A read from NVMe landed.
    Read(Promotion),
    /// A write to NVMe is done.
    Written(PageKey, NvmePlace),
    /// Somebody closed a session.
    Close(u32),
    /// A session is expected back soon.
    Returning,
}

/// A turn under way.
struct Turn {
    position: usize,
    session: SessionId,
    hashes: Vec<BlockHash>,
    began: Now,
    expected_return_ms: u64,
    /// Leading pages that were there when it began.
    present: usize,
    /// Of these, reloaded so far.
    hits: usize,
    nvme_hits: u64,
    lease: Option<LeaseId>,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(
        trace: &'a Trace,
        stream: &'a [u32],
        history: &'a History,
        model: &'a PoolModel,
    ) -> Result<Replay<'a>, SimError> {
        let (config, slot_bytes) = pool_config(model)?;
        let mut pool = Pool::new(config)?;
        let segment_bytes = Device::segment_pages(model.nvme_pages) * slot_bytes;
        pool.shape_nvme(Device::kept_percent(model.nvme_pages), segment_bytes, 0);
        let desc = NamespaceDesc {
            id: NamespaceId([1; 32]),
            tenant: String::new(),
            shard_bytes: slot_bytes,
            page_tokens: trace.block_tokens,
            shards: 1,
        };
        let refused = |error| SimError::Refused { request: 0, call: "open_namespace", error };
        let ns = pool.open_namespace(desc).map_err(refused)?;
        let sessions = match model.policy.sessions {
            true => (0..trace.sessions.len()).map(|at| session_id('s', at)).collect(),
            false => Vec::new(),
        };
        let device =
            (model.nvme_pages > 0).then(|| Device::new(model.nvme_pages, model.page_bytes, model.speed));
        let hints = model.hints.map(|rules| Hints::new(trace, stream, rules));
        let (reads, events, counts) = (HashMap::new(), BTreeMap::new(), Counts::default());
        let event_number = 0;
        Ok(Replay {
            trace,
            stream,
            history,
            model,
            pool,
            ns,
            sessions,
            hints,
            device,
            emptying: None,
            reads,
            events,
            event_number,
            counts,
        })
    }

    fn run(&mut self, tick: &mut impl FnMut()) -> Result<(), SimError> {
        for (position, at) in self.stream.iter().enumerate() {
            self.arrive(position, self.trace.requests[*at as usize].at_ms)?;
            tick();
        }
        self.run_events(Now::MAX)?;
        self.counts.evicted = self.pool.stats().evicted_pages;
        Ok(())
    }

    fn schedule(&mut self, at: Now, event: Event) {
        self.events.insert((at, self.event_number), event);
        self.event_number += 1;
    }

    /// Lets everything happen that is due.
    fn run_events(&mut self, until: Now) -> Result<(), SimError> {
        while let Some(first) = self.events.first_entry().filter(|first| first.key().0 <= until) {
            let ((now, _), event) = first.remove_entry();
            match event {
                Event::Reloaded(turn) => self.continue_turn(turn, now)?,
                Event::Read(promotion) => {
                    self.reads.remove(&promotion.page);
                    self.pool.promoted(promotion.page, promotion.shard, now);
                }
                Event::Written(page, place) => {
                    self.written(page, place, now);
                    self.pump_writes(now);
                }
                Event::Close(session) => self.close(session, now),
                Event::Returning => self.prefetch(now),
            }
        }
        Ok(())
    }

    fn begin_turn(&mut self, position: usize, now: Now) -> Result<(), SimError> {
        let request = &self.trace.requests[self.stream[position] as usize];
        let known = request.session.filter(|_| self.model.policy.sessions);
        let advice = self.hints.as_mut().filter(|_| known.is_some());
        let advice = advice.map(|hints| hints.observe(request)).unwrap_or_default();
        if let (Some(at), Some(session)) = (advice.close_at, known) {
            self.schedule(at, Event::Close(session));
        }
        let session = self.name_of(position);
        let hashes: Vec<BlockHash> = self.trace.blocks(request).iter().map(|block| hash_of(*block)).collect();
        while !self.pool.expire(now) {}
        self.pool.maintain(now);
        self.pool.begin_turn(self.ns, &session, now).map_err(self.refused(position, "begin_turn"))?;
        let found = self.pool.lookup(self.ns, &hashes, now).map_err(self.refused(position, "lookup"))?;
        let turn = Turn {
            position,
            session,
            hashes,
            began: now,
            expected_return_ms: advice.expected_return_ms,
            present: found.present as usize,
            hits: 0,
            nvme_hits: 0,
            lease: None,
        };
        self.reload(turn, now)
    }

    /// Asks for what is left of the pages that are there; goes on when they have landed.
    fn reload(&mut self, mut turn: Turn, now: Now) -> Result<(), SimError> {
        let rest = &turn.hashes[turn.hits..turn.present];
        if rest.is_empty() {
            return self.finish_turn(&turn, now);
        }
        let ask = ReloadAsk {
            ns: self.ns,
            hashes: rest,
            shards: Shards::one(0),
            client: CLIENT,
            session: Some(&turn.session),
            hold: false,
        };
        let plan = self.pool.begin_reload(ask, now).map_err(self.refused(turn.position, "begin_reload"))?;
        let (before, mut ready) = (turn.hits, now);
        for step in plan.pages {
            let landed = match step {
                ReloadStep::Ready { .. } => now,
                ReloadStep::Promote(promotion) => self.start_read(promotion, now),
                ReloadStep::Join { page, .. } => self.reads.get(&page).copied().unwrap_or(now),
                ReloadStep::NoSlot | ReloadStep::Miss(_) => break,
            };
            turn.nvme_hits += u64::from(!matches!(step, ReloadStep::Ready { .. }));
            turn.hits += 1;
            ready = ready.max(landed);
        }
        if turn.hits == before {
            // Every slot is in use: what is left is a miss.
            turn.present = turn.hits;
        }
        turn.lease = plan.lease;
        self.schedule(ready, Event::Reloaded(turn));
        Ok(())
    }

    fn continue_turn(&mut self, mut turn: Turn, now: Now) -> Result<(), SimError> {
        if let Some(lease) = turn.lease.take() {
            let ended = self.pool.end_reload(lease, CLIENT, &[], now);
            ended.map_err(self.refused(turn.position, "end_reload"))?;
        }
        self.reload(turn, now)
    }

    fn finish_turn(&mut self, turn: &Turn, now: Now) -> Result<(), SimError> {
        self.count(turn, now);
        self.offload(turn.position, &turn.session, &turn.hashes, turn.hits, now)?;
        let end = EndTurn {
            keep: 0,
            hashes: &turn.hashes,
            tail_tokens: 0,
            expected_return_ms: turn.expected_return_ms,
            ttl_ms: 0,
            priority: 0,
            last: false,
        };
        let ended = self.pool.end_turn(self.ns, &turn.session, end, now);
        match ended {
            // The table of sessions was full of others, or somebody closed it meanwhile.
            Ok(_) | Err(PoolError::SessionUnknown) => {}
            Err(error) => return Err(self.refused(turn.position, "end_turn")(error)),
        }
        if turn.expected_return_ms > 0 && self.device.is_some() {
            let ahead = turn.expected_return_ms.saturating_sub(PREFETCH_AHEAD_MS);
            self.schedule(now + ahead, Event::Returning);
        }
        Ok(())
    }

    /// Offloads what was not reloaded, in calls of bounded size.
    fn offload(
        &mut self,
        position: usize,
        session: &SessionId,
        hashes: &[BlockHash],
        mut from: usize,
        now: Now,
    ) -> Result<(), SimError> {
        let mut again = 0;
        while from < hashes.len() {
            let end = hashes.len().min(from + OFFLOAD_CALL_PAGES_MAX);
            let ask = OffloadAsk {
                ns: self.ns,
                session: Some(session),
                parent: from.checked_sub(1).map(|at| hashes[at]),
                hashes: &hashes[from..end],
                shards: Shards::one(0),
                tail_tokens: 0,
                client: CLIENT,
            };
            let plan = self.pool.begin_offload(ask, now).map_err(self.refused(position, "begin_offload"))?;
            let granted = |(_, outcome): &(usize, &Outcome)| matches!(outcome, Outcome::Granted(_));
            let filled = plan.outcomes.iter().enumerate().filter(granted).map(|(at, _)| (at as u32, 0));
            let filled: Vec<(u32, u64)> = filled.collect();
            if let Some(lease) = plan.lease {
                let done = self.pool.commit_offload(lease, CLIENT, &filled, now);
                let done = done.map_err(self.refused(position, "commit_offload"))?;
                self.counts.stored += done.kept.len() as u64;
            }
            self.pump_writes(now);
            let kept = |outcome: &&Outcome| matches!(outcome, Outcome::Present | Outcome::Granted(_));
            let accepted = plan.outcomes.iter().take_while(kept).count();
            from += accepted;
            if accepted > 0 {
                continue;
            }
            again += 1;
            let lost_parent = plan.outcomes.first() == Some(&Outcome::NoParent) && from > 0;
            if again > RETRIES_MAX || !lost_parent {
                self.counts.declined += (hashes.len() - from) as u64;
                break;
            }
            from = 0;
        }
        Ok(())
    }

    fn count(&mut self, turn: &Turn, now: Now) {
        let request = &self.trace.requests[self.stream[turn.position] as usize];
        let hits = turn.hits as u64;
        let (multi_turn, cross_session) = self.history.lost(turn.position, turn.hits as u32);
        let counts = &mut self.counts;
        counts.requests += 1;
        counts.blocks += turn.hashes.len() as u64;
        counts.input_tokens += request.input_tokens;
        counts.dram_hits += hits - turn.nvme_hits;
        counts.nvme_hits += turn.nvme_hits;
        counts.infinite_hits += u64::from(self.history.known(turn.position));
        counts.lost_multi_turn += multi_turn;
        counts.lost_cross_session += cross_session;
        counts.turns_hit += u64::from(hits > 0);
        counts.turns_from_dram += u64::from(hits > 0 && turn.nvme_hits == 0);
        let wait = now - turn.began;
        counts.wait_ms += wait;
        counts.wait_ms_max = counts.wait_ms_max.max(wait);
    }

    fn close(&mut self, session: u32, now: Now) {
        match self.pool.close(self.ns, &self.sessions[session as usize], now) {
            // Closed twice, or forgotten: nothing is left to close.
            Ok(()) | Err(_) => {}
        }
    }

    fn refused(&self, position: usize, call: &'static str) -> impl Fn(PoolError) -> SimError + use<> {
        let request = self.stream[position];
        move |error| SimError::Refused { request, call, error }
    }
}

/// A pool whose DRAM holds exactly so many pages: one slab, a slot a page. Returns the bytes of a slot as well.
fn pool_config(model: &PoolModel) -> Result<(PoolConfig, u64), SimError> {
    for pages in [model.dram_pages, model.nvme_pages.max(1)] {
        if pages == 0 || pages > TIER_PAGES_MAX {
            return Err(SimError::Pages(pages));
        }
    }
    // A slab has a least size: few pages are larger ones.
    let least = turnkv_pool::limits::SLAB_BYTES_MIN / SLOT_BYTES;
    let slot_bytes = SLOT_BYTES * least.div_ceil(model.dram_pages);
    let pages = (model.dram_pages + model.nvme_pages) as u32;
    let limits = Limits {
        pages_max: pages.saturating_add(2 * crate::limits::REQUEST_BLOCKS_MAX as u32),
        lease_pages_max: u32::MAX - 1,
        client_slots_max: u32::MAX - 1,
        client_slots_percent: 100,
        lease_ms: LEASE_MS,
        ..Limits::default()
    };
    let config = PoolConfig {
        slab_bytes: model.dram_pages * slot_bytes,
        slab_count: 1,
        nvme_bytes: model.nvme_pages * slot_bytes,
        nvme_admit: model.admission.admit,
        nvme_bytes_per_day: simulated_bytes(model, slot_bytes),
        free_slots_percent: 0,
        limits,
        policy: model.policy.kind,
    };
    Ok((config, slot_bytes))
}

/// The write budget in the pages of the simulated pool.
fn simulated_bytes(model: &PoolModel, slot_bytes: u64) -> u64 {
    let bytes = u128::from(model.admission.write_bytes_per_day) * u128::from(slot_bytes);
    let bytes = bytes / u128::from(model.page_bytes.max(1));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

pub(crate) fn session_id(kind: char, at: usize) -> SessionId {
    let id = SessionId::parse(&format!("{kind}{at}"));
    id.unwrap_or_else(|_| unreachable!("a letter and a number are a session id"))
}

/// A hash that names a block, and the block that a hash names.
pub(crate) fn hash_of(block: u32) -> BlockHash {
    let mut bytes = [0x5a; 32];
    bytes[..4].copy_from_slice(&block.to_le_bytes());
    BlockHash(bytes)
}

fn block_of(hash: &BlockHash) -> u32 {
    u32::from_le_bytes([hash.0[0], hash.0[1], hash.0[2], hash.0[3]])
}

#[cfg(test)]
mod tests;

//! The store: the pages, where their bytes are, the order in which they go, what NVMe keeps. Owns: every decision
//! that needs several of these at once. Must not know: sessions, leases, turns, who asks.
//!
//! - `residency`: where a page's shards are, and what follows from it; `going`, `tally`: the words and the
//!   counters of that
//! - `search`: a slot for a page, an entry for it, a slab for a namespace; `decline_newcomer`: pages that are
//!   not taken, because what would make way for them is worth more
//! - `deferred_victims`, `protection`, `expected`: pages that go last, and why
//! - `condemn`, `unfinished`, `left`: pages that go bit by bit
//! - `grants`: slots under leases, filled and given up
//! - `admission`: which pages are written; `writeback`: in which order; `durable`: those that somebody waits
//!   for; `promote`: pages that are read back into DRAM
//! - `space`: which pages leave NVMe when there is no room for all; `reclaim`: which extents of a segment are
//!   worth their place; `pass`: how it is emptied of them; `adopt`: what is found at a start becomes pages
//! - `shrink`: slabs that are emptied for good, because DRAM is to be smaller
//! - `records`: what each slot holds, for whoever keeps a table of that
//! - `presence`: which pages came to a tier or left it, for whoever tells others of that
//! - `told`: what it hears of sessions, turns, namespaces and slabs
//! - `check`: that it all adds up

mod admission;
mod adopt;
mod check;
mod condemn;
mod decline_newcomer;
mod deferred_victims;
pub(crate) mod durable;
mod expected;
pub(crate) mod going;
mod grants;
mod left;
pub(crate) mod pass;
pub(crate) mod presence;
pub(crate) mod promote;
pub(crate) mod protection;
pub(crate) mod reclaim;
pub(crate) mod records;
mod residency;
mod search;
pub(crate) mod shrink;
mod space;
mod tally;
mod told;
mod unfinished;
pub(crate) mod writeback;

use crate::call::Call;
use crate::config::{Limits, PoolConfig};
use crate::eviction::condemned::Condemned;
use crate::eviction::deferred::DeferredVictims;
use crate::eviction::left_branches::LeftBranches;
use crate::eviction::policy::EvictionPolicy;
use crate::eviction::protections::Protections;
use crate::eviction::turns::Turns;
use crate::eviction::unfinished_pages::Unfinished;
use crate::ids::Now;
use crate::index::arena::Pages;
use crate::memory::slots::Slots;
use crate::nvme::books::Nvme;
use crate::nvme::found::FoundSlabs;
use presence::Presence;
use tally::Tally;

/// Gauges and counters of what goes.
pub(crate) struct GoingGauges {
    pub(crate) condemned_pages: u64,
    pub(crate) unfinished_pages: u64,
    pub(crate) unfinished_drops: u64,
    pub(crate) left_branches: u64,
    /// Memory of what waits for shards.
    pub(crate) unfinished_bytes: usize,
    /// Memory of what is protected or left.
    pub(crate) list_bytes: usize,
}

/// The pages, where their bytes are, the order in which they go, what NVMe keeps. A page's removal changes all
/// of these together, so they are one type.
pub(crate) struct Store {
    config: PoolConfig,
    /// The call under way.
    pub(crate) call: Call,
    /// The index.
    pages: Pages,
    /// What is where, counted.
    tally: Tally,
    /// The order in which pages that can go do.
    policy: Box<dyn EvictionPolicy>,
    deferred: DeferredVictims,
    protections: Protections,
    /// What sessions left, as far as it is not marked.
    left: LeftBranches,
    /// Pages that go with all that hangs on them, as far as that is not done yet.
    condemned: Condemned,
    /// Pages that wait for more of their shards.
    unfinished: Unfinished,
    /// The namespace whose turn it is to give up pages.
    turns: Turns,
    slots: Slots,
    nvme: Nvme,
    /// What another process left in DRAM, until its namespace is open.
    found: FoundSlabs,
    /// Pages that came to a tier, or left it, since that was asked for last.
    presence: Presence,
}

impl Store {
    /// An empty store.
    pub(crate) fn new(config: PoolConfig) -> Store {
        Store {
            call: Call::default(),
            pages: Pages::new(),
            tally: Tally::default(),
            policy: crate::eviction::policy::build(config.policy),
            deferred: DeferredVictims::default(),
            protections: Protections::default(),
            left: LeftBranches::default(),
            condemned: Condemned::default(),
            unfinished: Unfinished::default(),
            turns: Turns::default(),
            slots: Slots::new(config.slab_bytes, config.slab_count),
            nvme: Nvme::new(&config),
            found: FoundSlabs::default(),
            presence: Presence::default(),
            config,
        }
    }

    /// Takes note of the time, which never runs backwards here.
    pub(crate) fn tick(&mut self, now: Now) -> Now {
        self.call.begin();
        self.call.advance(now);
        self.slots.advance();
        self.policy.tick(self.call.now());
        self.call.now()
    }

    /// Who goes first.
    pub(crate) fn policy(&self) -> &dyn EvictionPolicy {
        self.policy.as_ref()
    }

    /// The same, to go on from what it had learned.
    pub(crate) fn policy_mut(&mut self) -> &mut dyn EvictionPolicy {
        self.policy.as_mut()
    }

    /// What was configured.
    pub(crate) fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The bounds of tables and leases.
    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// The index.
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// What is where, counted.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Slabs and slots.
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The books of NVMe.
    pub(crate) fn nvme(&self) -> &Nvme {
        &self.nvme
    }

    /// Who protects which pages.
    pub(crate) fn protections(&self) -> &Protections {
        &self.protections
    }

    /// Gauges and counters of what goes.
    pub(crate) fn going(&self) -> GoingGauges {
        let (unfinished_pages, unfinished_drops) = self.unfinished.pages_and_dropped();
        GoingGauges {
            condemned_pages: self.condemned.len() as u64,
            unfinished_pages,
            unfinished_drops,
            left_branches: self.left.len() as u64,
            unfinished_bytes: self.unfinished.bytes(),
            list_bytes: self.protections.bytes() + self.left.bytes(),
        }
    }
}

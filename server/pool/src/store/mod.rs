//! The store: the pages, where their bytes are, the order in which they go, what NVMe keeps. Owns: every decision
//! that needs several of these at once. Must not know: sessions, leases, turns, who asks.
//!
//! - `expected`: when pages are needed again
//! - `grants`: slots under leases, filled and given up

mod expected;
mod grants;

use crate::call::Call;
use crate::config::PoolConfig;
use crate::eviction::Eviction;
use crate::eviction::policy::EvictionPolicy;
use crate::ids::Now;
use crate::index::arena::Pages;
use crate::index::residency::Tally;
use crate::memory::slots::Slots;
use crate::nvme::Nvme;

/// The pages, where their bytes are, the order in which they go, what NVMe keeps. A page's removal changes all
/// of these together, so they are one type.
pub(crate) struct Store {
    pub(crate) config: PoolConfig,
    /// The call under way.
    pub(crate) call: Call,
    /// The index.
    pub(crate) pages: Pages,
    /// What is where, counted.
    pub(crate) tally: Tally,
    /// The order in which pages that can go do.
    pub(crate) policy: Box<dyn EvictionPolicy>,
    pub(crate) eviction: Eviction,
    pub(crate) slots: Slots,
    pub(crate) nvme: Nvme,
}

impl Store {
    /// An empty store.
    pub(crate) fn new(config: PoolConfig) -> Store {
        Store {
            call: Call::default(),
            pages: Pages::new(),
            tally: Tally::default(),
            policy: crate::eviction::policy::build(config.policy),
            eviction: Eviction::default(),
            slots: Slots::new(config.slab_bytes, config.slab_count),
            nvme: Nvme::new(&config),
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
}

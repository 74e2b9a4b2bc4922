//! The pool's state in one place. Owns: construction and what all verbs share. Must not know: any one verb.

use crate::call::Call;
use crate::config::{ConfigError, PoolConfig};
use crate::eviction::Eviction;
use crate::eviction::policy::EvictionPolicy;
use crate::ids::Now;
use crate::index::arena::Pages;
use crate::index::residency::Tally;
use crate::index::tips::Tips;
use crate::memory::leases::Leases;
use crate::memory::slots::Slots;
use crate::namespaces::table::Namespaces;
use crate::nvme::Nvme;
use crate::sessions::table::Sessions;
use crate::sizing::curve::Curves;

/// Every decision of the server about pages, slots, leases and sessions. It does no I/O and knows no clock:
/// callers hand in `now` and carry out what is returned.
pub struct Pool {
    pub(crate) config: PoolConfig,
    pub(crate) namespaces: Namespaces,
    pub(crate) pages: Pages,
    pub(crate) slots: Slots,
    pub(crate) policy: Box<dyn EvictionPolicy>,
    pub(crate) leases: Leases,
    pub(crate) sessions: Sessions,
    /// Where sessions' lists and protected prefixes end.
    pub(crate) tips: Tips,
    pub(crate) eviction: Eviction,
    /// What turns would have found at other sizes.
    pub(crate) curves: Curves,
    pub(crate) nvme: Nvme,
    pub(crate) call: Call,
    pub(crate) tally: Tally,
}

impl Pool {
    /// Makes an empty pool.
    pub fn new(config: PoolConfig) -> Result<Pool, ConfigError> {
        config.check()?;
        Ok(Pool {
            namespaces: Namespaces::default(),
            pages: Pages::new(),
            slots: Slots::new(config.slab_bytes, config.slab_count),
            policy: crate::eviction::policy::build(config.policy),
            leases: Leases::default(),
            sessions: Sessions::default(),
            tips: Tips::default(),
            eviction: Eviction::default(),
            curves: Curves::default(),
            nvme: Nvme::new(&config),
            call: Call::default(),
            tally: Tally::default(),
            config,
        })
    }

    /// Takes note of the time, which never runs backwards here.
    pub(crate) fn tick(&mut self, now: Now) -> Now {
        self.call.begin();
        self.call.advance(now);
        self.slots.advance();
        self.policy.tick(self.call.now());
        self.call.now()
    }

    /// Pages, slots and list entries looked at or changed so far, ever: what one call adds to it is what
    /// others wait for.
    pub fn steps(&self) -> u64 {
        self.call.steps()
    }

    /// The most steps that any call took, ever.
    pub fn call_steps_max(&self) -> u64 {
        self.call.steps_max()
    }
}

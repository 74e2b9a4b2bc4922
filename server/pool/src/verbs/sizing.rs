//! What the curves say of a namespace, what it has, and how fast its engines are. Owns: the verbs. Must not know: sampling.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::limits::SLOT_ALIGN_BYTES;
use crate::namespaces::table::NamespaceDesc;
use crate::sizing::curve::{Curve, CurveTuning, MissRatioCurve};

/// What a namespace has of the tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NamespaceRoom {
    /// DRAM in slabs of its own, and in those that are nobody's.
    pub dram_bytes: u64,
    /// Its part of NVMe.
    pub nvme_bytes: u64,
}

impl Pool {
    /// An engine prefilled so many tokens in so many microseconds. Zero of either says nothing.
    pub fn note_prefill(&mut self, ns: NamespaceIndex, tokens: u64, us: u64) {
        if let (Some(prefill), true) = (self.namespaces.prefill_mut(ns), tokens > 0 && us > 0) {
            prefill.add(tokens, us);
        }
    }

    /// How long prefilling so many tokens would take, in microseconds. None: nobody said how fast it is.
    pub fn prefill_us(&self, ns: NamespaceIndex, tokens: u64) -> Option<u64> {
        self.namespaces.prefill(ns)?.us_for(tokens)
    }

    /// Changes how curves are kept. What they have counted so far is forgotten.
    pub fn tune_curves(&mut self, tuning: CurveTuning) {
        self.curves.tune(tuning);
    }

    /// A namespace's miss-ratio curve as it stands.
    pub fn miss_ratio_curve(&self, ns: NamespaceIndex, now: Now) -> Result<MissRatioCurve, PoolError> {
        let desc = self.namespaces.desc(ns)?;
        let curve = self.curves.of(ns.0);
        Ok(curve.view(page_bytes(desc), desc.page_tokens, self.store.call.now().max(now)))
    }

    /// What a namespace has today: its own part of DRAM with what is free, and a part of NVMe as large as its
    /// part of the bytes that turns need lately.
    pub fn namespace_room(&self, ns: NamespaceIndex) -> Result<NamespaceRoom, PoolError> {
        let desc = self.namespaces.desc(ns)?;
        let class = self.store.slots().class_at(ns.0);
        let slabs = u64::from(class.slabs)
            + (self.store.slots().empty().len() + self.store.slots().aside().len()) as u64;
        let slot_bytes = class.slot_bytes;
        let needed = |(curve, desc): (&Curve, &NamespaceDesc)| curve.references() * page_bytes(desc) as f64;
        let all: f64 = self.curves.iter().zip(self.namespaces.iter()).map(needed).sum();
        let own = needed((self.curves.of(ns.0), desc));
        let part = if all > 0.0 { own / all } else { 1.0 };
        let nvme_bytes = (self.store.nvme().capacity_bytes() as f64 * part) as u64;
        Ok(NamespaceRoom { dram_bytes: slabs * u64::from(class.per_slab) * slot_bytes, nvme_bytes })
    }
}

/// Bytes that a page takes in DRAM, all shards.
fn page_bytes(desc: &NamespaceDesc) -> u64 {
    desc.shard_bytes.next_multiple_of(SLOT_ALIGN_BYTES) * u64::from(desc.shards)
}

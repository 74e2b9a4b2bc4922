//! Where the pool tells its curves what turns use. Owns: which pages of a call are references, and in what
//! order they are told. Must not know: sampling.

use super::{Curve, CurveTuning, MissRatioCurve, Seen, samples_share};
use crate::Pool;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::index::arena::Pages;
use crate::limits::SLOT_ALIGN_BYTES;
use crate::memory::leases::LeaseItem;
use crate::namespaces::table::NamespaceDesc;
use crate::verbs::offload::{OffloadAsk, Outcome, outcome_of_page};
use std::ops::Range;
use turnkv_proto::{BlockHash, Shards};

/// What a namespace has of the tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NamespaceRoom {
    /// DRAM in slabs of its own, and in those that are nobody's.
    pub dram_bytes: u64,
    /// Its part of NVMe.
    pub nvme_bytes: u64,
}

/// The curves of all namespaces.
#[derive(Default)]
pub(crate) struct Curves {
    pub(super) list: Vec<Curve>,
    tuning: CurveTuning,
}

impl Curves {
    /// Makes room for the namespace opened next; the total of followed pages is shared anew.
    pub(crate) fn add(&mut self) {
        self.list.push(Curve::new(self.tuning));
        self.share();
    }

    /// The curve of a namespace that has the place of one that retired.
    pub(crate) fn renew(&mut self, ns: u16) {
        self.list[usize::from(ns)] = Curve::new(self.tuning);
        self.share();
    }

    pub(crate) fn bytes(&self) -> usize {
        self.list.iter().map(Curve::bytes).sum()
    }

    /// Every namespace has a curve.
    pub(crate) fn is_complete(&self, namespaces: usize) -> bool {
        self.list.len() == namespaces
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.list.iter().try_for_each(Curve::check)
    }

    /// The curve of a namespace, and that a call of it begins; none when none is kept.
    fn begin(&mut self, ns: u16, now: Now) -> Option<&mut Curve> {
        let curve = self.go_on(ns)?;
        curve.begin(now);
        Some(curve)
    }

    /// The curve of a namespace, for more pages of the same call.
    fn go_on(&mut self, ns: u16) -> Option<&mut Curve> {
        self.list.get_mut(usize::from(ns)).filter(|_| self.tuning.samples_max > 0)
    }

    /// A reload serves these whole pages. Every rank asks for its shards of them: the word of whoever moves
    /// the first one counts.
    pub(crate) fn observe_reload(
        &mut self,
        pages: &Pages,
        ns: u16,
        shards: Shards,
        items: &[LeaseItem],
        now: Now,
    ) {
        if shards.first() > 0 {
            return;
        }
        let Some(curve) = self.begin(ns, now) else { return };
        for item in items.iter().step_by(shards.count()).rev() {
            curve.see(&pages[item.page.index].hash, Seen::Found);
        }
    }

    /// An offload was answered so, as far as these pages of it. Pages that are here already were computed
    /// without need, or offloaded twice: they are no references. Neither are those that another turn is
    /// offloading now, or whose parent must come first. `turn`: the session's place and its turn, where there
    /// is one.
    pub(crate) fn observe_offload(
        &mut self,
        ask: &OffloadAsk<'_>,
        outcomes: &[Outcome],
        which: Range<usize>,
        turn: Option<(u32, u32)>,
        now: Now,
    ) {
        if ask.shards.first() > 0 {
            return;
        }
        let asker = asker(ask, turn, now);
        let Some(curve) = self.begin(ask.ns.0, now) else { return };
        for page in which.rev() {
            let seen = match outcome_of_page(outcomes, ask.shards, page) {
                Outcome::Present => Seen::Recent,
                Outcome::Granted(_) | Outcome::Stored => Seen::Stored(asker),
                Outcome::NoSpace | Outcome::Outranked | Outcome::LeaseLimit => Seen::Declined(asker),
                Outcome::InFlight | Outcome::NoParent => continue,
            };
            curve.see(&ask.hashes[page], seen);
        }
    }

    /// A turn ended: the pages of its session are recent, tails before heads, in whatever order they came.
    /// `begins`: these are the first of them.
    pub(crate) fn observe_turn(&mut self, pages: &Pages, ns: u16, some: &[u32], begins: bool, now: Now) {
        let curve = if begins { self.begin(ns, now) } else { self.go_on(ns) };
        let Some(curve) = curve else { return };
        for index in some {
            curve.see(&pages[*index].hash, Seen::Recent);
        }
    }

    fn share(&mut self) {
        let share = samples_share(self.list.len(), self.tuning.samples_max);
        self.list.iter_mut().for_each(|curve| curve.limit(share));
    }
}

impl Pool {
    /// Changes how curves are kept. What they have counted so far is forgotten.
    pub fn tune_curves(&mut self, tuning: CurveTuning) {
        let namespaces = self.curves.list.len();
        self.curves = Curves { list: (0..namespaces).map(|_| Curve::new(tuning)).collect(), tuning };
        self.curves.share();
    }

    /// A namespace's miss-ratio curve as it stands.
    pub fn miss_ratio_curve(&self, ns: NamespaceIndex, now: Now) -> Result<MissRatioCurve, PoolError> {
        let desc = self.namespaces.desc(ns)?;
        let curve = &self.curves.list[usize::from(ns.0)];
        Ok(curve.view(page_bytes(desc), desc.page_tokens, self.call.now().max(now)))
    }

    /// What a namespace has today: its own part of DRAM with what is free, and a part of NVMe as large as its
    /// part of the bytes that turns need lately.
    pub fn namespace_room(&self, ns: NamespaceIndex) -> Result<NamespaceRoom, PoolError> {
        let desc = self.namespaces.desc(ns)?;
        let class = self.slots.class_at(ns.0);
        let slabs = u64::from(class.slabs) + self.slots.empty().len() as u64;
        let slot_bytes = class.slot_bytes;
        let needed = |(curve, desc): (&Curve, &NamespaceDesc)| curve.references() * page_bytes(desc) as f64;
        let all: f64 = self.curves.list.iter().zip(self.namespaces.iter()).map(needed).sum();
        let own = needed((&self.curves.list[usize::from(ns.0)], desc));
        let part = if all > 0.0 { own / all } else { 1.0 };
        let nvme_bytes = (self.nvme.capacity_bytes() as f64 * part) as u64;
        Ok(NamespaceRoom { dram_bytes: slabs * u64::from(class.per_slab) * slot_bytes, nvme_bytes })
    }
}

/// Bytes that a page takes in DRAM, all shards.
fn page_bytes(desc: &NamespaceDesc) -> u64 {
    desc.shard_bytes.next_multiple_of(SLOT_ALIGN_BYTES) * u64::from(desc.shards)
}

/// Names who offloads: asking twice in one turn, after a refusal, is not two references. Without a session it
/// is the client, for some seconds.
fn asker(ask: &OffloadAsk<'_>, turn: Option<(u32, u32)>, now: Now) -> u32 {
    let (who, when) = match turn {
        Some((session, turn)) => (u64::from(session), u64::from(turn)),
        None => (!ask.client.0, now >> 14),
    };
    let mut name = BlockHash([0; 32]);
    name.0[..8].copy_from_slice(&who.to_le_bytes());
    name.0[8..16].copy_from_slice(&when.to_le_bytes());
    super::key_of(&name) as u32
}

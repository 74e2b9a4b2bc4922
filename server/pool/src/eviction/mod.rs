//! Eviction: who makes room, who goes last, who goes bit by bit. Owns: the order in which pages go.
//! Must not know: who needs the room.
//!
//! - `search`: a slot for a page, an entry for it, a slab for a namespace
//! - `policy`: the orders of eviction
//! - `deferred_victims`: pages that go when nothing else can; `protection`: pages that pins and priorities
//!   hold
//! - `decline_newcomer`: pages that are not taken, because what would make way for them is worth more
//! - `condemn`: pages that go with all that hangs on them; `unfinished`: pages of which some shards never
//!   come
//! - `left`: pages that sessions had

pub(crate) mod condemn;
pub(crate) mod decline_newcomer;
pub(crate) mod deferred_victims;
pub(crate) mod left;
pub(crate) mod policy;
pub(crate) mod protection;
pub(crate) mod search;
pub(crate) mod unfinished;

use crate::ids::NamespaceIndex;
use crate::index::arena::Pages;
use crate::index::tips::TipId;
use crate::memory::slots::Slots;
use condemn::Condemned;
use deferred_victims::DeferredVictims;
use left::LeftBranches;
use protection::Protections;
use turnkv_proto::BlockHash;
use unfinished::Unfinished;

/// What is known of pages that go, or go last, beside the policy's order.
#[derive(Default)]
pub(crate) struct Eviction {
    deferred: DeferredVictims,
    protections: Protections,
    /// What sessions left, as far as it is not marked.
    left: LeftBranches,
    /// Pages that go with all that hangs on them, as far as that is not done yet.
    condemned: Condemned,
    /// Pages that wait for more of their shards.
    unfinished: Unfinished,
    /// The namespace whose turn it is to give up pages.
    turn: u16,
}

/// Gauges and counters of what goes.
pub(crate) struct EvictionGauges {
    pub(crate) condemned_pages: u64,
    pub(crate) unfinished_pages: u64,
    pub(crate) unfinished_drops: u64,
    pub(crate) left_branches: u64,
    /// Memory of what waits for shards.
    pub(crate) unfinished_bytes: usize,
    /// Memory of what is protected or left.
    pub(crate) list_bytes: usize,
}

impl Eviction {
    /// Who protects which pages.
    pub(crate) fn protections(&self) -> &Protections {
        &self.protections
    }

    /// What was protected for a wish is nobody's: it is let go of bit by bit.
    pub(crate) fn disown(&mut self, tip: Option<TipId>) {
        self.protections.disown(tip);
    }

    /// Pins that ended by time since the last call.
    pub(crate) fn take_ended_pins(&mut self) -> Vec<(NamespaceIndex, BlockHash)> {
        self.protections.take_ended_pins()
    }

    /// A page leaves the index: what is protected ends before it.
    pub(crate) fn forget_protected(&mut self, pages: &mut Pages, slots: &Slots, index: u32) {
        self.protections.forget(pages, slots, index);
    }

    /// A namespace retired.
    pub(crate) fn forget_namespace(&mut self, ns: u16) {
        self.deferred.forget(ns);
    }

    /// The namespace whose turn it is among so many, which take turns; none: there are none.
    pub(crate) fn next_turn(&mut self, namespaces: u16) -> Option<u16> {
        let ns = self.turn.checked_rem(namespaces)?;
        self.turn = ns + 1;
        Some(ns)
    }

    /// Gauges and counters now.
    pub(crate) fn gauges(&self) -> EvictionGauges {
        EvictionGauges {
            condemned_pages: self.condemned.len() as u64,
            unfinished_pages: self.unfinished.pages,
            unfinished_drops: self.unfinished.dropped,
            left_branches: self.left.len() as u64,
            unfinished_bytes: self.unfinished.bytes(),
            list_bytes: self.protections.bytes() + self.left.bytes(),
        }
    }
}

//! Protected pages: they give way last, for a time, within a budget a tenant. Owns: what is protected within
//! the budget, when protection ends. Must not know: what an eviction is; sessions' turns.
//!
//! Protection is never a lock: it ends by itself, it is bounded, and when nothing else can go a protected
//! page goes.
//!
//! What is protected is a path from the root, so it is told by its end. A page is held by each protection
//! that ends at it and by each child that is protected itself: many protections of one prefix cost what one
//! does, and a little each.

use crate::call::Slice;
use crate::eviction::protections::{Owner, Protection};
use crate::ids::{NONE, NamespaceIndex, Now};
use crate::index::flags::PROTECTED;
use crate::index::path_end::PathEnd;
use crate::index::tips::{TipId, TipKeeper};
use crate::limits::{
    DECAY_STEPS, FIND_PAGES_AT_ONCE, LET_GO_PAGES_AT_ONCE, PROTECTED_ALL_PERCENT, PROTECTIONS_PER_TENANT_MAX,
};
use crate::store::Store;
use turnkv_proto::BlockHash;

/// What is asked to be protected.
pub(crate) struct ProtectionWish {
    pub(crate) owner: Owner,
    pub(crate) ns: NamespaceIndex,
    pub(crate) rank: u32,
    /// What is to be protected, from the root.
    pub(crate) path: PathEnd,
    pub(crate) for_ms: u64,
    /// Tails are let go step by step until the end.
    pub(crate) decays: bool,
}

/// How far the protection of a path came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtectReach {
    /// To its end.
    All,
    /// As far as the budget allows.
    Budget,
    /// The slice is over: the rest is for the next one.
    Slice,
}

impl Store {
    /// What one tenant may protect.
    pub(crate) fn protection_budget(&self) -> u64 {
        self.dram_share(self.config.limits.protected_percent)
    }

    fn dram_share(&self, percent: u8) -> u64 {
        (u128::from(self.slots.dram_bytes()) * u128::from(percent) / 100) as u64
    }

    /// Protects the leading pages of a path, as far as the budget reaches, after those that `held` protects
    /// already; weaker protections of the tenant end for it. Returns where it ends now: what is held so must
    /// be given to an owner (`own_protected`), or up (`disown_protected`), in the end.
    pub(crate) fn protect_more(
        &mut self,
        held: Option<TipId>,
        wish: &ProtectionWish,
        slice: Slice,
    ) -> (Option<TipId>, ProtectReach) {
        let tenant = self.slots.tenant_of(wish.ns.0);
        let (end, reach) = self.protect_path(wish.path, tenant, wish.rank, slice);
        let tip = (end != PathEnd::EMPTY).then(|| self.pages.add_tip(end, TipKeeper::Protection));
        if let Some(held) = held {
            // The page where it ended is held by its child from now on, or is the end still.
            let before = self.pages.tip_end(held);
            self.protections.release(before.page);
            self.pages.drop_tip(held, TipKeeper::Protection);
            self.protections.made(held);
        }
        self.protections.make(tip);
        (tip, reach)
    }

    /// What was protected for a wish is its owner's from now on, in place of what it had. Returns how many
    /// pages.
    pub(crate) fn own_protected(&mut self, tip: Option<TipId>, wish: &ProtectionWish, now: Now) -> u32 {
        let tenant = self.slots.tenant_of(wish.ns.0);
        tip.into_iter().for_each(|tip| self.protections.made(tip));
        // What was protected before stayed so in between: its bytes are counted once.
        let old = self.protections.take_of(wish.owner);
        self.protections.let_go(old);
        let full = self.protections.len_of(tenant) >= PROTECTIONS_PER_TENANT_MAX;
        let refused = full && !self.protections.displace(tenant, wish.rank);
        let kept = tip.filter(|_| !refused);
        if kept.is_none() {
            self.protections.abandon(tip);
        }
        let pages = kept.map_or(0, |tip| self.pages.tip_end(tip).pages);
        if let Some(tip) = kept {
            let ends = now.saturating_add(wish.for_ms);
            let step_ms = if wish.decays { (wish.for_ms / DECAY_STEPS).max(1) } else { wish.for_ms };
            let due = now.saturating_add(step_ms).min(ends);
            let (owner, rank, full) = (wish.owner, wish.rank, pages);
            self.protections.insert(Protection { owner, tenant, rank, tip, full, ends, due, step_ms });
        }
        let slice = self.call.rest();
        self.let_go_some(slice);
        pages
    }

    /// What was protected for a wish is nobody's: it is let go of bit by bit.
    pub(crate) fn disown_protected(&mut self, tip: Option<TipId>) {
        self.protections.disown(tip);
    }

    /// Pins that ended by time since the last call.
    pub(crate) fn take_ended_pins(&mut self) -> Vec<(NamespaceIndex, BlockHash)> {
        self.protections.take_ended_pins()
    }

    /// Ends an owner's protection. False: it had none.
    pub(crate) fn unprotect(&mut self, owner: Owner) -> bool {
        self.unprotect_after(owner, 0)
    }

    /// Ends an owner's protection of the pages after the first `keep`; they are let go of bit by bit. False:
    /// it had none.
    pub(crate) fn unprotect_after(&mut self, owner: Owner, keep: u32) -> bool {
        let Some(mut held) = self.protections.take_of(owner) else { return false };
        let end = self.pages.tip_end(held.tip);
        self.protections.abandon(Some(held.tip));
        let kept = self.pages.cut(end, keep.min(end.pages));
        if kept.page != NONE {
            // Held first, so that it stays when what is after it goes.
            self.protections.hold(kept.page);
            held.tip = self.pages.add_tip(kept, TipKeeper::Protection);
            held.full = held.full.min(keep);
            self.protections.insert(held);
        }
        let slice = self.call.rest();
        self.let_go_some(slice);
        true
    }

    /// Lets go of pages of protections that are over. True: of all of them.
    pub(super) fn let_go_some(&mut self, slice: Slice) -> bool {
        while !self.call.is_over(slice) {
            if !self.let_go_of_next() {
                return true;
            }
        }
        false
    }

    /// Lets go of what is due: tails of decaying protections, and all of those that end. False: the slice is
    /// over, and the rest is due in the next one.
    pub(crate) fn expire_protections(&mut self, now: Now, slice: Slice) -> bool {
        while let Some(at) = self.protections.first_due(now) {
            if self.call.is_over(slice) {
                return false;
            }
            self.call.step();
            let mut left = LET_GO_PAGES_AT_ONCE;
            let Some(mut held) = self.protections.take(at) else { break };
            let rest = held.ends.saturating_sub(now);
            // Rounded up, so that the head is kept to the end.
            let keep = (u64::from(held.full) * rest).div_ceil((held.step_ms * DECAY_STEPS).max(rest)) as u32;
            let Some(tip) = self.release_path(held.tip, keep, &mut left) else {
                self.protections.note_ended(held.owner);
                continue;
            };
            held.tip = tip;
            if rest > 0 && self.pages.tip_end(tip).pages <= keep {
                held.due = now.saturating_add(held.step_ms).min(held.ends);
            }
            self.protections.insert(held);
        }
        self.let_go_some(slice)
    }

    /// Protects the pages of a path, from the root as far as the budget reaches, and holds the last one.
    fn protect_path(
        &mut self,
        path: PathEnd,
        tenant: u32,
        rank: u32,
        slice: Slice,
    ) -> (PathEnd, ProtectReach) {
        // What is protected is a path from the root.
        let page = self.pages.last_that(path.page, |entry| entry.has(PROTECTED));
        let mut end = PathEnd { page, pages: self.pages.depth(page) };
        // Held first, so that it stays when others' protection ends for this one.
        if end.page != NONE {
            self.protections.hold(end.page);
        }
        while end.pages < path.pages {
            let to = path.pages.min(end.pages + FIND_PAGES_AT_ONCE as u32);
            for index in self.pages.between(self.pages.cut(path, to), end.pages) {
                let reach = self.make_budget(index, tenant, rank, slice);
                if reach != ProtectReach::All {
                    return (end, reach);
                }
                self.call.step();
                // The page before was held as the end, and is now for this child.
                self.protections.hold_alone(index);
                self.protections.weigh(&mut self.pages, &self.slots, index, true);
                end = PathEnd { page: index, pages: end.pages + 1 };
            }
        }
        (end, ProtectReach::All)
    }

    /// Room in the budget for one page more; not all of it, where the budget is used up and nothing weaker
    /// can end for it.
    fn make_budget(&mut self, index: u32, tenant: u32, rank: u32, slice: Slice) -> ProtectReach {
        let bytes = self.pages.page_bytes(&self.slots, index);
        let (own, all) = (self.protection_budget(), self.dram_share(PROTECTED_ALL_PERCENT));
        while self.protections.bytes_of(tenant) + bytes > own
            || self.protections.protected_bytes() + bytes > all
        {
            if self.call.is_over(slice) {
                return ProtectReach::Slice;
            }
            // What is over already gives way before anything else ends for it.
            if !self.let_go_of_next() && !self.protections.displace(tenant, rank) {
                return ProtectReach::Budget;
            }
        }
        if self.call.is_over(slice) { ProtectReach::Slice } else { ProtectReach::All }
    }

    /// Lets go of some pages of a protection that is over. False: there is none.
    fn let_go_of_next(&mut self) -> bool {
        let Some(tip) = self.protections.next_going() else { return false };
        let rest = self.release_path(tip, 0, &mut { LET_GO_PAGES_AT_ONCE });
        if let Some(rest) = rest {
            self.protections.go_on(rest);
        }
        true
    }

    /// One protection lets go of its pages after the first `keep`, or of as many as are left to this call.
    /// Returns where it ends now; none: it is over.
    fn release_path(&mut self, tip: TipId, keep: u32, left: &mut u32) -> Option<TipId> {
        let mut end = self.pages.tip_end(tip);
        self.call.step();
        // Pages that nothing else holds are free one after the other; each hands its hold on to the one
        // before.
        while end.pages > keep && *left > 0 && self.protections.holds(end.page) == 1 {
            let parent = self.pages[end.page].parent;
            self.call.step();
            self.protections.free(end.page);
            self.protections.weigh(&mut self.pages, &self.slots, end.page, false);
            self.end_deferral(end.page);
            end = PathEnd { page: parent, pages: end.pages - 1 };
            *left -= 1;
        }
        if end.pages > keep && *left > 0 {
            // From here on others hold what this one did.
            let new = self.pages.cut(end, keep);
            *left -= 1;
            self.protections.release(end.page);
            if new.page != NONE {
                self.protections.hold(new.page);
            }
            end = new;
        }
        if end == self.pages.tip_end(tip) && end.pages > 0 {
            return Some(tip);
        }
        let new = (end.pages > 0).then(|| self.pages.add_tip(end, TipKeeper::Protection));
        self.pages.drop_tip(tip, TipKeeper::Protection);
        new
    }
}

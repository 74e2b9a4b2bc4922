//! What the store is told of sessions, turns and namespaces, and what it tells of itself. Owns: who of its parts
//! hears it. Must not know: what a session is.

use crate::eviction::policy::TurnFacts;
use crate::ids::{NONE, Now, NvmePlace, PlaceNote};
use crate::index::path_end::PathEnd;
use crate::index::tips::{TipId, TipKeeper};
use crate::limits::{LEAVING_PER_LOOK_MAX, SIFTED_PER_LOOK_MAX};
use crate::namespaces::table::Namespaces;
use crate::store::Store;
use crate::store::presence::{PageChange, PageTier};

impl Store {
    /// Makes room for the namespace opened next.
    pub(crate) fn add_namespace(&mut self, shards: u16, shard_bytes: u64, tenant: u32) {
        self.pages.add_namespace(shards);
        self.slots.add_class(shard_bytes, tenant);
    }

    /// The same for a namespace that has the place of one of which nothing is left.
    pub(crate) fn renew_namespace(&mut self, ns: u16, shards: u16, shard_bytes: u64, tenant: u32) {
        self.pages.renew_namespace(ns, shards);
        self.slots.renew_class(ns, shard_bytes, tenant);
    }

    /// Nothing is left of a namespace.
    pub(crate) fn close_namespace(&mut self, ns: u16) {
        self.deferred.forget(ns);
        self.policy.namespace_gone(ns);
        self.slots.close_class(ns);
    }

    /// A session's list ends at a page from now on.
    pub(crate) fn end_list(&mut self, end: PathEnd) -> TipId {
        self.pages.add_tip(end, TipKeeper::Session)
    }

    /// It does not any more.
    pub(crate) fn drop_list(&mut self, tip: TipId) {
        self.pages.drop_tip(tip, TipKeeper::Session);
    }

    /// The next turn of a session began.
    pub(crate) fn turn_began(&mut self, session: u32) {
        self.policy.turn_began(session);
    }

    /// The next turn of a session began in another pool.
    pub(crate) fn turn_began_elsewhere(&mut self, session: u32) {
        self.policy.turn_began_elsewhere(session);
    }

    /// A session lives in another pool now.
    pub(crate) fn moved_away(&mut self, session: u32) {
        self.policy.moved_away(session);
    }

    /// A session comes from another pool, where it had waited for so long (0: not known); its next turn begins here now, or does not.
    pub(crate) fn moved_here(&mut self, facts: &TurnFacts, waited_ms: Now, begins: bool) {
        self.policy.moved_here(facts, waited_ms, begins);
    }

    /// A page of its list came from there.
    pub(crate) fn came_for(&mut self, index: u32, facts: &TurnFacts) {
        self.call.step();
        self.clear_victim(index);
        self.stay(index);
        self.relist_parked(index);
        self.policy.came_for(&mut self.pages, index, facts);
    }

    /// A turn ended; all pages that the session has now follow, tails before heads (`use_in_turn`).
    pub(crate) fn turn_ended(&mut self, facts: &TurnFacts) {
        self.policy.turn_ended(facts);
    }

    /// A turn that ended used a page.
    pub(crate) fn use_in_turn(&mut self, index: u32, facts: &TurnFacts) {
        self.clear_victim(index);
        self.stay(index);
        self.relist_parked(index);
        self.touch_slots(index);
        self.note_use(index);
        self.policy.turn_page(&mut self.pages, index, facts);
    }

    /// These were all its pages.
    pub(crate) fn turn_settled(&mut self, session: u32) {
        self.policy.turn_settled(session);
    }

    /// A session is the next turn of another one, which is waited for no more.
    pub(crate) fn continued(&mut self, from: u32, to: u32) {
        self.policy.continued(from, to);
    }

    /// A session is forgotten.
    pub(crate) fn session_gone(&mut self, session: u32) {
        self.policy.session_gone(session);
    }

    /// Somebody reads a page.
    pub(crate) fn read(&mut self, index: u32) {
        self.policy.hit(&mut self.pages, index);
        self.touch(index);
    }

    /// A slab's memory could not be renewed: it is out of service.
    pub(crate) fn retire_slab(&mut self, slab: u32) {
        self.slots.retire(slab);
    }

    /// It has memory again.
    pub(crate) fn return_slab(&mut self, slab: u32) {
        self.slots.return_to_service(slab);
    }

    /// Slabs that changed tenant since the last call.
    pub(crate) fn take_renewed(&mut self) -> Vec<u32> {
        self.slots.take_renewed()
    }

    /// What became of extents since the last time, in order, and whether pages came to wait to be written.
    pub(crate) fn take_nvme_effects(&mut self) -> (Vec<(NvmePlace, PlaceNote)>, bool) {
        self.nvme.take_effects()
    }

    /// The device is gone: nothing goes there any more, and what was there is of no use.
    pub(crate) fn lose_nvme(&mut self) {
        self.nvme.lose();
    }

    /// From now on it is told which pages are in which tier.
    pub(crate) fn tell_pages(&mut self) {
        self.presence.ask();
    }

    /// A page is in a tier from now on, or is in it no more. Its ancestors are there yet.
    pub(super) fn note_presence(&mut self, index: u32, tier: PageTier, here: bool) {
        if !self.presence.is_asked() {
            return;
        }
        let entry = &self.pages[index];
        if entry.cell.tail_tokens() == 0 {
            let parent = (entry.parent != NONE).then(|| self.pages[entry.parent].hash);
            self.presence.note(entry.ns, entry.hash, parent, tier, here);
        }
    }

    /// Which pages came to a tier, or left it, since the last call.
    pub(crate) fn take_presence(&mut self, namespaces: &Namespaces) -> Vec<PageChange> {
        self.presence.take(namespaces)
    }

    /// Keeps slots free, the write queue short, and room on NVMe: some of it in each call.
    pub(crate) fn maintain(&mut self) {
        self.keep_watermark();
        self.nvme.sift_writes(&self.pages, &mut self.call, SIFTED_PER_LOOK_MAX);
        self.choose_leaving(LEAVING_PER_LOOK_MAX);
    }
}

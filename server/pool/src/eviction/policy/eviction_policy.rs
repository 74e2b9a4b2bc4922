//! What a policy is told, and what it is asked. Owns: the trait of eviction policies. Must not know: whether a
//! page may go (residency decides), nor when; which policies there are.

use crate::ids::Now;
use crate::index::arena::Pages;
use crate::index::list_id::{ListId, Position};
use crate::numbers::{Reader, Writer};

/// What a session's owner did, or said, at the end of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnFacts {
    /// Number of the session in the table.
    pub(crate) session: u32,
    /// Turns so far.
    pub(crate) turn: u32,
    /// When the next turn is expected; 0: unknown.
    pub(crate) expected_return_ms: u64,
    /// Its namespace.
    pub(crate) ns: u16,
    /// Pages that the turn had, kept or not.
    pub(crate) pages: u32,
}

/// A turn that asks for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer {
    /// Its namespace.
    pub(crate) ns: u16,
    /// Number of the session in the table.
    pub(crate) session: u32,
    /// Which turn it is.
    pub(crate) turn: u32,
    /// Pages that the turn has so far, with those that it asks room for.
    pub(crate) pages: u32,
}

/// An order of eviction. The links are in the entries, so that a plain policy costs no memory of its own a
/// page. Every page of the index is known to it by `insert`, until `gone`; those that may be victims are in a
/// list.
pub(crate) trait EvictionPolicy: Send + Sync {
    /// Adds a page that is in no list.
    fn insert(&mut self, pages: &mut Pages, list: ListId, page: u32, at: Position);
    /// The page is as recent as any from now on; nobody need have asked for it.
    fn touch(&mut self, pages: &mut Pages, page: u32);
    /// Takes a page out of its list.
    fn remove(&mut self, pages: &mut Pages, list: ListId, page: u32);
    /// The page to evict next, and how many others it moved to find it (at most `VICTIM_MOVES_MAX`).
    fn victim(&mut self, pages: &mut Pages, list: ListId) -> (Option<u32>, u64);
    /// All pages of a list, about in the order in which they would go.
    fn order(&self, pages: &Pages, list: ListId) -> Vec<u32>;
    /// Time passed.
    fn tick(&mut self, _now: Now) {}
    /// Somebody reads the page.
    fn hit(&mut self, _pages: &mut Pages, _page: u32) {}
    /// The page leaves the index.
    fn gone(&mut self, _pages: &mut Pages, _page: u32) {}
    /// What the new pages of a turn would be worth among those that are here; none: it has no opinion.
    fn rank(&self, _newcomer: &Newcomer) -> Option<u32> {
        None
    }
    /// Whether a page is worth more where it is than pages of such a rank.
    fn outranks(&self, _pages: &Pages, _page: u32, _rank: u32) -> bool {
        false
    }
    /// The session's next turn began.
    fn turn_began(&mut self, _session: u32) {}
    /// The session's next turn began in another pool.
    fn turn_began_elsewhere(&mut self, _session: u32) {}
    /// A session lives in another pool now: it is not waited for here.
    fn moved_away(&mut self, _session: u32) {}
    /// A session comes from another pool, where it had waited for so long; its next turn begins here now, or does not.
    fn moved_here(&mut self, _facts: &TurnFacts, _waited_ms: Now, _begins: bool) {}
    /// A page of its list came from there.
    fn came_for(&mut self, _pages: &mut Pages, _page: u32, _facts: &TurnFacts) {}
    /// A session is the next turn of another one, which is waited for no more.
    fn continued(&mut self, _from: u32, _to: u32) {}
    /// A turn ended; all pages that the session has now follow.
    fn turn_ended(&mut self, _facts: &TurnFacts) {}
    /// A page of it, tails before heads.
    fn turn_page(&mut self, pages: &mut Pages, page: u32, _facts: &TurnFacts) {
        self.touch(pages, page);
    }
    /// These were all its pages.
    fn turn_settled(&mut self, _session: u32) {}
    /// The session is forgotten or closed.
    fn session_gone(&mut self, _session: u32) {}
    /// Pages that an earlier process left come in now: nothing that was used up to this moment was used just now.
    fn found(&mut self) {}
    /// Nothing is left of a namespace: what is learned at its place from now on is of another one.
    fn namespace_gone(&mut self, _ns: u16) {}
    /// What it has learned of the pool (no namespace), or of one namespace by itself, for the next process.
    fn write_learned(&self, _ns: Option<u16>, _into: &mut Writer) {}
    /// Goes on from what an earlier process wrote. None: that is not of this policy, and nothing changes.
    fn read_learned(&mut self, _ns: Option<u16>, _from: &mut Reader<'_>) -> Option<()> {
        Some(())
    }
    /// Whether what it keeps beside the lists adds up; an error names what does not.
    fn check(&self, _pages: &Pages) -> Result<(), String> {
        Ok(())
    }
}

/// What a policy keeps for a list.
pub(crate) fn row<T: Default>(rows: &mut Vec<T>, list: ListId) -> &mut T {
    let at = list.row();
    if at >= rows.len() {
        rows.resize_with(at + 1, T::default);
    }
    &mut rows[at]
}

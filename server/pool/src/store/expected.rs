//! When pages are needed again, as far as sessions' owners said. Owns: these times, and what they mean to who
//! makes room. Must not know: which session needs a page.

use crate::ids::{NONE, Now};
use crate::index::flags::VICTIM;
use crate::limits::{PREFETCH_AHEAD_MS, RETURN_GRACE_MS, RETURN_UNIT_MS};
use crate::store::Store;

impl Store {
    /// The page is needed then; an earlier need that is still to come stays. Returns its bytes.
    pub(crate) fn expect_page(&mut self, index: u32, back: Now) -> u64 {
        self.call.step();
        let bytes = self.pages.page_bytes(&self.slots, index);
        if self.expected_at(index).is_some_and(|known| known <= back && known >= self.call.now()) {
            return bytes;
        }
        let returns = in_units(back);
        for shard in 0..self.pages.shards(index) {
            let slot = self.pages.cell(index, shard).slot;
            if slot != NONE {
                self.slots.set_returns(slot, returns);
            }
        }
        bytes
    }

    /// A session that was expected then is here: the page is not expected any more, but by others who named
    /// another time.
    pub(crate) fn expect_no_more(&mut self, index: u32, back: Now) {
        self.call.step();
        for shard in 0..self.pages.shards(index) {
            let slot = self.pages.cell(index, shard).slot;
            if slot != NONE && self.slots.returns(slot) == in_units(back) {
                self.slots.set_returns(slot, 0);
            }
        }
        self.end_deferral(index);
    }

    /// Whether a page is expected so soon that nobody takes its slot while there is another.
    pub(super) fn returns_soon(&self, index: u32) -> bool {
        self.expected_at(index).is_some_and(|back| back <= self.call.now() + PREFETCH_AHEAD_MS)
    }

    /// Whether a page is expected no later than a prefetch's session returns; no: no prefetch makes room.
    pub(super) fn returns_before(&self, index: u32, returns_at: Option<Now>) -> bool {
        let Some(later) = returns_at else { return false };
        self.expected_at(index).is_some_and(|back| back <= later)
    }

    /// When somebody is expected who needs this page; None: nobody is, or too long ago.
    fn expected_at(&self, index: u32) -> Option<Now> {
        if self.pages[index].has(VICTIM) {
            return None; // nobody's any more
        }
        let cells = self.pages.cells(index);
        let slot = cells.iter().map(|cell| cell.slot).find(|slot| *slot != NONE)?;
        let back = u64::from(self.slots.returns(slot)) * RETURN_UNIT_MS;
        (back > 0 && back.saturating_add(RETURN_GRACE_MS) > self.call.now()).then_some(back)
    }
}

fn in_units(back: Now) -> u32 {
    u32::try_from(back.div_ceil(RETURN_UNIT_MS)).unwrap_or(u32::MAX)
}

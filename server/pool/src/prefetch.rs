//! Prefetch: sessions that were said to return find their pages in DRAM. Owns: which session is due, what may make room for
//! it. Must not know: how pages are read; why a session returns.
//!
//! A prefetch for a return at R takes free slots, and those of pages that nobody expects before R: never one of a page that
//! returns sooner. What returns within moments is spared by everybody else as well, like a protected page.

use crate::Pool;
use crate::entry::{FILLED, NONE, ON_NVME, PROMOTING, VICTIM, VISIBLE};
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now, PageKey};
use crate::limits::{
    PREFETCH_AHEAD_MS, PREFETCH_BYTES_PER_MS, PREFETCH_RETRY_MS, RETURN_GRACE_MS, RETURN_UNIT_MS,
    RETURNS_PER_CALL_MAX,
};
use crate::promote::Promotion;
use turnkv_proto::SessionId;

/// How far a session's prefetch came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// All its pages are in DRAM or on their way.
    All,
    /// The call's bytes are used up.
    Budget,
    /// No slot but those of pages that return sooner.
    NoSlot,
}

impl Pool {
    /// The session is expected back so many milliseconds from now.
    pub fn expect_return(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        in_ms: u64,
        now: Now,
    ) -> Result<(), PoolError> {
        self.desc(ns)?;
        let at = self.sessions.find(ns, session).ok_or(PoolError::SessionUnknown)?;
        let now = self.tick(now);
        self.expect_at(at, now.saturating_add(in_ms.max(1)), now);
        Ok(())
    }

    /// Plans the reads of sessions that are due, the soonest first, while they fit `bytes_max` (one that is larger is given
    /// out alone). Call it again when some of them have landed.
    pub fn next_prefetches(&mut self, bytes_max: u64, now: Now) -> Vec<Promotion> {
        let now = self.tick(now);
        let (mut promotions, mut left) = (Vec::new(), bytes_max);
        for _ in 0..RETURNS_PER_CALL_MAX {
            let Some(at) = self.sessions.due_for_prefetch(now).filter(|_| left > 0) else { break };
            let next = match self.prefetch_session(at, &mut left, &mut promotions) {
                Reach::Budget => break,
                Reach::All => None,
                // Tried again until the session is there, or late.
                Reach::NoSlot => {
                    let until = self.sessions[at].return_at.unwrap_or(0).saturating_add(RETURN_GRACE_MS);
                    (now < until).then_some(now + PREFETCH_RETRY_MS)
                }
            };
            self.sessions.update(at, |session| session.prefetch_at = next);
        }
        promotions
    }

    /// Notes when a session returns, at its pages as well.
    fn expect_at(&mut self, at: u32, back: Now, now: Now) {
        let mut bytes = 0;
        for index in self.path_to(self.present_end(at)) {
            bytes += self.expect_page(index, back);
        }
        self.note_return(at, back, bytes, now);
    }

    /// Notes when a session returns: its prefetch begins as much earlier as reading its pages may take.
    pub(crate) fn note_return(&mut self, at: u32, back: Now, bytes: u64, now: Now) {
        let lead = PREFETCH_AHEAD_MS + bytes / PREFETCH_BYTES_PER_MS;
        let begins = if self.nvme_alive { Some(back.saturating_sub(lead).max(now)) } else { None };
        self.sessions.update(at, |session| {
            session.return_at = Some(back);
            session.prefetch_at = begins;
            session.prefetched = 0;
        });
    }

    /// The session is here: its pages are not expected any more, but by others who named another time.
    pub(crate) fn arrived(&mut self, at: u32) {
        let Some(back) = self.sessions[at].return_at else { return };
        for index in self.path_to(self.present_end(at)) {
            for shard in 0..self.pages.shards(index) {
                let slot = self.pages.cell(index, shard).slot;
                if slot != NONE && self.slots.meta(slot).returns == in_units(back) {
                    self.slots.meta_mut(slot).returns = 0;
                }
            }
            self.bring_back(index);
        }
    }

    /// Whether a page is expected so soon that nobody takes its slot while there is another.
    pub(crate) fn returns_soon(&self, index: u32) -> bool {
        self.expected_at(index).is_some_and(|back| back <= self.now + PREFETCH_AHEAD_MS)
    }

    /// Whether the room that is being made is for a session that returns later than this page does.
    pub(crate) fn returns_sooner(&self, index: u32) -> bool {
        let Some(later) = self.room_for_return else { return false };
        self.expected_at(index).is_some_and(|back| back <= later)
    }

    /// Starts the reads of a session's pages, in order, from where the last call stopped.
    fn prefetch_session(&mut self, at: u32, left: &mut u64, promotions: &mut Vec<Promotion>) -> Reach {
        let back = self.sessions[at].return_at.unwrap_or(self.now);
        let path = self.path_to(self.present_end(at));
        let from = self.sessions[at].prefetched as usize;
        if from == 0 {
            // What is in DRAM already must not make room for the rest: tails before heads.
            path.iter().rev().for_each(|index| self.touch(*index));
        }
        let keys: Vec<PageKey> = path.iter().skip(from).map(|index| self.pages.key(*index)).collect();
        for (page, position) in keys.into_iter().zip(from as u32..) {
            for shard in 0..self.pages.shards(page.index) {
                // Making room for one page may have dropped this one.
                let Some(index) = self.pages.resolve(page).filter(|index| self.pages[*index].has(VISIBLE))
                else {
                    return Reach::All;
                };
                let cell = self.pages.cell(index, shard);
                if cell.has(FILLED | PROMOTING) || !cell.has(ON_NVME) {
                    continue;
                }
                if *left == 0 {
                    return Reach::Budget;
                }
                self.room_for_return = Some(back);
                let promotion = self.start_promotion(index, shard);
                self.room_for_return = None;
                let Some(promotion) = promotion else { return Reach::NoSlot };
                *left = left.saturating_sub(promotion.bytes);
                promotions.push(promotion);
                self.expect_page(index, back);
            }
            self.sessions[at].prefetched = position + 1;
        }
        Reach::All
    }

    /// When somebody is expected who needs this page; None: nobody is, or too long ago.
    fn expected_at(&self, index: u32) -> Option<Now> {
        if self.pages[index].has(VICTIM) {
            return None; // nobody's any more
        }
        let cells = self.pages.cells(index);
        let slot = cells.iter().map(|cell| cell.slot).find(|slot| *slot != NONE)?;
        let back = u64::from(self.slots.meta(slot).returns) * RETURN_UNIT_MS;
        (back > 0 && back.saturating_add(RETURN_GRACE_MS) > self.now).then_some(back)
    }

    /// The page is needed then; an earlier need that is still to come stays. Returns its bytes.
    pub(crate) fn expect_page(&mut self, index: u32, back: Now) -> u64 {
        let bytes = self.page_bytes(index);
        if self.expected_at(index).is_some_and(|known| known <= back && known >= self.now) {
            return bytes;
        }
        let returns = in_units(back);
        for shard in 0..self.pages.shards(index) {
            let slot = self.pages.cell(index, shard).slot;
            if slot != NONE {
                self.slots.meta_mut(slot).returns = returns;
            }
        }
        bytes
    }
}

fn in_units(back: Now) -> u32 {
    u32::try_from(back.div_ceil(RETURN_UNIT_MS)).unwrap_or(u32::MAX)
}

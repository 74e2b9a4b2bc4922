//! Prefetch: sessions that were said to return find their pages in DRAM. Owns: which session is due, what may
//! make room for it. Must not know: how pages are read; why a session returns.
//!
//! A prefetch for a return at R takes free slots, and those of pages that nobody expects before R: never one
//! of a page that returns sooner. A page that returns within moments goes last for everybody else as well,
//! like a protected page.

use crate::Pool;
use crate::call::Slice;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now, PageKey};
use crate::index::flags::{COUNTED_DRAM, FILLED, ON_NVME, PROMOTING};
use crate::limits::{
    FIND_PAGES_AT_ONCE, PREFETCH_AHEAD_MS, PREFETCH_BYTES_PER_MS, PREFETCH_RETRY_MS, RETURN_GRACE_MS,
    RETURNS_UNTIL_LANDED_MAX,
};
use crate::sessions::walk_back::WalkBack;
use crate::store::promote::Promotion;
use turnkv_proto::SessionId;

/// How far a session's prefetch came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrefetchReach {
    /// All its pages are in DRAM or on their way.
    All,
    /// The bytes are used up.
    Budget,
    /// No slot but those of pages that return sooner.
    NoSlot,
    /// The slice is over: the rest is for the next one.
    Slice,
}

/// Reads that are being planned for sessions that are due.
#[derive(Debug)]
pub struct Prefetching {
    bytes_left: u64,
    sessions_left: usize,
}

impl Prefetching {
    /// Reads of so many bytes at most (one that is larger is given out alone).
    #[must_use]
    pub fn new(bytes_max: u64) -> Prefetching {
        Prefetching { bytes_left: bytes_max, sessions_left: RETURNS_UNTIL_LANDED_MAX }
    }

    /// No more than so many bytes from now on.
    pub fn limit(&mut self, bytes_max: u64) {
        self.bytes_left = self.bytes_left.min(bytes_max);
    }
}

/// A session whose pages are being told when it returns.
#[derive(Debug)]
pub struct Expecting<'a> {
    ns: NamespaceIndex,
    session: &'a SessionId,
    back: Now,
    walk: WalkBack,
    bytes: u64,
    dram: u32,
}

impl Expecting<'_> {
    /// Pages of it that are in DRAM.
    #[must_use]
    pub fn dram_pages(&self) -> u32 {
        self.dram
    }
}

impl Pool {
    /// The session is expected back so many milliseconds from now. Returns its pages that are in DRAM.
    pub fn expect_return(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        in_ms: u64,
        now: Now,
    ) -> Result<u32, PoolError> {
        let mut expecting = self.start_expecting(ns, session, in_ms, now)?;
        while !self.expect_some(&mut expecting, now)? {}
        Ok(expecting.dram)
    }

    /// The session is expected back so many milliseconds from now: then `expect_some` until it says so.
    pub fn start_expecting<'a>(
        &mut self,
        ns: NamespaceIndex,
        session: &'a SessionId,
        in_ms: u64,
        now: Now,
    ) -> Result<Expecting<'a>, PoolError> {
        self.session_at(ns, session)?;
        let back = self.store.tick(now).saturating_add(in_ms.max(1));
        Ok(Expecting { ns, session, back, walk: WalkBack::default(), bytes: 0, dram: 0 })
    }

    /// Tells some more of the session's pages. True: that is all, and its prefetch is planned.
    pub fn expect_some(&mut self, expecting: &mut Expecting<'_>, now: Now) -> Result<bool, PoolError> {
        let (now, slice) = (self.store.tick(now), self.store.call.slice());
        let at = self.session_at(expecting.ns, expecting.session)?;
        while !self.store.call.is_over(slice) {
            let some = self.sessions.walk_back(&mut self.store, at, &mut expecting.walk);
            if some.is_empty() {
                self.note_return(at, expecting.back, expecting.bytes, now);
                return Ok(true);
            }
            for index in some {
                expecting.dram += u32::from(self.store.pages()[index].has(COUNTED_DRAM));
                expecting.bytes += self.store.expect_page(index, expecting.back);
            }
        }
        Ok(false)
    }

    /// Plans the reads of sessions that are due, all at once.
    pub fn next_prefetches(&mut self, bytes_max: u64, now: Now) -> Vec<Promotion> {
        let (mut prefetching, mut promotions) = (Prefetching::new(bytes_max), Vec::new());
        while !self.prefetch_some(&mut prefetching, &mut promotions, now) {}
        promotions
    }

    /// Plans some more reads of sessions that are due, the soonest first. True: these are all; begin anew
    /// when some of them have landed. Slabs may have changed tenant: renew them (`take_effects`) before starting the
    /// reads.
    pub fn prefetch_some(
        &mut self,
        prefetching: &mut Prefetching,
        promotions: &mut Vec<Promotion>,
        now: Now,
    ) -> bool {
        let (now, slice) = (self.store.tick(now), self.store.call.slice());
        while prefetching.sessions_left > 0 && prefetching.bytes_left > 0 {
            let Some(at) = self.sessions.due_for_prefetch(now) else { return true };
            let next = match self.prefetch_session(at, &mut prefetching.bytes_left, promotions, slice) {
                PrefetchReach::Slice => return false,
                PrefetchReach::Budget => return true,
                PrefetchReach::All => None,
                // Tried again until the session is there, or late.
                PrefetchReach::NoSlot => {
                    let until = self.sessions[at].return_at.unwrap_or(0).saturating_add(RETURN_GRACE_MS);
                    (now < until).then_some(now + PREFETCH_RETRY_MS)
                }
            };
            prefetching.sessions_left -= 1;
            self.sessions.update(at, |session| session.prefetch_at = next);
        }
        true
    }

    /// Notes when a session returns: its prefetch begins as much earlier as reading its pages may take.
    pub(super) fn note_return(&mut self, at: u32, back: Now, bytes: u64, now: Now) {
        let lead = PREFETCH_AHEAD_MS + bytes / PREFETCH_BYTES_PER_MS;
        let begins =
            if self.store.nvme().is_alive() { Some(back.saturating_sub(lead).max(now)) } else { None };
        self.sessions.update(at, |session| {
            session.return_at = Some(back);
            session.prefetch_at = begins;
            (session.prefetched, session.warmed) = (0, WalkBack::default());
        });
    }

    /// Starts the reads of a session's pages, in order, from where the last call stopped.
    fn prefetch_session(
        &mut self,
        at: u32,
        left: &mut u64,
        promotions: &mut Vec<Promotion>,
        slice: Slice,
    ) -> PrefetchReach {
        if !self.warm_session(at, slice) {
            return PrefetchReach::Slice;
        }
        let back = self.sessions[at].return_at.unwrap_or(self.store.call.now());
        loop {
            let (end, done) =
                (self.sessions.present_end(self.store.pages(), at), self.sessions[at].prefetched);
            if done >= end.pages {
                return PrefetchReach::All;
            }
            let part = self.store.pages().cut(end, end.pages.min(done + FIND_PAGES_AT_ONCE as u32));
            let some = self.store.pages().between(part, done);
            let keys: Vec<PageKey> = some.into_iter().map(|index| self.store.pages().key(index)).collect();
            for page in keys {
                if self.store.call.is_over(slice) {
                    return PrefetchReach::Slice;
                }
                match self.prefetch_page(page, back, left, promotions) {
                    PrefetchReach::All => self.sessions[at].prefetched += 1,
                    stopped => return stopped,
                }
            }
        }
    }

    /// What is in DRAM already must not make room for the rest: it is used first, tails before heads. False:
    /// the slice is over.
    fn warm_session(&mut self, at: u32, slice: Slice) -> bool {
        while !self.store.call.is_over(slice) {
            let mut walk = self.sessions[at].warmed;
            let some = self.sessions.walk_back(&mut self.store, at, &mut walk);
            self.sessions[at].warmed = walk;
            if some.is_empty() {
                return true;
            }
            some.into_iter().for_each(|index| self.store.touch(index));
        }
        false
    }

    /// Starts the reads of a page's shards that are on NVMe alone.
    fn prefetch_page(
        &mut self,
        page: PageKey,
        back: Now,
        left: &mut u64,
        promotions: &mut Vec<Promotion>,
    ) -> PrefetchReach {
        self.store.call.step();
        for shard in 0..self.store.pages().shards(page.index) {
            // Making room for one page may have dropped this one: the list ends before it then.
            let found =
                self.store.pages().resolve(page).filter(|index| self.store.pages()[*index].is_visible());
            let Some(index) = found else { return PrefetchReach::All };
            let cell = self.store.pages().cell(index, shard);
            if cell.has(FILLED | PROMOTING) || !cell.has(ON_NVME) {
                continue;
            }
            if *left == 0 {
                return PrefetchReach::Budget;
            }
            let promotion = self.store.start_promotion(index, shard, Some(back));
            let Some(promotion) = promotion else { return PrefetchReach::NoSlot };
            *left = left.saturating_sub(promotion.bytes);
            promotions.push(promotion);
            self.store.expect_page(index, back);
        }
        PrefetchReach::All
    }
}

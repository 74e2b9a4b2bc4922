//! One pass of reclaim: a segment on its way to be empty. Owns: which of its extents is next, what moves and what goes, when
//! to give up. Must not know: clocks, devices, how pages are read and written.
//!
//! ```text
//!   begin --next extent--> dead | dropped | moving --read, written elsewhere--> dead
//!     step, again and again: Again, Wait (pages are on their way), Over { empty }
//! ```
//! The server and the simulator drive the same passes.

use crate::ids::{Now, NvmePlace, PageKey};
use crate::limits::{PASS_MOVES_INFLIGHT_MAX, PASS_MOVES_PERCENT_MAX, PASS_MS_MAX, PASS_SLOT_WAIT_MS};
use crate::namespaces::table::Namespaces;
use crate::store::Store;
use crate::store::promote::Promotion;
use crate::store::reclaim::{Reclaim, Rewrite};
use turnkv_proto::{BlockHash, NamespaceId};

/// What emptying a sealed segment is worth: `kept`, the share of it that would be written again, and `age`, what was written
/// since it was sealed, in any unit from 1 on. The segment with the most is emptied first.
pub fn emptying_gain(kept: f64, age: f64) -> f64 {
    (1.0 - kept).max(0.001) * age / (1.0 + kept)
}

/// An extent of a segment that is to be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveExtent {
    /// Its page's namespace.
    pub namespace: NamespaceId,
    /// Its page.
    pub hash: BlockHash,
    /// Which shard of the page it is.
    pub shard: u16,
    /// Bytes of that shard.
    pub bytes: u32,
    /// Where it is.
    pub place: NvmePlace,
}

/// A segment on its way to be empty.
#[derive(Debug)]
pub struct Pass {
    extents: Vec<LiveExtent>,
    /// Extents before this one have not been looked at: children were written after their parents, so from the back leaves
    /// go first.
    left: usize,
    /// Bytes that may still be written again.
    moves_left: u64,
    /// Extents, by their positions, of pages on their way out.
    moving: Vec<(usize, PageKey)>,
    /// The pass is given up, and tried again another time.
    deadline: Now,
    /// Until then a page that is to stay waits for a slot to be read into.
    slot_deadline: Now,
}

impl Pass {
    /// The extents that were alive when it began.
    pub fn extents(&self) -> &[LiveExtent] {
        &self.extents
    }
}

/// When the next step of a pass is worth taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassNext {
    /// At once.
    Again,
    /// In a moment: pages are on their way, or slots may become free.
    Wait,
    /// Never: there is nothing more to do, or no more time. `empty`: nothing in the segment is alive.
    Over {
        /// It can be written anew; else it is kept, and tried again another time.
        empty: bool,
    },
}

/// What one step of a pass came to.
#[derive(Debug)]
#[must_use]
pub struct PassStep {
    /// Reads to start: their pages are written elsewhere once these have landed.
    pub reads: Vec<Promotion>,
    /// Bytes that this step decided to write again.
    pub moved_bytes: u64,
    /// Shards that now wait to be written elsewhere, before all others.
    pub writes_ready: usize,
    /// What comes next.
    pub next: PassNext,
}

impl PassStep {
    fn note(&mut self, rewrite: Rewrite) {
        match rewrite {
            Rewrite::Promotion(promotion) => self.reads.push(promotion),
            Rewrite::Dirty => self.writes_ready += 1,
            Rewrite::Busy | Rewrite::NoSlot | Rewrite::Gone => {}
        }
    }
}

impl Store {
    /// Begins to empty a segment of which these extents are alive, in the order in which they were written.
    pub(crate) fn begin_pass(&mut self, extents: Vec<LiveExtent>, surplus: bool, now: Now) -> Pass {
        let moves_left = if surplus {
            let all = extents.iter().map(|extent| u64::from(extent.bytes)).sum();
            self.allow_rewrites(all);
            all // it wins its space however much of it moves
        } else {
            // What moves leaves room for one extent more, or a segment would be emptied only to fill the next one alike.
            let (segment_bytes, block_bytes) = self.nvme.segment_shape();
            let largest = extents.iter().map(|extent| u64::from(extent.bytes)).max().unwrap_or(0);
            let blocks = (extents.len() as u64 + 3) * block_bytes;
            let most = segment_bytes * PASS_MOVES_PERCENT_MAX / 100;
            most.min(segment_bytes.saturating_sub(largest + blocks)).min(self.nvme.moves_left())
        };
        let (left, moving) = (extents.len(), Vec::new());
        let (deadline, slot_deadline) = (now + PASS_MS_MAX, now + PASS_SLOT_WAIT_MS);
        Pass { extents, left, moves_left, moving, deadline, slot_deadline }
    }

    /// Moves or drops the next page of the segment, or looks after those on their way.
    pub(crate) fn step_pass(
        &mut self,
        namespaces: &Namespaces,
        pass: &mut Pass,
        movable_bytes: u32,
        now: Now,
    ) -> PassStep {
        let mut step = PassStep { reads: Vec::new(), writes_ready: 0, moved_bytes: 0, next: PassNext::Again };
        let late = now >= pass.deadline;
        let all_moving = pass.left == 0 && !pass.moving.is_empty();
        step.next = match () {
            () if late || pass.left == 0 && pass.moving.is_empty() => self.end_pass(namespaces, pass),
            () if all_moving || pass.moving.len() >= PASS_MOVES_INFLIGHT_MAX => {
                let on_their_way = self.push_moving(namespaces, pass, movable_bytes, &mut step);
                let room = pass.moving.len() < PASS_MOVES_INFLIGHT_MAX;
                match () {
                    () if pass.moving.is_empty() || room && pass.left > 0 => PassNext::Again,
                    () if on_their_way => PassNext::Wait,
                    () => self.end_pass(namespaces, pass),
                }
            }
            () => self.empty_next(namespaces, pass, movable_bytes, now, &mut step),
        };
        step
    }

    /// Moves or drops the last extent that was not looked at.
    fn empty_next(
        &mut self,
        namespaces: &Namespaces,
        pass: &mut Pass,
        movable_bytes: u32,
        now: Now,
        step: &mut PassStep,
    ) -> PassNext {
        let at = pass.left - 1;
        let extent = pass.extents[at];
        let bytes = u64::from(extent.bytes);
        let cold = match self.judge(namespaces, &extent) {
            Reclaim::Dead => None,
            Reclaim::Cold(page) => Some(page),
            // Where nothing can be moved to, waiting would not help: the segment that costs least is given up.
            Reclaim::Hot(page) if extent.bytes > movable_bytes || pass.moves_left < bytes => Some(page),
            Reclaim::Hot(page) => match self.rewrite(page, extent.shard) {
                // What is being written is about to free its slots.
                Rewrite::NoSlot if self.tally.writing > 0 && now < pass.slot_deadline => {
                    self.push_moving(namespaces, pass, movable_bytes, step);
                    return PassNext::Wait;
                }
                // All of DRAM is in use, or waits to be written: perhaps for the room that this segment makes.
                Rewrite::NoSlot => Some(page),
                rewrite => {
                    pass.slot_deadline = now + PASS_SLOT_WAIT_MS;
                    step.note(rewrite);
                    pass.moves_left -= bytes;
                    step.moved_bytes += bytes;
                    pass.moving.push((at, page));
                    None
                }
            },
        };
        // A bounded number of pages goes in one call; what is left of them is looked at again.
        if cold.is_none_or(|page| self.drop_page(page)) {
            pass.left = at;
        }
        PassNext::Again
    }

    /// Pushes pages on whose read has landed, lets go of those that moved. False: those that are left have no slot to be read
    /// into, so that to look at them again soon would not help.
    fn push_moving(
        &mut self,
        namespaces: &Namespaces,
        pass: &mut Pass,
        movable_bytes: u32,
        step: &mut PassStep,
    ) -> bool {
        let Pass { extents, moving, .. } = pass;
        moving.retain(|(at, _)| !matches!(self.judge(namespaces, &extents[*at]), Reclaim::Dead));
        let mut on_their_way = false;
        for (at, page) in &*moving {
            let extent = &extents[*at];
            if extent.bytes > movable_bytes {
                self.drop_page(*page); // what is in DRAM stays there
                on_their_way = true;
                continue;
            }
            let rewrite = self.rewrite(*page, extent.shard);
            on_their_way |= rewrite != Rewrite::NoSlot;
            step.note(rewrite);
        }
        on_their_way
    }

    /// The pass is over: what still moves competes for room like any other page.
    fn end_pass(&mut self, namespaces: &Namespaces, pass: &mut Pass) -> PassNext {
        for (_, late) in std::mem::take(&mut pass.moving) {
            self.rewrite_ended(late);
        }
        let empty = pass.extents.iter().all(|extent| matches!(self.judge(namespaces, extent), Reclaim::Dead));
        PassNext::Over { empty }
    }

    fn judge(&mut self, namespaces: &Namespaces, extent: &LiveExtent) -> Reclaim {
        self.reclaim_verdict(namespaces, &extent.namespace, &extent.hash, extent.shard, extent.place)
    }
}

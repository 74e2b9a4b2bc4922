//! Decisions: the one place where the pool's lock is taken, and where what follows from a verb is carried out. Owns: the
//! order lock -> verbs -> unlock -> carry out. Must not know: which verbs.
//!
//! ```text
//!   decide() --lock--> Decision --verbs of the pool--> dropped: take effects --unlock--> carry out
//!                          \--let_others_in--> (whoever waits gets the lock first) --> goes on
//! ```
//! What follows is carried out by the end of the decision itself, so there is nothing to remember; whoever wants its answer
//! to leave first keeps it as [`Later`] until then.

use super::place::location;
use super::{Core, Engine, refuse};
use parking_lot::MutexGuard;
use std::ops::{Deref, DerefMut};
use turnkv_pool::{Effects, NvmePlace, PlaceNote, PoolError};
use turnkv_proto::Error;

/// The pool, locked. It ends when it is dropped: the lock is free then, and what was decided is carried out.
pub(super) struct Decision<'a> {
    /// Before `after`, so that the lock is free when that is dropped.
    core: MutexGuard<'a, Core>,
    /// Only looked at: nothing follows.
    untouched: bool,
    after: Later<'a>,
}

/// What follows from a decision that has ended: carried out when this is dropped.
#[must_use = "dropped at once, it is carried out before the answer leaves"]
pub(crate) struct Later<'a> {
    engine: &'a Engine,
    effects: Effects,
}

impl<'a> Decision<'a> {
    /// Whoever waits for the lock gets it first: between two slices of one piece of work.
    pub(super) fn let_others_in(&mut self) {
        MutexGuard::bump(&mut self.core);
    }

    /// Ends the decision; what follows from it is carried out when the caller drops it, as when its answer is on its way.
    pub(super) fn later(mut self) -> Later<'a> {
        Later { engine: self.after.engine, effects: self.take_effects() }
    }

    fn take_effects(&mut self) -> Effects {
        match std::mem::replace(&mut self.untouched, true) {
            true => Effects::default(),
            false => self.core.take_effects(),
        }
    }
}

impl Drop for Decision<'_> {
    fn drop(&mut self) {
        self.after.effects = self.take_effects();
    }
}

impl Later<'_> {
    /// What follows but the writes that are ready: the caller starts these.
    pub(super) fn but_writes(mut self) {
        self.effects.writes_ready = false;
    }
}

impl Drop for Later<'_> {
    fn drop(&mut self) {
        self.engine.carry_out(std::mem::take(&mut self.effects));
    }
}

impl Deref for Decision<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Decision<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.untouched = false;
        &mut self.core
    }
}

impl Engine {
    /// Locks the pool for a decision, or a look.
    pub(super) fn decide(&self) -> Decision<'_> {
        let after = Later { engine: self, effects: Effects::default() };
        Decision { core: self.core.lock(), untouched: true, after }
    }

    /// Does some work slice by slice, until one says that it was the last. Between two of them whoever waits for the lock
    /// gets it first; the last one's hold is handed back.
    pub(super) fn decide_in_slices(&self, mut slice: impl FnMut(&mut Core) -> bool) -> Decision<'_> {
        let mut decision = self.decide();
        while !slice(&mut decision) {
            decision.let_others_in();
        }
        decision
    }

    /// The same for work that the pool may refuse.
    pub(super) fn try_in_slices(
        &self,
        mut slice: impl FnMut(&mut Core) -> Result<bool, PoolError>,
    ) -> Result<Decision<'_>, Error> {
        let mut refused = None;
        let slice = |core: &mut Core| slice(core).unwrap_or_else(|error| refused.replace(error).is_none());
        let decision = self.decide_in_slices(slice);
        refused.map_or(Ok(decision), |error| Err(refuse(error)))
    }

    /// Carries out what follows from a decision; the pool's lock is free.
    fn carry_out(&self, effects: Effects) {
        let Effects { renew, notes, writes_ready, freed, .. } = effects;
        self.renew_slabs(renew);
        self.pass_notes(notes);
        if writes_ready && let Some(engine) = self.me.upgrade() {
            engine.pump_writes();
        }
        if freed {
            self.freed.notify_waiters();
        }
    }

    /// Tells the tier what became of extents: which of them nobody needs any more, which go before others.
    fn pass_notes(&self, notes: Vec<(NvmePlace, PlaceNote)>) {
        let Some(nvme) = &self.nvme else { return };
        for (place, note) in notes {
            let at = location(place);
            match note {
                PlaceNote::Dead(bytes) => nvme.forget(at, bytes as u32),
                PlaceNote::Moved(bytes) => nvme.forget_moved(at, bytes as u32),
                PlaceNote::Leaving(leaving) => nvme.note_leaving(at, leaving),
            }
        }
    }
}

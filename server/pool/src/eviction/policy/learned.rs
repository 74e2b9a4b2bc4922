//! Learned chances of return (`gittins`, `session`). Owns: runs of pages that wait alike, and the order of
//! the runs. Must not know: tiers, whether a page may go.
//!
//! A run is pages that were last used together: the private part of a session (one return brings back all of
//! it), or pages of one class that one request used. All pages of a run have one index; inside, tails go
//! first. A session's run stays known when its pages are gone, so that what was evicted too early is learned
//! from.
//!
//! ```text
//!   open --turn_ended--> waiting --turn_began--> in turn --turn_ended--> waiting
//!                           | turn_began_elsewhere
//!                           |--> elsewhere --moved_away--> pages by themselves
//!                           | superseded, closed
//!                           v
//!                        victims
//! ```

mod check;
mod runs;
#[cfg(test)]
mod tests;

use crate::eviction::policy::chances::{BUCKETS, Chances};
use crate::eviction::policy::class::WaitClass;
use crate::eviction::policy::eviction_policy::{EvictionPolicy, Newcomer, TurnFacts, row};
use crate::eviction::policy::run::{Phase, Run, Waiter};
use crate::ids::{NONE, Now};
use crate::index::arena::Pages;
use crate::index::entry::UNUSED;
use crate::index::flags::VICTIM;
use crate::index::list_id::{ListId, Position};
use crate::limits::{IN_TURN_MS_MAX, OUTRANK_MARGIN, OUTRANK_RETURNS_MIN, RUN_CHANGES_PER_TICK_MAX};
use crate::numbers::{Reader, Writer};
use std::collections::BTreeSet;

/// Several sessions have used the page.
const SHARED: u16 = UNUSED - 1;
/// Order of superseded pages: before all others.
const KEY_VICTIMS: u32 = 0;
/// Order of the pages of a turn that runs: after all others.
const KEY_IN_TURN: u32 = u32::MAX;

/// Tests check after every step: of many weights some are looked at.
const CHECKED_EVERY: usize = 61;

/// Bits of an index that do not matter: eighths of an octave tell runs apart, the rest is least recently
/// used.
const KEY_SHIFT: u32 = 20;

/// The policy.
pub(crate) struct Learned {
    /// Whether a session's private pages wait together; else every page counts by its own uses.
    by_session: bool,
    now: Now,
    chances: Chances,
    runs: Vec<Run>,
    free: Vec<u32>,
    /// Runs by order of eviction, for each list.
    orders: Vec<BTreeSet<(u32, Now, u32)>>,
    /// Runs by when their age reaches the next bucket.
    changes: BTreeSet<(Now, u32)>,
    /// Runs that pages used at this moment join, by namespace and class.
    open: Vec<(u16, WaitClass, u32)>,
    open_since: Now,
    waiters: Vec<Waiter>,
    /// The run of superseded pages of each namespace.
    victims: Vec<u32>,
    /// Sessions that came back so far, and when pages of an earlier process came in last.
    returns: u32,
    found_at: Option<Now>,
}

impl Learned {
    pub(crate) fn new(by_session: bool) -> Learned {
        Learned {
            by_session,
            now: 0,
            chances: Chances::new(),
            runs: Vec::new(),
            free: Vec::new(),
            orders: Vec::new(),
            changes: BTreeSet::new(),
            open: Vec::new(),
            open_since: 0,
            waiters: Vec::new(),
            victims: Vec::new(),
            returns: 0,
            found_at: None,
        }
    }

    /// Whether the turn that used a run's pages may still run, for all that is known.
    fn is_fresh(&self, run: &Run) -> bool {
        run.is_fresh() && self.found_at.is_none_or(|at| run.since > at)
    }

    fn link(&mut self, pages: &mut Pages, list: ListId, page: u32, at: Position) {
        let run_at = pages[page].run;
        let run = &mut self.runs[run_at as usize];
        let ends = &mut run.lists[usize::from(list != ListId::Nvme)];
        match at {
            Position::Hot => ends.push_hot(pages, page),
            Position::Cold => ends.push_cold(pages, page),
            Position::ColderThan(other) if pages[other].run == run_at => {
                ends.push_colder_than(pages, page, other);
            }
            Position::ColderThan(_) => ends.push_hot(pages, page),
        }
        if ends.len == 1 {
            let place = (run.key, run.since, run_at);
            row(&mut self.orders, list).insert(place);
        }
    }

    fn unlink(&mut self, pages: &mut Pages, list: ListId, page: u32) {
        let run_at = pages[page].run;
        let run = &mut self.runs[run_at as usize];
        let ends = &mut run.lists[usize::from(list != ListId::Nvme)];
        ends.remove(pages, page);
        if ends.len == 0 {
            let place = (run.key, run.since, run_at);
            row(&mut self.orders, list).remove(&place);
        }
    }

    /// Moves a page to the warm end of a run.
    fn join(&mut self, pages: &mut Pages, page: u32, run: u32, at: Position) {
        let list = pages[page].list();
        if let Some(list) = list {
            self.unlink(pages, list, page);
        }
        self.enrol(pages, page, run);
        if let Some(list) = list {
            self.link(pages, list, page, at);
        }
    }

    /// Makes an unlisted page a member of a run.
    fn enrol(&mut self, pages: &mut Pages, page: u32, run: u32) {
        let old = std::mem::replace(&mut pages[page].run, run);
        if old == run {
            return;
        }
        self.runs[run as usize].members += 1;
        if old != NONE {
            self.runs[old as usize].members -= 1;
            self.release_if_unused(old);
        }
    }

    fn waiter(&mut self, session: u32) -> &mut Waiter {
        let at = session as usize;
        if at >= self.waiters.len() {
            self.waiters.resize(at + 1, Waiter::default());
        }
        &mut self.waiters[at]
    }

    /// A run's age reached its next bucket, or a turn goes on for too long.
    fn change(&mut self, at: u32) {
        let run = self.runs[at as usize];
        let goes_on = matches!(run.phase, Phase::InTurn | Phase::Elsewhere);
        if goes_on && self.now.saturating_sub(run.since) >= IN_TURN_MS_MAX {
            // A turn that never ends protects nothing for ever: its session waits from now on.
            return self.begin(at, |run| run.phase = Phase::Waiting);
        }
        let bucket = (usize::from(run.bucket) + 1).min(BUCKETS - 1);
        self.runs[at as usize].bucket = bucket as u8;
        if !goes_on {
            let weight = if run.session == NONE { run.members as f32 } else { 1.0 };
            self.chances.observe(run.ns, &run.class, usize::from(run.bucket), false, weight);
        }
        if bucket + 1 < BUCKETS {
            self.changes.insert((self.runs[at as usize].changes_at(), at));
        }
        self.rekey(at);
    }

    /// The session of a run is back, if it waited: a turn that was not ended is known of already.
    fn count_return(&mut self, session: u32, run: &Run) {
        if run.phase == Phase::Waiting {
            self.returns = self.returns.saturating_add(1);
            self.chances.observe(run.ns, &run.class, usize::from(run.bucket), true, 1.0);
            let gap_ms = self.now - run.since;
            self.waiter(session).habits.note_gap(gap_ms);
        }
    }

    /// Its session has no more use for what is still in a run: a branch it left, or pages that lead to
    /// others'. They wait on as pages by themselves.
    fn leave(&mut self, run: u32) {
        if run == NONE {
            return;
        }
        self.begin(run, |run| {
            (run.phase, run.session, run.class) = (Phase::Waiting, NONE, WaitClass::LEFT);
        });
        self.release_if_unused(run);
    }

    fn class_of_page(&self, pages: &Pages, page: u32, turn: u32) -> WaitClass {
        WaitClass::of_page(pages[page].cell.uses(), turn > 1)
    }
}

/// A session's number as pages keep it.
fn user_of(session: u32) -> u16 {
    (session % u32::from(SHARED)) as u16
}

impl EvictionPolicy for Learned {
    fn insert(&mut self, pages: &mut Pages, list: ListId, page: u32, at: Position) {
        if pages[page].has(VICTIM) {
            let run = self.victims_run(pages[page].ns);
            self.enrol(pages, page, run);
        } else if pages[page].run == NONE {
            let class = self.class_of_page(pages, page, 0);
            let run = self.open_run(pages[page].ns, class);
            self.enrol(pages, page, run);
        }
        self.link(pages, list, page, at);
    }

    fn touch(&mut self, pages: &mut Pages, page: u32) {
        if self.runs.get(pages[page].run as usize).is_some_and(|run| run.phase == Phase::InTurn) {
            return;
        }
        let class = self.class_of_page(pages, page, 0);
        let run = self.open_run(pages[page].ns, class);
        if pages[page].run != run || pages[page].list().is_some() {
            self.join(pages, page, run, Position::Hot);
        }
    }

    fn remove(&mut self, pages: &mut Pages, list: ListId, page: u32) {
        self.unlink(pages, list, page);
    }

    fn victim(&mut self, _pages: &mut Pages, list: ListId) -> (Option<u32>, u64) {
        let first = row(&mut self.orders, list).first().map(|(_, _, run)| self.runs[*run as usize]);
        (first.and_then(|run| run.lists[usize::from(list != ListId::Nvme)].coldest()), 0)
    }

    fn order(&self, pages: &Pages, list: ListId) -> Vec<u32> {
        let Some(order) = self.orders.get(list.row()) else { return Vec::new() };
        let ends = |run: u32| self.runs[run as usize].lists[usize::from(list != ListId::Nvme)];
        order.iter().flat_map(|(_, _, run)| ends(*run).pages(pages)).collect()
    }

    fn tick(&mut self, now: Now) {
        self.now = self.now.max(now);
        for _ in 0..RUN_CHANGES_PER_TICK_MAX {
            let Some((_, run)) = self.changes.first().copied().filter(|(when, _)| *when <= self.now) else {
                break;
            };
            self.changes.pop_first();
            self.change(run);
        }
    }

    fn hit(&mut self, pages: &mut Pages, page: u32) {
        let uses = pages[page].cell.uses().saturating_add(1);
        pages[page].cell.set_uses(uses);
        let Some(run) = self.runs.get(pages[page].run as usize) else { return };
        if run.phase == Phase::Waiting && run.session == NONE && run.since < self.now {
            self.chances.observe(run.ns, &run.class, usize::from(run.bucket), true, 1.0);
        }
    }

    fn gone(&mut self, pages: &mut Pages, page: u32) {
        let run = std::mem::replace(&mut pages[page].run, NONE);
        if run != NONE {
            self.runs[run as usize].members -= 1;
            self.release_if_unused(run);
        }
    }

    fn rank(&self, newcomer: &Newcomer) -> Option<u32> {
        let judges = self.by_session && self.returns >= OUTRANK_RETURNS_MIN;
        let waiter = self.waiters.get(newcomer.session as usize).filter(|_| judges)?;
        let class = waiter.habits.likely_class(newcomer.turn.saturating_add(waiter.turns), newcomer.pages);
        Some(self.place_of(newcomer.ns, &class, 0))
    }

    fn outranks(&self, pages: &Pages, page: u32, rank: u32) -> bool {
        // Only what waits has a chance that was measured; and no turn that never ends keeps others out.
        let run = self.runs.get(pages[page].run as usize);
        run.is_some_and(|run| {
            run.phase == Phase::Waiting && !self.is_fresh(run) && run.key > rank + OUTRANK_MARGIN
        })
    }

    fn turn_began(&mut self, session: u32) {
        let waiter = *self.waiter(session);
        let Some(run) = self.runs.get(waiter.run as usize).copied() else { return };
        self.count_return(session, &run);
        self.begin(waiter.run, |run| run.phase = Phase::InTurn);
    }

    fn turn_began_elsewhere(&mut self, session: u32) {
        let at = self.waiter(session).run;
        let run = self.runs.get(at as usize).copied().filter(|run| run.phase == Phase::Waiting);
        if let Some(run) = run {
            self.count_return(session, &run);
            self.begin(at, |run| run.phase = Phase::Elsewhere);
        }
    }

    fn moved_away(&mut self, session: u32) {
        // Where no turn of it was told of, as when a host is emptied, nobody knows whether it came back.
        let run = std::mem::replace(&mut self.waiter(session).run, NONE);
        self.leave(run);
    }

    fn moved_here(&mut self, facts: &TurnFacts, waited_ms: Now, begins: bool) {
        if !self.by_session {
            return;
        }
        let waiter = self.waiter(facts.session);
        waiter.habits.note_turn(facts.pages, 0);
        if waited_ms > 0 {
            waiter.habits.note_gap(waited_ms);
        }
        let (class, before) = (waiter.habits.class(facts.turn, facts.pages, 0), waiter.run);
        let phase = if begins { Phase::InTurn } else { Phase::Waiting };
        self.leave(before);
        let own = self.new_run(facts.ns, class, phase, facts.session);
        self.waiter(facts.session).run = own;
    }

    fn came_for(&mut self, pages: &mut Pages, page: u32, facts: &TurnFacts) {
        if self.by_session {
            self.turn_page(pages, page, facts);
        }
    }

    fn continued(&mut self, from: u32, to: u32) {
        self.turn_settled(from);
        let waiter = *self.waiter(from);
        let Some(run) = self.runs.get_mut(waiter.run as usize).filter(|run| run.phase == Phase::Waiting)
        else {
            return;
        };
        run.session = to;
        *self.waiter(from) = Waiter::default();
        *self.waiter(to) = Waiter { turns: waiter.turns.saturating_add(1), formerly: from, ..waiter };
        self.turn_began(to);
    }

    fn turn_ended(&mut self, facts: &TurnFacts) {
        if !self.by_session {
            return;
        }
        let left = self.waiter(facts.session).left;
        self.leave(left);
        let waiter = *self.waiter(facts.session);
        let turn = facts.turn.saturating_add(waiter.turns);
        let class = waiter.habits.class(turn, facts.pages, facts.expected_return_ms);
        let own = self.new_run(facts.ns, class, Phase::Waiting, facts.session);
        self.rekey(own);
        let waits = self.waiter(facts.session);
        (waits.run, waits.left) = (own, waiter.run);
        waits.habits.note_turn(facts.pages, facts.expected_return_ms);
    }

    fn turn_page(&mut self, pages: &mut Pages, page: u32, facts: &TurnFacts) {
        let waiter = if self.by_session { *self.waiter(facts.session) } else { Waiter::default() };
        // Two sessions of one number are taken for one: their pages are ordered a little worse.
        let user = user_of(facts.session);
        let formerly = if waiter.formerly == NONE { user } else { user_of(waiter.formerly) };
        let entry = &mut pages[page];
        let user = match entry.cell.user() {
            UNUSED => user,
            other if other == user || other == formerly => user,
            _ => SHARED,
        };
        entry.cell.set_user(user);
        let run = match (user, waiter.run) {
            (SHARED, _) | (_, NONE) => {
                let class = self.class_of_page(pages, page, if self.by_session { 2 } else { facts.turn });
                self.open_run(facts.ns, class)
            }
            (_, own) => own,
        };
        self.join(pages, page, run, Position::Hot);
    }

    fn turn_settled(&mut self, session: u32) {
        if self.by_session {
            let left = std::mem::replace(&mut self.waiter(session).left, NONE);
            self.leave(left);
            self.waiter(session).formerly = NONE;
        }
    }

    fn write_learned(&self, ns: Option<u16>, into: &mut Writer) {
        into.u32(self.returns);
        self.chances.write(ns, into);
    }

    fn read_learned(&mut self, ns: Option<u16>, from: &mut Reader<'_>) -> Option<()> {
        let returns = from.u32()?;
        self.chances.read(ns, from)?;
        self.returns = self.returns.max(returns);
        Some(())
    }

    fn check(&self, pages: &Pages) -> Result<(), String> {
        self.chances.check(CHECKED_EVERY)?;
        self.check_runs(pages)
    }

    fn found(&mut self) {
        self.found_at = Some(self.now);
    }

    fn namespace_gone(&mut self, ns: u16) {
        self.chances.forget(ns);
    }

    fn session_gone(&mut self, session: u32) {
        let waiter = std::mem::take(self.waiter(session));
        self.leave(waiter.left);
        let Some(run) = self.runs.get(waiter.run as usize).copied() else { return };
        if run.phase == Phase::Waiting {
            // It stays away from here on. Left out, only those who return would be seen at great ages.
            self.chances.observe_end(run.ns, &run.class, usize::from(run.bucket));
        }
        self.leave(waiter.run);
    }
}

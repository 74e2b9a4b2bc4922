//! Runs: how they begin, where they stand in the orders, when nobody needs them any more. Owns: the keys of these orders.
//! Must not know: which pages are in a run, what its session does.

use super::{KEY_IN_TURN, KEY_SHIFT, KEY_VICTIMS, Learned};
use crate::eviction::policy::class::WaitClass;
use crate::eviction::policy::eviction_policy::row;
use crate::eviction::policy::run::{Phase, Run};
use crate::ids::NONE;
use crate::index::list_id::ListId;
use crate::index::lists::PageList;

impl Learned {
    pub(super) fn new_run(&mut self, ns: u16, class: WaitClass, phase: Phase, session: u32) -> u32 {
        let run = Run {
            phase,
            class,
            bucket: 0,
            ns,
            session,
            since: self.now,
            key: 0,
            members: 0,
            lists: [PageList::default(); 2],
        };
        let at = self.free.pop().unwrap_or(self.runs.len() as u32);
        match self.runs.get_mut(at as usize) {
            Some(old) => *old = run,
            None => self.runs.push(run),
        }
        self.runs[at as usize].key = self.key_of(at);
        if phase != Phase::Victims {
            self.changes.insert((self.runs[at as usize].changes_at(), at));
        }
        at
    }

    /// The place in the order that a run should have now.
    pub(super) fn key_of(&self, at: u32) -> u32 {
        let run = &self.runs[at as usize];
        match run.phase {
            Phase::Victims | Phase::Free => KEY_VICTIMS,
            Phase::InTurn => KEY_IN_TURN,
            // The turn that used these pages may still run: its end says whose they are.
            Phase::Waiting if self.by_session && self.is_fresh(run) => KEY_IN_TURN - 1,
            Phase::Waiting | Phase::Elsewhere => self.place_of(run.ns, &run.class, usize::from(run.bucket)),
        }
    }

    pub(super) fn place_of(&self, ns: u16, class: &WaitClass, bucket: usize) -> u32 {
        let index = self.chances.index(ns, class, bucket);
        (index.to_bits() >> KEY_SHIFT).clamp(KEY_VICTIMS + 1, KEY_IN_TURN - 1)
    }

    /// Puts a run where it belongs in every order that it is in.
    pub(super) fn rekey(&mut self, at: u32) {
        let key = self.key_of(at);
        self.place(at, |run| run.key = key);
    }

    pub(super) fn place(&mut self, at: u32, change: impl FnOnce(&mut Run)) {
        let before = self.runs[at as usize];
        change(&mut self.runs[at as usize]);
        let after = self.runs[at as usize];
        if (before.key, before.since) == (after.key, after.since) {
            return;
        }
        for (list, id) in [(0, ListId::Nvme), (1, ListId::Dram(after.ns))] {
            if after.lists[list].len > 0 {
                let order = row(&mut self.orders, id);
                order.remove(&(before.key, before.since, at));
                order.insert((after.key, after.since, at));
            }
        }
    }

    /// Changes a run's wait: it begins anew, ends, or becomes another one.
    pub(super) fn begin(&mut self, at: u32, change: impl FnOnce(&mut Run)) {
        let run = self.runs[at as usize];
        self.changes.remove(&(run.changes_at(), at));
        let now = self.now;
        self.place(at, |run| {
            (run.since, run.bucket) = (now, 0);
            change(run);
        });
        let run = self.runs[at as usize];
        if run.phase != Phase::Victims {
            self.changes.insert((run.changes_at(), at));
        }
        self.rekey(at);
    }

    pub(super) fn release_if_unused(&mut self, at: u32) {
        let run = self.runs[at as usize];
        if run.members == 0 && run.session == NONE && run.phase != Phase::Victims {
            self.changes.remove(&(run.changes_at(), at));
            self.runs[at as usize].phase = Phase::Free;
            self.open.retain(|(_, _, open)| *open != at);
            self.free.push(at);
        }
    }

    /// The run that pages of a class join which are used now.
    pub(super) fn open_run(&mut self, ns: u16, class: WaitClass) -> u32 {
        if self.open_since != self.now {
            self.open.clear();
            self.open_since = self.now;
        }
        if let Some((_, _, run)) = self.open.iter().find(|(of, kind, _)| (*of, *kind) == (ns, class)) {
            return *run;
        }
        let run = self.new_run(ns, class, Phase::Waiting, NONE);
        self.open.push((ns, class, run));
        run
    }

    pub(super) fn victims_run(&mut self, ns: u16) -> u32 {
        let at = usize::from(ns);
        if at >= self.victims.len() {
            self.victims.resize(at + 1, NONE);
        }
        if self.victims[at] == NONE {
            self.victims[at] = self.new_run(ns, WaitClass::LEFT, Phase::Victims, NONE);
        }
        self.victims[at]
    }
}

//! Whether runs add up. Owns: what must hold of them between two calls. Must not know: orders, chances.

use super::Learned;
use crate::eviction::policy::run::Phase;
use crate::ids::NONE;
use crate::index::arena::Pages;

impl Learned {
    /// Whether runs have the pages that are in them, and none is lost.
    pub(super) fn check_runs(&self, pages: &Pages) -> Result<(), String> {
        let mut members = vec![0; self.runs.len()];
        for page in (0..pages.end()).filter(|page| pages[*page].is_used() && pages[*page].run != NONE) {
            members[pages[page].run as usize] += 1;
        }
        for (at, run) in self.runs.iter().enumerate() {
            let listed = run.lists[0].len + run.lists[1].len;
            if run.members != members[at] || listed > run.members {
                return Err(format!("run {at} has {} pages, {listed} listed: {run:?}", members[at]));
            }
            let waits = self.waiters.get(run.session as usize);
            let waits = waits.is_some_and(|waiter| [waiter.run, waiter.left].contains(&(at as u32)));
            if run.session != NONE && !waits {
                return Err(format!("run {at} is of a session that waits elsewhere: {run:?}"));
            }
            if run.phase != Phase::Free
                && run.members == 0
                && run.session == NONE
                && run.phase != Phase::Victims
            {
                return Err(format!("run {at} is lost: {run:?}"));
            }
        }
        Ok(())
    }
}

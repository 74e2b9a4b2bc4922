//! Where a session's last turn ended: one question to its authority, a second one if that does not answer, and a bounded wait
//! for a turn that the asker was told of. Owns: one such search. Must not know: how a question travels, who else asks.
//!
//! ```text
//! asking --tip of the turn told of, or later--> pull
//!        --none, and no turn was told of--> nowhere, or lost with a home that is gone
//!        --either, no turn told of, and members have just come or gone--> asking the next authority
//!        --no answer in time--> asking the next authority
//!        --earlier than told, from all--> waiting --a little later--> asking the first one again
//! any    --FIND_MS over--> the best heard of: here, pull, lost, or nowhere
//! ```
//!
//! What is at home here is decided at once, unless this member was apart from the others: then all authorities are asked.

use crate::effects::Decision;
use crate::ids::{MemberId, Now, SessionKey, Tip};
use crate::limits::{ASK_MS, AUTHORITIES, FIND_MS, TOLD_AGAIN_MS};

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) session: SessionKey,
    /// Turns that the asker knows have ended; 0: none.
    pub(crate) told: u32,
    /// What one authority says is not enough: it may not have been told of all yet.
    pub(crate) asks_all: bool,
    /// What is at home here may have gone on elsewhere, and this member not have heard of it.
    pub(crate) doubts_here: bool,
}

/// One turn's search.
pub(crate) struct Find {
    pub(crate) asked: Asked,
    authorities: [Option<MemberId>; AUTHORITIES],
    at: usize,
    asking: bool,
    until: Now,
    deadline: Now,
    best: Option<Tip>,
    here: Option<Tip>,
    /// Turns that have ended at a home that is gone.
    lost: u32,
}

/// What a search wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FindNext {
    /// A question to this authority.
    Ask(MemberId),
    /// Nothing until its time.
    Wait,
    /// Nothing any more.
    Decided(Decision),
}

impl Find {
    /// `here`: what this member has of it.
    pub(crate) fn begin(
        asked: Asked,
        authorities: [Option<MemberId>; AUTHORITIES],
        here: Option<Tip>,
        now: Now,
    ) -> (Find, FindNext) {
        let deadline = now.saturating_add(FIND_MS);
        let (best, at, asking, until) = (here, 0, false, now);
        let mut find = Find { asked, authorities, at, asking, until, deadline, best, here, lost: 0 };
        let is_here = !asked.doubts_here && here.is_some_and(|here| here.turn >= asked.told);
        let next = if is_here { find.decide() } else { find.ask(now) };
        (find, next)
    }

    /// When it wants to be asked again.
    pub(crate) fn until(&self) -> Now {
        self.until.min(self.deadline)
    }

    /// Whom it has asked last.
    pub(crate) fn authority(&self) -> Option<MemberId> {
        self.authorities.get(self.at).copied().flatten()
    }

    pub(crate) fn answered(&mut self, from: MemberId, tip: Option<Tip>, now: Now) -> FindNext {
        if let Some(tip) = tip
            && self.best.is_none_or(|best| tip.beats(&best))
        {
            self.best = Some(tip);
        }
        let Asked { told, asks_all, doubts_here, .. } = self.asked;
        let is_enough = |best: Tip| best.turn >= told && !doubts_here && (told > 0 || !asks_all);
        if self.best.is_some_and(is_enough) || now >= self.deadline {
            return self.decide();
        }
        if !self.asking || self.authority() != Some(from) {
            return FindNext::Wait; // an answer that came too late to be waited for
        }
        if told == 0 && !asks_all && !doubts_here {
            return self.decide();
        }
        self.at += 1;
        self.ask(now)
    }

    /// The same of a tip whose home is gone.
    pub(crate) fn lost(&mut self, from: MemberId, tip: Tip, now: Now) -> FindNext {
        self.lost = self.lost.max(tip.turn);
        self.answered(from, None, now)
    }

    pub(crate) fn tick(&mut self, now: Now) -> FindNext {
        if now >= self.deadline {
            return self.decide();
        }
        if now < self.until {
            return FindNext::Wait;
        }
        self.at = if self.asking { self.at + 1 } else { 0 };
        self.ask(now)
    }

    fn ask(&mut self, now: Now) -> FindNext {
        if let Some(authority) = self.authority() {
            (self.asking, self.until) = (true, now.saturating_add(ASK_MS));
            return FindNext::Ask(authority);
        }
        let known = self.best.map_or(self.lost, |best| best.turn.max(self.lost));
        if self.asked.told <= known || self.authorities[0].is_none() {
            return self.decide();
        }
        (self.asking, self.until) = (false, now.saturating_add(TOLD_AGAIN_MS));
        FindNext::Wait
    }

    fn decide(&self) -> FindNext {
        FindNext::Decided(match self.best {
            None if self.lost > 0 => Decision::Lost(self.lost),
            None => Decision::Nowhere,
            // What is here is from before turns that ended at a home that is gone: it may be of a branch that was left.
            Some(best) if Some(best) == self.here && best.turn < self.lost => Decision::Lost(self.lost),
            Some(best) if Some(best) == self.here => Decision::Here,
            Some(best) => Decision::Pull(best),
        })
    }
}

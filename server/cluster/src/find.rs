//! Where a session's last turn ended: one question to its authority, a second one if that does not answer, and a bounded wait
//! for a turn that the asker was told of. Owns: one such search. Must not know: how a question travels, who else asks.
//!
//! ```text
//! asking --tip of the turn told of, or later--> pull
//!        --none, and no turn was told of--> nowhere
//!        --no answer in time--> asking the next authority
//!        --earlier than told, from all--> waiting --a little later--> asking the first one again
//! any    --FIND_MS over--> the best heard of: here, pull, or nowhere
//! ```

use crate::effects::Decision;
use crate::ids::{MemberId, Now, SessionKey, Tip};
use crate::limits::{ASK_MS, AUTHORITIES, FIND_MS, TOLD_AGAIN_MS};

/// One turn's search.
pub(crate) struct Find {
    pub(crate) session: SessionKey,
    told: u32,
    authorities: [Option<MemberId>; AUTHORITIES],
    at: usize,
    asking: bool,
    until: Now,
    deadline: Now,
    best: Option<Tip>,
    here: Option<Tip>,
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
    /// `here`: what this member has of it. `told`: turns that the asker knows have ended; 0: none.
    pub(crate) fn begin(
        session: SessionKey,
        told: u32,
        authorities: [Option<MemberId>; AUTHORITIES],
        here: Option<Tip>,
        now: Now,
    ) -> (Find, FindNext) {
        let deadline = now.saturating_add(FIND_MS);
        let (best, at, asking, until) = (here, 0, false, now);
        let mut find = Find { session, told, authorities, at, asking, until, deadline, best, here };
        let next = if here.is_some_and(|here| here.turn >= told) { find.decide() } else { find.ask(now) };
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
        if self.best.is_some_and(|best| best.turn >= self.told && best.turn > 0) || now >= self.deadline {
            return self.decide();
        }
        if !self.asking || self.authority() != Some(from) {
            return FindNext::Wait; // an answer that came too late to be waited for
        }
        if self.told == 0 {
            return self.decide();
        }
        self.at += 1;
        self.ask(now)
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
        if self.told == 0 || self.authorities[0].is_none() {
            return self.decide();
        }
        (self.asking, self.until) = (false, now.saturating_add(TOLD_AGAIN_MS));
        FindNext::Wait
    }

    fn decide(&self) -> FindNext {
        FindNext::Decided(match self.best {
            None => Decision::Nowhere,
            Some(best) if Some(best) == self.here => Decision::Here,
            Some(best) => Decision::Pull(best),
        })
    }
}

//! What an authority knows: where sessions are, and who holds which signpost. Soft state: what is lost is published again.
//! Owns: both tables, which of two claims is believed. Must not know: who may claim, whom to tell.

use crate::ids::{Life, PrefixKey, SessionKey, Tip};
use crate::limits::{POSTS_MAX, TIPS_MAX};
use crate::recent::Recent;
use crate::view::View;

/// Tips of sessions and holders of signposts. A hot prefix is a signpost with more than one holder.
pub struct Directory {
    tips: Recent<SessionKey, Tip>,
    posts: Recent<PrefixKey, Holders>,
}

/// Who holds a prefix: whoever said so last, and somebody before.
#[derive(Clone, Copy)]
struct Holders {
    last: Life,
    before: Option<Life>,
}

impl Default for Directory {
    fn default() -> Directory {
        Directory { tips: Recent::new(TIPS_MAX), posts: Recent::new(POSTS_MAX) }
    }
}

impl Directory {
    /// A home says what it has. Returns the tip that is believed instead, where there is one.
    pub fn publish(&mut self, session: SessionKey, tip: Tip, view: &View) -> Option<Tip> {
        let known = self.tip(&session, view).filter(|known| known.beats(&tip));
        if known.is_none() {
            self.tips.put(session, tip);
        }
        known
    }

    /// A home, in that life, does not have a session of that turn any more.
    pub fn withdraw(&mut self, session: &SessionKey, home: Life, turn: u32) {
        if self.tips.get(session).is_some_and(|known| known.home == home && known.turn <= turn) {
            self.tips.remove(session);
        }
    }

    /// Where a session is; none: nobody said, or whoever did is gone or began a new life.
    pub fn tip(&self, session: &SessionKey, view: &View) -> Option<Tip> {
        self.tips.get(session).copied().filter(|tip| view.admits(tip.home))
    }

    /// Where it was said to be, also by a home that is gone since: how many turns have ended is worth knowing.
    pub fn last_tip(&self, session: &SessionKey) -> Option<Tip> {
        self.tips.get(session).copied()
    }

    /// A member holds a prefix. The two heard of last are remembered.
    pub fn publish_post(&mut self, prefix: PrefixKey, holder: Life, view: &View) {
        let known = self.posts.get(&prefix).copied();
        let others = known.into_iter().flat_map(|known| [Some(known.last), known.before]).flatten();
        let before = others.into_iter().find(|other| other.member != holder.member && view.admits(*other));
        self.posts.put(prefix, Holders { last: holder, before });
    }

    /// Who holds a prefix, the one heard of last first.
    pub fn holder(&self, prefix: &PrefixKey, view: &View) -> Option<Life> {
        let known = self.posts.get(prefix)?;
        let holders = [Some(known.last), known.before];
        holders.into_iter().flatten().find(|holder| view.admits(*holder))
    }

    /// Begins a generation: what is not published again in this one is gone with the next.
    pub fn age(&mut self) {
        self.tips.age();
        self.posts.age();
    }

    /// Sessions known.
    pub fn tips(&self) -> usize {
        self.tips.len()
    }

    /// Signposts known.
    pub fn posts(&self) -> usize {
        self.posts.len()
    }

    /// Bytes that both tables take.
    pub fn bytes(&self) -> usize {
        self.tips.bytes() + self.posts.bytes()
    }
}

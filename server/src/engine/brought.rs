//! Sessions whose pages were brought here ahead of a turn, with what their homes said of them: a turn that begins after its home is gone
//! goes on with those that came. Owns: their bounds, and who is forgotten. Must not know: how pages come, which of them did.

use super::session::SessionKey;
use crate::limits::{BROUGHT_PAGES_MAX, BROUGHT_SESSIONS_MAX, BROUGHT_TIME};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use turnkv_proto::BlockHash;

/// These, the one of longest ago first.
#[derive(Default)]
pub(super) struct BroughtSessions(Mutex<VecDeque<BroughtSession>>);

/// One of them.
pub(super) struct BroughtSession {
    of: SessionKey,
    /// Turns that had ended.
    pub(super) turns: u32,
    /// Its pages, in order.
    pub(super) hashes: Arc<[BlockHash]>,
    at: Instant,
}

impl BroughtSessions {
    /// Its home says this of one. Those of longest ago are forgotten where there are too many.
    pub(super) fn note(&self, of: SessionKey, turns: u32, hashes: Arc<[BlockHash]>) {
        let mut all = self.0.lock();
        all.retain(|known| known.of != of && known.at.elapsed() < BROUGHT_TIME);
        all.push_back(BroughtSession { of, turns, hashes, at: Instant::now() });
        let mut pages: usize = all.iter().map(|known| known.hashes.len()).sum();
        while all.len() > BROUGHT_SESSIONS_MAX || pages > BROUGHT_PAGES_MAX {
            let Some(first) = all.pop_front() else { return };
            pages -= first.hashes.len();
        }
    }

    /// What was said of one, for the last time: its turn begins.
    pub(super) fn take(&self, of: &SessionKey) -> Option<BroughtSession> {
        let mut all = self.0.lock();
        let at = all.iter().position(|known| known.of == *of)?;
        all.remove(at).filter(|known| known.at.elapsed() < BROUGHT_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnkv_proto::{NamespaceId, SessionId};

    #[test]
    fn the_last_word_on_each_is_kept_and_no_more_than_may_be() {
        let brought = BroughtSessions::default();
        let of = |at: usize| SessionKey {
            namespace: NamespaceId([1; 32]),
            session: SessionId::parse(&format!("s{at}")).unwrap(),
        };
        let pages = |count: usize| vec![BlockHash([7; 32]); count].into();
        (0..BROUGHT_SESSIONS_MAX + 2).for_each(|at| brought.note(of(at), 1, pages(1)));
        assert!(brought.take(&of(1)).is_none() && brought.take(&of(2)).is_some_and(|known| known.turns == 1));
        brought.note(of(5), 2, pages(3));
        let last = brought.take(&of(5)).unwrap();
        assert_eq!((last.turns, last.hashes.len()), (2, 3));
        assert!(brought.take(&of(5)).is_none(), "its turn has begun");
        brought.note(of(1), 1, pages(BROUGHT_PAGES_MAX));
        assert!(brought.take(&of(9)).is_none() && brought.take(&of(1)).is_some());
    }
}

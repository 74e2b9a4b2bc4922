//! Sessions whose pages were brought here ahead of a turn, with what their homes said of them: a turn that begins after its home is gone
//! goes on with those that came. Owns: their bounds, and who is forgotten. Must not know: how pages come, which of them did.

use crate::limits::{BROUGHT_PAGES_MAX, BROUGHT_SESSIONS_MAX, BROUGHT_TIME};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

/// What a session's home says of it, but for its pages.
#[derive(Clone, Copy)]
pub(super) struct CameFrom {
    /// Turns that have ended.
    pub(super) turns: u32,
    /// How long it had waited when its next turn began; 0: not known.
    pub(super) waited_ms: u64,
    /// It begins here now.
    pub(super) begins: bool,
}

/// These, the one of longest ago first.
#[derive(Default)]
pub(crate) struct BroughtSessions(Mutex<VecDeque<BroughtSession>>);

/// One of them.
pub(super) struct BroughtSession {
    namespace: NamespaceId,
    session: SessionId,
    /// What its home said of it.
    pub(super) from: CameFrom,
    /// Its pages, in order.
    pub(super) hashes: Arc<[BlockHash]>,
    at: Instant,
}

impl BroughtSessions {
    /// Its home says this of one. Those of longest ago are forgotten where there are too many.
    pub(super) fn note(
        &self,
        namespace: NamespaceId,
        session: SessionId,
        from: CameFrom,
        hashes: Arc<[BlockHash]>,
    ) {
        let brought = BroughtSession { namespace, session, from, hashes, at: Instant::now() };
        let mut all = self.0.lock();
        all.retain(|known| !known.is_of(&namespace, &brought.session) && known.at.elapsed() < BROUGHT_TIME);
        all.push_back(brought);
        let mut pages: usize = all.iter().map(|known| known.hashes.len()).sum();
        while all.len() > BROUGHT_SESSIONS_MAX || pages > BROUGHT_PAGES_MAX {
            let Some(first) = all.pop_front() else { return };
            pages -= first.hashes.len();
        }
    }

    /// How many are remembered.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// What was said of one, for the last time: its turn begins.
    pub(super) fn take(&self, namespace: &NamespaceId, session: &SessionId) -> Option<BroughtSession> {
        let mut all = self.0.lock();
        let at = all.iter().position(|known| known.is_of(namespace, session))?;
        all.remove(at).filter(|known| known.at.elapsed() < BROUGHT_TIME)
    }
}

impl BroughtSession {
    fn is_of(&self, namespace: &NamespaceId, session: &SessionId) -> bool {
        self.namespace == *namespace && self.session == *session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId([1; 32]);

    #[test]
    fn the_last_word_on_each_is_kept_and_no_more_than_may_be() {
        let brought = BroughtSessions::default();
        let session = |at: usize| SessionId::parse(&format!("s{at}")).unwrap();
        let note = |at, turns, pages| {
            let from = CameFrom { turns, waited_ms: 0, begins: true };
            brought.note(NAMESPACE, session(at), from, vec![BlockHash([7; 32]); pages].into())
        };
        let take =
            |at| brought.take(&NAMESPACE, &session(at)).map(|known| (known.from.turns, known.hashes.len()));
        (0..BROUGHT_SESSIONS_MAX + 2).for_each(|at| note(at, 1, 1));
        assert_eq!((take(1), take(2), brought.count()), (None, Some((1, 1)), BROUGHT_SESSIONS_MAX - 1));
        note(5, 2, 3);
        assert_eq!(take(5), Some((2, 3)));
        assert_eq!(take(5), None, "its turn has begun");
        note(1, 1, BROUGHT_PAGES_MAX);
        assert_eq!((take(9), take(1)), (None, Some((1, BROUGHT_PAGES_MAX))));
        assert!(brought.take(&NamespaceId([2; 32]), &session(10)).is_none() && brought.count() == 0);
    }
}

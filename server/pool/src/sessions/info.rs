//! What a list of sessions says of each. Owns: the answer. Must not know: who asks.

use crate::ids::{NamespaceIndex, Now};
use crate::sessions::table::{Session, Sessions};
use crate::store::Store;
use turnkv_proto::SessionId;

/// One session, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its namespace.
    pub ns: NamespaceIndex,
    /// Its name.
    pub session: SessionId,
    /// Turns begun.
    pub turn: u32,
    /// Pages in its list that are present.
    pub pages: u32,
    /// Tokens of its partial tail.
    pub tail_tokens: u32,
    /// Time since it was last used.
    pub idle_ms: u64,
    /// Whether a turn is running.
    pub in_turn: bool,
}

impl Sessions {
    /// What a list says of the session at a place of the table.
    pub(crate) fn info(&self, store: &Store, at: u32, session: &Session, now: Now) -> SessionInfo {
        let end = self.present_end(store.pages(), at);
        SessionInfo {
            ns: session.ns,
            session: session.id.clone(),
            turn: session.turn,
            pages: end.pages,
            tail_tokens: store.pages().tail_of(end).map_or(0, |(_, tokens)| tokens),
            idle_ms: store.call.now().max(now).saturating_sub(session.last_used),
            in_turn: session.in_turn,
        }
    }
}

//! Sessions at rest: those that may be kept elsewhere before they leave. Owns: which of them are told, a part of the table at a time.
//! Must not know: where they are kept, and which were.

use crate::Pool;
use crate::ids::Now;
use crate::index::flags::LEAVING;
use crate::sessions::info::SessionInfo;
use turnkv_proto::BlockHash;

/// A session in no turn, all of whose list is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestingSession {
    /// As a list has it.
    pub info: SessionInfo,
    /// Its last page, a partial tail included.
    pub last: BlockHash,
    /// Its last page is on NVMe alone, and among the first to leave it.
    pub is_leaving: bool,
}

/// How far the table was looked through.
#[derive(Debug, Default)]
pub struct RestingWalk {
    next: u32,
}

impl Pool {
    /// Tells some more sessions at rest that are wanted, up to so many. True: the table was looked through to its end, and the walk
    /// begins anew.
    pub fn resting_some(
        &mut self,
        walk: &mut RestingWalk,
        is_wanted: impl Fn(&RestingSession) -> bool,
        limit: usize,
        found: &mut Vec<RestingSession>,
        now: Now,
    ) -> bool {
        self.store.call.begin();
        let slice = self.store.call.slice();
        while walk.next < self.sessions.end() {
            if self.store.call.is_over(slice) || found.len() >= limit {
                return false;
            }
            let at = walk.next;
            walk.next += 1;
            self.store.call.step();
            found.extend(self.resting_at(at, now).filter(&is_wanted));
        }
        walk.next = 0;
        true
    }

    fn resting_at(&self, at: u32, now: Now) -> Option<RestingSession> {
        let session = self.sessions.get(at).filter(|session| !session.in_turn)?;
        let end = self.sessions.present_end(self.store.pages(), at);
        if end.pages == 0 {
            return None;
        }
        let last = &self.store.pages()[end.page];
        let info = self.sessions.info(&self.store, at, session, now);
        Some(RestingSession { info, last: last.hash, is_leaving: last.has(LEAVING) })
    }
}

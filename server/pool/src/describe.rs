//! Describe: all that the pool knows of one session. Owns: the answer. Must not know: verbs that change anything.

use crate::Pool;
use crate::entry::{COUNTED_DRAM, COUNTED_NVME, NONE};
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::protection::Owner;
use crate::session::SessionInfo;
use crate::tips::End;
use turnkv_proto::{BlockHash, SessionId};

/// One session in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionDetail {
    /// What a list of sessions says of it.
    pub info: SessionInfo,
    /// Of its present pages, those in DRAM.
    pub dram_pages: u32,
    /// Of its present pages, those on NVMe (most are in DRAM as well).
    pub nvme_pages: u32,
    /// Of its present pages, those before the last one that another session or branch hangs on or ends at.
    pub shared_pages: u32,
    /// Leading pages that give way last, by this session's priority; it shrinks as time passes.
    pub protected_pages: u32,
    /// Bytes of its present pages.
    pub bytes: u64,
    /// Its partial tail.
    pub tail: Option<BlockHash>,
    /// When it is expected back; None: not told, or that time has passed.
    pub returns_in_ms: Option<u64>,
    /// When it is forgotten if nothing is heard of it.
    pub forgotten_in_ms: u64,
    /// When its protection ends.
    pub protected_for_ms: u64,
    /// What its owner said.
    pub priority: u32,
}

impl Pool {
    /// Describes a session; changes nothing.
    pub fn describe_session(
        &self,
        ns: NamespaceIndex,
        session: &SessionId,
        now: Now,
    ) -> Result<SessionDetail, PoolError> {
        self.desc(ns)?;
        let at = self.sessions.find(ns, session).ok_or(PoolError::SessionUnknown)?;
        let (this, now) = (&self.sessions[at], self.now.max(now));
        let info = self.session_info(at, this, now);
        let end = self.present_end(at);
        let count =
            |bits| self.pages.upward(end.page).filter(|index| self.pages[*index].has(bits)).count() as u32;
        let owner = Owner::Session(at);
        Ok(SessionDetail {
            dram_pages: count(COUNTED_DRAM),
            nvme_pages: count(COUNTED_NVME),
            shared_pages: self.shared_pages(at, end),
            protected_pages: self.protected_end(owner).pages,
            bytes: self.pages.upward(end.page).map(|index| self.page_bytes(index)).sum(),
            tail: self.tail_of(end).map(|(hash, _)| hash),
            returns_in_ms: this.return_at.and_then(|back| back.checked_sub(now)),
            forgotten_in_ms: this.last_used.saturating_add(this.ttl_ms).saturating_sub(now),
            protected_for_ms: self.protections.ends_of(owner).map_or(0, |ends| ends.saturating_sub(now)),
            priority: this.priority,
            info,
        })
    }

    /// Leading pages of a session up to the last one where something else branches off or ends.
    fn shared_pages(&self, at: u32, present: End) -> u32 {
        let own = self.list_end(at).page;
        let is_shared = |index: &u32| {
            let entry = &self.pages[*index];
            let other_tips = entry.tips > u16::from(*index == own);
            let siblings = entry.first_child != NONE && self.pages[entry.first_child].next != NONE;
            let beyond = *index == own && entry.first_child != NONE;
            other_tips || siblings || beyond
        };
        let behind = self.pages.upward(present.page).position(|index| is_shared(&index));
        behind.map_or(0, |behind| present.pages - behind as u32)
    }
}

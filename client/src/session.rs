//! Sessions: what the owner of a conversation tells the pool. Owns: one method a verb. Must not know: pages' bytes.

use crate::error::{Error, ErrorKind, Result};
use crate::namespace::Namespace;
use tonic::transport::Channel;
use turnkv_proto::limits::HASHES_PER_CALL_MAX;
use turnkv_proto::wire;
use turnkv_proto::wire::sessions_client::SessionsClient;
use turnkv_proto::{BlockHash, IdError, NamespaceId, SessionId, pack_hashes};

/// What a session is left with when its turn ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndTurn {
    /// Leading pages of the session's list that stay as they are.
    pub keep: usize,
    /// The pages after them, in order; a partial tail last.
    pub hashes: Vec<BlockHash>,
    /// Greater than 0: the last hash is a partial tail of so many tokens.
    pub tail_tokens: u32,
    /// When the next turn is expected, in milliseconds; 0: unknown.
    pub expected_return_ms: u64,
    /// How long to remember the session, and to protect it if it has a priority, in milliseconds; 0: the server's defaults.
    pub ttl_ms: u64,
    /// 0 usual; higher is protected while it waits, within the tenant's budget and before lower ones.
    pub priority: u32,
    /// No turn will follow.
    pub last: bool,
    /// Keep the session in the archive. One whose last turn this is stays in the pool until it is there.
    pub archive: bool,
}

/// A turn that was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnEnded {
    /// Pages of the session's list.
    pub pages: usize,
    /// The session waits to be archived. False, though it was asked for: this pool archives nothing, or too many wait.
    pub archiving: bool,
}

/// What a prefetch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefetched {
    /// Promotions begun, and pages on their way from another member of the cluster.
    pub started: usize,
    /// Pages already in DRAM.
    pub ready: usize,
}

/// A session that the pool knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Its name.
    pub session: String,
    /// Its last turn.
    pub turn: u32,
    /// Pages of its list.
    pub pages: usize,
    /// Tokens of its partial tail, 0 without one.
    pub tail_tokens: u32,
    /// Since its last call.
    pub idle_ms: u64,
    /// Whether a turn is going on.
    pub in_turn: bool,
}

/// Sessions that the pool knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionList {
    /// As many as were asked for.
    pub sessions: Vec<SessionInfo>,
    /// All there are.
    pub total: u64,
}

impl Namespace {
    /// Ends a turn: what the session's pages are now, and what is known about the wait. Returns the pages of its list:
    /// fewer than it was told of where some are not in the pool.
    pub async fn end_turn(&self, session: &str, end: &EndTurn) -> Result<usize> {
        Ok(self.end_turn_told(session, end).await?.pages)
    }

    /// [`Namespace::end_turn`] that also tells whether the session will be archived.
    pub async fn end_turn_told(&self, session: &str, end: &EndTurn) -> Result<TurnEnded> {
        let request = wire::EndTurnRequest {
            namespace: self.wire_id(),
            session: named(session)?,
            keep: count(end.keep)?,
            hashes: packed(&end.hashes)?,
            tail_tokens: end.tail_tokens,
            expected_return_ms: end.expected_return_ms,
            ttl_ms: end.ttl_ms,
            priority: end.priority,
            r#final: end.last,
            archive: end.archive,
        };
        let deadline = self.link.deadline(None);
        let verb = |mut client: SessionsClient<Channel>, r| async move { client.end_turn(r).await };
        let (place, mut tries) = (self.members.place_of(&self.id(), session), self.tries(Some(session)));
        let mut ended = self.tell_from(&mut tries, Some(session), verb, request.clone(), deadline).await;
        let is_unknown = ended.as_ref().is_err_and(|error| error.kind == ErrorKind::SessionUnknown);
        if is_unknown && place.is_some_and(|place| tries.has_left(&place)) {
            // The member at which the turn began is gone, and with it what was known of the session: the turn began at the one that is
            // there, if that has what is to stay of its list.
            let begun = self.begin_turn_by(session, "", 0, deadline).await?;
            if begun.pages >= end.keep {
                ended = self
                    .tell_from(&mut self.tries(Some(session)), Some(session), verb, request, deadline)
                    .await;
            }
        }
        let reply = ended?;
        Ok(TurnEnded { pages: reply.pages as usize, archiving: reply.archiving })
    }

    /// Makes `fork` a session that shares the first `pages` pages of `session` (`None`: all, with the tail). One
    /// that exists has these instead of its own.
    pub async fn fork(&self, session: &str, fork: &str, pages: Option<usize>) -> Result<usize> {
        if pages == Some(0) {
            return Err(Error::invalid("a fork that shares no page is a new session: begin a turn of it"));
        }
        let request = wire::ForkRequest {
            namespace: self.wire_id(),
            session: named(session)?,
            fork: named(fork)?,
            pages: count(pages.unwrap_or(0))?,
        };
        let reply =
            self.tell(Some(session), |mut client, r| async move { client.fork(r).await }, request).await?;
        if let Some(link) = self.members.place_of(&self.id(), session) {
            self.members.note_place(&self.id(), fork, &link);
        }
        Ok(reply.pages as usize)
    }

    /// Says that only the first `keep` pages of the session are still valid. Returns the pages of its list.
    pub async fn supersede(&self, session: &str, keep: usize) -> Result<usize> {
        let request = wire::SupersedeRequest {
            namespace: self.wire_id(),
            session: named(session)?,
            keep: count(keep)?,
        };
        let reply = self
            .tell(Some(session), |mut client, r| async move { client.supersede(r).await }, request)
            .await?;
        Ok(reply.pages as usize)
    }

    /// Says that the session will not come back.
    pub async fn close(&self, session: &str) -> Result<()> {
        self.end_session(session, false).await.map(drop)
    }

    /// Says that the session will not come back soon: it is closed once it is in the archive. False: this pool archives nothing, or
    /// too many wait, and it is closed now.
    pub async fn close_archived(&self, session: &str) -> Result<bool> {
        self.end_session(session, true).await
    }

    async fn end_session(&self, session: &str, archive: bool) -> Result<bool> {
        let request = wire::CloseRequest { namespace: self.wire_id(), session: named(session)?, archive };
        let reply =
            self.tell(Some(session), |mut client, r| async move { client.close(r).await }, request).await?;
        Ok(reply.archiving)
    }

    /// Asks for the session's pages to be brought into DRAM before its turn begins, from another member of the cluster where its last
    /// turn ended there.
    pub async fn prefetch(&self, session: &str) -> Result<Prefetched> {
        self.prefetch_in(session, 0).await
    }

    /// Asks for the session's pages to be in DRAM so many milliseconds from now; nothing is read much before it must be.
    pub async fn prefetch_in(&self, session: &str, in_ms: u64) -> Result<Prefetched> {
        let request = wire::PrefetchRequest {
            namespace: self.wire_id(),
            session: named(session)?,
            in_ms,
            ..Default::default()
        };
        self.prefetch_request(Some(session), request).await
    }

    /// Asks for these pages to be brought into DRAM.
    pub async fn prefetch_hashes(&self, hashes: &[BlockHash]) -> Result<Prefetched> {
        let (namespace, hashes) = (self.wire_id(), packed(hashes)?);
        self.prefetch_request(None, wire::PrefetchRequest { namespace, hashes, ..Default::default() }).await
    }

    async fn prefetch_request(
        &self,
        session: Option<&str>,
        request: wire::PrefetchRequest,
    ) -> Result<Prefetched> {
        let reply =
            self.tell(session, |mut client, r| async move { client.prefetch(r).await }, request).await?;
        Ok(Prefetched { started: reply.started as usize, ready: reply.ready as usize })
    }
}

pub(crate) fn session_list(reply: wire::ListReply) -> std::result::Result<SessionList, IdError> {
    let sessions =
        reply.sessions.into_iter().map(SessionInfo::parse).collect::<std::result::Result<_, _>>()?;
    Ok(SessionList { sessions, total: reply.total })
}

impl SessionInfo {
    pub(crate) fn parse(info: wire::SessionInfo) -> std::result::Result<SessionInfo, IdError> {
        Ok(SessionInfo {
            namespace: NamespaceId::parse(&info.namespace)?,
            session: info.session,
            turn: info.turn,
            pages: info.pages as usize,
            tail_tokens: info.tail_tokens,
            idle_ms: info.idle_ms,
            in_turn: info.in_turn,
        })
    }
}

pub(crate) fn named(session: &str) -> Result<String> {
    SessionId::parse(session)?;
    Ok(session.to_owned())
}

pub(crate) fn count(pages: usize) -> Result<u32> {
    u32::try_from(pages).map_err(|_| Error::invalid(format!("{pages} pages of one session")))
}

pub(crate) fn packed(hashes: &[BlockHash]) -> Result<bytes::Bytes> {
    if hashes.len() > HASHES_PER_CALL_MAX {
        return Err(IdError::TooManyHashes(hashes.len()).into());
    }
    Ok(pack_hashes(hashes).into())
}

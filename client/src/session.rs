//! Sessions: what the owner of a conversation tells the pool. Owns: one method a verb. Must not know: pages' bytes.

use crate::backoff::Attempts;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::grpc;
use crate::namespace::Namespace;
use std::future::Future;
use tonic::transport::Channel;
use tonic::{Response, Status};
use turnkv_proto::limits::HASHES_PER_CALL_MAX;
use turnkv_proto::wire;
use turnkv_proto::wire::sessions_client::SessionsClient;
use turnkv_proto::{BlockHash, IdError, NamespaceId, SessionId, pack_hashes};

/// What the pool has of a session when its turn begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnBegun {
    /// 1 for a new session.
    pub turn: u32,
    /// Leading pages of the session still present.
    pub pages: usize,
    /// Of these, in DRAM.
    pub dram: usize,
    /// Its partial tail, if it is still there: hash and tokens.
    pub tail: Option<(BlockHash, u32)>,
    /// Pages after those present that only the archive has: the pool brings them back now, and a reload waits for them.
    pub archived: usize,
    /// Pages after those present that another pool of the cluster has: they are on their way, and a reload waits for them.
    pub afar: usize,
}

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
    /// Begins a turn; a session that does not exist is created.
    pub async fn begin_turn(&self, session: &str) -> Result<TurnBegun> {
        self.begin_turn_at(session, "").await
    }

    /// [`Namespace::begin_turn`], saying which engine runs the turn: [`Namespace::route`] knows engines by that name.
    pub async fn begin_turn_at(&self, session: &str, engine: &str) -> Result<TurnBegun> {
        self.begin_turn_after(session, engine, 0).await
    }

    /// [`Namespace::begin_turn_at`], saying how many turns of the session are known to have ended, on any host (0: unsaid): a pool of a
    /// cluster waits, for a bounded time, until it hears where the last of them did.
    pub async fn begin_turn_after(&self, session: &str, engine: &str, ended: u32) -> Result<TurnBegun> {
        let (namespace, session, engine) = (self.wire_id(), named(session)?, engine.to_owned());
        let request = wire::BeginTurnRequest { namespace, session, engine, ended };
        let reply = self.tell(|mut client, r| async move { client.begin_turn(r).await }, request).await?;
        let tail = BlockHash::parse_optional(&reply.tail).map_err(Error::protocol)?;
        Ok(TurnBegun {
            turn: reply.turn,
            pages: reply.pages as usize,
            dram: reply.dram as usize,
            tail: tail.filter(|_| reply.tail_tokens > 0).map(|hash| (hash, reply.tail_tokens)),
            archived: reply.archived as usize,
            afar: reply.afar as usize,
        })
    }

    /// Ends a turn: what the session's pages are now, and what is known about the wait. Returns the pages of its list.
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
        let reply = self.tell(|mut client, r| async move { client.end_turn(r).await }, request).await?;
        Ok(TurnEnded { pages: reply.pages as usize, archiving: reply.archiving })
    }

    /// Makes `fork` a session that shares the first `pages` pages of `session` (`None`: all, with the tail).
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
        let reply = self.tell(|mut client, r| async move { client.fork(r).await }, request).await?;
        Ok(reply.pages as usize)
    }

    /// Says that only the first `keep` pages of the session are still valid. Returns the pages of its list.
    pub async fn supersede(&self, session: &str, keep: usize) -> Result<usize> {
        let session = named(session)?;
        let request = wire::SupersedeRequest { namespace: self.wire_id(), session, keep: count(keep)? };
        let reply = self.tell(|mut client, r| async move { client.supersede(r).await }, request).await?;
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
        let reply = self.tell(|mut client, r| async move { client.close(r).await }, request).await?;
        Ok(reply.archiving)
    }

    /// Asks for the session's pages to be brought into DRAM before its turn begins, from another member of the cluster where its last
    /// turn ended there.
    pub async fn prefetch(&self, session: &str) -> Result<Prefetched> {
        let session = named(session)?;
        self.prefetch_request(wire::PrefetchRequest {
            namespace: self.wire_id(),
            session,
            ..Default::default()
        })
        .await
    }

    /// Asks for the session's pages to be in DRAM so many milliseconds from now; nothing is read much before it must be.
    pub async fn prefetch_in(&self, session: &str, in_ms: u64) -> Result<Prefetched> {
        let (namespace, session) = (self.wire_id(), named(session)?);
        self.prefetch_request(wire::PrefetchRequest { namespace, session, in_ms, ..Default::default() }).await
    }

    /// Asks for these pages to be brought into DRAM.
    pub async fn prefetch_hashes(&self, hashes: &[BlockHash]) -> Result<Prefetched> {
        let hashes = packed(hashes)?;
        self.prefetch_request(wire::PrefetchRequest {
            namespace: self.wire_id(),
            hashes,
            ..Default::default()
        })
        .await
    }

    async fn prefetch_request(&self, request: wire::PrefetchRequest) -> Result<Prefetched> {
        let reply = self.tell(|mut client, r| async move { client.prefetch(r).await }, request).await?;
        Ok(Prefetched { started: reply.started as usize, ready: reply.ready as usize })
    }

    /// One call, with the namespace opened again if the server forgot it.
    pub(crate) async fn tell<Q, T, F, Fut>(&self, mut verb: F, request: Q) -> Result<T>
    where
        Q: Clone,
        F: FnMut(SessionsClient<Channel>, Q) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let call = self.link.admit()?;
        let deadline = self.link.deadline(None);
        call.end(self.tell_by(&mut verb, request, deadline).await)
    }

    async fn tell_by<Q, T, F, Fut>(&self, verb: &mut F, request: Q, deadline: Deadline) -> Result<T>
    where
        Q: Clone,
        F: FnMut(SessionsClient<Channel>, Q) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let mut attempts = Attempts::default();
        loop {
            match self.link.rpc(deadline, |channel| verb(grpc::sessions(channel), request.clone())).await {
                Ok(reply) => return Ok(reply),
                Err(error) if self.again(&error, &mut attempts, deadline).await? => {}
                Err(error) => return Err(error),
            }
        }
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

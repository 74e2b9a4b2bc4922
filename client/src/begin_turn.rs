//! BeginTurn: a turn begins, where its session is at home. Owns: the verb, and following a member that says NOT_HOME. Must not know:
//! who the members are.

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::limits::REDIRECTS_MAX;
use crate::namespace::Namespace;
use crate::session::named;
use tonic::transport::Channel;
use turnkv_proto::wire::sessions_client::SessionsClient;
use turnkv_proto::{BlockHash, wire};

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

impl Namespace {
    /// Begins a turn; a session that does not exist is created.
    pub async fn begin_turn(&self, session: &str) -> Result<TurnBegun> {
        self.begin_turn_at(session, "").await
    }

    /// [`Namespace::begin_turn`], saying which engine runs the turn: [`Namespace::route`] knows engines by that name.
    pub async fn begin_turn_at(&self, session: &str, engine: &str) -> Result<TurnBegun> {
        self.begin_turn_after(session, engine, 0).await
    }

    /// [`Namespace::begin_turn_at`], saying how many turns of the session are known to have ended, on any host (0: unsaid; what the pool
    /// has of it from before them is not told as its pages, and found by hash): a pool of a
    /// cluster waits, for a bounded time, until it hears where the last of them did.
    pub async fn begin_turn_after(&self, session: &str, engine: &str, ended: u32) -> Result<TurnBegun> {
        self.begin_turn_by(session, engine, ended, self.link.deadline(None)).await
    }

    /// The same by a deadline.
    pub(crate) async fn begin_turn_by(
        &self,
        session: &str,
        engine: &str,
        ended: u32,
        deadline: Deadline,
    ) -> Result<TurnBegun> {
        let (namespace, session, engine) = (self.wire_id(), named(session)?, engine.to_owned());
        let mut request = wire::BeginTurnRequest {
            namespace,
            session,
            engine,
            ended,
            may_go: self.members.follows_homes(),
        };
        let place = self.members.place_of(&self.id(), &request.session);
        // One that is being emptied takes no page of this turn.
        let place = place.filter(|link| request.may_go && self.members.serves(link));
        let (mut tries, mut redirects) = (self.tries_from(place), 0);
        loop {
            let mut verb = |mut client: SessionsClient<Channel>, r: wire::BeginTurnRequest| async move {
                client.begin_turn(r).await
            };
            match tries.at().tell_there(&mut verb, &request, tries.share(deadline)).await {
                Ok(wire::BeginTurnReply { home: Some(home), .. }) if request.may_go => {
                    redirects += 1;
                    let follows = self.members.named(&home).is_some_and(|link| tries.follow(link));
                    // Asked again, or at the last one, a pool has the session's pages pulled.
                    request.may_go = follows && redirects < REDIRECTS_MAX;
                }
                Ok(reply) => {
                    self.members.note_place(&self.id(), &request.session, &tries.at().link);
                    return begun(reply);
                }
                Err(error) if tries.go_on(&error, deadline) => request.may_go = false,
                Err(error) => return Err(error),
            }
        }
    }
}

fn begun(reply: wire::BeginTurnReply) -> Result<TurnBegun> {
    if reply.home.is_some() {
        return Err(Error::protocol("it sends a turn away that may not go"));
    }
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

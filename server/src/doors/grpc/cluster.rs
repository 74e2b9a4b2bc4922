//! The Cluster service: one method a verb. Owns: that nothing a member asks is passed on. Must not know: the pool, what members
//! decide.

use super::reply::{Answer, blocking, guest_of};
use crate::cluster::link::codec;
use crate::cluster::{Cluster, ClusterReport, MemberList, PeerAt, PrefixHold, Takeover, Where};
use crate::doors::codec::namespace::spec as read_spec;
use crate::doors::codec::route::look as read_look;
use crate::engine::Engine;
use crate::engine::session::SessionKey;
use crate::limits::{MEMBER_WATCHERS_MAX, TAKES_MAX};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};
use turnkv_cluster::{MemberId, PrefixAsk, Whose};
use turnkv_proto::{BlockHash, Error, ErrorKind, NamespaceId, SessionId, pack_hashes, unpack_hashes, wire};

/// The service.
pub(crate) struct ClusterService {
    engine: Arc<Engine>,
    /// Turns to watch members: a stream lasts as long as its caller likes.
    watchers: Arc<Semaphore>,
    /// Turns to take a session over from another member.
    takes: Semaphore,
}

impl ClusterService {
    /// Of this engine.
    pub(super) fn new(engine: &Arc<Engine>) -> ClusterService {
        ClusterService {
            engine: Arc::clone(engine),
            watchers: Arc::new(Semaphore::new(MEMBER_WATCHERS_MAX)),
            takes: Semaphore::new(TAKES_MAX),
        }
    }

    fn cluster(&self) -> Result<&Arc<Cluster>, Error> {
        self.engine
            .cluster()
            .ok_or_else(|| Error::invalid("this server is in no cluster: it has no [cluster]"))
    }
}

impl ClusterService {
    /// Who has the longest part of a prefix; this member, where nobody has more.
    async fn find_pages(
        &self,
        cluster: &Cluster,
        namespace: &NamespaceId,
        hashes: &[u8],
    ) -> Result<wire::FindReply, Error> {
        let hashes = unpack_hashes(hashes)?;
        let local = self.engine.count_held(namespace, &hashes)?;
        let (namespace, only_posts, hint) = (*namespace, false, None);
        let ask = PrefixAsk { namespace, hashes, only_posts, local: local as usize, hint };
        Ok(match cluster.holder_of(ask).await {
            Some((member, pages)) => {
                wire::FindReply { at: Some(codec::card(&member)), pages: pages as u32, ..Default::default() }
            }
            None if local > 0 => {
                let at = Some(codec::card(&cluster.own()));
                wire::FindReply { at, here: true, pages: local, ..Default::default() }
            }
            None => wire::FindReply::default(),
        })
    }
}

#[tonic::async_trait]
impl wire::cluster_server::Cluster for ClusterService {
    async fn tell(&self, request: Request<wire::TellRequest>) -> Answer<wire::TellReply> {
        let cluster = self.cluster()?;
        let wire::TellRequest { cluster: name, from, to, notes } = request.into_inner();
        let from = codec::read_card(from.ok_or_else(|| Error::invalid("nobody says this"))?)?;
        let life = from.life();
        let messages = notes.into_iter().map(|note| codec::read_note(note, life));
        cluster.told(&name, from, MemberId(to), messages.collect::<Result<_, Error>>()?)?;
        Ok(Response::new(wire::TellReply {}))
    }

    async fn count_pages(&self, request: Request<wire::CountPagesRequest>) -> Answer<wire::CountPagesReply> {
        let (guest, raw) = (guest_of(&request)?, request.get_ref());
        let hashes = unpack_hashes(&raw.hashes).map_err(Error::from)?;
        let held = guest.namespace(&raw.namespace).and_then(|id| self.engine.count_held(&id, &hashes));
        Ok(Response::new(wire::CountPagesReply { present: if_open(held)?.unwrap_or(0) }))
    }

    async fn name_prefix(&self, request: Request<wire::NamePrefixRequest>) -> Answer<wire::NamePrefixReply> {
        let (guest, raw) = (guest_of(&request)?, request.get_ref());
        let last = BlockHash::parse_optional(&raw.last).map_err(Error::from)?;
        let last = last.ok_or_else(|| Error::invalid("NamePrefix names no page"))?;
        let named = guest.namespace(&raw.namespace).and_then(|id| self.engine.held_prefix(&id, &last));
        let hashes = pack_hashes(&if_open(named)?.unwrap_or_default()).into();
        Ok(Response::new(wire::NamePrefixReply { hashes }))
    }

    async fn name_session(
        &self,
        request: Request<wire::NameSessionRequest>,
    ) -> Answer<wire::NameSessionReply> {
        let (raw, cluster) = (request.get_ref(), Arc::clone(self.cluster()?));
        let session = SessionId::parse(&raw.session).map_err(Error::from)?;
        let Some(namespace) = if_open(guest_of(&request)?.namespace(&raw.namespace))? else {
            return Ok(Response::new(wire::NameSessionReply { not_home: true, ..Default::default() }));
        };
        let (of, turn_begins) = (SessionKey { namespace, session }, raw.turn_begins);
        let engine = Arc::clone(&self.engine);
        blocking(move || {
            let elsewhere = match cluster.whose(&of.namespace, &of.session) {
                Whose::Elsewhere(tip) => Some(codec::tip_of(tip)),
                Whose::Here | Whose::Unknown => None,
            };
            let held = match elsewhere {
                Some(_) => None,
                None => if_open(engine.held_session(&of, turn_begins))?.flatten(),
            };
            Ok(match held {
                Some(held) => wire::NameSessionReply {
                    turn: held.turn,
                    hashes: pack_hashes(&held.hashes).into(),
                    tail_tokens: held.tail_tokens,
                    waited_ms: held.waited_ms,
                    ..Default::default()
                },
                None => wire::NameSessionReply { not_home: true, elsewhere, ..Default::default() },
            })
        })
        .await
    }

    async fn look_at_engines(
        &self,
        request: Request<wire::LookAtEnginesRequest>,
    ) -> Answer<wire::LookAtEnginesReply> {
        self.cluster()?;
        let (guest, engine) = (guest_of(&request)?, Arc::clone(&self.engine));
        blocking(move || {
            let known = read_look(request.get_ref(), &guest).and_then(|ask| engine.look_at_engines(&ask));
            Ok(codec::engines(&if_open(known)?.unwrap_or_default()))
        })
        .await
    }

    async fn take_session(
        &self,
        request: Request<wire::TakeSessionRequest>,
    ) -> Answer<wire::TakeSessionReply> {
        let guest = guest_of(&request)?;
        let wire::TakeSessionRequest { cluster: name, spec, session, tip } = request.into_inner();
        let spec = read_spec(&spec.unwrap_or_default(), &guest)?;
        let session = SessionId::parse(&session).map_err(Error::from)?;
        let tip = codec::read_tip(tip.ok_or_else(|| Error::invalid("a tip is missing"))?)?;
        let home = self.cluster()?.member_of(&name, tip.home.member)?;
        let Ok(_turn) = self.takes.try_acquire() else {
            return Ok(Response::new(codec::taken(Takeover::NoRoom)));
        };
        let of = SessionKey { namespace: spec.id(), session };
        Ok(Response::new(codec::taken(self.engine.take_session(&spec, &of, (home, tip)).await)))
    }

    async fn hold_prefix(&self, request: Request<wire::HoldPrefixRequest>) -> Answer<wire::HoldPrefixReply> {
        let guest = guest_of(&request)?;
        let wire::HoldPrefixRequest { cluster: name, from, spec, last, ttl_ms } = request.into_inner();
        let spec = read_spec(&spec.unwrap_or_default(), &guest)?;
        let last = BlockHash::parse_optional(&last).map_err(Error::from)?;
        let last = last.ok_or_else(|| Error::invalid("HoldPrefix names no page"))?;
        let from = self.cluster()?.member_of(&name, MemberId(from))?;
        let Ok(_turn) = self.takes.try_acquire() else {
            return Ok(Response::new(wire::HoldPrefixReply {
                refused: "it takes enough already".to_owned(),
            }));
        };
        let held = self.engine.hold_prefix(PrefixHold { spec, last, ttl_ms }, from).await;
        let refused = held.err().map_or_else(String::new, |error| error.message);
        Ok(Response::new(wire::HoldPrefixReply { refused }))
    }

    async fn move_away(&self, request: Request<wire::MoveAwayRequest>) -> Answer<wire::MoveAwayReply> {
        let (asked, homes) = (request.into_inner(), self.cluster()?.homes() as u64);
        if !asked.only_look {
            let engine = Arc::clone(&self.engine);
            blocking(move || {
                engine.drain();
                engine.moves.begin(asked.bytes_per_s);
                Ok(())
            })
            .await?;
        }
        let standing = self.engine.moves.standing();
        Ok(Response::new(wire::MoveAwayReply {
            running: standing.is_running,
            moved_sessions: standing.moved_sessions,
            moved_bytes: standing.moved_bytes,
            left_sessions: homes,
            no_room: standing.no_room,
            no_peer: standing.no_peer,
            failed: standing.failed,
            note: standing.note,
        }))
    }

    async fn find(&self, request: Request<wire::FindRequest>) -> Answer<wire::FindReply> {
        let raw = request.get_ref();
        let namespace = guest_of(&request)?.namespace(&raw.namespace)?;
        let cluster = self.cluster()?;
        if raw.session.is_empty() {
            return Ok(Response::new(self.find_pages(cluster, &namespace, &raw.hashes).await?));
        }
        let session = SessionId::parse(&raw.session).map_err(Error::from)?;
        Ok(Response::new(match cluster.whereabouts(&namespace, &session, raw.turns_known).await {
            Where::Home { member, tip } => {
                let at = Some(codec::card(&member));
                wire::FindReply { at, here: false, turn: tip.turn, pages: tip.pages }
            }
            Where::Here => {
                let tip = cluster.home_tip(&namespace, &session);
                let (turn, pages) = tip.map_or((0, 0), |tip| (tip.turn, tip.pages));
                wire::FindReply { at: Some(codec::card(&cluster.own())), here: true, turn, pages }
            }
            Where::Nowhere | Where::Lost(_) => wire::FindReply::default(),
        }))
    }

    type WatchMembersStream = Pin<Box<dyn Stream<Item = Result<wire::MembersReply, Status>> + Send>>;

    async fn watch_members(&self, _: Request<wire::WatchMembersRequest>) -> Answer<Self::WatchMembersStream> {
        let changes = self.cluster()?.watch();
        let turn = Arc::clone(&self.watchers).try_acquire_owned();
        let turn = turn.map_err(|_| {
            Error::new(ErrorKind::Limit, format!("{MEMBER_WATCHERS_MAX} callers watch the members already"))
        })?;
        let told = WatchStream::new(changes).map(move |list| {
            let _turn = &turn; // until the stream ends
            Ok(members(&list))
        });
        Ok(Response::new(Box::pin(told)))
    }

    async fn standing(&self, _: Request<wire::StandingRequest>) -> Answer<wire::StandingReply> {
        Ok(Response::new(standing(self.cluster()?.report())))
    }

    async fn forget(&self, request: Request<wire::ForgetRequest>) -> Answer<wire::ForgetReply> {
        let known = self.cluster()?.forget(&request.get_ref().name).await?;
        Ok(Response::new(wire::ForgetReply { known }))
    }
}

/// A namespace that is not open here has nothing here.
fn if_open<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Err(Error { kind: ErrorKind::NamespaceUnknown, .. }) => Ok(None),
        found => found.map(Some),
    }
}

fn members(list: &MemberList) -> wire::MembersReply {
    let members = list.members.iter().map(|card| codec::card(card)).collect();
    wire::MembersReply { epoch: list.epoch, members, own: list.own.clone() }
}

fn standing(report: ClusterReport) -> wire::StandingReply {
    let mut notes = Vec::new();
    if !report.reached {
        notes
            .push(format!("who the members are cannot be read ({}): the last view stays", report.membership));
    }
    if report.list.members.is_empty() {
        notes.push("no member is in view: sessions are found on their own hosts only".to_owned());
    }
    if let Some(name) = &report.twice {
        notes.push(format!("two servers speak as {name}: each is to have a cluster.id of its own"));
    }
    wire::StandingReply {
        view: Some(members(&report.list)),
        cluster: report.cluster,
        membership: report.membership.to_owned(),
        reached: report.reached,
        homes: report.homes as u64,
        tips: report.tips as u64,
        posts: report.posts as u64,
        calls: report.calls as u64,
        peers: report.peers.into_iter().map(peer).collect(),
        notes,
    }
}

fn peer(peer: PeerAt) -> wire::PeerStanding {
    let PeerAt { card, report } = peer;
    wire::PeerStanding {
        name: card.name.clone(),
        endpoint: card.endpoint.clone(),
        answers: report.answers,
        silent_ms: report.silent.map_or(u64::MAX, |silent| silent.as_millis() as u64),
        waiting: report.waiting as u64,
        dropped: report.dropped,
        note: report.note,
    }
}

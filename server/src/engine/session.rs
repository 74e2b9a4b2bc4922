//! The session verbs: begin and end a turn, fork, supersede, close, list, describe. Owns: their order and what goes to the
//! catalog. Must not know: pages' bytes.

use super::archived::AskedSession;
use super::recorder::{RecordedKind, Told};
use super::route::{refuse_route, route_namespace};
use super::{Engine, refuse};
use crate::limits::SESSION_LIST_MAX;
use std::collections::{BTreeMap, BTreeSet};
use turnkv_pool::{
    ClientId, Describing, EndTurn, Listing, NamespaceIndex, Naming, SessionDetail, SessionInfo,
    TenantNamespaces, TurnBegun, TurnEnd,
};
use turnkv_proto::{BlockHash, Error, NamespaceId, SessionId};
use turnkv_router::Router;

/// A session, by its namespace and its name there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionKey {
    pub(crate) namespace: NamespaceId,
    pub(crate) session: SessionId,
}

/// A turn that begins.
pub(crate) struct BeginTurn<'a> {
    /// Of which session.
    pub(crate) of: SessionKey,
    /// Which engine runs it, where that is said.
    pub(crate) engine: Option<&'a str>,
    /// Turns of the session that its owner knows to have ended; 0: that is not said.
    pub(crate) ended: u32,
    /// It can begin at the session's home instead: its caller reaches other members.
    pub(crate) may_go: bool,
}

/// What the owner of a session says at the end of a turn; the fields are those of [`EndTurn`].
pub(crate) struct EndOfTurn {
    pub(crate) of: SessionKey,
    pub(crate) keep: u32,
    pub(crate) hashes: Vec<BlockHash>,
    pub(crate) tail_tokens: u32,
    pub(crate) expected_return_ms: u64,
    pub(crate) ttl_ms: u64,
    pub(crate) priority: u32,
    pub(crate) last: bool,
    /// The session is to be archived; one of which this is the last turn is there until it is.
    pub(crate) archive: bool,
}

/// A turn that has begun.
pub(crate) struct BegunTurn {
    /// As the pool has it.
    pub(crate) begun: TurnBegun,
    /// Pages of the session after those that are here, which only the archive has: they are on their way.
    pub(crate) archived: u32,
    /// The same that another pool has.
    pub(crate) afar: u32,
}

/// A turn that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EndedTurn {
    /// Pages of the session's list that are present.
    pub(crate) pages: u32,
    /// The session waits to be archived, as was asked.
    pub(crate) archiving: bool,
}

/// Which sessions are there?
pub(crate) struct ListSessions {
    /// Of these namespaces.
    pub(crate) of: Listed,
    /// So many; none: as many as one answer may hold.
    pub(crate) limit: Option<usize>,
}

/// Whose sessions are listed.
pub(crate) enum Listed {
    /// Those of one namespace.
    Namespace(NamespaceId),
    /// Those of all namespaces of these tenants.
    Tenants(BTreeSet<String>),
    /// All.
    All,
}

/// Some of the sessions known.
pub(crate) struct SessionList {
    /// These, in no order.
    pub(crate) sessions: Vec<SessionInfo>,
    /// The ids of their namespaces, but of those that have retired meanwhile.
    pub(crate) namespaces: BTreeMap<NamespaceIndex, NamespaceId>,
    /// How many there are.
    pub(crate) total: u64,
}

/// All that is known of a session.
pub(crate) struct Described {
    /// As the pool has it.
    pub(crate) detail: SessionDetail,
    /// The engine that ran its last turn; empty: that is not known.
    pub(crate) engine: String,
}

impl EndOfTurn {
    fn view(&self) -> EndTurn<'_> {
        EndTurn {
            keep: self.keep,
            hashes: &self.hashes,
            tail_tokens: self.tail_tokens,
            expected_return_ms: self.expected_return_ms,
            ttl_ms: self.ttl_ms,
            priority: self.priority,
            last: self.last,
        }
    }
}

impl Engine {
    /// What is left of a session; creates it when it is new.
    pub(crate) fn begin_turn(&self, ask: &BeginTurn<'_>) -> Result<BegunTurn, Error> {
        let (ns, session) = self.find_session(&ask.of)?;
        if let Some(engine) = ask.engine {
            Router::check_name(engine).map_err(refuse_route)?;
        }
        let now = self.now();
        if ask.ended > 0 {
            self.decide().pool.count_turns(ns, session, ask.ended, now).map_err(refuse)?;
        }
        let mut turn = self.decide().pool.start_turn(ns, session, now).map_err(refuse)?;
        let begun =
            self.decide_in_slices(|core| core.pool.begin_turn_some(&mut turn, now)).pool.turn_begun(&turn);
        if let Some(engine) = ask.engine {
            let hashes = self.session_hashes(ns, session).unwrap_or_default();
            self.ran_at(ns, session, engine, &hashes)?;
        }
        self.tell_turn(ns, RecordedKind::BeginTurn, session, &[]);
        self.remember(ns, session);
        let afar = self.afar_of(&ask.of, begun.pages);
        let archived = if afar > 0 { 0 } else { self.archived_of(ns, &ask.of, begun.pages) };
        Ok(BegunTurn { begun, archived, afar })
    }

    /// What the owner knows about the wait that begins now.
    pub(crate) fn end_turn(&self, ask: &EndOfTurn) -> Result<EndedTurn, Error> {
        let (ns, session) = self.find_session(&ask.of)?;
        let hashes = &ask.hashes;
        let now = self.now();
        let mut list = self.kept_pages(ns, session, ask.keep);
        // One that is to be archived is there until it is: the pages of a session that is over go first.
        let lasts = ask.archive && self.archived.is_on();
        let end = EndTurn { last: ask.last && !lasts, ..ask.view() };
        let mut turn = TurnEnd::new(ns, session, end);
        drop(self.try_in_slices(|core| core.pool.end_turn_step(&mut turn, now).map(|more| !more))?);
        let pages = turn.pages();
        if self.is_recording() && list.len() == ask.keep as usize {
            list.extend(&hashes[..hashes.len() - usize::from(ask.tail_tokens > 0 && !hashes.is_empty())]);
            self.tell_turn(ns, RecordedKind::EndTurn, session, &list);
        }
        self.settle_home(ns, session, ask.last)?;
        let archiving = lasts && self.ask_to_archive(ns, &ask.of, ask.last);
        if ask.last && lasts && !archiving {
            self.end_session(ns, session)?;
        }
        if ask.last {
            self.tell_left(&ask.of)
        } else {
            self.tell_home(ns, &ask.of)
        }
        self.remember(ns, session);
        Ok(EndedTurn { pages, archiving })
    }

    /// A second session that shares the first one's leading pages (0: all). Returns how many these are.
    pub(crate) fn fork(&self, of: &SessionKey, fork: &SessionId, pages: u32) -> Result<u32, Error> {
        let (ns, session) = self.find_session(of)?;
        let now = self.now();
        let pages = self.decide().pool.fork(ns, session, fork, pages, now).map_err(refuse)?;
        self.remember(ns, fork);
        self.tell_fork(ns, &SessionKey { namespace: of.namespace, session: fork.clone() });
        Ok(pages)
    }

    /// The branch after `keep` pages is over: it goes first when room is needed. Returns the pages left.
    pub(crate) fn supersede(&self, of: &SessionKey, keep: u32) -> Result<u32, Error> {
        let (ns, session) = self.find_session(of)?;
        let now = self.now();
        let pages = self.decide().pool.supersede(ns, session, keep, now).map_err(refuse)?;
        self.remember(ns, session);
        Ok(pages)
    }

    /// A session lives elsewhere now, with all its pages: those here go first.
    pub(super) fn end_elsewhere(&self, of: &SessionKey) -> Result<(), Error> {
        let (ns, session) = self.find_session(of)?;
        let now = self.now();
        self.decide().pool.end_elsewhere(ns, session, now).map_err(refuse)?;
        self.remember(ns, session);
        Ok(())
    }

    /// No turn will follow. One that is to be archived is closed when it is. Whether it waits for that.
    pub(crate) fn close(&self, of: &SessionKey, archive: bool) -> Result<bool, Error> {
        let (ns, session) = self.find_session(of)?;
        if archive && self.ask_to_archive(ns, of, true) {
            return Ok(true);
        }
        self.end_session(ns, session)?;
        self.tell_left(of);
        self.remember(ns, session);
        Ok(false)
    }

    /// Closes a session that is archived now, unless another turn of it has begun since that was asked.
    pub(crate) fn close_archived(&self, asked: &AskedSession) -> Result<(), Error> {
        let (ns, session) = (self.find_namespace(&asked.namespace)?, &asked.session);
        if self.turn_of(ns, session) == Some(asked.turn) {
            self.end_session(ns, session)?;
            self.tell_left(&SessionKey { namespace: asked.namespace, session: session.clone() });
            self.remember(ns, session);
        }
        Ok(())
    }

    fn end_session(&self, ns: NamespaceIndex, session: &SessionId) -> Result<(), Error> {
        let now = self.now();
        self.decide().pool.close(ns, session, now).map_err(refuse)?;
        self.router.lock().forget(route_namespace(ns), session, now);
        Ok(())
    }

    /// Has a session archived. False: it will not be.
    fn ask_to_archive(&self, ns: NamespaceIndex, of: &SessionKey, is_last: bool) -> bool {
        let Some(turn) = self.turn_of(ns, &of.session) else { return false };
        let SessionKey { namespace, session } = of.clone();
        self.archived.ask(AskedSession { namespace, session, turn, is_last })
    }

    pub(super) fn turn_of(&self, ns: NamespaceIndex, session: &SessionId) -> Option<u32> {
        let now = self.now();
        self.decide().pool.session_record(ns, session, now).map(|record| record.turn)
    }

    /// All that is known of one session.
    pub(crate) fn describe_session(&self, of: &SessionKey) -> Result<Described, Error> {
        let (ns, session) = self.find_session(of)?;
        let now = self.now();
        let mut describing = Describing::default();
        let core = self.try_in_slices(|core| core.pool.describe_some(ns, session, &mut describing))?;
        let detail = core.pool.described(ns, session, &describing, now).map_err(refuse)?;
        drop(core);
        let engine = self.router.lock().home(route_namespace(ns), session).unwrap_or_default().to_owned();
        Ok(Described { detail, engine })
    }

    /// The engine that ran a turn holds the session's pages now; of a session that is over, nobody is the home.
    fn settle_home(&self, ns: NamespaceIndex, session: &SessionId, last: bool) -> Result<(), Error> {
        if last {
            self.router.lock().forget(route_namespace(ns), session, self.now());
            return Ok(());
        }
        let engine = self.router.lock().home(route_namespace(ns), session).map(str::to_owned);
        let Some(engine) = engine else { return Ok(()) };
        let hashes = self.session_hashes(ns, session).unwrap_or_default();
        self.ran_at(ns, session, &engine, &hashes)
    }

    /// The leading pages of a session that are present.
    pub(super) fn session_hashes(
        &self,
        ns: NamespaceIndex,
        session: &SessionId,
    ) -> Result<Vec<BlockHash>, Error> {
        let mut naming = Naming::default();
        drop(self.try_in_slices(|core| core.pool.name_some(ns, session, &mut naming))?);
        Ok(naming.hashes())
    }

    /// The sessions known, in no order, within a bound.
    pub(crate) fn list_sessions(&self, ask: &ListSessions) -> Result<SessionList, Error> {
        let (of, total) = match &ask.of {
            Listed::Namespace(id) => {
                let ns = self.find_namespace(id)?;
                (Some(BTreeSet::from([ns])), self.decide().pool.session_count(Some(ns)))
            }
            Listed::Tenants(tenants) => {
                let TenantNamespaces { found, sessions, .. } = self.namespaces_of(tenants);
                (Some(found), sessions)
            }
            Listed::All => (None, self.decide().pool.session_count(None)),
        };
        let wanted = |ns| of.as_ref().is_none_or(|of| of.contains(&ns));
        let limit = ask.limit.map_or(SESSION_LIST_MAX, |limit| limit.min(SESSION_LIST_MAX));
        let now = self.now();
        let mut listing = Listing::default();
        drop(self.decide_in_slices(|core| core.pool.list_some(wanted, limit, &mut listing, now)));
        let sessions = listing.sessions();
        let distinct: BTreeSet<NamespaceIndex> = sessions.iter().map(|info| info.ns).collect();
        let id = |ns| self.decide().pool.namespace_desc(ns).map(|desc| (ns, desc.id));
        let namespaces = distinct.into_iter().filter_map(id).collect();
        // Some may have begun since they were counted.
        let total = total.max(sessions.len() as u64);
        Ok(SessionList { sessions, namespaces, total })
    }

    fn find_session<'a>(&self, of: &'a SessionKey) -> Result<(NamespaceIndex, &'a SessionId), Error> {
        Ok((self.find_namespace(&of.namespace)?, &of.session))
    }

    fn tell_turn(&self, ns: NamespaceIndex, kind: RecordedKind, session: &SessionId, blocks: &[BlockHash]) {
        let (session, client) = (Some(session), ClientId(0));
        self.tell(&Told { ns, kind, session, client, parent: None, blocks });
    }

    /// Has the catalog write this session at its next flush.
    pub(super) fn remember(&self, ns: NamespaceIndex, session: &SessionId) {
        if let Some(catalog) = &self.catalog {
            catalog.mark(ns, session.clone());
        }
    }
}

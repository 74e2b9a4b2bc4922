//! The session verbs: begin and end a turn, fork, supersede, close, list. Owns: their order and what goes to the
//! catalog. Must not know: pages' bytes.

use super::record::Told;
use super::{Engine, malformed, refuse, route};
use crate::limits::SESSION_LIST_MAX;
use bytes::Bytes;
use std::collections::BTreeMap;
use turnkv_pool::{ClientId, EndTurn, Listing, NamespaceIndex, Naming, TurnEnd};
use turnkv_proto::{BlockHash, Error, SessionId, unpack_hashes, wire};
use turnkv_router::Router;

impl Engine {
    /// What is left of a session; creates it when it is new.
    pub(crate) fn begin_turn(&self, ask: &wire::BeginTurnRequest) -> Result<wire::BeginTurnReply, Error> {
        let (ns, session) = self.find_session(&ask.namespace, &ask.session)?;
        if !ask.engine.is_empty() {
            Router::check_name(&ask.engine).map_err(route::refuse_route)?;
        }
        let now = self.now();
        let mut turn = self.core().pool.start_turn(ns, &session, now).map_err(refuse)?;
        let begun = self.slices(|core| core.pool.begin_turn_some(&mut turn, now)).pool.turn_begun(&turn);
        if !ask.engine.is_empty() {
            let hashes = self.session_hashes(ns, &session).unwrap_or_default();
            self.ran_at(ns, &session, &ask.engine, &hashes)?;
        }
        self.tell_turn(ns, wire::RecordedKind::BeginTurn, &session, &[]);
        self.remember(ns, &session);
        let (tail, tail_tokens) =
            begun.tail.map_or((Default::default(), 0), |(hash, tokens)| (hash.0.to_vec().into(), tokens));
        Ok(wire::BeginTurnReply { turn: begun.turn, pages: begun.pages, dram: begun.dram, tail_tokens, tail })
    }

    /// What the owner knows about the wait that begins now.
    pub(crate) fn end_turn(&self, ask: &wire::EndTurnRequest) -> Result<wire::EndTurnReply, Error> {
        let (ns, session) = self.find_session(&ask.namespace, &ask.session)?;
        let hashes = unpack_hashes(&ask.hashes).map_err(malformed)?;
        let end = EndTurn {
            keep: ask.keep,
            hashes: &hashes,
            tail_tokens: ask.tail_tokens,
            expected_return_ms: ask.expected_return_ms,
            ttl_ms: ask.ttl_ms,
            priority: ask.priority,
            last: ask.r#final,
        };
        let now = self.now();
        let mut list = self.kept_pages(ns, &session, ask.keep);
        let mut turn = TurnEnd::new(ns, &session, end);
        drop(self.try_slices(|core| core.pool.end_turn_step(&mut turn, now).map(|more| !more))?);
        let pages = turn.pages();
        if self.is_recording() && list.len() == ask.keep as usize {
            list.extend(&hashes[..hashes.len() - usize::from(ask.tail_tokens > 0 && !hashes.is_empty())]);
            self.tell_turn(ns, wire::RecordedKind::EndTurn, &session, &list);
        }
        self.settle_home(ns, &session, ask.r#final)?;
        self.remember(ns, &session);
        self.pass_place_notes();
        Ok(wire::EndTurnReply { pages })
    }

    /// A second session that shares the first one's pages.
    pub(crate) fn fork(&self, ask: &wire::ForkRequest) -> Result<wire::ForkReply, Error> {
        let (ns, session) = self.find_session(&ask.namespace, &ask.session)?;
        let fork = SessionId::parse(&ask.fork).map_err(malformed)?;
        let now = self.now();
        let pages = self.core().pool.fork(ns, &session, &fork, ask.pages, now).map_err(refuse)?;
        self.remember(ns, &fork);
        Ok(wire::ForkReply { pages })
    }

    /// The branch after `keep` pages is over: it goes first when room is needed.
    pub(crate) fn supersede(&self, ask: &wire::SupersedeRequest) -> Result<wire::SupersedeReply, Error> {
        let (ns, session) = self.find_session(&ask.namespace, &ask.session)?;
        let now = self.now();
        let pages = self.core().pool.supersede(ns, &session, ask.keep, now).map_err(refuse)?;
        self.remember(ns, &session);
        Ok(wire::SupersedeReply { pages })
    }

    /// No turn will follow.
    pub(crate) fn close(&self, ask: &wire::CloseRequest) -> Result<(), Error> {
        let (ns, session) = self.find_session(&ask.namespace, &ask.session)?;
        let now = self.now();
        self.core().pool.close(ns, &session, now).map_err(refuse)?;
        self.router.lock().forget(route::namespace(ns), &session, now);
        self.remember(ns, &session);
        Ok(())
    }

    /// The engine that ran a turn holds the session's pages now; of a session that is over, nobody is the home.
    fn settle_home(&self, ns: NamespaceIndex, session: &SessionId, last: bool) -> Result<(), Error> {
        if last {
            self.router.lock().forget(route::namespace(ns), session, self.now());
            return Ok(());
        }
        let engine = self.router.lock().home(route::namespace(ns), session).map(str::to_owned);
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
        drop(self.try_slices(|core| core.pool.name_some(ns, session, &mut naming))?);
        Ok(naming.hashes())
    }

    /// The sessions known, in no order, within a bound.
    pub(crate) fn list_sessions(&self, ask: &wire::ListRequest) -> Result<wire::ListReply, Error> {
        let ns = if ask.namespace.is_empty() { None } else { Some(self.find_namespace(&ask.namespace)?) };
        let limit = if ask.limit == 0 { SESSION_LIST_MAX } else { SESSION_LIST_MAX.min(ask.limit as usize) };
        let now = self.now();
        let mut listing = Listing::default();
        let total = {
            let core = self.slices(|core| core.pool.list_some(ns, limit, &mut listing, now));
            core.pool.session_count(ns)
        };
        let summaries = listing.sessions();
        let mut ids: BTreeMap<NamespaceIndex, Bytes> = BTreeMap::new();
        for summary in &summaries {
            ids.entry(summary.ns).or_insert_with(|| self.namespace_bytes(summary.ns));
        }
        let sessions = summaries
            .into_iter()
            .map(|summary| wire::SessionInfo {
                namespace: ids.get(&summary.ns).cloned().unwrap_or_default(),
                session: summary.session.as_str().to_owned(),
                turn: summary.turn,
                pages: summary.pages,
                tail_tokens: summary.tail_tokens,
                idle_ms: summary.idle_ms,
                in_turn: summary.in_turn,
            })
            .collect();
        Ok(wire::ListReply { sessions, total })
    }

    /// The id of a namespace on the wire; nothing for one that has retired.
    fn namespace_bytes(&self, ns: NamespaceIndex) -> Bytes {
        let id = self.core().pool.namespace_desc(ns).map(|desc| desc.id);
        id.map_or_else(Bytes::new, |id| id.0.to_vec().into())
    }

    fn find_session(&self, namespace: &[u8], session: &str) -> Result<(NamespaceIndex, SessionId), Error> {
        Ok((self.find_namespace(namespace)?, SessionId::parse(session).map_err(malformed)?))
    }

    fn tell_turn(
        &self,
        ns: NamespaceIndex,
        kind: wire::RecordedKind,
        session: &SessionId,
        blocks: &[BlockHash],
    ) {
        let (session, client) = (Some(session), ClientId(0));
        self.tell(&Told { ns, kind, session, client, parent: None, blocks });
    }

    /// Has the catalog write this session at its next flush.
    fn remember(&self, ns: NamespaceIndex, session: &SessionId) {
        if let Some(catalog) = &self.catalog {
            catalog.mark(ns, session.clone());
        }
    }
}

//! Route: which engine should run a turn. Owns: telling the router what ran where, and its lock (never held together with
//! the pool's). Must not know: how the ranking is made.

use super::Engine;
use crate::cluster::{Cluster, EnginesAsk, EnginesKnown, Where};
use turnkv_cluster::{MemberId, PrefixAsk};
use turnkv_pool::NamespaceIndex;
use turnkv_proto::{BlockHash, Error, ErrorKind, NamespaceId, SessionId};
use turnkv_router::{Candidate, Ranked, RouteAsk, RouteError, RouteNamespace};

/// A turn that is to be run somewhere.
pub(crate) struct RouteTurn<'a> {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// Of which session, where there is one.
    pub(crate) session: Option<SessionId>,
    /// The pages of its prompt; none: those of the session.
    pub(crate) hashes: Vec<BlockHash>,
    /// Where it could run.
    pub(crate) candidates: Vec<Candidate<'a>>,
}

/// Where it should run.
pub(crate) struct Routed {
    /// The candidates by their places in the ask, the best first.
    pub(crate) ranked: Vec<Ranked>,
    /// Leading pages that any of them can reload from the pool.
    pub(crate) pool_pages: u32,
}

impl Engine {
    /// Ranks the engines that it could run at, by what is known of them anywhere.
    pub(crate) async fn route(&self, ask: &RouteTurn<'_>) -> Result<Routed, Error> {
        let mut known = self.look_at_engines(ask)?;
        if let Some(cluster) = self.cluster() {
            let (holder, pages) = most_of(cluster, ask, known.pool_pages).await;
            let engines = ask.candidates.iter().map(|candidate| candidate.name.to_owned()).collect();
            let (namespace, session) = (ask.namespace, ask.session.as_ref());
            let asked = EnginesAsk { namespace, session, hashes: &ask.hashes, engines };
            let others = cluster.look_at_engines(&asked, holder).await;
            others.iter().for_each(|other| known.take_in(other));
            known.pool_pages = known.pool_pages.max(pages);
        }
        Ok(self.rank(ask, &known))
    }

    /// Ranks them by what is known.
    pub(crate) fn rank(&self, ask: &RouteTurn<'_>, known: &EnginesKnown) -> Routed {
        self.metrics.routes.increment(1);
        let ranked = self.router.lock().rank(&ask.candidates, known.prompt_pages, &known.views);
        Routed { ranked, pool_pages: known.pool_pages }
    }

    /// What is known of them here.
    pub(crate) fn look_at_engines(&self, ask: &RouteTurn<'_>) -> Result<EnginesKnown, Error> {
        let (ns, now) = (self.find_namespace(&ask.namespace)?, self.now());
        // A session that is not known yet has no pages: any engine is as good, but for its load.
        let own = match &ask.session {
            Some(session) if ask.hashes.is_empty() => self.session_hashes(ns, session).unwrap_or_default(),
            _ => Vec::new(),
        };
        let hashes = if own.is_empty() { &ask.hashes } else { &own };
        let pool_pages = self.look(ns, hashes, now)?.present;
        let session = ask.session.as_ref();
        let view = RouteAsk { ns: route_namespace(ns), session, hashes, candidates: &ask.candidates };
        let views = self.router.lock().look(view, now).map_err(refuse_route)?;
        let turn = session.and_then(|session| self.turn_of(ns, session)).unwrap_or(0);
        Ok(EnginesKnown { views, turn, prompt_pages: hashes.len() as u64, pool_pages })
    }

    /// A turn runs at an engine, on these pages.
    pub(super) fn ran_at(
        &self,
        ns: NamespaceIndex,
        session: &SessionId,
        engine: &str,
        hashes: &[BlockHash],
    ) -> Result<(), Error> {
        let ask = RouteAsk { ns: route_namespace(ns), session: Some(session), hashes, candidates: &[] };
        let now = self.now();
        self.router.lock().ran(ask, engine, now).map_err(refuse_route)
    }
}

/// Who of the others has the session, or more of the prompt than is here, and how many pages of it.
async fn most_of(cluster: &Cluster, ask: &RouteTurn<'_>, here: u32) -> (Option<MemberId>, u32) {
    let home = match &ask.session {
        Some(session) => cluster.whereabouts(&ask.namespace, session, 0).await,
        None => Where::Nowhere,
    };
    let home = if let Where::Home { member, .. } = home { Some(member.member.id) } else { None };
    if ask.hashes.len() <= here as usize {
        return (home, here);
    }
    let wanted = PrefixAsk {
        namespace: ask.namespace,
        hashes: ask.hashes.clone(),
        only_posts: false,
        local: here as usize,
        hint: home,
    };
    match cluster.holder_of(wanted).await {
        Some((member, pages)) => (Some(member.member.id), pages as u32),
        None => (home, here),
    }
}

/// A namespace as the router knows it.
pub(super) fn route_namespace(ns: NamespaceIndex) -> RouteNamespace {
    RouteNamespace(ns.number())
}

/// A refusal of the router as the wire's kind.
pub(super) fn refuse_route(error: RouteError) -> Error {
    Error::new(ErrorKind::Invalid, error.to_string())
}

//! Route: which engine should run a turn. Owns: telling the router what ran where, and its lock (never held together with
//! the pool's). Must not know: how the ranking is made.

use super::Engine;
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
    /// Ranks the engines that it could run at.
    pub(crate) fn route(&self, ask: RouteTurn<'_>) -> Result<Routed, Error> {
        let RouteTurn { namespace, session, mut hashes, candidates } = ask;
        let ns = self.find_namespace(&namespace)?;
        let now = self.now();
        if let (Some(session), true) = (&session, hashes.is_empty()) {
            // A session that is not known yet has no pages: any engine is as good, but for its load.
            hashes = self.session_hashes(ns, session).unwrap_or_default();
        }
        let pool_pages = self.look(ns, &hashes, now)?.present;
        let view = RouteAsk {
            ns: route_namespace(ns),
            session: session.as_ref(),
            hashes: &hashes,
            candidates: &candidates,
        };
        let ranked = self.router.lock().route(view, now).map_err(refuse_route)?;
        self.metrics.routes.increment(1);
        Ok(Routed { ranked, pool_pages })
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

/// A namespace as the router knows it.
pub(super) fn route_namespace(ns: NamespaceIndex) -> RouteNamespace {
    RouteNamespace(ns.number())
}

/// A refusal of the router as the wire's kind.
pub(super) fn refuse_route(error: RouteError) -> Error {
    Error::new(ErrorKind::Invalid, error.to_string())
}

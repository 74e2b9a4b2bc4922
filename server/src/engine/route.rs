//! Route: which engine should run a turn. Owns: telling the router what ran where, and its lock (never held together with
//! the pool's). Must not know: how the ranking is made.

use super::{Engine, malformed};
use turnkv_pool::NamespaceIndex;
use turnkv_proto::{BlockHash, Error, ErrorKind, SessionId, unpack_hashes, wire};
use turnkv_router::{Candidate, RouteAsk, RouteError, RouteNamespace};

impl Engine {
    /// Ranks the engines named in the request.
    pub(crate) fn route(&self, ask: &wire::RouteRequest) -> Result<wire::RouteReply, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        let session = match ask.session.as_str() {
            "" => None,
            name => Some(SessionId::parse(name).map_err(malformed)?),
        };
        let mut hashes = unpack_hashes(&ask.hashes).map_err(malformed)?;
        let now = self.now();
        if let (Some(session), true) = (&session, hashes.is_empty()) {
            // A session that is not known yet has no pages: any engine is as good, but for its load.
            hashes = self.session_hashes(ns, session).unwrap_or_default();
        }
        let pool_pages = self.look(ns, &hashes, now)?.present;
        let candidates: Vec<Candidate<'_>> = ask.engines.iter().map(candidate).collect();
        let view = RouteAsk {
            ns: namespace(ns),
            session: session.as_ref(),
            hashes: &hashes,
            candidates: &candidates,
        };
        let ranked = self.router.lock().route(view, now).map_err(refuse_route)?;
        self.metrics.routes.increment(1);
        let choices = ranked.into_iter().map(|ranked| wire::RouteChoice {
            name: candidates[ranked.candidate].name.to_owned(),
            held_pages: ranked.held_pages,
            overflow_pages: ranked.overflow_pages,
            home: ranked.is_home,
            score: ranked.score,
        });
        Ok(wire::RouteReply { choices: choices.collect(), pool_pages })
    }

    /// A turn runs at an engine, on these pages.
    pub(super) fn ran_at(
        &self,
        ns: NamespaceIndex,
        session: &SessionId,
        engine: &str,
        hashes: &[BlockHash],
    ) -> Result<(), Error> {
        let ask = RouteAsk { ns: namespace(ns), session: Some(session), hashes, candidates: &[] };
        let now = self.now();
        self.router.lock().ran(ask, engine, now).map_err(refuse_route)
    }
}

/// A namespace as the router knows it.
pub(super) fn namespace(ns: NamespaceIndex) -> RouteNamespace {
    RouteNamespace(ns.number())
}

/// A refusal of the router as the wire's kind.
pub(super) fn refuse_route(error: RouteError) -> Error {
    Error::new(ErrorKind::Invalid, error.to_string())
}

fn candidate(engine: &wire::RouteEngine) -> Candidate<'_> {
    Candidate {
        name: &engine.name,
        capacity_pages: engine.capacity_pages,
        used_pages: engine.used_pages,
        running: engine.running,
        waiting: engine.waiting,
    }
}

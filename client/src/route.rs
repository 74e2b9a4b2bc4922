//! Route: which engine should run a turn. Owns: the verb. Must not know: how engines are reached.

use crate::error::Result;
use crate::namespace::Namespace;
use crate::session::{named, packed};
use turnkv_proto::{BlockHash, wire};

/// An engine that could run the turn, as it reports itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineState {
    /// The name it begins turns with ([`Namespace::begin_turn_at`]).
    pub name: String,
    /// Pages that its own cache holds; 0: unknown.
    pub capacity_pages: u64,
    /// Pages that sessions running there use now.
    pub used_pages: u64,
    /// Sessions running there: room for their growth is kept.
    pub running: u32,
    /// Requests waiting there.
    pub waiting: u32,
}

/// One engine's rank.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineChoice {
    /// Which engine.
    pub name: String,
    /// Leading pages it holds, as far as the pool can know.
    pub held_pages: u64,
    /// Pages that would not fit beside what runs there.
    pub overflow_pages: u64,
    /// It ran the session's last turn.
    pub home: bool,
    /// What it is worth, in pages.
    pub score: f64,
}

/// The engines ranked, the best first.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// All that were named.
    pub choices: Vec<EngineChoice>,
    /// Leading pages that any engine can reload from the pool.
    pub pool_pages: usize,
}

impl Namespace {
    /// Ranks engines for a turn of `session` (`None`: of no session yet) on these pages (none: the session's own).
    pub async fn route(
        &self,
        session: Option<&str>,
        hashes: &[BlockHash],
        engines: &[EngineState],
    ) -> Result<Route> {
        let engine = |engine: &EngineState| wire::RouteEngine {
            name: engine.name.clone(),
            capacity_pages: engine.capacity_pages,
            used_pages: engine.used_pages,
            running: engine.running,
            waiting: engine.waiting,
        };
        let request = wire::RouteRequest {
            namespace: self.wire_id(),
            session: session.map(named).transpose()?.unwrap_or_default(),
            hashes: packed(hashes)?,
            engines: engines.iter().map(engine).collect(),
        };
        let reply = self.tell(session, |mut client, r| async move { client.route(r).await }, request).await?;
        let choice = |choice: wire::RouteChoice| EngineChoice {
            name: choice.name,
            held_pages: choice.held_pages,
            overflow_pages: choice.overflow_pages,
            home: choice.home,
            score: choice.score,
        };
        let choices = reply.choices.into_iter().map(choice).collect();
        Ok(Route { choices, pool_pages: reply.pool_pages as usize })
    }
}

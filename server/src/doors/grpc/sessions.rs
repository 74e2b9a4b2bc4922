//! The Sessions service: one method a verb. Owns: nothing else. Must not know: the pool.

use super::reply::{Answer, blocking, guest_of};
use crate::doors::codec;
use crate::engine::Engine;
use crate::limits::LISTS_AT_ONCE_MAX;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::{Request, Response};
use turnkv_proto::wire;
use wire::sessions_server::Sessions;

/// The service.
pub(crate) struct SessionsService {
    engine: Arc<Engine>,
    /// Turns to list sessions: what a list is made from is many times as large as it, so few are made at a time.
    lists: Semaphore,
}

impl SessionsService {
    /// Of this engine.
    pub(super) fn new(engine: &Arc<Engine>) -> SessionsService {
        SessionsService { engine: Arc::clone(engine), lists: Semaphore::new(LISTS_AT_ONCE_MAX) }
    }
}

#[tonic::async_trait]
impl Sessions for SessionsService {
    async fn begin_turn(&self, request: Request<wire::BeginTurnRequest>) -> Answer<wire::BeginTurnReply> {
        let ask = codec::sessions::begin_turn(request.get_ref(), &guest_of(&request)?)?;
        if let Some(home) = self.engine.find_turn(&ask).await {
            return Ok(Response::new(codec::sessions::turn_elsewhere(&home)));
        }
        let begun = self.engine.begin_turn(&ask)?;
        Ok(Response::new(codec::sessions::turn_begun(begun)))
    }

    async fn end_turn(&self, request: Request<wire::EndTurnRequest>) -> Answer<wire::EndTurnReply> {
        let ended =
            self.engine.end_turn(&codec::sessions::end_turn(request.get_ref(), &guest_of(&request)?)?)?;
        Ok(Response::new(codec::sessions::turn_ended(ended)))
    }

    async fn fork(&self, request: Request<wire::ForkRequest>) -> Answer<wire::ForkReply> {
        let raw = request.get_ref();
        let (of, fork) = codec::sessions::fork(raw, &guest_of(&request)?)?;
        let pages = self.engine.fork(&of, &fork, raw.pages)?;
        Ok(Response::new(wire::ForkReply { pages }))
    }

    async fn supersede(&self, request: Request<wire::SupersedeRequest>) -> Answer<wire::SupersedeReply> {
        let raw = request.get_ref();
        let of = codec::sessions::key(&raw.namespace, &raw.session, &guest_of(&request)?)?;
        let pages = self.engine.supersede(&of, raw.keep)?;
        Ok(Response::new(wire::SupersedeReply { pages }))
    }

    async fn close(&self, request: Request<wire::CloseRequest>) -> Answer<wire::CloseReply> {
        let raw = request.get_ref();
        let of = codec::sessions::key(&raw.namespace, &raw.session, &guest_of(&request)?)?;
        let archiving = self.engine.close(&of, raw.archive)?;
        Ok(Response::new(wire::CloseReply { archiving }))
    }

    async fn prefetch(&self, request: Request<wire::PrefetchRequest>) -> Answer<wire::PrefetchReply> {
        let ask = codec::prefetch::ask(request.get_ref(), &guest_of(&request)?)?;
        let begun = self.engine.prefetch_from_anywhere(&ask).await?;
        Ok(Response::new(codec::prefetch::reply(begun)))
    }

    async fn describe(&self, request: Request<wire::DescribeRequest>) -> Answer<wire::DescribeReply> {
        let guest = guest_of(&request)?;
        let raw = request.into_inner();
        let described =
            self.engine.describe_session(&codec::sessions::key(&raw.namespace, &raw.session, &guest)?)?;
        Ok(Response::new(codec::sessions::described(raw.namespace, described)))
    }

    async fn pin(&self, request: Request<wire::PinRequest>) -> Answer<wire::PinReply> {
        let ask = codec::pin::pin(request.get_ref(), &guest_of(&request)?)?;
        self.engine.may_pin(&ask).await?;
        let (engine, namespace, second) = (Arc::clone(&self.engine), ask.namespace, ask.second);
        let here = blocking(move || engine.pin(&ask)).await?.into_inner();
        let second = match second {
            true => Some(self.engine.pin_elsewhere(namespace, &here).await),
            false => None,
        };
        Ok(Response::new(codec::pin::pinned(here, second)))
    }

    async fn unpin(&self, request: Request<wire::UnpinRequest>) -> Answer<wire::UnpinReply> {
        let ask = codec::pin::unpin(request.get_ref(), &guest_of(&request)?)?;
        let (engine, namespace, pin) = (Arc::clone(&self.engine), ask.namespace, ask.pin);
        let found = blocking(move || Ok(wire::UnpinReply { found: engine.unpin(&ask)? })).await?;
        self.engine.unpin_elsewhere(namespace, pin);
        Ok(found)
    }

    async fn route(&self, request: Request<wire::RouteRequest>) -> Answer<wire::RouteReply> {
        let ask = codec::route::ask(request.get_ref(), &guest_of(&request)?)?;
        let routed = self.engine.route(&ask).await?;
        Ok(Response::new(codec::route::reply(request.get_ref(), routed)))
    }

    async fn list(&self, request: Request<wire::ListRequest>) -> Answer<wire::ListReply> {
        let ask = codec::sessions::list(request.get_ref(), &guest_of(&request)?)?;
        // It fails once the semaphore is closed, which it never is.
        let _turn = self.lists.acquire().await.ok();
        let engine = Arc::clone(&self.engine);
        blocking(move || Ok(codec::sessions::listed(engine.list_sessions(&ask)?))).await
    }
}

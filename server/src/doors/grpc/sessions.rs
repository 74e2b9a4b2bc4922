//! The Sessions service: one method a verb. Owns: nothing else. Must not know: the pool.

use crate::engine::Engine;
use crate::limits::LISTS_AT_ONCE_MAX;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};
use turnkv_proto::{Error, ErrorKind, wire};
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

/// Answers with what a verb says that takes long, or writes to the catalog: not on an async thread.
pub(super) async fn blocking<T: Send + 'static>(
    verb: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<Response<T>, Status> {
    let done = tokio::task::spawn_blocking(verb).await;
    let done = done.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    Ok(Response::new(done?))
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Sessions for SessionsService {
    async fn begin_turn(&self, request: Request<wire::BeginTurnRequest>) -> Answer<wire::BeginTurnReply> {
        Ok(Response::new(self.engine.begin_turn(request.get_ref())?))
    }

    async fn end_turn(&self, request: Request<wire::EndTurnRequest>) -> Answer<wire::EndTurnReply> {
        Ok(Response::new(self.engine.end_turn(request.get_ref())?))
    }

    async fn fork(&self, request: Request<wire::ForkRequest>) -> Answer<wire::ForkReply> {
        Ok(Response::new(self.engine.fork(request.get_ref())?))
    }

    async fn supersede(&self, request: Request<wire::SupersedeRequest>) -> Answer<wire::SupersedeReply> {
        Ok(Response::new(self.engine.supersede(request.get_ref())?))
    }

    async fn close(&self, request: Request<wire::CloseRequest>) -> Answer<wire::CloseReply> {
        self.engine.close(request.get_ref())?;
        Ok(Response::new(wire::CloseReply {}))
    }

    async fn prefetch(&self, request: Request<wire::PrefetchRequest>) -> Answer<wire::PrefetchReply> {
        Ok(Response::new(self.engine.prefetch(request.get_ref())?))
    }

    async fn describe(&self, request: Request<wire::DescribeRequest>) -> Answer<wire::DescribeReply> {
        Ok(Response::new(self.engine.describe_session(request.get_ref())?))
    }

    async fn pin(&self, request: Request<wire::PinRequest>) -> Answer<wire::PinReply> {
        let engine = Arc::clone(&self.engine);
        blocking(move || engine.pin(request.get_ref())).await
    }

    async fn unpin(&self, request: Request<wire::UnpinRequest>) -> Answer<wire::UnpinReply> {
        let engine = Arc::clone(&self.engine);
        blocking(move || engine.unpin(request.get_ref())).await
    }

    async fn route(&self, request: Request<wire::RouteRequest>) -> Answer<wire::RouteReply> {
        Ok(Response::new(self.engine.route(request.get_ref())?))
    }

    async fn list(&self, request: Request<wire::ListRequest>) -> Answer<wire::ListReply> {
        // It fails once the semaphore is closed, which it never is.
        let _turn = self.lists.acquire().await.ok();
        let engine = Arc::clone(&self.engine);
        blocking(move || engine.list_sessions(request.get_ref())).await
    }
}

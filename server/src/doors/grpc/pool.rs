//! The Pool service less its inline streams: one method a verb, each decode -> ask -> reply. Owns: nothing else. Must not
//! know: the pool.

use super::sessions::blocking;
use crate::engine::Engine;
use crate::limits::STREAM_QUEUE_MAX;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use turnkv_proto::wire;
use wire::unary::pool_server::Pool;

/// The service.
pub(crate) struct PoolService {
    pub(crate) engine: Arc<Engine>,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Pool for PoolService {
    async fn open_namespace(
        &self,
        request: Request<wire::OpenNamespaceRequest>,
    ) -> Answer<wire::OpenNamespaceReply> {
        let spec = request.into_inner().spec.unwrap_or_default();
        let engine = Arc::clone(&self.engine);
        // A new namespace is written to the catalog, durably: not on an async thread.
        blocking(move || engine.open_namespace(&spec)).await
    }

    async fn lookup(&self, request: Request<wire::LookupRequest>) -> Answer<wire::LookupReply> {
        let reply = self.engine.lookup(request.get_ref())?;
        Ok(Response::new(reply))
    }

    async fn begin_offload(
        &self,
        request: Request<wire::BeginOffloadRequest>,
    ) -> Answer<wire::BeginOffloadReply> {
        let reply = self.engine.begin_offload(request.get_ref()).await?;
        Ok(Response::new(reply))
    }

    async fn commit_offload(
        &self,
        request: Request<wire::CommitOffloadRequest>,
    ) -> Answer<wire::CommitOffloadReply> {
        let reply = self.engine.commit_offload(request.get_ref()).await?;
        Ok(Response::new(reply))
    }

    async fn abort_offload(
        &self,
        request: Request<wire::AbortOffloadRequest>,
    ) -> Answer<wire::AbortOffloadReply> {
        self.engine.abort_offload(request.get_ref())?;
        Ok(Response::new(wire::AbortOffloadReply {}))
    }

    type BeginReloadStream = ReceiverStream<Result<wire::BeginReloadReply, Status>>;

    async fn begin_reload(
        &self,
        request: Request<wire::BeginReloadRequest>,
    ) -> Answer<Self::BeginReloadStream> {
        let mut run = self.engine.begin_reload(request.get_ref()).await?;
        let (tell, told) = mpsc::channel(STREAM_QUEUE_MAX);
        tokio::spawn(async move {
            let mut reply = wire::BeginReloadReply {
                lease: run.lease,
                lease_ms: run.lease_ms,
                covered: run.covered,
                pages: run.take_ready(),
            };
            // A caller that left stops the stream; its lease ends by EndReload or by its deadline.
            while tell.send(Ok(reply)).await.is_ok() && !run.is_done() {
                tokio::select! {
                    () = run.wait() => {}
                    () = tell.closed() => return,
                }
                reply = wire::BeginReloadReply { pages: run.take_ready(), ..Default::default() };
            }
        });
        Ok(Response::new(ReceiverStream::new(told)))
    }

    async fn end_reload(&self, request: Request<wire::EndReloadRequest>) -> Answer<wire::EndReloadReply> {
        self.engine.end_reload(request.get_ref())?;
        Ok(Response::new(wire::EndReloadReply {}))
    }
}

//! The Pool service less its inline streams: one method a verb, each decode -> ask -> act -> reply. Owns: nothing else. Must not
//! know: the pool.

use super::reply::{Answer, blocking};
use crate::doors::codec;
use crate::engine::Engine;
use crate::limits::STREAM_QUEUE_MAX;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use turnkv_pool::LeaseId;
use turnkv_proto::wire;
use wire::unary::pool_server::Pool;

/// The service.
pub(crate) struct PoolService {
    pub(crate) engine: Arc<Engine>,
}

#[tonic::async_trait]
impl Pool for PoolService {
    async fn open_namespace(
        &self,
        request: Request<wire::OpenNamespaceRequest>,
    ) -> Answer<wire::OpenNamespaceReply> {
        let raw = request.into_inner().spec.unwrap_or_default();
        let engine = Arc::clone(&self.engine);
        // A new namespace is written to the catalog, durably: not on an async thread.
        blocking(move || {
            let spec = codec::namespace::spec(&raw)?;
            engine.open_namespace(&spec)?;
            Ok(codec::namespace::opened(&spec))
        })
        .await
    }

    async fn lookup(&self, request: Request<wire::LookupRequest>) -> Answer<wire::LookupReply> {
        let found = self.engine.lookup(&codec::lookup::ask(request.get_ref())?)?;
        Ok(Response::new(codec::lookup::reply(found)))
    }

    async fn begin_offload(
        &self,
        request: Request<wire::BeginOffloadRequest>,
    ) -> Answer<wire::BeginOffloadReply> {
        let raw = request.get_ref();
        let (client, ask) = (self.engine.clients.check(raw.client)?, codec::offload::begin(raw)?);
        let begun = self.engine.begin_offload(client, &ask).await?;
        Ok(Response::new(codec::offload::begun(begun)))
    }

    async fn commit_offload(
        &self,
        request: Request<wire::CommitOffloadRequest>,
    ) -> Answer<wire::CommitOffloadReply> {
        let raw = request.get_ref();
        let (client, ask) = (self.engine.clients.check(raw.client)?, codec::offload::commit(raw)?);
        let committed = self.engine.commit_offload(client, &ask).await?;
        Ok(Response::new(codec::offload::committed(committed)))
    }

    async fn abort_offload(
        &self,
        request: Request<wire::AbortOffloadRequest>,
    ) -> Answer<wire::AbortOffloadReply> {
        let raw = request.get_ref();
        self.engine.abort_offload(self.engine.clients.check(raw.client)?, LeaseId(raw.lease))?;
        Ok(Response::new(wire::AbortOffloadReply {}))
    }

    type BeginReloadStream = ReceiverStream<Result<wire::BeginReloadReply, Status>>;

    async fn begin_reload(
        &self,
        request: Request<wire::BeginReloadRequest>,
    ) -> Answer<Self::BeginReloadStream> {
        let raw = request.get_ref();
        let (client, ask) = (self.engine.clients.check(raw.client)?, codec::reload::begin(raw)?);
        let mut run = self.engine.begin_reload(client, &ask).await?;
        let (tell, told) = mpsc::channel(STREAM_QUEUE_MAX);
        tokio::spawn(async move {
            let mut reply = codec::reload::begun(&mut run);
            // A caller that left stops the stream; its lease ends by EndReload or by its deadline.
            while tell.send(Ok(reply)).await.is_ok() && !run.is_done() {
                tokio::select! {
                    () = run.wait() => {}
                    () = tell.closed() => return,
                }
                reply = codec::reload::landed(&mut run);
            }
        });
        Ok(Response::new(ReceiverStream::new(told)))
    }

    async fn end_reload(&self, request: Request<wire::EndReloadRequest>) -> Answer<wire::EndReloadReply> {
        let raw = request.into_inner();
        self.engine.end_reload(self.engine.clients.check(raw.client)?, &codec::reload::end(raw)?)?;
        Ok(Response::new(wire::EndReloadReply {}))
    }
}

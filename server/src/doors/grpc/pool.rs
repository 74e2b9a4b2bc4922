//! The Pool service less its inline streams: one method a verb, each decode -> ask -> act -> reply. Owns: nothing else. Must not
//! know: the pool.

use super::reply::{Answer, blocking, guest_of};
use crate::doors::codec;
use crate::doors::inline::caller_of;
use crate::engine::Engine;
use crate::engine::clients::InlineCaller;
use crate::limits::STREAM_QUEUE_MAX;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use turnkv_pool::{ClientId, LeaseId};
use turnkv_proto::{Error, wire};
use wire::unary::pool_server::Pool;

/// The service.
pub(crate) struct PoolService {
    pub(crate) engine: Arc<Engine>,
}

impl PoolService {
    /// The client that a request names, which must be that of the process that asks.
    fn client_of<T>(&self, request: &Request<T>, named: u64) -> Result<ClientId, Error> {
        let caller = request.extensions().get().map_or(InlineCaller::Unknown, caller_of);
        self.engine.clients.own(named, caller)
    }
}

#[tonic::async_trait]
impl Pool for PoolService {
    async fn open_namespace(
        &self,
        request: Request<wire::OpenNamespaceRequest>,
    ) -> Answer<wire::OpenNamespaceReply> {
        let guest = guest_of(&request)?;
        let raw = request.into_inner().spec.unwrap_or_default();
        let engine = Arc::clone(&self.engine);
        // A new namespace is written to the catalog, durably: not on an async thread.
        blocking(move || {
            let spec = codec::namespace::spec(&raw, &guest)?;
            engine.open_namespace(&spec)?;
            Ok(codec::namespace::opened(&spec))
        })
        .await
    }

    async fn lookup(&self, request: Request<wire::LookupRequest>) -> Answer<wire::LookupReply> {
        let ask = codec::lookup::ask(request.get_ref(), &guest_of(&request)?)?;
        let wants_posts = self.engine.find_prefix(&ask).await;
        let found = self.engine.lookup(&ask)?;
        Ok(Response::new(codec::lookup::reply(found, wants_posts)))
    }

    async fn begin_offload(
        &self,
        request: Request<wire::BeginOffloadRequest>,
    ) -> Answer<wire::BeginOffloadReply> {
        let raw = request.get_ref();
        let (client, ask) =
            (self.client_of(&request, raw.client)?, codec::offload::begin(raw, &guest_of(&request)?)?);
        let begun = self.engine.begin_offload(client, &ask).await?;
        Ok(Response::new(codec::offload::begun(begun)))
    }

    async fn commit_offload(
        &self,
        request: Request<wire::CommitOffloadRequest>,
    ) -> Answer<wire::CommitOffloadReply> {
        let raw = request.get_ref();
        let (client, ask) = (self.client_of(&request, raw.client)?, codec::offload::commit(raw)?);
        let committed = self.engine.commit_offload(client, &ask).await?;
        Ok(Response::new(codec::offload::committed(committed)))
    }

    async fn abort_offload(
        &self,
        request: Request<wire::AbortOffloadRequest>,
    ) -> Answer<wire::AbortOffloadReply> {
        let raw = request.get_ref();
        self.engine.abort_offload(self.client_of(&request, raw.client)?, LeaseId(raw.lease))?;
        Ok(Response::new(wire::AbortOffloadReply {}))
    }

    type BeginReloadStream = ReceiverStream<Result<wire::BeginReloadReply, Status>>;

    async fn begin_reload(
        &self,
        request: Request<wire::BeginReloadRequest>,
    ) -> Answer<Self::BeginReloadStream> {
        let raw = request.get_ref();
        let (client, ask) =
            (self.client_of(&request, raw.client)?, codec::reload::begin(raw, &guest_of(&request)?)?);
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
        let client = self.client_of(&request, request.get_ref().client)?;
        self.engine.end_reload(client, &codec::reload::end(request.into_inner())?)?;
        Ok(Response::new(wire::EndReloadReply {}))
    }
}

//! The Admin service: one method a verb. Owns: nothing else. Must not know: the pool.

use crate::engine::Engine;
use std::sync::Arc;
use tonic::{Request, Response, Status};
use turnkv_proto::wire;
use wire::admin_server::Admin;

/// The service.
pub(crate) struct AdminService {
    pub(crate) engine: Arc<Engine>,
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn stats(&self, _: Request<wire::StatsRequest>) -> Result<Response<wire::StatsReply>, Status> {
        Ok(Response::new(self.engine.stats()))
    }

    async fn drain(&self, _: Request<wire::DrainRequest>) -> Result<Response<wire::DrainReply>, Status> {
        Ok(Response::new(wire::DrainReply { dirty_bytes: self.engine.drain() }))
    }

    async fn evict(
        &self,
        request: Request<wire::EvictRequest>,
    ) -> Result<Response<wire::EvictReply>, Status> {
        Ok(Response::new(self.engine.evict(request.get_ref())?))
    }
}

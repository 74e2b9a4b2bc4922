//! The Admin service: one method a verb. Owns: nothing else. Must not know: the pool.

use super::reply::{Answer, blocking, guest_of};
use crate::connections::Door;
use crate::connections::asking::Asking;
use crate::doors::codec;
use crate::engine::Engine;
use crate::engine::recorder::{Recorded, Recording};
use crate::upgrade::asked::Upgrades;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};
use turnkv_proto::{Error, wire};
use wire::admin_server::Admin;

/// The service.
pub(crate) struct AdminService {
    pub(crate) engine: Arc<Engine>,
    pub(crate) upgrades: Arc<Upgrades>,
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn stats(&self, _: Request<wire::StatsRequest>) -> Answer<wire::StatsReply> {
        let notes = self.engine.settings.exposed().into_iter().chain(self.engine.settings_note());
        let notes = notes.chain(self.upgrades.note()).chain(self.engine.unkept()).collect();
        Ok(Response::new(codec::stats::reply(self.engine.stats(), notes)))
    }

    async fn drain(&self, _: Request<wire::DrainRequest>) -> Answer<wire::DrainReply> {
        let engine = Arc::clone(&self.engine);
        blocking(move || Ok(wire::DrainReply { dirty_bytes: engine.drain() })).await
    }

    async fn resume(&self, _: Request<wire::ResumeRequest>) -> Answer<wire::ResumeReply> {
        Ok(Response::new(wire::ResumeReply { drained: self.engine.resume()? }))
    }

    async fn resize(&self, request: Request<wire::ResizeRequest>) -> Answer<wire::ResizeReply> {
        let (engine, bytes) = (Arc::clone(&self.engine), request.get_ref().dram_bytes);
        blocking(move || {
            let report = if bytes == 0 { engine.resize_report() } else { engine.resize_dram(bytes)? };
            Ok(codec::stats::resized(report))
        })
        .await
    }

    async fn upgrade(&self, request: Request<wire::UpgradeRequest>) -> Answer<wire::UpgradeReply> {
        let is_here = request.extensions().get::<Asking>().is_some_and(|asking| asking.door() == Door::Unix);
        let wire::UpgradeRequest { binary, look } = request.into_inner();
        if !binary.is_empty() && !is_here {
            let text = "which program runs on a host is said on that host: ask through the Unix socket, or name none";
            return Err(Error::invalid(text).into());
        }
        let (upgrades, instance) = (Arc::clone(&self.upgrades), self.engine.instance);
        blocking(move || {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            if look {
                let failed = upgrades.look()?;
                return Ok(wire::UpgradeReply { instance, version, failed, ..Default::default() });
            }
            let binary = Some(PathBuf::from(binary)).filter(|path| !path.as_os_str().is_empty());
            let program = upgrades.begin(binary.as_deref())?;
            let (next, note) = (program.version, program.note);
            Ok(wire::UpgradeReply { instance, version, next, note, ..Default::default() })
        })
        .await
    }

    async fn evict(&self, request: Request<wire::EvictRequest>) -> Answer<wire::EvictReply> {
        let raw = request.get_ref();
        let (namespace, from) =
            (guest_of(&request)?.optional_namespace(&raw.namespace)?, codec::stats::evict_from(raw)?);
        let engine = Arc::clone(&self.engine);
        blocking(move || Ok(wire::EvictReply { pages: engine.evict(namespace.as_ref(), from)? })).await
    }

    async fn size_advice(&self, request: Request<wire::SizeAdviceRequest>) -> Answer<wire::SizeAdviceReply> {
        let advised =
            self.engine.size_advice(&codec::advice::ask(request.get_ref(), &guest_of(&request)?)?)?;
        Ok(Response::new(codec::advice::reply(advised)))
    }

    async fn report_prefill(
        &self,
        request: Request<wire::ReportPrefillRequest>,
    ) -> Answer<wire::ReportPrefillReply> {
        let raw = request.get_ref();
        let namespace = guest_of(&request)?.namespace(&raw.namespace)?;
        self.engine.report_prefill(&namespace, raw.tokens, raw.micros)?;
        Ok(Response::new(wire::ReportPrefillReply {}))
    }

    type RecordStream = Pin<Box<dyn Stream<Item = Result<wire::RecordedCall, Status>> + Send>>;

    async fn record(&self, request: Request<wire::RecordRequest>) -> Answer<Self::RecordStream> {
        let namespace = guest_of(&request)?.optional_namespace(&request.get_ref().namespace)?;
        let Recording { calls, queued_blocks } = self.engine.record(namespace.as_ref())?;
        let taken = move |call: Recorded| {
            queued_blocks.fetch_sub(call.blocks.len() as u64, Ordering::Relaxed);
            Ok(codec::record::call(call))
        };
        Ok(Response::new(Box::pin(ReceiverStream::new(calls).map(taken))))
    }
}

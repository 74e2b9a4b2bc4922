//! The verbs of a simulated server. Owns: what a simulated client may call. Must not know: when the simulator calls it.

use super::Server;
use crate::engine::reload::ReloadRun;
use std::sync::Arc;
use std::time::Duration;
use turnkv_proto::{Error, wire};
use turnkv_transfer::Region;

/// A reload under way.
pub struct Reload(ReloadRun);

/// The verbs, by the messages of the wire, as the doors call them.
#[allow(clippy::missing_errors_doc, reason = "each is refused as its verb is on the wire")]
impl Server {
    /// Opens a namespace.
    pub fn open_namespace(&self, ask: &wire::NamespaceSpec) -> Result<wire::OpenNamespaceReply, Error> {
        self.engine.open_namespace(ask)
    }

    /// How many leading pages are there.
    pub fn lookup(&self, ask: &wire::LookupRequest) -> Result<wire::LookupReply, Error> {
        self.engine.lookup(ask)
    }

    /// Asks for slots.
    pub async fn begin_offload(
        &self,
        ask: &wire::BeginOffloadRequest,
    ) -> Result<wire::BeginOffloadReply, Error> {
        self.engine.begin_offload(ask).await
    }

    /// Makes filled pages visible.
    pub async fn commit_offload(
        &self,
        ask: &wire::CommitOffloadRequest,
    ) -> Result<wire::CommitOffloadReply, Error> {
        self.engine.commit_offload(ask).await
    }

    /// Gives slots back.
    pub fn abort_offload(&self, ask: &wire::AbortOffloadRequest) -> Result<(), Error> {
        self.engine.abort_offload(ask)
    }

    /// The reader is done.
    pub fn end_reload(&self, ask: &wire::EndReloadRequest) -> Result<(), Error> {
        self.engine.end_reload(ask)
    }

    /// Asks for slots to be written in place.
    pub fn reserve(&self, ask: &wire::ReserveRequest) -> Result<wire::ReserveReply, Error> {
        self.engine.reserve(ask)
    }

    /// Holds leases.
    pub fn renew(&self, ask: &wire::RenewRequest) -> Result<wire::RenewReply, Error> {
        self.engine.renew(ask)
    }

    /// Lets go of mapped slots.
    pub fn release(&self, ask: &wire::ReleaseRequest) -> Result<(), Error> {
        self.engine.release(ask)
    }

    /// A turn begins.
    pub fn begin_turn(&self, ask: &wire::BeginTurnRequest) -> Result<wire::BeginTurnReply, Error> {
        self.engine.begin_turn(ask)
    }

    /// A turn ends.
    pub fn end_turn(&self, ask: &wire::EndTurnRequest) -> Result<wire::EndTurnReply, Error> {
        self.engine.end_turn(ask)
    }

    /// A session with the pages of another.
    pub fn fork(&self, ask: &wire::ForkRequest) -> Result<wire::ForkReply, Error> {
        self.engine.fork(ask)
    }

    /// A branch is over.
    pub fn supersede(&self, ask: &wire::SupersedeRequest) -> Result<wire::SupersedeReply, Error> {
        self.engine.supersede(ask)
    }

    /// A session is over.
    pub fn close(&self, ask: &wire::CloseRequest) -> Result<(), Error> {
        self.engine.close(ask)
    }

    /// The sessions known.
    pub fn list_sessions(&self, ask: &wire::ListRequest) -> Result<wire::ListReply, Error> {
        self.engine.list_sessions(ask)
    }

    /// All that is known of one session.
    pub fn describe_session(&self, ask: &wire::DescribeRequest) -> Result<wire::DescribeReply, Error> {
        self.engine.describe_session(ask)
    }

    /// Protects a prefix.
    pub fn pin(&self, ask: &wire::PinRequest) -> Result<wire::PinReply, Error> {
        self.engine.pin(ask)
    }

    /// Ends a pin.
    pub fn unpin(&self, ask: &wire::UnpinRequest) -> Result<wire::UnpinReply, Error> {
        self.engine.unpin(ask)
    }

    /// Pages into DRAM ahead of need.
    pub fn prefetch(&self, ask: &wire::PrefetchRequest) -> Result<wire::PrefetchReply, Error> {
        self.engine.prefetch(ask)
    }

    /// Which engine should run a turn.
    pub fn route(&self, ask: &wire::RouteRequest) -> Result<wire::RouteReply, Error> {
        self.engine.route(ask)
    }

    /// Drops pages by command.
    pub fn evict(&self, ask: &wire::EvictRequest) -> Result<wire::EvictReply, Error> {
        self.engine.evict(ask)
    }

    /// Makes pages in reserved slots visible; waits where they are to be durable.
    pub async fn commit_reserved(
        &self,
        ask: &wire::CommitReservedRequest,
    ) -> Result<wire::CommitReservedReply, Error> {
        let (mut reply, kept) = self.engine.commit_reserved(ask)?;
        if ask.durable {
            self.engine.reserved_durable(ask, &mut reply, &kept).await;
        } else {
            self.engine.pump_writes();
        }
        Ok(reply)
    }

    /// Asks for pages to be read.
    pub async fn begin_reload(&self, ask: &wire::BeginReloadRequest) -> Result<Reload, Error> {
        self.engine.begin_reload(ask).await.map(Reload)
    }

    /// The memory of a slab, for a client to map.
    pub fn attach_slab(&self, namespace: &[u8], slab: u32, generation: u32) -> Result<Arc<Region>, Error> {
        self.engine.attach_slab(namespace, slab, generation)
    }

    /// What the server says of itself.
    pub fn stats(&self) -> wire::StatsReply {
        self.engine.stats()
    }
}

impl Reload {
    /// The lease on what is read; 0: none.
    pub fn lease(&self) -> u64 {
        self.0.lease
    }

    /// How long the reader may take.
    pub fn lease_time(&self) -> Duration {
        Duration::from_millis(self.0.lease_ms.into())
    }

    /// How many pages of the request this covers.
    pub fn covered(&self) -> u32 {
        self.0.covered
    }

    /// The next pages that are in their slots; none once all were given.
    pub async fn next(&mut self) -> Option<Vec<wire::ReloadedPage>> {
        loop {
            let ready = self.0.take_ready();
            if !ready.is_empty() {
                return Some(ready);
            }
            if self.0.is_done() {
                return None;
            }
            self.0.wait().await;
        }
    }
}

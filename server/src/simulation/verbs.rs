//! The verbs of a simulated server. Owns: what a simulated client may call. Must not know: when the simulator calls it.
//!
//! They take the wire's messages through the doors' own codec: what is simulated is what a door does, but for its sockets.

use super::Server;
use crate::doors::codec;
use crate::engine::reload::ReloadRun;
use std::sync::Arc;
use std::time::Duration;
use turnkv_pool::LeaseId;
use turnkv_proto::{Error, wire};
use turnkv_transfer::Region;

/// A reload under way.
pub struct Reload(ReloadRun);

/// The verbs, by the messages of the wire, as the doors call them.
#[allow(clippy::missing_errors_doc, reason = "each is refused as its verb is on the wire")]
impl Server {
    /// Opens a namespace.
    pub fn open_namespace(&self, raw: &wire::NamespaceSpec) -> Result<wire::OpenNamespaceReply, Error> {
        let spec = codec::namespace::spec(raw, &self.guest)?;
        self.engine.open_namespace(&spec)?;
        Ok(codec::namespace::opened(&spec))
    }

    /// How many leading pages are there.
    pub fn lookup(&self, raw: &wire::LookupRequest) -> Result<wire::LookupReply, Error> {
        Ok(codec::lookup::reply(self.engine.lookup(&codec::lookup::ask(raw, &self.guest)?)?, false))
    }

    /// Asks for slots.
    pub async fn begin_offload(
        &self,
        raw: &wire::BeginOffloadRequest,
    ) -> Result<wire::BeginOffloadReply, Error> {
        let (client, ask) =
            (self.engine.clients.check(raw.client)?, codec::offload::begin(raw, &self.guest)?);
        Ok(codec::offload::begun(self.engine.begin_offload(client, &ask).await?))
    }

    /// Makes filled pages visible.
    pub async fn commit_offload(
        &self,
        raw: &wire::CommitOffloadRequest,
    ) -> Result<wire::CommitOffloadReply, Error> {
        let (client, ask) = (self.engine.clients.check(raw.client)?, codec::offload::commit(raw)?);
        Ok(codec::offload::committed(self.engine.commit_offload(client, &ask).await?))
    }

    /// Gives slots back.
    pub fn abort_offload(&self, raw: &wire::AbortOffloadRequest) -> Result<(), Error> {
        self.engine.abort_offload(self.engine.clients.check(raw.client)?, LeaseId(raw.lease))
    }

    /// The reader is done.
    pub fn end_reload(&self, raw: &wire::EndReloadRequest) -> Result<(), Error> {
        self.engine.end_reload(self.engine.clients.check(raw.client)?, &codec::reload::end(raw.clone())?)
    }

    /// Asks for slots to be written in place.
    pub fn reserve(&self, raw: &wire::ReserveRequest) -> Result<wire::ReserveReply, Error> {
        let (client, ask) = (self.engine.clients.check(raw.client)?, codec::held::reserve(raw, &self.guest)?);
        Ok(codec::held::reserved(&self.engine.reserve(client, &ask)?))
    }

    /// Holds leases.
    pub fn renew(&self, raw: &wire::RenewRequest) -> Result<wire::RenewReply, Error> {
        let (client, leases) = (self.engine.clients.check(raw.client)?, codec::held::renew(raw)?);
        Ok(codec::held::renewed(self.engine.renew(client, &leases)))
    }

    /// Lets go of mapped slots.
    pub fn release(&self, raw: &wire::ReleaseRequest) -> Result<(), Error> {
        self.engine.release(self.engine.clients.check(raw.client)?, &codec::held::release(raw.clone())?)
    }

    /// A turn begins.
    pub fn begin_turn(&self, raw: &wire::BeginTurnRequest) -> Result<wire::BeginTurnReply, Error> {
        let begun = self.engine.begin_turn(&codec::sessions::begin_turn(raw, &self.guest)?)?;
        Ok(codec::sessions::turn_begun(begun))
    }

    /// A turn ends.
    pub fn end_turn(&self, raw: &wire::EndTurnRequest) -> Result<wire::EndTurnReply, Error> {
        Ok(codec::sessions::turn_ended(self.engine.end_turn(&codec::sessions::end_turn(raw, &self.guest)?)?))
    }

    /// A session with the pages of another.
    pub fn fork(&self, raw: &wire::ForkRequest) -> Result<wire::ForkReply, Error> {
        let (of, fork) = codec::sessions::fork(raw, &self.guest)?;
        Ok(wire::ForkReply { pages: self.engine.fork(&of, &fork, raw.pages)? })
    }

    /// A branch is over.
    pub fn supersede(&self, raw: &wire::SupersedeRequest) -> Result<wire::SupersedeReply, Error> {
        let pages = self
            .engine
            .supersede(&codec::sessions::key(&raw.namespace, &raw.session, &self.guest)?, raw.keep)?;
        Ok(wire::SupersedeReply { pages })
    }

    /// A session is over.
    pub fn close(&self, raw: &wire::CloseRequest) -> Result<(), Error> {
        let of = codec::sessions::key(&raw.namespace, &raw.session, &self.guest)?;
        self.engine.close(&of, raw.archive).map(drop)
    }

    /// The sessions known.
    pub fn list_sessions(&self, raw: &wire::ListRequest) -> Result<wire::ListReply, Error> {
        Ok(codec::sessions::listed(self.engine.list_sessions(&codec::sessions::list(raw, &self.guest)?)?))
    }

    /// All that is known of one session.
    pub fn describe_session(&self, raw: &wire::DescribeRequest) -> Result<wire::DescribeReply, Error> {
        let described = self.engine.describe_session(&codec::sessions::key(
            &raw.namespace,
            &raw.session,
            &self.guest,
        )?)?;
        Ok(codec::sessions::described(raw.namespace.clone(), described))
    }

    /// Protects a prefix.
    pub fn pin(&self, raw: &wire::PinRequest) -> Result<wire::PinReply, Error> {
        Ok(codec::pin::pinned(self.engine.pin(&codec::pin::pin(raw, &self.guest)?)?, None))
    }

    /// Ends a pin.
    pub fn unpin(&self, raw: &wire::UnpinRequest) -> Result<wire::UnpinReply, Error> {
        Ok(wire::UnpinReply { found: self.engine.unpin(&codec::pin::unpin(raw, &self.guest)?)? })
    }

    /// Pages into DRAM ahead of need.
    pub fn prefetch(&self, raw: &wire::PrefetchRequest) -> Result<wire::PrefetchReply, Error> {
        Ok(codec::prefetch::reply(self.engine.prefetch(&codec::prefetch::ask(raw, &self.guest)?)?))
    }

    /// Which engine should run a turn.
    pub fn route(&self, raw: &wire::RouteRequest) -> Result<wire::RouteReply, Error> {
        let ask = codec::route::ask(raw, &self.guest)?;
        Ok(codec::route::reply(raw, self.engine.rank(&ask, &self.engine.look_at_engines(&ask)?)))
    }

    /// Drops pages by command.
    pub fn evict(&self, raw: &wire::EvictRequest) -> Result<wire::EvictReply, Error> {
        let (namespace, from) =
            (self.guest.optional_namespace(&raw.namespace)?, codec::stats::evict_from(raw)?);
        Ok(wire::EvictReply { pages: self.engine.evict(namespace.as_ref(), from)? })
    }

    /// Makes pages in reserved slots visible; waits where they are to be durable.
    pub async fn commit_reserved(
        &self,
        raw: &wire::CommitReservedRequest,
    ) -> Result<wire::CommitReservedReply, Error> {
        let (client, ask) = (self.engine.clients.check(raw.client)?, codec::held::commit(raw, &self.guest)?);
        let (committed, later) = self.engine.commit_reserved(client, &ask)?;
        drop(later);
        let mut durable = None;
        if ask.durable {
            durable = Some(self.engine.reserved_durable(&ask, &committed).await);
        }
        Ok(codec::held::committed(&committed.outcomes, durable))
    }

    /// Asks for pages to be read.
    pub async fn begin_reload(&self, raw: &wire::BeginReloadRequest) -> Result<Reload, Error> {
        let (client, ask) = (self.engine.clients.check(raw.client)?, codec::reload::begin(raw, &self.guest)?);
        self.engine.begin_reload(client, &ask).await.map(Reload)
    }

    /// The memory of a slab, for a client to map.
    pub fn attach_slab(&self, namespace: &[u8], slab: u32, generation: u32) -> Result<Arc<Region>, Error> {
        self.engine.attach_slab(&self.guest.namespace(namespace)?, slab, generation)
    }

    /// What the server says of itself.
    pub fn stats(&self) -> wire::StatsReply {
        codec::stats::reply(self.engine.stats(), Vec::new())
    }
}

impl Reload {
    /// The lease on what is read; 0: none.
    pub fn lease(&self) -> u64 {
        self.0.lease.map_or(0, |lease| lease.0)
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
            let ready = codec::reload::landed(&mut self.0).pages;
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

//! The client: one pool or the members of a cluster, lazily connected, shared by clones. Owns: its public face, the operator's verbs.
//! Must not know: pages.

use crate::breaker::BreakerState;
use crate::config::{ClientConfig, ConfigError};
use crate::error::{Error, Result};
use crate::framed::DeviceWay;
use crate::grpc;
use crate::members::Members;
use crate::namespace::Namespace;
use crate::session::{SessionList, session_list};
use std::sync::Arc;
use std::time::Duration;
use turnkv_proto::wire;
use turnkv_proto::{NamespaceId, Spec};
use turnkv_transfer::fabric::Engine as Fabric;

pub use turnkv_proto::wire::{StatsReply, TierKind, TierStats};

/// One pool, or the members of a cluster as one. Connects when it is first used; clones share connections, breakers and mappings.
#[derive(Debug, Clone)]
pub struct Client {
    members: Arc<Members>,
}

/// What a client knows about its pool, without asking it. With several members: about the one that is asked where nothing names a
/// session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientState {
    /// Where it looks for the server.
    pub address: String,
    /// Members that are known to be in the cluster; 0: no list was given, or nobody has told yet.
    pub members: usize,
    /// What the breaker does with calls.
    pub breaker: BreakerState,
    /// The server's version, empty before the first local connection.
    pub server_version: String,
    /// The server process; another number means it restarted. 0 before the first local connection.
    pub instance: u64,
    /// Connections that speak frames, local or over a network, at rest.
    pub idle_connections: usize,
    /// Slabs mapped into this process.
    pub mapped_slabs: usize,
    /// Data rails to the server that are open, where pages travel over a network.
    pub data_rails: usize,
    /// The fastest fabric that they are of: what pages travel by, once both ends know the memory.
    pub fabric: Option<Fabric>,
    /// Why pages go by no NIC, where one could be used; empty if nothing is known of that.
    pub fabric_note: String,
    /// How the pages of the last call of a device cross the network: directly, by dma-buf, or through memory of this host, and why. None:
    /// there was no such call.
    pub device_way: Option<DeviceWay>,
    /// Memory of dropped calls that stays with a NIC's library until its rails end, bytes.
    pub quarantined_bytes: usize,
}

impl Client {
    /// A client of the pool that `config` names. Checks the settings; connects nothing yet.
    pub fn new(config: ClientConfig) -> Result<Client, ConfigError> {
        Ok(Client { members: Arc::new(Members::new(config)?) })
    }

    /// Opens a namespace: says what its pages look like.
    pub async fn open_namespace(&self, spec: Spec) -> Result<Namespace> {
        self.open_namespace_within(spec, None).await
    }

    /// The same by a deadline of its own, as a call sets one (none: the client's `call_ms`); a private pool has its time to start beside
    /// that.
    pub async fn open_namespace_within(&self, spec: Spec, within: Option<Duration>) -> Result<Namespace> {
        let namespace = Namespace::new(Arc::clone(&self.members), spec.check()?);
        let deadline = namespace.link.starting_deadline(within);
        let mut tries = namespace.tries(None);
        loop {
            match tries.at().open_first(tries.share(deadline)).await {
                Ok(()) => return Ok(namespace),
                Err(error) if tries.go_on(&error, deadline) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The pool's counters and gauges.
    pub async fn stats(&self) -> Result<StatsReply> {
        let link = self.members.usual();
        let call = link.admit()?;
        let ask = |channel| async move { grpc::admin(channel).stats(wire::StatsRequest {}).await };
        call.end(link.rpc(link.deadline(None), ask).await)
    }

    /// Asks the server to take nothing more and to write what it has. Returns the bytes still to be written.
    pub async fn drain(&self) -> Result<u64> {
        let link = self.members.usual();
        let call = link.admit()?;
        let ask = |channel| async move { grpc::admin(channel).drain(wire::DrainRequest {}).await };
        Ok(call.end(link.rpc(link.deadline(None), ask).await)?.dirty_bytes)
    }

    /// Takes a drain back: the server takes pages again. Returns whether there was one.
    pub async fn resume(&self) -> Result<bool> {
        let link = self.members.usual();
        let call = link.admit()?;
        let ask = |channel| async move { grpc::admin(channel).resume(wire::ResumeRequest {}).await };
        Ok(call.end(link.rpc(link.deadline(None), ask).await)?.drained)
    }

    /// Drops pages, of one namespace or all. [`TierKind::Dram`]: only from DRAM, where they are on NVMe.
    /// Returns how many.
    pub async fn evict(&self, namespace: Option<NamespaceId>, tier: Option<TierKind>) -> Result<u64> {
        let link = self.members.usual();
        let call = link.admit()?;
        let namespace = namespace.map(|id| id.0.to_vec()).unwrap_or_default();
        let request =
            wire::EvictRequest { namespace: namespace.into(), tier: tier.unwrap_or_default() as i32 };
        let ask = |channel| {
            let request = request.clone();
            async move { grpc::admin(channel).evict(request).await }
        };
        Ok(call.end(link.rpc(link.deadline(None), ask).await)?.pages)
    }

    /// Sessions that the pool knows, of one namespace or all, at most `limit` (0: the server's bound).
    pub async fn sessions(&self, namespace: Option<NamespaceId>, limit: u32) -> Result<SessionList> {
        let link = self.members.usual();
        let call = link.admit()?;
        let namespace = namespace.map(|id| id.0.to_vec()).unwrap_or_default();
        let request = wire::ListRequest { namespace: namespace.into(), limit };
        let ask = |channel| {
            let request = request.clone();
            async move { grpc::sessions(channel).list(request).await }
        };
        let listed = call.end(link.rpc(link.deadline(None), ask).await)?;
        session_list(listed).map_err(Error::protocol)
    }

    /// What this client knows about its pool, without asking it.
    pub fn state(&self) -> ClientState {
        let link = self.members.usual();
        let framed = link.framed.as_ref();
        let local = link.local.as_ref().or(framed.map(|framed| &framed.control));
        let (server, idle_connections) = local.map(|local| local.server()).unwrap_or_default();
        let over_network = framed.map(|framed| framed.state()).unwrap_or_default();
        ClientState {
            address: link.address.to_string(),
            members: self.members.known(),
            breaker: link.breaker.lock().state(),
            server_version: server.version.to_string(),
            instance: server.instance,
            idle_connections,
            mapped_slabs: local.map_or(0, |local| local.slabs.count()),
            data_rails: over_network.rails,
            fabric: over_network.fabric,
            fabric_note: over_network.why_no_nic,
            device_way: over_network.device_way,
            quarantined_bytes: over_network.quarantined_bytes,
        }
    }
}

//! Clients on other hosts. Owns: who is connected so, and what is shown of all of them. Must not know: verbs, sockets.

use super::flights::Flights;
use super::inflight::{Inflight, PeersInflight, Shares};
use super::nics::{NicCounts, Nics};
use super::rails::Rails;
use super::secrets::Secrets;
use super::series::Series;
use crate::config::Settings;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use turnkv_pool::{ClientId, UserId};
use turnkv_transfer::Region;
use turnkv_transfer::fabric::{CompletionQueue, Direction, Engine};

/// All clients on other hosts, and what they share.
pub(crate) struct Remotes {
    pub(super) flights: Flights,
    pub(super) series: Series,
    /// What all of them together have in flight.
    pub(super) all: Inflight,
    client_bytes_max: u64,
    pub(super) nics: Nics,
    /// Fabrics that clients may use.
    pub(super) fabrics: Vec<Engine>,
    /// Names the next rail over a NIC; never 0.
    pub(super) next_rail: AtomicU64,
    pub(super) known: Mutex<Known>,
}

pub(super) struct Known {
    pub(super) clients: HashMap<ClientId, Arc<RemoteClient>>,
    /// What each peer of these may have in flight.
    peers: PeersInflight,
    /// Rails that clients may join.
    pub(super) secrets: Secrets,
}

/// One client: all connections of one process.
pub(crate) struct RemoteClient {
    /// Names its leases.
    pub(crate) id: ClientId,
    /// Who shares with its other clients.
    pub(super) peer: UserId,
    pub(super) rails: Rails,
    pub(super) inflight: Shares,
}

impl RemoteClient {
    /// Its pages go in frames only.
    pub(in crate::engine) fn has_no_nic(&self) -> bool {
        self.rails.are_framed()
    }
}

/// What there is of one fabric.
pub(crate) struct FabricReport {
    /// Which one.
    pub(crate) engine: Engine,
    /// Rails of clients that are open.
    pub(crate) rails: usize,
    /// Bytes of pages read from other hosts.
    pub(crate) read_bytes: u64,
    /// Bytes of pages written to them.
    pub(crate) written_bytes: u64,
    /// The NICs, as people call them; framed has none of its own.
    pub(crate) nics: Vec<String>,
    /// What these have, together.
    pub(crate) counts: NicCounts,
}

impl Remotes {
    /// So many bytes of a page leave with an answer, or came with a request.
    pub(in crate::engine) fn carried(&self, direction: Direction, bytes: usize) {
        self.series.moved(Engine::Framed, direction, bytes as u64);
    }

    /// Nobody is connected yet. `nics`: those by which pages may go.
    pub(in crate::engine) fn new(settings: &Settings, nics: Nics) -> Remotes {
        let (all, own) =
            (settings.limits.remote_inflight_bytes, settings.limits.remote_client_inflight_bytes);
        Remotes {
            flights: Flights::new(),
            series: Series::new(all, own),
            all: Inflight::new(all),
            client_bytes_max: own,
            nics,
            fabrics: settings.remote.fabrics.clone(),
            next_rail: AtomicU64::new(1),
            known: Mutex::new(Known {
                clients: HashMap::new(),
                peers: PeersInflight::new(all),
                secrets: Secrets::default(),
            }),
        }
    }

    /// Where the completions of rails go.
    pub(crate) fn completions(&self) -> &Arc<CompletionQueue> {
        &self.flights.completions
    }

    /// Lets go of rails that have ended. Called about twice a second.
    pub(crate) fn sweep(&self) {
        let clients: Vec<Arc<RemoteClient>> = self.known.lock().clients.values().cloned().collect();
        for client in clients {
            client.rails.sweep();
        }
    }

    /// The client of this number, if it is connected.
    pub(in crate::engine) fn find(&self, client: ClientId) -> Option<Arc<RemoteClient>> {
        self.known.lock().clients.get(&client).cloned()
    }

    /// A client that said Hello for the first time.
    pub(in crate::engine) fn add(&self, id: ClientId, peer: UserId) -> Arc<RemoteClient> {
        let mut known = self.known.lock();
        let own = Inflight::new(self.client_bytes_max);
        let inflight = Shares { own, peer: known.peers.of(peer), all: self.all.clone() };
        let client = Arc::new(RemoteClient { id, peer, rails: Rails::default(), inflight });
        known.clients.insert(id, Arc::clone(&client));
        client
    }

    /// Its last connection has ended, and its rails end with it.
    pub(in crate::engine) fn remove(&self, client: ClientId) {
        let left = self.known.lock().clients.remove(&client);
        if let Some(left) = left {
            left.rails.close();
        }
    }

    /// Waits for completions, at most so long, and tells the calls whose they are.
    pub(in crate::engine) fn land(&self, wait: Duration) {
        self.flights.land(wait);
    }

    /// A page did not arrive as it left.
    pub(in crate::engine) fn note_damaged(&self) {
        self.series.damaged_pages.increment(1);
    }

    /// Bytes in flight of all of them.
    #[cfg(test)]
    pub(in crate::engine) fn inflight_bytes(&self) -> u64 {
        self.all.bytes()
    }

    /// Brings the gauges up to date. `slabs`: so many have memory.
    pub(in crate::engine) fn refresh_gauges(&self, slabs: usize) {
        let (clients, peer_most) = {
            let known = self.known.lock();
            (known.clients.values().cloned().collect::<Vec<Arc<RemoteClient>>>(), known.peers.most_bytes())
        };
        let most = clients.iter().map(|client| client.inflight.own.bytes()).max().unwrap_or(0);
        for engine in Engine::ALL {
            let rails = clients.iter().map(|client| client.rails.count(engine)).sum();
            self.series.show(engine, rails, &self.nics.counts(engine, slabs));
        }
        self.series.inflight_bytes.set(self.all.bytes() as f64);
        self.series.client_inflight_bytes.set(most as f64);
        self.series.peer_inflight_bytes.set(peer_most as f64);
    }

    /// What each fabric has moved, and what its NICs have; one that only NICs could carry is there if one does. `slabs`: so many
    /// have memory.
    pub(in crate::engine) fn fabrics(&self, slabs: usize) -> Vec<FabricReport> {
        let clients: Vec<Arc<RemoteClient>> = self.known.lock().clients.values().cloned().collect();
        let report = |engine: Engine| FabricReport {
            engine,
            rails: clients.iter().map(|client| client.rails.count(engine)).sum(),
            read_bytes: self.series.moved_bytes(engine, Direction::Read),
            written_bytes: self.series.moved_bytes(engine, Direction::Write),
            nics: self.nics.of(engine).map(|(_, nic)| nic.name().to_owned()).collect(),
            counts: self.nics.counts(engine, slabs),
        };
        let usable = |engine: &Engine| *engine == Engine::Framed || self.nics.of(*engine).next().is_some();
        self.fabrics.iter().copied().filter(usable).map(report).collect()
    }

    /// A slab's memory is there: NICs may get to know it.
    pub(in crate::engine) fn attach(&self, slab: &Arc<Region>) {
        self.nics.attach(slab);
    }

    /// A slab's memory is about to go.
    pub(in crate::engine) fn detach(&self, slab: &Arc<Region>) {
        self.nics.detach(slab);
    }

    /// Ends every rail of everybody: the server leaves.
    pub(crate) fn close(&self) {
        let clients: Vec<Arc<RemoteClient>> = self.known.lock().clients.values().cloned().collect();
        for client in clients {
            client.rails.close();
        }
    }
}

//! Bytes in flight. Owns: what one client, all of one peer, and all of them together may have, and waiting for a part of it. Must
//! not know: rails, pages.
//!
//! A part is taken before a transfer is posted and given back when it has completed, so a client whose network is slow holds its
//! own share only, the clients of one peer (an address) leave some to those of others, and all of them leave the rest of the
//! host's memory bandwidth and sockets to local ones.

use crate::limits::PEER_PERCENT_MAX;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use turnkv_pool::UserId;

/// Bytes of one permit: a semaphore counts in 32 bits.
const UNIT_BYTES: u64 = 1 << 10;

/// What may be in flight of somebody.
#[derive(Debug, Clone)]
pub(super) struct Inflight {
    room: Arc<Semaphore>,
    units: u32,
}

/// The shares in which a client's transfers count, from the smallest to the largest: who waits in one holds nothing of the next.
#[derive(Debug)]
pub(super) struct Shares {
    pub(super) own: Inflight,
    pub(super) peer: Inflight,
    pub(super) all: Inflight,
}

/// A part of each share.
#[derive(Debug)]
pub(super) struct InflightPart {
    _own: OwnedSemaphorePermit,
    _peer: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// The shares of peers that have a client, or something in flight.
#[derive(Debug)]
pub(super) struct PeersInflight {
    bytes_max: u64,
    rooms: HashMap<UserId, Weak<Semaphore>>,
}

/// What one peer may have of so much.
pub(super) const fn peer_share(all: u64) -> u64 {
    all * PEER_PERCENT_MAX as u64 / 100
}

impl Inflight {
    /// So many bytes, none in flight.
    pub(super) fn new(bytes_max: u64) -> Inflight {
        let units = units(bytes_max);
        Inflight { room: Arc::new(Semaphore::new(units as usize)), units }
    }

    /// Bytes in flight now.
    pub(super) fn bytes(&self) -> u64 {
        (self.units as usize).saturating_sub(self.room.available_permits()) as u64 * UNIT_BYTES
    }

    /// A transfer larger than the share takes all of it.
    fn try_take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_many_owned(units(bytes).min(self.units)).ok()
    }

    async fn take(&self, bytes: u64) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.room).acquire_many_owned(units(bytes).min(self.units)).await
    }
}

impl Shares {
    /// A part for so many bytes, if there is room in each.
    pub(super) fn try_take(&self, bytes: u64) -> Option<InflightPart> {
        let (own, peer) = (self.own.try_take(bytes)?, self.peer.try_take(bytes)?);
        Some(InflightPart { _own: own, _peer: peer, _all: self.all.try_take(bytes)? })
    }

    /// The same, once there is room: those who wait come one after another.
    pub(super) async fn take(&self, bytes: u64) -> Result<InflightPart, AcquireError> {
        let (own, peer) = (self.own.take(bytes).await?, self.peer.take(bytes).await?);
        Ok(InflightPart { _own: own, _peer: peer, _all: self.all.take(bytes).await? })
    }
}

impl PeersInflight {
    /// Of so many bytes that all together may have; nobody is there.
    pub(super) fn new(all: u64) -> PeersInflight {
        PeersInflight { bytes_max: peer_share(all), rooms: HashMap::new() }
    }

    /// The share of a peer: one for all of its clients, also of those that left and have something in flight.
    pub(super) fn of(&mut self, peer: UserId) -> Inflight {
        self.rooms.retain(|_, room| room.strong_count() > 0);
        if let Some(room) = self.rooms.get(&peer).and_then(Weak::upgrade) {
            return Inflight { room, units: units(self.bytes_max) };
        }
        let fresh = Inflight::new(self.bytes_max);
        self.rooms.insert(peer, Arc::downgrade(&fresh.room));
        fresh
    }

    /// What the peer has that has most.
    pub(super) fn most_bytes(&self) -> u64 {
        let units = units(self.bytes_max);
        let rooms = self.rooms.values().filter_map(Weak::upgrade);
        rooms.map(|room| Inflight { room, units }.bytes()).max().unwrap_or(0)
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX >> 3)
}

#[cfg(test)]
mod tests {
    use super::{Inflight, PeersInflight, Shares};
    use turnkv_pool::UserId;

    /// A client of this peer, that may have so much.
    fn client(all: &Inflight, peers: &mut PeersInflight, peer: u64, bytes_max: u64) -> Shares {
        Shares { own: Inflight::new(bytes_max), peer: peers.of(UserId(peer)), all: all.clone() }
    }

    #[test]
    fn one_client_leaves_room_to_others_and_what_landed_comes_back() {
        let (all, mut peers) = (Inflight::new(10 << 20), PeersInflight::new(10 << 20));
        let (greedy, other) = (client(&all, &mut peers, 1, 6 << 20), client(&all, &mut peers, 2, 6 << 20));
        let first = greedy.try_take(4 << 20).unwrap();
        assert!(greedy.try_take(3 << 20).is_none(), "its share");
        let rest = greedy.try_take(2 << 20).unwrap();
        assert!(other.try_take(5 << 20).is_none(), "all together");
        assert_eq!((other.own.bytes(), all.bytes()), (0, 6 << 20), "what found no room is given back");
        let others = other.try_take(4 << 20).unwrap();
        drop((first, rest, others));
        assert_eq!((greedy.own.bytes(), greedy.peer.bytes(), all.bytes()), (0, 0, 0));
        let large = client(&all, &mut peers, 3, 64 << 20);
        let large = (large.try_take(64 << 20).unwrap(), large);
        assert_eq!((peers.most_bytes(), all.bytes()), (7 << 20 | 1 << 19, 10 << 20), "it flies alone");
        drop(large);
    }

    #[test]
    fn the_clients_of_one_peer_leave_room_to_those_of_others() {
        let (all, mut peers) = (Inflight::new(8 << 20), PeersInflight::new(8 << 20));
        let clients = [0; 4].map(|_| client(&all, &mut peers, 1, 2 << 20));
        let parts = clients.each_ref().map(|client| client.try_take(2 << 20));
        assert_eq!(parts.each_ref().map(Option::is_some), [true, true, true, false]);
        assert!(client(&all, &mut peers, 2, 2 << 20).try_take(2 << 20).is_some());
        drop(clients);
        assert!(
            client(&all, &mut peers, 1, 2 << 20).try_take(1 << 20).is_none(),
            "what left clients have counts"
        );
        drop(parts);
        assert!(client(&all, &mut peers, 1, 2 << 20).try_take(2 << 20).is_some());
        assert_eq!(peers.most_bytes(), 0);
    }

    #[tokio::test]
    async fn who_waits_gets_what_landed() {
        let (all, mut peers) = (Inflight::new(4 << 20), PeersInflight::new(4 << 20));
        let (one, other) = (client(&all, &mut peers, 1, 4 << 20), client(&all, &mut peers, 2, 4 << 20));
        let part = one.try_take(4 << 20).unwrap();
        let waiting = tokio::spawn(async move { other.take(1 << 20).await.is_ok() });
        tokio::task::yield_now().await;
        drop(part);
        assert!(waiting.await.unwrap());
    }
}

//! What one peer has of what all connections share, over all its connections. Owns: the counts, and what its share is. Must not
//! know: what is shared.

use super::door::Peer;
use crate::limits::{FRAME_UNIT_BYTES, GRPC_FRAMES_BYTES_MAX, PEER_PERCENT_MAX, PEERS_SPARE};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Semaphore;

/// One peer's part of each common room.
pub(crate) struct PeerUse {
    /// Bytes of requests that are not finished.
    pub(crate) unfinished_bytes: AtomicU64,
    /// Bytes of answers that it has not taken.
    pub(crate) unread_bytes: AtomicU64,
    /// Inline streams that are open.
    pub(crate) inline_streams: AtomicU64,
    /// Handshakes of TLS that are under way.
    pub(super) handshakes: AtomicU64,
    /// Room for its large HTTP/2 frames.
    pub(super) frames: Arc<Semaphore>,
}

/// Every peer that is connected.
#[derive(Default)]
pub(super) struct Peers(HashMap<Peer, Weak<PeerUse>>);

/// What one peer may have of so much.
pub(crate) const fn share_of(all: u64) -> u64 {
    all * PEER_PERCENT_MAX as u64 / 100
}

/// Takes some for a peer, if it stays within its share of `all`.
pub(crate) fn take(count: &AtomicU64, some: u64, all: u64) -> bool {
    let within = count.fetch_add(some, Ordering::Relaxed) + some <= share_of(all);
    if !within {
        count.fetch_sub(some, Ordering::Relaxed);
    }
    within
}

impl PeerUse {
    /// It has nothing.
    fn new() -> Arc<PeerUse> {
        let frames = share_of(GRPC_FRAMES_BYTES_MAX as u64) as usize / FRAME_UNIT_BYTES;
        Arc::new(PeerUse {
            unfinished_bytes: AtomicU64::new(0),
            unread_bytes: AtomicU64::new(0),
            inline_streams: AtomicU64::new(0),
            handshakes: AtomicU64::new(0),
            frames: Arc::new(Semaphore::new(frames)),
        })
    }
}

impl Peers {
    /// What a peer has that connects, when so many connections are open.
    pub(super) fn of(&mut self, peer: Peer, open: usize) -> Arc<PeerUse> {
        if let Some(known) = self.0.get(&peer).and_then(Weak::upgrade) {
            return known;
        }
        if self.0.len() > 2 * open + PEERS_SPARE {
            self.0.retain(|_, known| known.strong_count() > 0);
        }
        let fresh = PeerUse::new();
        self.0.insert(peer, Arc::downgrade(&fresh));
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::{Peers, share_of, take};
    use crate::connections::Peer;
    use crate::limits::PEERS_SPARE;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_share_is_kept_and_those_who_are_gone_are_forgotten() {
        let count = AtomicU64::new(0);
        assert!(take(&count, share_of(100), 100) && !take(&count, 1, 100));
        assert_eq!(count.load(Ordering::Relaxed), share_of(100));
        let mut peers = Peers::default();
        let kept = peers.of(Peer::User(0), 1);
        for user in 1..10_000 {
            drop(peers.of(Peer::User(user), 1));
        }
        assert!(peers.0.len() <= PEERS_SPARE + 3);
        assert!(Arc::ptr_eq(&kept, &peers.of(Peer::User(0), 1)));
    }
}

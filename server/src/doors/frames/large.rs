//! Memory for the large frames of a door. Owns: what each peer may have of it. Must not know: who reads the frames.

use crate::connections::Peer;
use crate::limits::{BURST_BYTES_MIN, PEER_PERCENT_MAX};
use metrics::{Gauge, gauge};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use turnkv_transfer::LargeFrames;

/// What all connections of a door may have.
pub(in crate::doors) struct LargeShares {
    all: Arc<LargeFrames>,
    /// Of these, what each peer may have.
    of_peers: Mutex<HashMap<Peer, Weak<LargeFrames>>>,
    arriving: Gauge,
}

impl LargeShares {
    /// So many bytes for the door of this name.
    pub(in crate::doors) fn new(door: &'static str, bytes_max: usize) -> LargeShares {
        gauge!("turnkv_frames_limit_bytes", "door" => door).set(bytes_max as f64);
        LargeShares {
            all: LargeFrames::new(bytes_max),
            of_peers: Mutex::default(),
            arriving: gauge!("turnkv_frames_arriving_bytes", "door" => door),
        }
    }

    /// Memory for the large frames of a peer's connections: however much some send, there is some for the next one.
    pub(in crate::doors) fn of(&self, peer: Peer) -> Arc<LargeFrames> {
        let mut peers = self.of_peers.lock();
        if let Some(known) = peers.get(&peer).and_then(Weak::upgrade) {
            return known;
        }
        peers.retain(|_, known| known.strong_count() > 0);
        let share = self.all.share(PEER_PERCENT_MAX);
        peers.insert(peer, Arc::downgrade(&share));
        share
    }

    /// Whether a burst of large frames has passed since the last look. Brings their gauge up to date.
    pub(in crate::doors) fn burst_has_passed(&self) -> bool {
        self.arriving.set(self.all.taken_bytes() as f64);
        self.all.burst_has_passed(BURST_BYTES_MIN as usize)
    }
}

//! Who goes where there is no room. Owns: the choice. Must not know: how a connection is ended.
//!
//! At a cap, the peer with most connections at that door loses the one that has been of least use: first those that never
//! asked anything, then those that have been idle for longest. Nobody loses one with a request in flight, or one that is so
//! young that its first request may be on its way.

use super::caps::Caps;
use super::door::{Door, Peer};
use super::table::OpenConnections;
use super::watch::Watch;
use crate::limits::{LEAVING_MAX, ROOM_IDLE_MS_MIN, ROOM_SILENT_MS_MIN};
use std::sync::Arc;

impl OpenConnections {
    /// The peer that must lose a connection before `peer` may have one more at a door; `None`: there is room.
    pub(super) fn tight(&self, door: Door, peer: Peer, caps: &Caps) -> Option<Peer> {
        if self.by_peer.get(&(door, peer)).copied().unwrap_or(0) >= caps.of_peer(door) {
            return Some(peer);
        }
        if self.by_door[door.at()] < caps.of(door) {
            return None;
        }
        let here = self.by_peer.iter().filter(|((at, _), _)| *at == door);
        here.max_by_key(|(_, count)| **count).map(|((_, peer), _)| *peer).or(Some(peer))
    }

    /// Takes a connection of a peer out of the count, to be ended by the caller. `None`: all are of use, or it is too early
    /// to look again.
    pub(super) fn make_room(&mut self, door: Door, peer: Peer, now: u64) -> Option<Arc<Watch>> {
        if self.leaving >= LEAVING_MAX || !self.may_look(door, now) {
            return None;
        }
        let candidates = self.open.values().filter(|watch| watch.door == door && watch.peer == peer);
        let least = candidates
            .filter(|watch| may_go(watch, now))
            .min_by_key(|watch| (watch.has_asked(), watch.quiet_since()));
        let victim = least.cloned()?;
        self.leave(&victim).then_some(victim)
    }
}

fn may_go(watch: &Watch, now: u64) -> bool {
    let quiet_ms = now.saturating_sub(watch.quiet_since());
    let least = if watch.has_asked() { ROOM_IDLE_MS_MIN } else { ROOM_SILENT_MS_MIN };
    !watch.is_leaving() && !watch.is_asking() && quiet_ms >= least
}

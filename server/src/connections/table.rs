//! All open connections: who has a place. Owns: the counts by door and by peer, the deadlines of silent and idle connections.
//! Must not know: what is spoken on a connection, who goes where there is no room (that is [`super::room`]).

use super::caps::Caps;
use super::cause::{Cause, Refusal, Refused};
use super::counters::Counters;
use super::door::{Door, Peer};
use super::frames::FrameMemory;
use super::peers::Peers;
use super::watch::Watch;
use crate::limits::{FIRST_REQUEST_MS_MAX, FRAME_MS_MAX, ROOM_PAUSE_MS, UNREAD_MS_MAX};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// All open connections.
pub(crate) struct Connections {
    caps: Caps,
    table: Mutex<OpenConnections>,
    /// Zero of the watches' clock.
    began: Instant,
    frames: Arc<FrameMemory>,
    counters: Counters,
}

/// Those that have a place, counted by door and peer.
#[derive(Default)]
pub(super) struct OpenConnections {
    next: u64,
    pub(super) open: HashMap<u64, Arc<Watch>>,
    pub(super) by_door: [usize; Door::ALL.len()],
    pub(super) by_peer: HashMap<(Door, Peer), usize>,
    peers: Peers,
    /// Told to end, and not gone yet: not counted as open any more.
    pub(super) leaving: usize,
    /// No look for room at a door before this moment: looks are not the flood's to order.
    look_at_ms: [u64; Door::ALL.len()],
}

/// A connection's place. Dropping it gives the place back.
pub(crate) struct ConnectionPlace {
    pub(super) connections: Arc<Connections>,
    watch: Arc<Watch>,
}

impl Connections {
    /// Nobody is connected yet.
    pub(crate) fn new(caps: Caps) -> Arc<Connections> {
        let (counters, frames) = (Counters::new(&caps), FrameMemory::new());
        Arc::new(Connections { caps, table: Mutex::default(), began: Instant::now(), frames, counters })
    }

    /// Gives a new connection a place. `end` must make it end soon, from any thread, without waiting.
    pub(crate) fn admit(
        self: &Arc<Self>,
        door: Door,
        peer: Peer,
        end: impl Fn(Cause) + Send + Sync + 'static,
    ) -> Result<ConnectionPlace, Refused> {
        let now = self.now();
        let mut table = self.table.lock();
        let made = match table.tight(door, peer, &self.caps) {
            None => None,
            Some(tight) => match table.make_room(door, tight, now) {
                Some(victim) => Some(victim),
                None => {
                    drop(table);
                    self.counters.refused(door, Refusal::Room);
                    return Err(Refused(self.caps.refusal(door)));
                }
            },
        };
        table.next += 1;
        let open = table.open.len();
        let of_peer = table.peers.of(peer, open);
        let watch = Arc::new(Watch::new(table.next, door, peer, of_peer, now, Box::new(end)));
        table.open.insert(watch.id, Arc::clone(&watch));
        table.count(&watch, 1);
        drop(table);
        if let Some(victim) = made {
            self.counters.ended(door, Cause::Room);
            victim.end(Cause::Room);
        }
        Ok(ConnectionPlace { connections: Arc::clone(self), watch })
    }

    /// Ends what has been silent, idle or stalled, or has left an answer unread, for too long. Called about once a second.
    pub(crate) fn sweep(&self) {
        let now = self.now();
        let mut ending = Vec::new();
        {
            let mut table = self.table.lock();
            let late = |watch: &&Arc<Watch>| Self::late(watch, now).is_some();
            let late: Vec<Arc<Watch>> = table.open.values().filter(late).cloned().collect();
            for watch in late {
                if let Some(cause) = Self::late(&watch, now)
                    && table.leave(&watch)
                {
                    ending.push((watch, cause));
                }
            }
        }
        for (watch, cause) in ending {
            tracing::debug!(door = watch.door.name(), ?cause, "a connection is ended");
            self.counters.ended(watch.door, cause);
            watch.end(cause);
        }
    }

    pub(super) fn late(watch: &Watch, now: u64) -> Option<Cause> {
        let past = |since: u64, most: u64| now.saturating_sub(since) >= most;
        if watch.is_leaving() {
            return None;
        }
        if watch.stalled_since().is_some_and(|since| past(since, FRAME_MS_MAX)) {
            return Some(Cause::Stalled);
        }
        if watch.unread.since().is_some_and(|since| past(since, UNREAD_MS_MAX)) {
            return Some(Cause::Unread);
        }
        if !watch.has_asked() {
            return past(watch.quiet_since(), FIRST_REQUEST_MS_MAX).then_some(Cause::Silent);
        }
        let idle = watch.door.idle_ms_max().is_some_and(|most| past(watch.quiet_since(), most));
        (idle && !watch.is_asking()).then_some(Cause::Idle)
    }

    /// A connection was not served, for another reason than that there was no place.
    pub(crate) fn refused(&self, door: Door, why: Refusal) {
        self.counters.refused(door, why);
    }

    /// Ends a connection that is to end now.
    pub(super) fn end(&self, watch: &Watch, cause: Cause) {
        if self.table.lock().leave(watch) {
            tracing::debug!(door = watch.door.name(), ?cause, "a connection is ended");
            self.counters.ended(watch.door, cause);
            watch.end(cause);
        }
    }

    /// A door ends a connection by itself. One that was told to end is counted already.
    pub(super) fn ended(&self, watch: &Watch, cause: Cause) {
        if !watch.is_leaving() {
            tracing::debug!(door = watch.door.name(), ?cause, "a connection ends");
            self.counters.ended(watch.door, cause);
        }
    }

    /// Brings the gauges up to date; called before they are rendered.
    pub(crate) fn refresh_gauges(&self) {
        let table = self.table.lock();
        self.counters.refresh(&table.by_door);
    }

    /// Whether a burst of large frames has passed since the last look.
    pub(crate) fn burst_has_passed(&self) -> bool {
        self.frames.burst_has_passed()
    }

    /// How many connections, and what goes with them, there may be.
    pub(crate) fn caps(&self) -> &Caps {
        &self.caps
    }

    /// The watches' clock.
    pub(crate) fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Doors at their cap, with it.
    pub(crate) fn full_doors(&self) -> Vec<(Door, usize)> {
        let table = self.table.lock();
        let full = |door: &Door| self.caps.of(*door) > 0 && table.by_door[door.at()] >= self.caps.of(*door);
        Door::ALL.into_iter().filter(full).map(|door| (door, self.caps.of(door))).collect()
    }
}

impl ConnectionPlace {
    /// What the door tells of its connection.
    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Memory for its large frames.
    pub(super) fn frames(&self) -> &Arc<FrameMemory> {
        &self.connections.frames
    }

    /// Its door ends it.
    pub(super) fn ended(&self, cause: Cause) {
        self.connections.ended(&self.watch, cause);
    }

    /// The watches' clock.
    pub(crate) fn now(&self) -> u64 {
        self.connections.now()
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut table = self.connections.table.lock();
        table.open.remove(&self.watch.id);
        if self.watch.is_leaving() {
            table.leaving -= 1;
        } else {
            table.count(&self.watch, -1);
        }
    }
}

impl OpenConnections {
    fn count(&mut self, watch: &Watch, by: isize) {
        let door = &mut self.by_door[watch.door.at()];
        *door = door.saturating_add_signed(by);
        let key = (watch.door, watch.peer);
        let peer = self.by_peer.entry(key).or_default();
        *peer = peer.saturating_add_signed(by);
        if *peer == 0 {
            self.by_peer.remove(&key);
        }
    }

    /// Marks a connection as leaving; false: it was already.
    pub(super) fn leave(&mut self, watch: &Watch) -> bool {
        if !watch.set_leaving() {
            return false;
        }
        self.leaving += 1;
        self.count(watch, -1);
        true
    }

    /// Whether a look for room at a door is due; the next one is due later.
    pub(super) fn may_look(&mut self, door: Door, now: u64) -> bool {
        let due = now >= self.look_at_ms[door.at()];
        if due {
            self.look_at_ms[door.at()] = now + ROOM_PAUSE_MS;
        }
        due
    }
}

#[cfg(test)]
mod tests;

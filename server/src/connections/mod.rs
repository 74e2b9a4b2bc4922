//! Who may be connected: every door asks here before it serves a connection, and gives the place back when it ends.
//! Owns: the caps by door and by peer, the deadlines of silent and idle connections, what is counted of them. Must not know:
//! what is spoken on a connection.
//!
//! ```text
//! accepted --no room--> refused
//!    |
//!  silent --its first request--> asking <--> idle
//!    |                                        |
//!    +--- too long, or the room is needed ----+--> leaving --> gone
//! ```
//!
//! - [`caps`]: how many, from the limit of open files
//! - [`watch`]: one connection, as all doors tell of it; [`unread`]: the answers that its peer has not taken
//! - [`peers`]: what one peer has of what all share
//! - [`room`]: who goes where there is no room
//! - [`accept`], [`stream`]: taking connections, and the bytes of one, for the doors of the async runtime
//! - [`outgoing`]: why HTTP/2 itself ended a connection
//! - [`authority`]: the one header of HTTP/2 that a peer may spell as h2 would not have it
//! - [`frames`]: memory for large frames of HTTP/2
//! - [`counters`]: what is counted and shown

pub(crate) mod accept;
mod authority;
pub(crate) mod caps;
mod counters;
mod frames;
mod outgoing;
pub(crate) mod peers;
mod room;
pub(crate) mod stream;
mod unread;
pub(crate) mod watch;

use crate::limits::{
    FIRST_REQUEST_MS_MAX, FRAME_MS_MAX, GRPC_IDLE_MS_MAX, HTTP_IDLE_MS_MAX, ROOM_PAUSE_MS, UNREAD_MS_MAX,
};
use caps::Caps;
use counters::Counters;
use frames::FrameMemory;
use parking_lot::Mutex;
use peers::Peers;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use watch::Watch;

/// Where a connection entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Door {
    /// Frames on the Unix socket.
    Local,
    /// gRPC on the Unix socket.
    Unix,
    /// gRPC on TCP.
    Tcp,
    /// /metrics and /healthz.
    Http,
}

/// Whose connection it is, as far as a share is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// A user of this host.
    User(u32),
    /// A host; of IPv6 the network of 64 bits, because one host has all of it.
    Host(IpAddr),
}

/// Why a connection was ended by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It asked nothing in time.
    Silent,
    /// It asked nothing for long.
    Idle,
    /// What it began to send did not end in time.
    Stalled,
    /// It did not take an answer in time.
    Unread,
    /// Another one needed its place.
    Room,
    /// What came is not what is spoken here.
    Malformed,
    /// It sent too much of what costs it nothing.
    Flood,
    /// It did not answer when it was asked whether it is there.
    Gone,
    /// A large frame of it found no memory in time.
    Memory,
}

/// Why a connection was not served at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There was no place for it.
    Room,
    /// The system had no thread for it.
    Threads,
    /// Too many processes are clients already.
    Clients,
    /// The system did not say whose it is.
    Nobody,
}

/// No room: what to tell the peer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub(crate) String);

/// All open connections.
pub(crate) struct Connections {
    caps: Caps,
    table: Mutex<OpenConnections>,
    /// Zero of the watches' clock.
    began: Instant,
    frames: Arc<FrameMemory>,
    counters: Counters,
}

#[derive(Default)]
struct OpenConnections {
    next: u64,
    open: HashMap<u64, Arc<Watch>>,
    by_door: [usize; Door::ALL.len()],
    by_peer: HashMap<(Door, Peer), usize>,
    peers: Peers,
    /// Told to end, and not gone yet: not counted as open any more.
    leaving: usize,
    /// No look for room at a door before this moment: looks are not the flood's to order.
    look_at_ms: [u64; Door::ALL.len()],
}

/// A connection's place. Dropping it gives the place back.
pub(crate) struct ConnectionPlace {
    connections: Arc<Connections>,
    watch: Arc<Watch>,
}

impl Door {
    /// Every door.
    pub(crate) const ALL: [Door; 4] = [Door::Local, Door::Unix, Door::Tcp, Door::Http];

    /// Its name in metrics and messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Door::Local => "local",
            Door::Unix => "grpc_unix",
            Door::Tcp => "grpc_tcp",
            Door::Http => "http",
        }
    }

    fn at(self) -> usize {
        self as usize
    }

    /// How long a connection may be open and ask nothing, once it has asked something. A local one belongs to a process whose
    /// end the kernel tells, and a private pool lives as long as one is open: only the need for room ends it.
    fn idle_ms_max(self) -> Option<u64> {
        match self {
            Door::Local => None,
            Door::Unix | Door::Tcp => Some(GRPC_IDLE_MS_MAX),
            Door::Http => Some(HTTP_IDLE_MS_MAX),
        }
    }
}

impl Cause {
    /// Every cause.
    const ALL: [Cause; 9] = [
        Cause::Silent,
        Cause::Idle,
        Cause::Stalled,
        Cause::Unread,
        Cause::Room,
        Cause::Malformed,
        Cause::Flood,
        Cause::Gone,
        Cause::Memory,
    ];

    fn name(self) -> &'static str {
        match self {
            Cause::Silent => "silent",
            Cause::Idle => "idle",
            Cause::Stalled => "stalled",
            Cause::Unread => "unread",
            Cause::Room => "room",
            Cause::Malformed => "malformed",
            Cause::Flood => "flood",
            Cause::Gone => "gone",
            Cause::Memory => "memory",
        }
    }

    /// What its peer is told, where the protocol has words for it.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Cause::Silent => "this connection asked nothing in time: it is ended",
            Cause::Idle => "this connection asked nothing for long: it is ended",
            Cause::Stalled => "a request did not arrive whole in time: its connection is ended",
            Cause::Unread => "an answer was not taken in time: its connection is ended",
            Cause::Room => "another connection needs the place of this one: connect again",
            Cause::Malformed => "what came is not the protocol that is spoken here: the connection is ended",
            Cause::Flood => "too much came that asks nothing: the connection is ended",
            Cause::Gone => "nobody answered on this connection: it is ended",
            Cause::Memory => {
                "there was no memory for a large request in time: send smaller ones, or try later"
            }
        }
    }
}

impl Refusal {
    /// Every one.
    const ALL: [Refusal; 4] = [Refusal::Room, Refusal::Threads, Refusal::Clients, Refusal::Nobody];

    fn name(self) -> &'static str {
        match self {
            Refusal::Room => "room",
            Refusal::Threads => "threads",
            Refusal::Clients => "clients",
            Refusal::Nobody => "nobody",
        }
    }
}

impl Peer {
    /// The peer at an address.
    pub(crate) fn at(address: IpAddr) -> Peer {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Peer::Host(IpAddr::from([a, b, c, d, 0, 0, 0, 0]))
            }
            address => Peer::Host(address),
        }
    }
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

    fn late(watch: &Watch, now: u64) -> Option<Cause> {
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

    /// A door ends a connection by itself. One that was told to end is counted already.
    fn ended(&self, watch: &Watch, cause: Cause) {
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
    fn frames(&self) -> &Arc<FrameMemory> {
        &self.connections.frames
    }

    /// Its door ends it.
    fn ended(&self, cause: Cause) {
        self.connections.ended(&self.watch, cause);
    }

    /// The watch, for whoever tells of requests on this connection.
    pub(crate) fn asking(&self) -> watch::Asking {
        watch::Asking::new(Arc::clone(&self.connections), Arc::clone(&self.watch))
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
    fn leave(&mut self, watch: &Watch) -> bool {
        if !watch.set_leaving() {
            return false;
        }
        self.leaving += 1;
        self.count(watch, -1);
        true
    }

    /// Whether a look for room at a door is due; the next one is due later.
    fn may_look(&mut self, door: Door, now: u64) -> bool {
        let due = now >= self.look_at_ms[door.at()];
        if due {
            self.look_at_ms[door.at()] = now + ROOM_PAUSE_MS;
        }
        due
    }
}

#[cfg(test)]
mod tests;

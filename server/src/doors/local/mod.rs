//! The local door: the hot verbs on a Unix socket, one blocking thread a connection (a round trip costs 8 us, not the
//! 60 to 100 of HTTP/2). Owns: accepting, waking every thread at shutdown. Must not know: the verbs.
//!
//! - [`connection`]: the verbs of one connection
//! - [`sent`]: bounds the slabs that wait to be read
//! - [`farewell`]: what a peer is told that is not served any more

mod connection;
mod farewell;
mod sent;

use crate::connections::accept::Backoff;
use crate::connections::{ConnectionPlace, Connections, Door, Peer, Refusal, Refused};
use crate::doors::calls::CallSeconds;
use crate::engine::Engine;
use crate::limits::{BURST_BYTES_MIN, LOCAL_LARGE_BYTES_MAX, PEER_PERCENT_MAX};
use crate::supervise::Supervisor;
use connection::LocalService;
use farewell::{refuse, say};
use metrics::{Gauge, gauge};
use parking_lot::Mutex;
use sent::SentSlabs;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tokio::runtime::Handle;
use turnkv_proto::wire::Verb;
use turnkv_transfer::{LargeFrames, LocalListener, LocalSocket};

/// The door while it is open; [`LocalDoor::close`] ends every connection.
pub(crate) struct LocalDoor {
    /// What serves every connection.
    service: LocalService,
    connections: Arc<Connections>,
    listener: LocalListener,
    sockets: Mutex<HashMap<u64, Arc<LocalSocket>>>,
    large: Arc<LargeFrames>,
    /// Of these, what each user may have.
    large_of_users: Mutex<HashMap<u32, Weak<LargeFrames>>>,
    arriving: Gauge,
    closing: AtomicBool,
}

impl LocalDoor {
    /// Listens at `path` and serves every connection on a thread of its own.
    pub(crate) fn open(
        engine: &Arc<Engine>,
        calls: &Arc<CallSeconds>,
        connections: &Arc<Connections>,
        path: &Path,
        mode: u32,
        waits: Handle,
        supervisor: &Supervisor,
    ) -> io::Result<Arc<LocalDoor>> {
        let service = LocalService {
            engine: Arc::clone(engine),
            calls: Arc::clone(calls),
            waits,
            sent: SentSlabs::new(connections.caps().unread_slabs()),
        };
        let door = Arc::new(LocalDoor {
            service,
            connections: Arc::clone(connections),
            listener: LocalListener::bind(path, mode)?,
            sockets: Mutex::new(HashMap::new()),
            large: LargeFrames::new(LOCAL_LARGE_BYTES_MAX),
            large_of_users: Mutex::default(),
            arriving: gauge!("turnkv_frames_arriving_bytes", "door" => "local"),
            closing: AtomicBool::new(false),
        });
        gauge!("turnkv_frames_limit_bytes", "door" => "local").set(LOCAL_LARGE_BYTES_MAX as f64);
        let accepting = Arc::clone(&door);
        supervisor.thread("turnkv-accept", move || accepting.accept_all())?;
        Ok(door)
    }

    fn accept_all(self: &Arc<Self>) {
        let mut backoff = Backoff::new();
        let mut next = 0u64;
        loop {
            let accepted = self.listener.accept();
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            match accepted {
                Ok(socket) => {
                    backoff.reset();
                    next += 1;
                    let large = self.large_of(user_of(&socket));
                    self.start(next, Arc::new(socket.with_large(&large)));
                }
                Err(error) => std::thread::sleep(backoff.failed(Door::Local, &error)),
            }
        }
    }

    fn start(self: &Arc<Self>, id: u64, socket: Arc<LocalSocket>) {
        let place = match self.admit(&socket) {
            Ok(place) => place,
            Err(refused) => {
                refuse(&socket, &refused);
                return; // the socket closes; the client's inline plane takes over
            }
        };
        self.sockets.lock().insert(id, Arc::clone(&socket));
        let door = Arc::clone(self);
        let refused = Arc::clone(&socket);
        let open = Open { door, id, socket, place };
        let serve = move || {
            let Open { door, socket, place, .. } = &open;
            door.service.serve(socket, &place.asking());
        };
        if let Err(error) = std::thread::Builder::new().name("turnkv-local".into()).spawn(serve) {
            tracing::warn!(%error, "no thread for a local connection: refused");
            self.connections.refused(Door::Local, Refusal::Threads);
            refuse(
                &refused,
                &Refused("the system has no thread for another connection: try later".to_owned()),
            );
        }
    }

    /// Memory for the large frames of a user's connections: however much some users send, there is some for the
    /// next one.
    fn large_of(&self, user: u32) -> Arc<LargeFrames> {
        let mut users = self.large_of_users.lock();
        if let Some(known) = users.get(&user).and_then(Weak::upgrade) {
            return known;
        }
        users.retain(|_, known| known.strong_count() > 0);
        let share = self.large.share(PEER_PERCENT_MAX);
        users.insert(user, Arc::downgrade(&share));
        share
    }

    fn admit(&self, socket: &Arc<LocalSocket>) -> Result<ConnectionPlace, Refused> {
        let ending = Arc::downgrade(socket);
        self.connections.admit(Door::Local, Peer::User(user_of(socket)), move |cause| {
            if let Some(socket) = ending.upgrade() {
                say(&socket, Verb::Unspecified, cause.words(), Instant::now());
                socket.shutdown();
            }
        })
    }

    /// Whether a burst of large frames has passed since the last look. Brings their gauge up to date.
    pub(crate) fn burst_has_passed(&self) -> bool {
        self.arriving.set(self.large.taken_bytes() as f64);
        self.large.burst_has_passed(BURST_BYTES_MIN as usize)
    }

    /// Looks after what no connection does. Called about twice a second.
    pub(crate) fn sweep(&self) {
        self.service.sent.sweep();
    }

    /// Ends every connection and takes no more.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.listener.shutdown();
        for socket in self.sockets.lock().values() {
            socket.shutdown();
        }
    }
}

/// A served connection; dropped, by its thread's end or because there is none, it is one no more.
struct Open {
    door: Arc<LocalDoor>,
    id: u64,
    // The descriptor is closed before the place is given back.
    socket: Arc<LocalSocket>,
    place: ConnectionPlace,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.door.sockets.lock().remove(&self.id);
    }
}

/// Whose process is at the other end. One that the kernel does not name has left, and shares with its like until that is noticed.
fn user_of(socket: &LocalSocket) -> u32 {
    socket.peer().map_or(u32::MAX, |peer| peer.uid)
}

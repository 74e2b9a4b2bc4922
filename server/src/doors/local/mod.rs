//! The local door: the hot verbs on a Unix socket, one blocking thread a connection (a round trip costs 8 us, not the
//! 60 to 100 of HTTP/2). Owns: accepting, waking every thread at shutdown. Must not know: the verbs.
//!
//! - [`verbs`]: the verbs that only this door has
//! - [`sent`]: bounds the slabs that wait to be read

mod sent;
mod verbs;

use crate::access::{Callers, Guests, HostUser, TenantOf};
use crate::connections::accept::Backoff;
use crate::connections::{ConnectionPlace, Connections, Door, Peer, Refusal, Refused};
use crate::doors::calls::CallSeconds;
use crate::doors::frames::connection::{Shared, serve};
use crate::doors::frames::farewell::{NO_THREAD, refuse, say, why};
use crate::doors::frames::large::LargeShares;
use crate::engine::Engine;
use crate::limits::{LOCAL_LARGE_BYTES_MAX, LOCAL_SPIN, UPGRADE_FINISH_PAUSE};
use crate::supervise::Supervisor;
use parking_lot::Mutex;
use sent::SentSlabs;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::runtime::Handle;
use turnkv_proto::wire::Verb;
use turnkv_transfer::{LocalListener, LocalSocket, peer_groups};
use verbs::LocalService;

/// The door while it is open; [`LocalDoor::close`] ends every connection.
pub(crate) struct LocalDoor {
    /// What serves every connection.
    service: LocalService,
    connections: Arc<Connections>,
    callers: Arc<Callers>,
    listener: LocalListener,
    sockets: Mutex<HashMap<u64, Arc<LocalSocket>>>,
    large: LargeShares,
    closing: AtomicBool,
    /// Its thread takes connections.
    accepting: AtomicBool,
}

impl LocalDoor {
    /// Serves every connection of a listener on a thread of its own.
    pub(crate) fn open(
        engine: &Arc<Engine>,
        calls: &Arc<CallSeconds>,
        connections: &Arc<Connections>,
        callers: &Arc<Callers>,
        listener: LocalListener,
        waits: Handle,
        supervisor: &Supervisor,
    ) -> io::Result<Arc<LocalDoor>> {
        let shared = Shared {
            engine: Arc::clone(engine),
            calls: Arc::clone(calls),
            waits,
            door: Door::Local,
            spin: LOCAL_SPIN,
            guests: Guests::new(Door::Local.name(), Arc::clone(engine) as Arc<dyn TenantOf>),
        };
        let service = LocalService { shared, sent: SentSlabs::new(connections.caps().unread_slabs()) };
        let door = Arc::new(LocalDoor {
            service,
            connections: Arc::clone(connections),
            callers: Arc::clone(callers),
            listener,
            sockets: Mutex::new(HashMap::new()),
            large: LargeShares::new(Door::Local.name(), LOCAL_LARGE_BYTES_MAX),
            closing: AtomicBool::new(false),
            accepting: AtomicBool::new(true),
        });
        let accepting = Arc::clone(&door);
        supervisor.thread("turnkv-accept", move || {
            accepting.accept_all();
            accepting.accepting.store(false, Ordering::Release);
        })?;
        Ok(door)
    }

    fn accept_all(self: &Arc<Self>) {
        let mut backoff = Backoff::new();
        let mut next = 0u64;
        loop {
            let accepted = self.listener.accept();
            let closing = self.closing.load(Ordering::Acquire);
            match accepted {
                Err(_) if closing => return,
                Ok(socket) => {
                    backoff.reset();
                    next += 1;
                    let large = self.large.of(Peer::User(user_of(&socket)));
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
        let caller = self.callers.of(Some(&host_user(&open.socket)));
        let served = move || {
            let Open { door, socket, place, .. } = &open;
            serve(&door.service, socket, &place.asking(&caller), None);
        };
        if let Err(error) = std::thread::Builder::new().name("turnkv-local".into()).spawn(served) {
            tracing::warn!(%error, "no thread for a local connection: refused");
            self.connections.refused(Door::Local, Refusal::Threads);
            refuse(&refused, &Refused(NO_THREAD.to_owned()));
        }
    }

    fn admit(&self, socket: &Arc<LocalSocket>) -> Result<ConnectionPlace, Refused> {
        let ending = Arc::downgrade(socket);
        self.connections.admit(Door::Local, Peer::User(user_of(socket)), move |cause| {
            if let Some(socket) = ending.upgrade() {
                say(&socket, Verb::Unspecified, &why(cause), Instant::now());
                socket.shutdown();
            }
        })
    }

    /// Whether a burst of large frames has passed since the last look. Brings their gauge up to date.
    pub(crate) fn burst_has_passed(&self) -> bool {
        self.large.burst_has_passed()
    }

    /// Looks after what no connection does. Called about twice a second.
    pub(crate) fn sweep(&self) {
        self.service.sent.sweep();
    }

    /// Takes no more connections: they wait in the socket for another process. Returns when that is so, or at the latest by then.
    pub(crate) fn stop_accepting(&self, until: Instant) {
        self.closing.store(true, Ordering::Release);
        self.listener.stop();
        while self.accepting.load(Ordering::Acquire) && Instant::now() < until {
            std::thread::sleep(UPGRADE_FINISH_PAUSE);
        }
    }

    /// Ends every connection once the call under way on it is answered.
    pub(crate) fn finish(&self) {
        self.sockets.lock().values().for_each(|socket| socket.finish());
    }

    /// Whether there is a connection.
    pub(crate) fn is_served(&self) -> bool {
        !self.sockets.lock().is_empty()
    }

    /// Ends every connection and takes no more.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.listener.shutdown();
        self.cut();
    }

    /// Ends every connection.
    pub(crate) fn cut(&self) {
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

/// The user and the groups of the process at the other end.
fn host_user(socket: &LocalSocket) -> HostUser {
    match socket.peer() {
        Ok(peer) => HostUser::new(peer.uid, peer.gid, peer_groups(socket.as_fd())),
        Err(_) => HostUser::nobody(),
    }
}

/// Whose process is at the other end. One that the kernel does not name has left, and shares with its like until that is noticed.
fn user_of(socket: &LocalSocket) -> u32 {
    socket.peer().map_or(u32::MAX, |peer| peer.uid)
}

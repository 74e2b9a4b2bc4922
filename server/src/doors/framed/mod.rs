//! The framed door: frames over TCP, one blocking thread a connection, for clients of other hosts. Owns: what becomes of a
//! connection (control connection or data rail), and waking every thread at shutdown. Must not know: the verbs, who accepted a
//! connection.
//!
//! ```text
//! taken --a frame--> control connection: verbs until the peer leaves
//!    \--a join with a secret--> data rail: carries what the server moves until the client's last control connection ends
//! ```
//!
//! - [`verbs`]: the verbs that only this door has
//! - [`life`]: what a connection is by now, for whoever must end it

mod life;
mod verbs;

use crate::access::{Caller, Guests, TenantOf};
use crate::connections::asking::Asking;
use crate::connections::opening::TakesFrames;
use crate::connections::{Cause, ConnectionPlace, Connections, Door, Peer, Refusal, Refused};
use crate::doors::calls::CallSeconds;
use crate::doors::frames::connection::{Shared, received_in_vain, send_deadline, serve};
use crate::doors::frames::farewell::{self, NO_THREAD};
use crate::doors::frames::large::LargeShares;
use crate::doors::inline::caller_of;
use crate::engine::Engine;
use crate::engine::clients::RemoteOwner;
use crate::engine::remotes::open_rail::Joining;
use crate::limits::{FRAME_MS_MAX, FRAMED_LARGE_BYTES_MAX, LOCAL_LOOK};
use crate::tls::Certified;
use life::{Life, Stage};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use turnkv_transfer::LocalSocket;
use turnkv_transfer::fabric::Initiator;
use turnkv_transfer::fabric::framed::wire::{HEADER_BYTES, JOIN_MAGIC, VERSION};
use turnkv_transfer::fabric::framed::{FramedInitiator, FramedStream, Join, JoinAnswer, RailSecret};
use turnkv_transfer::limits::FRAMED_STALL;
use verbs::FramedService;

/// The door while it is open; [`FramedDoor::close`] ends every connection.
pub(crate) struct FramedDoor {
    shared: Arc<Shared>,
    connections: Arc<Connections>,
    lives: Mutex<HashMap<u64, Arc<Life>>>,
    next: AtomicU64,
    large: LargeShares,
    closing: AtomicBool,
}

impl FramedDoor {
    /// Open, for whoever takes connections.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        calls: &Arc<CallSeconds>,
        connections: &Arc<Connections>,
        waits: Handle,
    ) -> Arc<FramedDoor> {
        let guests = Guests::new(Door::Framed.name(), Arc::clone(engine) as Arc<dyn TenantOf>);
        let (engine, calls) = (Arc::clone(engine), Arc::clone(calls));
        let shared = Shared { engine, calls, waits, door: Door::Framed, spin: Duration::ZERO, guests };
        Arc::new(FramedDoor {
            shared: Arc::new(shared),
            connections: Arc::clone(connections),
            lives: Mutex::default(),
            next: AtomicU64::new(0),
            large: LargeShares::new(Door::Framed.name(), FRAMED_LARGE_BYTES_MAX),
            closing: AtomicBool::new(false),
        })
    }

    /// Whether a burst of large frames has passed since the last look. Brings their gauge up to date.
    pub(crate) fn burst_has_passed(&self) -> bool {
        self.large.burst_has_passed()
    }

    /// Looks after what no connection does. Called about twice a second.
    pub(crate) fn sweep(&self) {
        self.shared.engine.remote.sweep();
    }

    /// Ends every control connection once the call under way on it is answered; rails carry what these calls move.
    pub(crate) fn finish(&self) {
        self.lives.lock().values().for_each(|life| life.finish());
    }

    /// Whether there is a control connection.
    pub(crate) fn is_served(&self) -> bool {
        self.lives.lock().values().any(|life| life.is_control())
    }

    /// Ends every connection and takes no more.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.shared.engine.remote.close();
        let lives: Vec<Arc<Life>> = self.lives.lock().values().cloned().collect();
        for life in lives {
            life.end(None);
        }
    }
}

impl TakesFrames for FramedDoor {
    /// Serves it on a thread of its own.
    fn take(
        self: Arc<Self>,
        stream: FramedStream,
        peer: Peer,
        caller: Arc<Caller>,
        shown: Option<Certified>,
    ) {
        let life = Life::fresh();
        let ending = Arc::downgrade(&life);
        let admitted = self.connections.admit(Door::Framed, peer, move |cause| {
            if let Some(life) = ending.upgrade() {
                life.end(Some(cause));
            }
        });
        let place = match admitted {
            Ok(place) => place,
            Err(refused) => {
                if let Ok(socket) = LocalSocket::over_network(stream) {
                    farewell::refuse(&socket, &refused);
                }
                return;
            }
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.lives.lock().insert(id, Arc::clone(&life));
        if let Some(shown) = &shown {
            let asking = place.asking(&caller);
            shown.hand_over(Box::new(move || asking.end(Cause::Certificate)));
        }
        let open = FramedConnection { door: Arc::clone(&self), id, life, peer, caller, place, _shown: shown };
        if self.closing.load(Ordering::Acquire) {
            return; // the doors closed meanwhile
        }
        let unserved = Arc::new(Mutex::new(Some(stream)));
        let taken = Arc::clone(&unserved);
        let served = move || {
            let stream = taken.lock().take();
            if let Some(stream) = stream {
                open.serve(stream);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("turnkv-framed".into()).spawn(served) {
            tracing::warn!(%error, "no thread for a connection: refused");
            self.connections.refused(Door::Framed, Refusal::Threads);
            let stream = unserved.lock().take();
            if let Some(stream) = stream {
                self.turn_away(stream, NO_THREAD);
            }
        }
    }

    fn turn_away(&self, stream: FramedStream, why: &str) {
        if let Ok(socket) = LocalSocket::over_network(stream) {
            farewell::refuse(&socket, &Refused(why.to_owned()));
        }
    }
}

/// A served connection; dropped, by its end or because there is no thread for it, it is one no more.
struct FramedConnection {
    door: Arc<FramedDoor>,
    id: u64,
    life: Arc<Life>,
    peer: Peer,
    caller: Arc<Caller>,
    place: ConnectionPlace,
    /// The certificate that its peer showed.
    _shown: Option<Certified>,
}

impl FramedConnection {
    /// Serves it until its peer leaves, or hands it to a rail.
    fn serve(self, mut stream: FramedStream) {
        let asking = self.place.asking(&self.caller);
        let mut first = JOIN_MAGIC;
        if let Err(error) = self.read(&mut stream, &mut first) {
            tracing::debug!(%error, "a connection left before it said anything");
            return;
        }
        if first == JOIN_MAGIC {
            if let Err(error) = self.join(stream, &asking) {
                tracing::debug!(%error, "a connection did not become a rail");
            }
            return;
        }
        match LocalSocket::over_network(stream) {
            Ok(socket) => self.control(socket, &first, &asking),
            Err(error) => tracing::debug!(%error, "a connection left before it was served"),
        }
    }

    /// Reads bytes, one by one so that none is lost, until they are all there or the connection is told to end.
    fn read(&self, stream: &mut FramedStream, bytes: &mut [u8]) -> io::Result<()> {
        for byte in bytes.chunks_mut(1) {
            while let Err(error) = stream.read_exact_by(byte, Instant::now() + LOCAL_LOOK) {
                if error.kind() != io::ErrorKind::TimedOut || self.life.has_ended() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Verbs until the peer leaves.
    fn control(self, socket: LocalSocket, first: &[u8], asking: &Asking) {
        let socket = Arc::new(socket.with_large(&self.door.large.of(self.peer)));
        if !self.life.become_stage(Stage::Control(Arc::downgrade(&socket))) {
            return;
        }
        let received = socket.put_back(first);
        let whole = Duration::from_millis(FRAME_MS_MAX);
        match received.and_then(|()| socket.recv_spin(Duration::ZERO, whole)) {
            Ok(first) => {
                let (shared, owner) = (Arc::clone(&self.door.shared), self.owner(asking));
                let service = FramedService { shared, owner };
                serve(&service, &socket, asking, Some(first));
            }
            Err(error) => {
                if let Some(cause) = received_in_vain(&error) {
                    farewell::end(&socket, asking, cause);
                }
                socket.shutdown();
            }
        }
    }

    /// Whose client a connection can be one of.
    fn owner(&self, asking: &Asking) -> RemoteOwner {
        RemoteOwner { from: caller_of(asking), caller: Arc::clone(&self.caller) }
    }

    /// The rail that it becomes with this secret. Who shows another's learns no more than who shows none, and it is spent.
    fn may_join(&self, secret: RailSecret, asking: &Asking) -> Option<Joining> {
        let Shared { engine, guests, .. } = &*self.door.shared;
        let joining = engine.remote.join_rail(secret)?;
        if engine.clients.is_of(joining.client.id, &self.owner(asking)) {
            return Some(joining);
        }
        guests.deny_client(&self.caller, "join a rail");
        None
    }

    /// Becomes a rail of the client that was told the secret.
    fn join(self, mut stream: FramedStream, asking: &Asking) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        header[..JOIN_MAGIC.len()].copy_from_slice(&JOIN_MAGIC);
        self.read(&mut stream, &mut header[JOIN_MAGIC.len()..])?;
        let mut answer = |answer: JoinAnswer| stream.write_all_by(&answer.encode(), send_deadline());
        let Ok(join) = Join::decode(&header) else {
            asking.ended(Cause::Malformed);
            return Err(io::ErrorKind::InvalidData.into());
        };
        if join.version != VERSION {
            return answer(JoinAnswer::Version);
        }
        let remote = &self.door.shared.engine.remote;
        let Some(joining) = self.may_join(join.secret, asking) else {
            return answer(JoinAnswer::Unknown);
        };
        if !joining.has_room() {
            return answer(JoinAnswer::NoRoom);
        }
        let (rail, mut unstarted) = FramedInitiator::unstarted(stream, remote.completions(), FRAMED_STALL)?;
        let rail: Arc<dyn Initiator> = Arc::new(rail);
        if !self.life.become_stage(Stage::Rail(Arc::downgrade(&rail))) {
            return Ok(());
        }
        let door = Arc::clone(&self.door);
        // As long as its client has control connections a rail is of use.
        let in_use = asking.begin();
        // It is there before its client hears of it: the client's next call needs it.
        if !door.shared.engine.remote.add_rail(&joining, &rail, Box::new((in_use, self))) {
            return unstarted.say(&JoinAnswer::NoRoom.encode(), send_deadline());
        }
        unstarted.say(&JoinAnswer::Joined.encode(), send_deadline())?;
        unstarted.start()
    }
}

impl Drop for FramedConnection {
    fn drop(&mut self) {
        self.door.lives.lock().remove(&self.id);
    }
}

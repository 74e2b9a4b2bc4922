//! The connections at rest. Owns: connecting, Hello, taking and giving back, what belongs to one server
//! process. Must not know: pages, plans, how a connection is kept in step.

use super::connection::{ConnectError, Connection, Server};
use super::held::HeldLeases;
use super::mapped_slabs::MappedSlabs;
use super::place::Place;
use super::talk::{decode, receive, send, send_now};
use super::writes::{Account, library};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{CONNECTIONS_MAX, ENDS_MAX};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Notify, Semaphore};
use turnkv_proto::limits::LOCAL_PROTOCOL;
use turnkv_proto::wire::{self, Verb};

/// The way to one server through its local socket, or its port.
#[derive(Debug)]
pub(crate) struct LocalPool {
    place: Place,
    pub(super) permits: Arc<Semaphore>,
    /// Held while connecting, so that the first Hello gives the number that all others join.
    hello: tokio::sync::Mutex<()>,
    state: Mutex<Resting>,
    pub(crate) slabs: MappedSlabs,
    /// Attaching has a connection of its own, because the operation that needs a slab may be reading a
    /// stream.
    pub(super) attaching: tokio::sync::Mutex<Option<Connection>>,
    /// Held while ends are told on a connection that was made for them.
    ending: tokio::sync::Mutex<()>,
    /// Rung when there are ends and no connection at rest.
    ends_wait: Notify,
    /// Leases of pages that this process has mapped.
    pub(super) held: Mutex<HeldLeases>,
}

/// The server last spoken to, and what rests between operations.
#[derive(Debug, Default)]
struct Resting {
    server: Server,
    idle: Vec<Connection>,
    /// It was not told yet that nothing is under way into slots of servers before it.
    unsettled: bool,
    /// Nor that nothing of theirs is mapped but what it has taken over.
    unsaid: bool,
    ends: VecDeque<(Server, wire::EndReloadRequest)>,
}

impl Resting {
    /// Tells the server, on this connection of it, that no write is under way into slots that servers before it granted this
    /// process, and that none of these is mapped: each once, as soon as that is so.
    fn settle(&mut self, connection: &Connection) {
        let is_known = connection.server == self.server && (self.unsettled || self.unsaid);
        let Some(account) = connection.account.as_ref().filter(|own| is_known && own.is_settled()) else {
            return;
        };
        let mapped = account.has_all_mapped();
        if !self.unsettled && !mapped {
            return;
        }
        let settled = wire::SettledRequest { client: self.server.client, mapped };
        if send_now(&connection.socket, Verb::Settled, &settled) {
            (self.unsettled, self.unsaid) = (false, self.unsaid && !mapped);
        }
    }
}

impl LocalPool {
    pub(crate) fn new(place: Place) -> Arc<LocalPool> {
        Arc::new(LocalPool {
            place,
            permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            hello: tokio::sync::Mutex::new(()),
            state: Mutex::default(),
            slabs: MappedSlabs::default(),
            attaching: tokio::sync::Mutex::default(),
            ending: tokio::sync::Mutex::default(),
            ends_wait: Notify::default(),
            held: Mutex::default(),
        })
    }

    /// The server last spoken to, and connections at rest.
    pub(crate) fn server(&self) -> (Server, usize) {
        let state = self.state.lock();
        (state.server.clone(), state.idle.len())
    }

    /// Makes a connection and says Hello on it.
    pub(crate) async fn connect(&self, deadline: Deadline) -> Result<Connection, ConnectError> {
        let _turn = deadline.bound(self.hello.lock()).await?;
        let socket = self.place.open(deadline).await?;
        let joined = self.state.lock().server.client;
        let rings = matches!(self.place, Place::Unix(_));
        let library = library();
        let hello = wire::HelloRequest { protocol: LOCAL_PROTOCOL, client: joined, rings, library };
        let answered = match send(&socket, Verb::Hello, &hello, deadline) {
            Ok(()) => receive(&socket, deadline).await,
            // A server that takes no connection says why, and does not wait to be asked.
            Err(unsent) => socket.try_recv().map_err(|_| unsent),
        };
        let mut frame = match answered {
            // What comes is no frame: something else is spoken on that port.
            Err(error) if !rings && error.kind == ErrorKind::Internal => {
                return Err(ConnectError::NoFrames(error));
            }
            answered => answered?,
        };
        let reply: wire::HelloReply = decode(Verb::Hello, &frame)?;
        if let Some(rings) = frame.fd.take() {
            let taken = socket.take_rings(&rings);
            taken.map_err(|error| Error::from_io("the rings of the local socket", &error))?;
        }
        if reply.client == 0 {
            return Err(Error::protocol("Hello gave no client number").into());
        }
        let (client, instance) = (reply.client, reply.instance);
        let server = Server { client, instance, version: reply.version.as_str().into() };
        self.adopt(&server, reply.memory);
        let account = Account::of(reply.memory, instance);
        let connection = Connection { socket, server, heard: Instant::now(), account };
        self.say_what_is_mapped(&connection, deadline).await?;
        self.state.lock().settle(&connection);
        Ok(connection)
    }

    /// A write of an operation is over: tells the server, if it still has to know, that none is under way from before it. False: there is
    /// no connection to tell it on.
    pub(super) fn tell_settled(&self) -> bool {
        let mut state = self.state.lock();
        if !state.unsettled && !state.unsaid {
            return true;
        }
        let Some(connection) = state.idle.pop() else { return false };
        state.settle(&connection);
        state.idle.push(connection);
        true
    }

    /// Whether a connection is at rest at whose other end somebody is. A frame into the rings of a server that is gone is heard by nobody.
    pub(super) fn has_open(&self) -> bool {
        let mut state = self.state.lock();
        while let Some(connection) = state.idle.pop() {
            if matches!(connection.socket.peer_hung_up(), Ok(false)) {
                state.idle.push(connection);
                return true;
            }
        }
        false
    }

    /// Sends a message without a reply on a connection at rest. False: there is none to this server now.
    pub(crate) fn tell(&self, server: &Server, verb: Verb, message: &impl prost::Message) -> bool {
        let mut state = self.state.lock();
        while let Some(connection) = state.idle.pop() {
            if connection.server == *server && send_now(&connection.socket, verb, message) {
                state.idle.push(connection);
                return true;
            }
        }
        false
    }

    /// Ends a read lease on a connection at rest, now or as soon as one comes to rest. Never waits.
    pub(crate) fn end_reload(&self, server: &Server, lease: u64, corrupt: Vec<u32>) {
        let end = wire::EndReloadRequest { lease, client: server.client, corrupt };
        let mut state = self.state.lock();
        if state.server != *server {
            return; // that server process is gone, and the lease with it
        }
        while let Some(connection) = state.idle.pop() {
            if send_now(&connection.socket, Verb::EndReload, &end) {
                state.idle.push(connection);
                return;
            }
        }
        if state.ends.len() == ENDS_MAX {
            state.ends.pop_front();
        }
        state.ends.push_back((server.clone(), end));
        drop(state);
        self.ends_wait.notify_one();
    }

    /// Takes note of the server that answered; forgets what belonged to another.
    fn adopt(&self, server: &Server, memory: u64) {
        let mut state = self.state.lock();
        if state.server.instance != server.instance {
            state.idle.clear();
            state.ends.clear();
            (state.unsettled, state.unsaid) = (true, true);
            self.slabs.forget();
            self.held.lock().move_to(server.instance, memory);
        }
        state.server = server.clone();
    }

    /// Waits for the server. Ends of leases that come meanwhile, and find no connection at rest, are told on one more: all others may be
    /// waiting for the room of just these leases.
    pub(super) async fn waiting<T>(&self, deadline: Deadline, answer: impl Future<Output = T>) -> T {
        let telling = async {
            loop {
                self.ends_wait.notified().await;
                self.tell_ends(deadline).await;
            }
        };
        match select(pin!(answer), pin!(telling)).await {
            Either::Left((answer, _)) => answer,
            Either::Right((never, _)) => never,
        }
    }

    /// Tells the ends that wait, if any do, on one connection more.
    pub(super) async fn tell_ends(&self, deadline: Deadline) {
        if let Err(error) = self.try_tell_ends(deadline).await {
            tracing::debug!(?error, "leases end with the next operation");
        }
    }

    async fn try_tell_ends(&self, deadline: Deadline) -> Result<(), ConnectError> {
        let none_waits = || self.state.lock().ends.is_empty();
        if none_waits() {
            return Ok(());
        }
        let _turn = deadline.bound(self.ending.lock()).await?;
        if !none_waits() {
            self.give_back(self.connect(deadline).await?);
        }
        Ok(())
    }

    pub(super) fn take_idle(&self) -> Option<Connection> {
        loop {
            let connection = self.state.lock().idle.pop()?;
            // A server that died closed it: better to know before a request is sent.
            if matches!(connection.socket.peer_hung_up(), Ok(false)) {
                return Some(connection);
            }
        }
    }

    /// A connection is silent since it was asked something then: those at rest of which nothing was heard since may have died of the
    /// same, and each would cost the next operation its whole time.
    pub(super) fn doubt(&self, asked: Instant) {
        if self.place.silence().is_some_and(|silence| asked.elapsed() >= silence) {
            self.state.lock().idle.retain(|connection| connection.heard > asked);
        }
    }

    pub(super) fn give_back(&self, connection: Connection) {
        let mut state = self.state.lock();
        if state.server.instance != connection.server.instance {
            return;
        }
        state.settle(&connection);
        while let Some((server, end)) = state.ends.pop_front() {
            if server.instance == connection.server.instance
                && !send_now(&connection.socket, Verb::EndReload, &end)
            {
                state.ends.push_front((server, end));
                return;
            }
        }
        state.idle.push(connection);
    }
}

#[cfg(test)]
mod tests;

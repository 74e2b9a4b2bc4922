//! Clients: processes on this host that said Hello, and whoever calls the inline verbs. Owns: who is who (all connections of
//! one process are one client, all calls of one caller too), whose they are, and whether a process still lives (pidfd).
//! Must not know: leases.

use super::{Core, Engine};
use crate::limits::{CALLERS_MAX, CLIENTS_MAX};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use turnkv_pool::{ClientId, UserId};
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::{LocalSocket, Process};

/// All clients known.
pub(crate) struct Clients {
    /// In order, so that whose leases end first does not depend on chance.
    known: Mutex<BTreeMap<u64, Client>>,
    /// Who has inline calls in service.
    callers: Mutex<BTreeMap<Caller, InService>>,
    /// Ids of callers. Never given to a process.
    next_caller: AtomicU64,
    /// When the last connection closed, for a server that leaves when nobody is left.
    idle_since: Mutex<Option<Instant>>,
}

struct Client {
    pid: i32,
    user: u32,
    /// What tells the process from all others, where the kernel says.
    identity: Option<u64>,
    process: Presence,
    connections: usize,
}

impl Client {
    /// Whether a peer is this client's process. A number alone says so only as long as the process lives: nobody else has
    /// it then.
    fn is(&self, pid: i32, identity: Option<u64>) -> bool {
        match (self.identity, identity) {
            (Some(own), Some(other)) => own == other,
            _ => pid > 0 && self.pid == pid && !self.process.is_gone(),
        }
    }
}

/// Who calls an inline verb, as far as its door knows. All calls of one caller count against one share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Caller {
    /// A user of this host, over the Unix socket; with the process, where the kernel says (else 0).
    User(u32, i32),
    /// Another host, or this one over TCP.
    Host(IpAddr),
    /// Nobody in particular.
    Unknown,
}

/// The calls in service of one caller.
struct InService {
    client: ClientId,
    count: u32,
}

/// An inline call in service: its caller is known until the last of its calls is over.
pub(crate) struct InlineCall {
    engine: Arc<Engine>,
    caller: Caller,
    /// The client that its leases are of.
    pub(crate) client: ClientId,
}

impl Drop for InlineCall {
    fn drop(&mut self) {
        if self.engine.clients.end_call(self.caller) {
            self.engine.decide().pool.forget_client(self.client);
        }
    }
}

impl Caller {
    fn user(self) -> UserId {
        match self {
            Caller::User(uid, _) => user_of(uid),
            Caller::Host(IpAddr::V4(host)) => UserId(1 << 40 | u64::from(host.to_bits())),
            // One host has all of a network of 64 bits.
            Caller::Host(IpAddr::V6(host)) => UserId(1 << 63 | (host.to_bits() >> 64) as u64),
            Caller::Unknown => UserId::default(),
        }
    }
}

/// A user of this host; 0 is nobody's.
fn user_of(uid: u32) -> UserId {
    UserId(u64::from(uid) + 1)
}

/// What tells whether a client is still there.
enum Presence {
    /// A process of this host.
    Process(Process),
    /// The simulator's word, or a test's.
    #[cfg(any(test, feature = "simulation"))]
    Simulated(std::sync::Arc<std::sync::atomic::AtomicBool>),
}

impl Presence {
    fn is_gone(&self) -> bool {
        match self {
            Presence::Process(process) => process.is_gone().unwrap_or(false),
            #[cfg(any(test, feature = "simulation"))]
            Presence::Simulated(alive) => !alive.load(Ordering::Relaxed),
        }
    }
}

/// Ids from here up are inline callers'; a process's id has the top bit clear.
const EPHEMERAL: u64 = 1 << 63;

impl Clients {
    pub(super) fn new() -> Clients {
        Clients {
            known: Mutex::new(BTreeMap::new()),
            callers: Mutex::default(),
            next_caller: AtomicU64::new(EPHEMERAL),
            idle_since: Mutex::new(Some(Instant::now())),
        }
    }

    /// A connection says Hello: joins the client that its process is already, else becomes a new one.
    fn hello(&self, socket: &LocalSocket) -> Result<(ClientId, UserId), Error> {
        let unseen = |error| {
            Error::new(ErrorKind::Invalid, format!("the client's process is not visible from here: {error}"))
        };
        let peer = socket.peer().map_err(unseen)?;
        let (pid, user) = (peer.pid, peer.uid);
        let process = Process::of_peer(socket).map_err(unseen)?;
        let identity = process.identity().map_err(unseen)?;
        let mut known = self.known.lock();
        *self.idle_since.lock() = None;
        if let Some((id, client)) = known.iter_mut().find(|(_, client)| client.is(pid, identity)) {
            client.connections += 1;
            return Ok((ClientId(*id), user_of(client.user)));
        }
        if known.len() >= CLIENTS_MAX {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("{CLIENTS_MAX} client processes are connected already"),
            ));
        }
        let id = random_u64()? & !EPHEMERAL;
        let process = Presence::Process(process);
        known.insert(id, Client { pid, user, identity, process, connections: 1 });
        Ok((ClientId(id), user_of(user)))
    }

    /// A connection closed. The client stays known while its process lives: it may still be copying.
    pub(crate) fn goodbye(&self, client: ClientId) {
        let mut known = self.known.lock();
        if let Some(client) = known.get_mut(&client.0) {
            client.connections -= 1;
        }
        if known.values().all(|client| client.connections == 0) {
            *self.idle_since.lock() = Some(Instant::now());
        }
    }

    /// The client of this number, if it is one: what a request says of its caller is checked here before anything is done.
    pub(crate) fn check(&self, client: u64) -> Result<ClientId, Error> {
        if self.known.lock().contains_key(&client) {
            return Ok(ClientId(client));
        }
        let text = format!(
            "client {client} never said Hello on the local socket: connect there, or use the inline verbs"
        );
        Err(Error::new(ErrorKind::LeaseUnknown, text))
    }

    /// One more call of a caller: the client that it is, and whether it was none before.
    fn begin_call(&self, caller: Caller) -> Result<(ClientId, bool), Error> {
        let mut callers = self.callers.lock();
        if let Some(calls) = callers.get_mut(&caller) {
            calls.count += 1;
            return Ok((calls.client, false));
        }
        if callers.len() >= CALLERS_MAX {
            let text = format!("{CALLERS_MAX} callers have inline calls in service already: try again later");
            return Err(Error::new(ErrorKind::Limit, text));
        }
        let client = ClientId(self.next_caller.fetch_add(1, Ordering::Relaxed));
        callers.insert(caller, InService { client, count: 1 });
        Ok((client, true))
    }

    /// A call is over. True: it was the last one of its caller.
    fn end_call(&self, caller: Caller) -> bool {
        let mut callers = self.callers.lock();
        let Some(calls) = callers.get_mut(&caller) else { return false };
        calls.count -= 1;
        let last = calls.count == 0;
        if last {
            callers.remove(&caller);
        }
        last
    }

    /// The process and the user of a client; none: it is no process of this host.
    pub(crate) fn process_of(&self, client: ClientId) -> Option<(i32, u32)> {
        self.known.lock().get(&client.0).map(|client| (client.pid, client.user))
    }

    /// Removes and returns the clients whose processes are gone.
    pub(super) fn take_gone(&self) -> Vec<ClientId> {
        let mut known = self.known.lock();
        let gone: Vec<u64> =
            known.iter().filter(|(_, client)| client.process.is_gone()).map(|(id, _)| *id).collect();
        for id in &gone {
            known.remove(id);
        }
        gone.into_iter().map(ClientId).collect()
    }

    /// Open connections on the local socket.
    pub(crate) fn connections(&self) -> usize {
        self.known.lock().values().map(|client| client.connections).sum()
    }

    /// Since when nobody is connected.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        *self.idle_since.lock()
    }
}

impl Engine {
    /// A connection of a process on this host says Hello.
    pub(crate) fn hello(&self, socket: &LocalSocket) -> Result<ClientId, Error> {
        let (client, user) = self.clients.hello(socket)?;
        self.decide().pool.introduce_client(client, user);
        Ok(client)
    }

    /// A simulated process says Hello.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn join(&self, client: u64, alive: Arc<std::sync::atomic::AtomicBool>) {
        let client = client & !EPHEMERAL;
        let process = Presence::Simulated(alive);
        let simulated = Client { pid: 0, user: 0, identity: None, process, connections: 1 };
        self.clients.known.lock().insert(client, simulated);
        self.decide().pool.introduce_client(ClientId(client), user_of(0));
    }

    /// An inline call begins.
    pub(crate) fn begin_call(self: &Arc<Self>, caller: Caller) -> Result<InlineCall, Error> {
        let begun = self.clients.begin_call(caller);
        let (client, first) = begun.inspect_err(|_| self.metrics.refused_callers.increment(1))?;
        if first {
            self.decide().pool.introduce_client(client, caller.user());
        }
        Ok(InlineCall { engine: Arc::clone(self), caller, client })
    }
}

impl Core {
    /// Checks that slots may be leased to a client. A process may have been found to be gone since its call began: what is leased
    /// to it after that, nobody would end. A caller of inline verbs is known as long as one of its calls is in service.
    pub(super) fn check_present(&self, client: ClientId) -> Result<(), Error> {
        if client.0 & EPHEMERAL != 0 || self.pool.is_present(client) {
            return Ok(());
        }
        let text = format!("the process of client {} is gone: nothing is leased to it any more", client.0);
        Err(Error::new(ErrorKind::LeaseUnknown, text))
    }
}

/// A number nobody can guess.
pub(super) fn random_u64() -> Result<u64, Error> {
    let mut bytes = [0u8; 8];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_le_bytes(bytes)),
        Ok(_) => Err(Error::new(ErrorKind::Internal, "the kernel gave too few random bytes".to_owned())),
        Err(error) => Err(Error::new(ErrorKind::Internal, format!("getrandom: {error}"))),
    }
}

#[cfg(test)]
mod tests;

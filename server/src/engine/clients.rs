//! Clients: processes on this host that said Hello, and whoever calls the inline verbs. Owns: who is who (all connections of
//! one client library in one process are one client, all calls of one caller too), whose they are, and whether a process still lives (pidfd).
//! Must not know: leases, the pool.

use crate::access::Caller;
use crate::limits::{CALLERS_MAX, CLIENTS_MAX, LIBRARIES_MAX};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use turnkv_pool::{ClientId, UserId};
use turnkv_proto::{Error, ErrorKind};
use turnkv_tier::dram::table::Holder;
use turnkv_transfer::{LocalSocket, Process, began};

/// All clients known.
pub(crate) struct Clients {
    /// In order, so that whose leases end first does not depend on chance.
    known: Mutex<BTreeMap<u64, Client>>,
    /// Who has inline calls in service.
    callers: Mutex<BTreeMap<InlineCaller, InService>>,
    /// Ids of callers. Never given to a process.
    next_caller: AtomicU64,
    /// When the last connection closed, for a server that leaves when nobody is left.
    idle_since: Mutex<Option<Instant>>,
}

/// A client of the server before, whose process lives.
pub(crate) struct Ghost {
    /// Under which it is known here.
    pub(crate) client: ClientId,
    pub(crate) pid: i32,
    pub(crate) user: u32,
    pub(crate) process: Process,
    /// As the slot table names it.
    pub(crate) holder: Holder,
    /// What it was doing with the slots.
    pub(crate) left: LeftSlots,
}

/// What a client of the server before was doing with slots that it still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeftSlots {
    /// It may be writing them.
    Writing,
    /// It has them mapped.
    Mapped,
}

struct Client {
    pid: i32,
    user: u32,
    /// What tells the process from all others, where the kernel says.
    identity: Option<u64>,
    process: Presence,
    /// Which copy of a client library in it; 0: one that keeps no account of what it writes.
    library: u64,
    /// Known of the slot table alone: what a server before this one granted it is in quarantine. Nobody joins it.
    left_behind: Option<LeftSlots>,
    connections: usize,
    /// Of these, whose peers have left while a call of theirs is in service.
    left: usize,
}

impl Client {
    /// One whose process is not of this host.
    fn of_no_process(process: Presence) -> Client {
        let (pid, user, identity, library, left_behind) = (0, 0, None, 0, None);
        Client { pid, user, identity, process, library, left_behind, connections: 0, left: 0 }
    }

    fn is_gone(&self) -> bool {
        match self.process {
            Presence::Connected(_) => self.connections == 0,
            _ => self.process.is_gone(),
        }
    }

    /// Whether a connection is open at whose other end somebody is.
    fn is_connected(&self) -> bool {
        self.connections > self.left
    }

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
pub(crate) enum InlineCaller {
    /// A user of this host, over the Unix socket; with the process, where the kernel says (else 0).
    User(u32, i32),
    /// Another host, or this one over TCP.
    Host(IpAddr),
    /// The server itself, for snapshots: its leases count against a share of its own.
    Snapshots,
    /// The server itself, for pages of other pools; likewise.
    Pulls,
    /// Nobody in particular.
    Unknown,
}

/// Whose a client over a network is: another's connections never become its, though they know its number. Pages of one that another
/// joined would travel to both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteOwner {
    /// Where it comes from.
    pub(crate) from: InlineCaller,
    /// Who it has proven to be.
    pub(crate) caller: Arc<Caller>,
}

/// The calls in service of one caller.
struct InService {
    client: ClientId,
    count: u32,
}

impl InlineCaller {
    pub(super) fn user(self) -> UserId {
        match self {
            InlineCaller::User(uid, _) => user_of(uid),
            InlineCaller::Host(IpAddr::V4(host)) => UserId(1 << 40 | u64::from(host.to_bits())),
            // One host has all of a network of 64 bits.
            InlineCaller::Host(IpAddr::V6(host)) => UserId(1 << 63 | (host.to_bits() >> 64) as u64),
            InlineCaller::Snapshots => UserId(1 << 62),
            InlineCaller::Pulls => UserId(1 << 61),
            InlineCaller::Unknown => UserId::default(),
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
    /// Somebody over a network, for as long as connections of it are open: no call of it is in service without one.
    Connected(RemoteOwner),
    /// The simulator's word, or a test's.
    #[cfg(any(test, feature = "simulation"))]
    Simulated(std::sync::Arc<std::sync::atomic::AtomicBool>),
}

impl Presence {
    /// Whether it is this one, over a network.
    fn is_of(&self, owner: &RemoteOwner) -> bool {
        matches!(self, Presence::Connected(own) if own == owner)
    }

    fn is_gone(&self) -> bool {
        match self {
            Presence::Process(process) => process.is_gone().unwrap_or(false),
            Presence::Connected(_) => false,
            #[cfg(any(test, feature = "simulation"))]
            Presence::Simulated(alive) => !alive.load(Ordering::Relaxed),
        }
    }
}

/// Ids from here up are inline callers'; a process's id has the top bit clear.
pub(super) const EPHEMERAL: u64 = 1 << 63;

impl Clients {
    pub(super) fn new() -> Clients {
        Clients {
            known: Mutex::new(BTreeMap::new()),
            callers: Mutex::default(),
            next_caller: AtomicU64::new(EPHEMERAL),
            idle_since: Mutex::new(Some(Instant::now())),
        }
    }

    /// A connection says Hello: joins the client that this library of its process is already, else becomes a new one.
    pub(super) fn hello(&self, socket: &LocalSocket, library: u64) -> Result<(ClientId, UserId), Error> {
        let unseen = |error| {
            Error::new(ErrorKind::Invalid, format!("the client's process is not visible from here: {error}"))
        };
        let peer = socket.peer().map_err(unseen)?;
        let (pid, user) = (peer.pid, peer.uid);
        let process = Process::of_peer(socket).map_err(unseen)?;
        let identity = process.identity().map_err(unseen)?;
        let mut known = self.known.lock();
        let of_process = |client: &Client| client.left_behind.is_none() && client.is(pid, identity);
        let libraries = known.values().filter(|client| of_process(client)).count();
        let is_one = |client: &Client| of_process(client) && client.library == library;
        // A process with more copies than anybody has is known as one that keeps no account.
        let all_known = libraries >= LIBRARIES_MAX && !known.values().any(is_one);
        let library = if all_known { 0 } else { library };
        let joins = |client: &Client| of_process(client) && client.library == library;
        if let Some((id, client)) = known.iter_mut().find(|(_, client)| joins(client)) {
            client.connections += 1;
            *self.idle_since.lock() = None;
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
        let client =
            Client { pid, user, identity, process, library, left_behind: None, connections: 1, left: 0 };
        known.insert(id, client);
        *self.idle_since.lock() = None;
        Ok((ClientId(id), user_of(user)))
    }

    /// A process that was the client of a server before this one is known from now on, without a connection. Returns whose it is.
    pub(super) fn remember(&self, ghost: Ghost) -> UserId {
        let Ghost { client, pid, user, process, holder, left } = ghost;
        let library = match holder {
            Holder::Process { library, .. } => library,
            Holder::Unknown => 0,
        };
        let identity = process.identity().unwrap_or(None);
        let process = Presence::Process(process);
        let left_behind = Some(left);
        let known = Client { pid, user, identity, process, library, left_behind, connections: 0, left: 0 };
        self.known.lock().insert(client.0, known);
        user_of(user)
    }

    /// Removes and returns what servers before this one left of a client: it is the same library of the same process, and says that
    /// it does not do this with any of it.
    pub(super) fn take_settled(&self, client: ClientId, left: LeftSlots) -> Vec<ClientId> {
        let of_it = self.left_of(client, left);
        let mut known = self.known.lock();
        of_it.into_iter().filter(|client| known.remove(&client.0).is_some()).collect()
    }

    /// As what a client is known from servers before this one.
    pub(super) fn left_of(&self, client: ClientId, left: LeftSlots) -> Vec<ClientId> {
        let known = self.known.lock();
        let Some(own) = known.get(&client.0).filter(|own| own.library != 0 && own.left_behind.is_none())
        else {
            return Vec::new();
        };
        let is_its = |other: &Client| {
            let is_left = other.left_behind == Some(left) && other.library == own.library;
            is_left && other.is(own.pid, own.identity)
        };
        known.iter().filter(|(_, other)| is_its(other)).map(|(id, _)| ClientId(*id)).collect()
    }

    /// How the next server tells whether a client may still write.
    pub(super) fn holder(&self, client: ClientId) -> Holder {
        let process = self.known.lock().get(&client.0).map(|known| (known.pid, known.library));
        let process = process.and_then(|(pid, library)| Some((pid, began(pid)?, library)));
        process.map_or(Holder::Unknown, |(pid, began, library)| {
            let pid = pid as u32;
            Holder::Process { pid, began, library }
        })
    }

    /// A simulated process is a client from now on.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn join(&self, client: u64, alive: std::sync::Arc<std::sync::atomic::AtomicBool>) {
        let process = Presence::Simulated(alive);
        let simulated = Client { connections: 1, ..Client::of_no_process(process) };
        self.known.lock().insert(client, simulated);
    }

    /// A connection over a network says Hello: joins the client of this number, if it is connected and the same caller's, else
    /// becomes a new one. With whether it is new.
    pub(super) fn hello_remote(&self, owner: &RemoteOwner, joined: u64) -> Result<(ClientId, bool), Error> {
        let mut known = self.known.lock();
        let own = |client: &&mut Client| client.is_connected() && client.process.is_of(owner);
        if let Some(client) = known.get_mut(&joined).filter(own) {
            client.connections += 1;
            *self.idle_since.lock() = None;
            return Ok((ClientId(joined), false));
        }
        if known.len() >= CLIENTS_MAX {
            return Err(Error::new(ErrorKind::Limit, format!("{CLIENTS_MAX} clients are connected already")));
        }
        let id = random_u64()? & !EPHEMERAL;
        let process = Presence::Connected(owner.clone());
        known.insert(id, Client { connections: 1, ..Client::of_no_process(process) });
        *self.idle_since.lock() = None;
        Ok((ClientId(id), true))
    }

    /// Whether a client over a network is this one's.
    pub(crate) fn is_of(&self, client: ClientId, owner: &RemoteOwner) -> bool {
        self.known.lock().get(&client.0).is_some_and(|client| client.process.is_of(owner))
    }

    /// A connection closed. The client stays known while its process lives: it may still be copying. True: nobody is at the other
    /// end of one that is left.
    pub(crate) fn goodbye(&self, client: ClientId) -> bool {
        let mut known = self.known.lock();
        let mut last = false;
        if let Some(client) = known.get_mut(&client.0) {
            client.connections -= 1;
            last = !client.is_connected();
        }
        if known.values().all(|client| client.connections == 0) {
            *self.idle_since.lock() = Some(Instant::now());
        }
        last
    }

    /// A connection's peer has left while a call of its client is in service there. True: nobody is at the other end of one that is
    /// left.
    pub(super) fn caller_left(&self, client: ClientId) -> bool {
        let mut known = self.known.lock();
        let Some(client) = known.get_mut(&client.0) else { return false };
        client.left += 1;
        !client.is_connected()
    }

    /// Such a call has ended, and its connection is about to.
    pub(super) fn left_call_ended(&self, client: ClientId) {
        if let Some(client) = self.known.lock().get_mut(&client.0) {
            client.left -= 1;
        }
    }

    /// The client of this number, if it is one: what a request says of its caller is checked here before anything is done.
    pub(crate) fn check(&self, client: u64) -> Result<ClientId, Error> {
        if self.known.lock().contains_key(&client) {
            return Ok(ClientId(client));
        }
        Err(never_said_hello(client))
    }

    /// The client of this number, if it is the process that calls: its slots are nobody else's.
    pub(crate) fn own(&self, client: u64, caller: InlineCaller) -> Result<ClientId, Error> {
        let InlineCaller::User(user, pid) = caller else { return Err(never_said_hello(client)) };
        let known = self.known.lock();
        let own = known.get(&client).filter(|known| known.user == user && known.is(pid, None));
        own.map(|_| ClientId(client)).ok_or_else(|| never_said_hello(client))
    }

    /// One more call of a caller: the client that it is, and whether it was none before.
    pub(super) fn begin_call(&self, caller: InlineCaller) -> Result<(ClientId, bool), Error> {
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

    /// Whether a client is this caller, with calls in service.
    pub(super) fn is_caller(&self, client: ClientId, caller: InlineCaller) -> bool {
        self.callers.lock().get(&caller).is_some_and(|calls| calls.client == client)
    }

    /// A call is over. True: it was the last one of its caller.
    pub(super) fn end_call(&self, caller: InlineCaller) -> bool {
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
        let known = self.known.lock();
        known.get(&client.0).filter(|client| client.pid > 0).map(|client| (client.pid, client.user))
    }

    /// Removes and returns the clients whose processes are gone.
    pub(super) fn take_gone(&self) -> Vec<ClientId> {
        let mut known = self.known.lock();
        let gone: Vec<u64> = known.iter().filter(|(_, client)| client.is_gone()).map(|(id, _)| *id).collect();
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

fn never_said_hello(client: u64) -> Error {
    let text = format!(
        "client {client} never said Hello on the local socket, or not from this process: connect there, or use the inline verbs"
    );
    Error::new(ErrorKind::LeaseUnknown, text)
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

//! Client processes on this host. Owns: who said Hello, and whether their process still lives (pidfd). Must not
//! know: leases.

use crate::limits::CLIENTS_MAX;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use turnkv_pool::ClientId;
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::{LocalSocket, Process};

/// All clients known.
pub(crate) struct Clients {
    /// In order, so that whose leases end first does not depend on chance.
    known: Mutex<BTreeMap<u64, Client>>,
    /// Ids of calls that are their own client: inline streams. Never given to a process.
    ephemeral: AtomicU64,
    /// When the last connection closed, for a server that leaves when nobody is left.
    idle_since: Mutex<Option<Instant>>,
}

struct Client {
    pid: i32,
    process: Presence,
    connections: usize,
}

/// What tells whether a client is still there.
enum Presence {
    /// A process of this host.
    Process(Process),
    /// The simulator's word.
    #[cfg(feature = "simulation")]
    Simulated(std::sync::Arc<std::sync::atomic::AtomicBool>),
}

impl Presence {
    fn is_gone(&self) -> bool {
        match self {
            Presence::Process(process) => process.is_gone().unwrap_or(false),
            #[cfg(feature = "simulation")]
            Presence::Simulated(alive) => !alive.load(Ordering::Relaxed),
        }
    }
}

/// Ids from here up are inline calls'; a process's id has the top bit clear.
const EPHEMERAL: u64 = 1 << 63;

impl Clients {
    pub(super) fn new() -> Clients {
        Clients {
            known: Mutex::new(BTreeMap::new()),
            ephemeral: AtomicU64::new(EPHEMERAL),
            idle_since: Mutex::new(Some(Instant::now())),
        }
    }

    /// A connection says Hello: joins the client it names if that is the same process, else becomes a new one.
    pub(crate) fn hello(&self, socket: &LocalSocket, wanted: u64) -> Result<ClientId, Error> {
        let unseen = |error| {
            Error::new(ErrorKind::Invalid, format!("the client's process is not visible from here: {error}"))
        };
        let pid = socket.peer().map_err(unseen)?.pid;
        let process = Process::of_peer(socket).map_err(unseen)?;
        let mut known = self.known.lock();
        *self.idle_since.lock() = None;
        if let Some(client) = known.get_mut(&wanted).filter(|client| client.pid == pid) {
            client.connections += 1;
            return Ok(ClientId(wanted));
        }
        if known.len() >= CLIENTS_MAX {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("{CLIENTS_MAX} client processes are connected already"),
            ));
        }
        let id = random_u64()? & !EPHEMERAL;
        known.insert(id, Client { pid, process: Presence::Process(process), connections: 1 });
        Ok(ClientId(id))
    }

    /// A simulated process says Hello.
    #[cfg(feature = "simulation")]
    pub(crate) fn join(&self, client: u64, alive: std::sync::Arc<std::sync::atomic::AtomicBool>) {
        let client = client & !EPHEMERAL;
        self.known
            .lock()
            .insert(client, Client { pid: 0, process: Presence::Simulated(alive), connections: 1 });
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

    /// Checks a client number of a request.
    pub(super) fn check(&self, client: u64) -> Result<ClientId, Error> {
        if self.known.lock().contains_key(&client) {
            return Ok(ClientId(client));
        }
        let text = format!(
            "client {client} never said Hello on the local socket: connect there, or use the inline verbs"
        );
        Err(Error::new(ErrorKind::LeaseUnknown, text))
    }

    /// A client that lives as long as one inline call.
    pub(crate) fn ephemeral(&self) -> ClientId {
        ClientId(self.ephemeral.fetch_add(1, Ordering::Relaxed))
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

/// A number nobody can guess.
pub(super) fn random_u64() -> Result<u64, Error> {
    let mut bytes = [0u8; 8];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_le_bytes(bytes)),
        Ok(_) => Err(Error::new(ErrorKind::Internal, "the kernel gave too few random bytes".to_owned())),
        Err(error) => Err(Error::new(ErrorKind::Internal, format!("getrandom: {error}"))),
    }
}

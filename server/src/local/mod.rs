//! The local door: the hot verbs on a Unix socket, one blocking thread a connection (a round trip costs 8 us, not the
//! 60 to 100 of HTTP/2). Owns: accepting, the bound on connections, waking every thread at shutdown. Must not know:
//! the verbs (that is [`connection`]).

mod connection;

use crate::engine::Engine;
use crate::limits::LOCAL_CONNECTIONS_MAX;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use turnkv_transfer::{LocalListener, LocalSocket};

/// The door while it is open; [`LocalDoor::close`] ends every connection.
pub(crate) struct LocalDoor {
    listener: LocalListener,
    connections: Mutex<HashMap<u64, Arc<LocalSocket>>>,
    closing: AtomicBool,
}

impl LocalDoor {
    /// Listens at `path` and serves every connection on a thread of its own.
    pub(crate) fn open(
        engine: Arc<Engine>,
        path: &Path,
        mode: u32,
        waits: Handle,
    ) -> io::Result<Arc<LocalDoor>> {
        let door = Arc::new(LocalDoor {
            listener: LocalListener::bind(path, mode)?,
            connections: Mutex::new(HashMap::new()),
            closing: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&door);
        std::thread::Builder::new()
            .name("turnkv-accept".into())
            .spawn(move || accepting.accept_all(&engine, &waits))?;
        Ok(door)
    }

    fn accept_all(self: &Arc<Self>, engine: &Arc<Engine>, waits: &Handle) {
        let mut next = 0u64;
        while !self.closing.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok(socket) => {
                    next += 1;
                    self.start(next, Arc::new(socket), engine, waits);
                }
                Err(error) if self.closing.load(Ordering::Acquire) => {
                    tracing::debug!(%error, "the local door closes")
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept on the local socket; trying again");
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    fn start(self: &Arc<Self>, id: u64, socket: Arc<LocalSocket>, engine: &Arc<Engine>, waits: &Handle) {
        {
            let mut connections = self.connections.lock();
            if connections.len() >= LOCAL_CONNECTIONS_MAX {
                tracing::warn!(
                    max = LOCAL_CONNECTIONS_MAX,
                    "too many connections on the local socket: one refused"
                );
                return; // the socket closes; the client's breaker and its inline plane take over
            }
            connections.insert(id, Arc::clone(&socket));
        }
        let (door, engine, waits) = (Arc::clone(self), Arc::clone(engine), waits.clone());
        let serve = move || {
            connection::serve(&engine, &socket, &waits);
            door.connections.lock().remove(&id);
        };
        if let Err(error) = std::thread::Builder::new().name("turnkv-local".into()).spawn(serve) {
            tracing::warn!(%error, "no thread for a local connection: refused");
            self.connections.lock().remove(&id);
        }
    }

    /// Ends every connection and takes no more.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.listener.shutdown();
        for socket in self.connections.lock().values() {
            socket.shutdown();
        }
    }
}

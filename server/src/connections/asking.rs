//! How a door tells of the requests on one connection. Owns: the handle that it tells them with. Must not know: what is asked.

use super::cause::{Cause, Refusal};
use super::door::{Door, Peer};
use super::table::{ConnectionPlace, Connections};
use super::watch::Watch;
use crate::access::Caller;
use std::sync::Arc;

/// Tells of the requests on one connection.
#[derive(Clone)]
pub(crate) struct Asking {
    connections: Arc<Connections>,
    watch: Arc<Watch>,
    /// The process at its other end, where the kernel says; else 0.
    process: i32,
    /// Whoever that is, as far as what it may do is concerned.
    caller: Arc<Caller>,
}

/// One request in service; it ends when this is dropped.
pub(crate) struct Request {
    asking: Asking,
}

impl ConnectionPlace {
    /// The watch, for whoever tells of requests on this connection.
    pub(crate) fn asking(&self, caller: &Arc<Caller>) -> Asking {
        let (connections, watch) = (Arc::clone(&self.connections), Arc::clone(self.watch()));
        Asking { connections, watch, process: 0, caller: Arc::clone(caller) }
    }
}

impl Asking {
    /// The same, of a process that is known.
    pub(super) fn of_process(self, process: i32) -> Asking {
        Asking { process, ..self }
    }

    /// Whose connection it is, and which process is at its other end (0: not known).
    pub(crate) fn peer(&self) -> (Peer, i32) {
        (self.watch.peer, self.process)
    }

    /// Who asks.
    pub(crate) fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// Where it entered.
    pub(crate) fn door(&self) -> Door {
        self.watch.door
    }

    /// A request begins.
    pub(crate) fn begin(&self) -> Request {
        self.watch.begin_request();
        Request { asking: self.clone() }
    }

    /// The watches' clock.
    pub(crate) fn now(&self) -> u64 {
        self.connections.now()
    }

    /// Its door ends it.
    pub(crate) fn ended(&self, cause: Cause) {
        self.connections.ended(&self.watch, cause);
    }

    /// Ends it, whatever its door does.
    pub(crate) fn end(&self, cause: Cause) {
        self.connections.end(&self.watch, cause);
    }

    /// It is connected, and not served.
    pub(crate) fn refused(&self, why: Refusal) {
        self.connections.refused(self.watch.door, why);
    }

    /// Its connection.
    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.asking.watch.end_request(self.asking.now());
    }
}

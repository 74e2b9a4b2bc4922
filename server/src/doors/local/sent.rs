//! Slabs that were sent and that nobody has taken yet. Owns: how many may be, for a connection, a process, a user and all
//! together. Must not know: what a slab is for.
//!
//! A descriptor that waits in a socket counts against the server's user until its receiver has read it or is gone, whether
//! the connection is served or not, and at a limit of the kernel nobody is sent one any more. So each socket with one stays in
//! this list, its descriptor too, until the system says that all of it was read.
//!
//! ```text
//! begin --> sending --> sent --read, or the peer is gone--> out of the list
//! ```

use crate::connections::Peer;
use crate::limits::{RETRY_AFTER_MS, UNREAD_SLABS_PER_CLIENT_MAX};
use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use turnkv_pool::ClientId;
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::LocalSocket;

/// All of them.
pub(super) struct SentSlabs {
    sent: Mutex<Vec<Sent>>,
    /// Of all together; one user may have half.
    most: usize,
    unread: Gauge,
    refused: [Counter; UnreadShare::ALL.len()],
}

struct Sent {
    socket: Arc<LocalSocket>,
    peer: Peer,
    client: ClientId,
    /// It is on its way: that the socket is empty says nothing yet.
    sending: bool,
}

/// A slab on its way to a socket.
pub(super) struct Sending<'a> {
    slabs: &'a SentSlabs,
    socket: &'a Arc<LocalSocket>,
}

/// Whose share is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnreadShare {
    Connection,
    Process,
    User,
    All,
    /// The kernel's own limit, which others may have used up.
    System,
}

impl UnreadShare {
    const ALL: [UnreadShare; 5] = [
        UnreadShare::Connection,
        UnreadShare::Process,
        UnreadShare::User,
        UnreadShare::All,
        UnreadShare::System,
    ];

    fn name(self) -> &'static str {
        match self {
            UnreadShare::Connection => "connection",
            UnreadShare::Process => "process",
            UnreadShare::User => "user",
            UnreadShare::All => "all",
            UnreadShare::System => "system",
        }
    }

    fn refusal(self) -> Error {
        let text = match self {
            UnreadShare::Connection => {
                "a slab was sent on this connection and is not read yet: read it first"
            }
            UnreadShare::Process => "slabs that this process was sent are not read yet: read them first",
            UnreadShare::User => "slabs that this user's processes were sent are not read yet",
            UnreadShare::All => "slabs that clients were sent are not read yet",
            UnreadShare::System => "the system lets this server's user send no more descriptors now",
        };
        Error::new(ErrorKind::Busy { retry_after_ms: RETRY_AFTER_MS }, text)
    }
}

impl SentSlabs {
    /// None is, and so many may be.
    pub(super) fn new(most: usize) -> SentSlabs {
        describe_gauge!(
            "turnkv_attach_unread_slabs",
            "Slabs that were sent to local clients and that they have not read yet"
        );
        describe_gauge!("turnkv_attach_limit_slabs", "What all clients together may have of these");
        describe_counter!(
            "turnkv_attach_refused_total",
            "Slabs not sent for now because too many were unread, of a connection, a process, a user, or all, or by the system's own count"
        );
        gauge!("turnkv_attach_limit_slabs").set(most as f64);
        SentSlabs {
            sent: Mutex::default(),
            most,
            unread: gauge!("turnkv_attach_unread_slabs"),
            refused: UnreadShare::ALL
                .map(|share| counter!("turnkv_attach_refused_total", "share" => share.name())),
        }
    }

    /// A slab is about to be sent to a socket of this client.
    pub(super) fn begin<'a>(
        &'a self,
        socket: &'a Arc<LocalSocket>,
        peer: Peer,
        client: ClientId,
    ) -> Result<Sending<'a>, Error> {
        let mut sent = self.sent.lock();
        let mut short = self.short(&sent, socket, peer, client);
        if short.is_some() {
            sent.retain(Sent::is_unread);
            short = self.short(&sent, socket, peer, client);
        }
        if let Some(share) = short {
            drop(sent);
            return Err(self.refuse(share));
        }
        sent.push(Sent { socket: Arc::clone(socket), peer, client, sending: true });
        Ok(Sending { slabs: self, socket })
    }

    /// Forgets those that were read. Called about twice a second.
    pub(super) fn sweep(&self) {
        let mut sent = self.sent.lock();
        sent.retain(Sent::is_unread);
        self.unread.set(sent.len() as f64);
    }

    /// A send that failed before its first byte left because of the kernel's own limit: a refusal, not the connection's end.
    pub(super) fn refused_by_system(&self, error: &io::Error) -> Option<Error> {
        let limit = rustix::io::Errno::TOOMANYREFS.raw_os_error();
        (error.raw_os_error() == Some(limit)).then(|| self.refuse(UnreadShare::System))
    }

    fn short(
        &self,
        sent: &[Sent],
        socket: &Arc<LocalSocket>,
        peer: Peer,
        client: ClientId,
    ) -> Option<UnreadShare> {
        let of = |own: &dyn Fn(&Sent) -> bool| sent.iter().filter(|sent| own(sent)).count();
        let of_user = (self.most / 2).max(1);
        if of(&|sent| Arc::ptr_eq(&sent.socket, socket)) > 0 {
            return Some(UnreadShare::Connection);
        }
        if of(&|sent| sent.client == client) >= UNREAD_SLABS_PER_CLIENT_MAX.min(of_user) {
            return Some(UnreadShare::Process);
        }
        if of(&|sent| sent.peer == peer) >= of_user {
            return Some(UnreadShare::User);
        }
        (sent.len() >= self.most).then_some(UnreadShare::All)
    }

    fn refuse(&self, share: UnreadShare) -> Error {
        if let Some(counter) = self.refused.get(share as usize) {
            counter.increment(1);
        }
        share.refusal()
    }
}

impl Sent {
    fn is_unread(&self) -> bool {
        // A socket that the system says nothing of would be in the list for ever.
        self.sending || self.socket.unread_bytes().unwrap_or(0) > 0
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let mut sent = self.slabs.sent.lock();
        for sent in sent.iter_mut().filter(|sent| Arc::ptr_eq(&sent.socket, self.socket)) {
            sent.sending = false;
        }
    }
}

#[cfg(test)]
mod tests;

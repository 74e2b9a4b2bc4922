//! A connection lent to one operation. Owns: keeping it in step with the server, and ending its lease however
//! the operation ends, also by a dropped future. Must not know: what the operation does.

use super::connection::{ConnectError, Connection, Server};
use super::pool::LocalPool;
use super::talk::{check_verb, decode, readable, receive, send, send_now};
use super::writes::{Account, Mapping, Writing};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{ANSWER_FRAMES_MAX, CONNECTIONS_MAX, SETTLE_WAIT};
use prost::Message;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::{FLAG_FAILURE, FLAG_MORE, Frame};

/// A lease that must be ended on the wire.
#[derive(Debug)]
enum Lease {
    Write(u64),
    Read {
        lease: u64,
        corrupt: Vec<u32>,
    },
    /// Slots reserved by the operation.
    Reserved {
        lease: u64,
        positions: Vec<u32>,
    },
}

/// A connection lent to one operation. Dropping it at any moment leaves no lease behind and no connection out
/// of step.
#[derive(Debug)]
pub(crate) struct Lent {
    connection: Option<Connection>,
    outstanding: Option<Verb>,
    /// When that was asked.
    asked: Instant,
    /// The first message of a reply names its lease.
    first: bool,
    lease: Option<Lease>,
    /// From before a write lease is asked for, as long as whoever has the connection may write.
    writing: Option<Writing>,
    pool: Arc<LocalPool>,
    /// None once handed to the task that settles.
    permit: Option<OwnedSemaphorePermit>,
    /// It is in that task already.
    settles: bool,
}

impl LocalPool {
    /// A connection for one operation, made if none is at rest.
    pub(crate) async fn acquire(self: &Arc<Self>, deadline: Deadline) -> Result<Lent, ConnectError> {
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => Ok(permit),
            Err(_) => {
                deadline.bound(Arc::clone(&self.permits).acquire_owned()).await.map_err(|_| crowded())?
            }
        };
        let permit = permit.map_err(|_| Error::unavailable("the client is closing"))?;
        let connection = match self.take_idle() {
            Some(connection) => connection,
            None => self.connect(deadline).await?,
        };
        let pool = Arc::clone(self);
        Ok(Lent {
            connection: Some(connection),
            outstanding: None,
            asked: Instant::now(),
            first: true,
            lease: None,
            writing: None,
            pool,
            permit: Some(permit),
            settles: false,
        })
    }
}

impl Lent {
    /// The server at the other end.
    pub(crate) fn server(&self) -> Server {
        self.connection.as_ref().map(|connection| connection.server.clone()).unwrap_or_default()
    }

    /// The number that names this process's leases.
    pub(crate) fn client(&self) -> u64 {
        self.connection.as_ref().map_or(0, |connection| connection.server.client)
    }

    /// Slots are about to be asked for, to map them. None: the server's memory ends with it.
    pub(super) fn begin_mapping(&self) -> Option<Mapping> {
        self.connection.as_ref()?.account.as_ref().map(Account::begin_mapping)
    }

    /// The pool it came from.
    pub(crate) fn pool(&self) -> &Arc<LocalPool> {
        &self.pool
    }

    /// Sends a request; its reply must be read before the next one.
    pub(crate) fn request(&mut self, verb: Verb, message: &impl Message, deadline: Deadline) -> Result<()> {
        assert!(self.outstanding.is_none(), "one operation at a time on a connection");
        let connection =
            self.connection.as_ref().ok_or_else(|| Error::unavailable("the connection is closed"))?;
        if verb == Verb::BeginOffload && self.writing.is_none() {
            self.writing = connection.account.as_ref().map(Account::begin);
        }
        let sent = send(&connection.socket, verb, message, deadline);
        match &sent {
            Ok(()) => (self.outstanding, self.asked, self.first) = (Some(verb), Instant::now(), true),
            Err(_) => self.close(),
        }
        sent
    }

    /// The next message of the reply, and whether more follow.
    pub(crate) async fn reply<M: Message + Default>(&mut self, deadline: Deadline) -> Result<(M, bool)> {
        let connection =
            self.connection.as_ref().ok_or_else(|| Error::unavailable("the connection is closed"))?;
        let verb = self.outstanding.ok_or_else(|| Error::protocol("nothing was asked"))?;
        deadline.check()?; // also where a server never stops talking
        let frame = match self.pool.waiting(deadline, receive(&connection.socket, deadline)).await {
            Ok(frame) => frame,
            Err(error) => {
                // After a deadline the answer may still come, with a lease in it: drop settles that.
                if error.kind != ErrorKind::Deadline {
                    self.close();
                }
                return Err(error);
            }
        };
        let more = frame.flags & FLAG_MORE != 0;
        let taken = self.note(&frame);
        let decoded = taken.and_then(|()| decode(verb, &frame));
        match decoded {
            Ok(message) => Ok((message, more)),
            Err(error) => {
                if frame.flags & FLAG_FAILURE == 0 || frame.verb != verb as u8 {
                    self.close();
                }
                Err(error)
            }
        }
    }

    /// Sends a request and reads its one reply.
    pub(crate) async fn call<M: Message + Default>(
        &mut self,
        verb: Verb,
        message: &impl Message,
        deadline: Deadline,
    ) -> Result<M> {
        self.request(verb, message, deadline)?;
        self.one_reply(deadline).await
    }

    /// The reply of one message to the request that was sent.
    pub(crate) async fn one_reply<M: Message + Default>(&mut self, deadline: Deadline) -> Result<M> {
        let (reply, more) = self.reply(deadline).await?;
        if more {
            self.close();
            return Err(Error::protocol("a reply of one message announced more"));
        }
        Ok(reply)
    }

    /// Reports a page of the read lease whose bytes did not verify.
    pub(crate) fn report_corrupt(&mut self, position: u32) {
        if let Some(Lease::Read { corrupt, .. }) = &mut self.lease {
            corrupt.push(position);
        }
    }

    /// Hands the read lease over to the caller, who ends it with [`LocalPool::end_reload`].
    pub(crate) fn take_read_lease(&mut self) -> Option<u64> {
        match self.lease.take() {
            Some(Lease::Read { lease, .. }) => Some(lease),
            other => {
                self.lease = other;
                None
            }
        }
    }

    /// The read lease that the operation was given.
    pub(crate) fn read_lease(&self) -> Option<u64> {
        match self.lease {
            Some(Lease::Read { lease, .. }) => Some(lease),
            _ => None,
        }
    }

    /// What the operation was given is held from now on: [`LocalPool::release`] ends it, not the end of the
    /// operation.
    pub(crate) fn keep_lease(&mut self) {
        self.lease = None;
    }

    /// Nobody can say whether the slots that the operation was given are written still, or will be: its lease stays, in quarantine.
    pub(crate) fn leave_writing(&mut self) {
        self.lease = None;
        self.writing.take().into_iter().for_each(Writing::never_ends);
    }

    /// Whether an answer, or its rest, is still to come: the server may still do what was asked. A connection that broke tells
    /// nothing of that either.
    pub(crate) fn is_waiting(&self) -> bool {
        self.outstanding.is_some() || self.connection.is_none()
    }

    /// Closes the connection: it is broken or out of step.
    pub(crate) fn close(&mut self) {
        self.connection = None;
        self.outstanding = None;
        self.lease = None;
    }

    /// Takes note of what a reply's frame means for the connection: its last one, its lease.
    fn note(&mut self, frame: &Frame) -> Result<()> {
        let Some(verb) = self.outstanding else { return Err(Error::protocol("an answer to nothing")) };
        check_verb(verb, frame)?;
        if let Some(connection) = &mut self.connection {
            connection.heard = Instant::now();
        }
        if frame.flags & FLAG_MORE == 0 {
            self.outstanding = None;
        }
        let failed = frame.flags & FLAG_FAILURE != 0;
        let first = std::mem::replace(&mut self.first, false);
        match verb {
            // Whatever it says, a commit ends its lease.
            Verb::CommitOffload => self.lease = None,
            Verb::BeginOffload if !failed => {
                let reply: wire::BeginOffloadReply = decode(verb, frame)?;
                if reply.lease != 0 {
                    self.lease = Some(Lease::Write(reply.lease));
                }
            }
            Verb::BeginReload if first && !failed => {
                let reply: wire::BeginReloadReply = decode(verb, frame)?;
                if reply.lease != 0 {
                    self.lease = Some(Lease::Read { lease: reply.lease, corrupt: Vec::new() });
                }
            }
            Verb::Reserve if !failed => {
                let reply: wire::ReserveReply = decode(verb, frame)?;
                if !reply.slots.is_empty() {
                    let positions = (reply.first..).take(reply.slots.len()).collect();
                    self.lease = Some(Lease::Reserved { lease: reply.lease, positions });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads what is there of an unread reply. `Ok(true)`: the connection is in step again.
    fn catch_up(&mut self) -> io::Result<bool> {
        for _ in 0..ANSWER_FRAMES_MAX {
            if self.outstanding.is_none() {
                return Ok(true);
            }
            let Some(connection) = &self.connection else { return Ok(false) };
            match connection.socket.try_recv() {
                Ok(frame) => {
                    self.note(&frame).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "an answer without end"))
    }

    /// Ends the lease and gives the connection back, if it is in step.
    fn end(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let client = connection.server.client;
        let told = match self.lease.take() {
            None => true,
            Some(Lease::Write(lease)) => {
                send_now(&connection.socket, Verb::AbortOffload, &wire::AbortOffloadRequest { lease, client })
            }
            Some(Lease::Read { lease, corrupt }) => send_now(
                &connection.socket,
                Verb::EndReload,
                &wire::EndReloadRequest { lease, client, corrupt },
            ),
            Some(Lease::Reserved { lease, positions }) => send_now(
                &connection.socket,
                Verb::Release,
                &wire::ReleaseRequest { lease, client, positions, corrupt: Vec::new() },
            ),
        };
        if told {
            self.pool.give_back(connection);
        }
    }

    /// Waits for the rest of the reply, then ends the lease that came with it.
    async fn settle(mut self) {
        let deadline = Deadline::after(SETTLE_WAIT);
        self.pool.tell_ends(deadline).await;
        loop {
            match self.catch_up() {
                Ok(true) => return self.end(),
                Ok(false) => {}
                Err(_) => return self.close(),
            }
            let Some(connection) = &self.connection else { return };
            let readable = deadline.bound(self.pool.waiting(deadline, readable(&connection.socket))).await;
            if !matches!(readable, Ok(Ok(()))) {
                tracing::debug!("an abandoned operation was never answered: its connection is closed");
                self.pool.doubt(self.asked);
                return self.close();
            }
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let wrote = self.writing.take().is_some();
        let is_told = !wrote || self.pool.tell_settled();
        if self.connection.is_none() {
            if wrote && !(is_told && self.pool.has_open()) {
                self.pool.tell_later();
            }
            return;
        }
        let caught_up = self.catch_up();
        if self.first && matches!(caught_up, Ok(false)) {
            self.pool.doubt(self.asked);
        }
        match caught_up {
            Ok(true) => self.end(),
            Err(_) => self.close(),
            // A runtime that shuts down drops its tasks, and each new one at once.
            Ok(false) if self.settles => self.close(),
            Ok(false) => match tokio::runtime::Handle::try_current() {
                Ok(runtime) => {
                    // The permit goes along: operations that settle count as running.
                    let lent = Lent {
                        connection: self.connection.take(),
                        outstanding: self.outstanding.take(),
                        asked: self.asked,
                        first: self.first,
                        lease: self.lease.take(),
                        writing: None,
                        pool: Arc::clone(&self.pool),
                        permit: self.permit.take(),
                        settles: true,
                    };
                    drop(runtime.spawn(lent.settle()));
                }
                Err(_) => self.close(),
            },
        }
    }
}

/// Not the pool's fault: this process has more operations under way than connections.
fn crowded() -> Error {
    let text = format!("all {CONNECTIONS_MAX} connections for frames were in use until the deadline");
    Error::new(ErrorKind::Busy { retry_after_ms: 0 }, text)
}

#[cfg(test)]
mod tests;

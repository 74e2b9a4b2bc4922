//! One local connection: receive a frame, do its verb, answer. Owns: the frames' order on one socket. Must not know:
//! what the verbs decide.

use super::farewell;
use super::sent::SentSlabs;
use crate::connections::asking::Asking;
use crate::connections::{Cause, Peer, Refusal};
use crate::doors::calls::CallSeconds;
use crate::doors::codec;
use crate::engine::Engine;
use crate::engine::reload::ReloadRun;
use crate::limits::{FRAME_MS_MAX, LOCAL_LOOK, LOCAL_SEND_MS_MAX, LOCAL_SPIN};
use prost::Message;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::time::timeout;
use turnkv_pool::{ClientId, LeaseId};
use turnkv_proto::limits::LOCAL_PROTOCOL;
use turnkv_proto::wire::{self, Verb};
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::{FLAG_FAILURE, FLAG_MORE, Frame, LocalSocket};

/// What ends a connection.
enum End {
    /// The peer left, or its socket failed.
    Socket(io::Error),
    /// A request was refused; the connection goes on.
    Refused(Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Socket(error)
    }
}

impl From<Error> for End {
    fn from(error: Error) -> End {
        End::Refused(error)
    }
}

/// What serves every connection of the door.
pub(super) struct LocalService {
    pub(super) engine: Arc<Engine>,
    pub(super) calls: Arc<CallSeconds>,
    /// Runs the few verbs that must wait.
    pub(super) waits: Handle,
    pub(super) sent: SentSlabs,
}

impl LocalService {
    /// Serves a connection until its peer leaves.
    pub(super) fn serve(&self, socket: &Arc<LocalSocket>, asking: &Asking) {
        let (client, arrived) = (None, Cell::new(None));
        let mut connection = Connection { door: self, socket, asking, client, arrived };
        loop {
            let (cause, error) = match socket.recv_spin(LOCAL_SPIN, Duration::from_millis(FRAME_MS_MAX)) {
                Ok(frame) => {
                    // Until Hello a connection is silent, whatever it says.
                    let request = connection.client.map(|_| asking.begin());
                    let answered = connection.answer(&frame);
                    drop(request.or_else(|| connection.client.map(|_| asking.begin())));
                    match answered {
                        Ok(()) => continue,
                        Err(error) => (sent_in_vain(&error), error),
                    }
                }
                Err(error) => (received_in_vain(&error), error),
            };
            if error.kind() != io::ErrorKind::UnexpectedEof {
                tracing::debug!(%error, "a local connection ends");
            }
            if let Some(cause) = cause {
                farewell::end(socket, asking, cause);
            }
            break;
        }
        if let Some(client) = connection.client {
            self.engine.clients.goodbye(client);
        }
        // A slab that the peer has not read keeps the socket.
        socket.shutdown();
    }
}

struct Connection<'a> {
    door: &'a LocalService,
    socket: &'a Arc<LocalSocket>,
    asking: &'a Asking,
    client: Option<ClientId>,
    /// When the request in service arrived; taken by its first answer.
    arrived: Cell<Option<Instant>>,
}

impl Connection<'_> {
    fn answer(&mut self, frame: &Frame) -> io::Result<()> {
        let verb = Verb::try_from(i32::from(frame.verb)).unwrap_or(Verb::Unspecified);
        self.arrived.set(Some(Instant::now()));
        let done = self.act(verb, frame);
        self.answered(frame.verb); // if the verb has no reply
        match done {
            Ok(()) => Ok(()),
            Err(End::Socket(error)) => Err(error),
            // Verbs without a reply have nobody to tell: their lease had ended already.
            Err(End::Refused(error))
                if matches!(verb, Verb::AbortOffload | Verb::EndReload | Verb::Release) =>
            {
                tracing::debug!(%error, ?verb, "refused");
                Ok(())
            }
            Err(End::Refused(error)) => self.send(frame.verb, FLAG_FAILURE, &error.to_failure(), &[]),
        }
    }

    fn act(&mut self, verb: Verb, frame: &Frame) -> Result<(), End> {
        if verb != Verb::Hello {
            self.said_hello()?;
        }
        match verb {
            Verb::Hello => self.hello(frame),
            Verb::AttachSlab => self.attach_slab(frame),
            Verb::Lookup => self.lookup(frame),
            Verb::BeginOffload => self.begin_offload(frame),
            Verb::CommitOffload => self.commit_offload(frame),
            Verb::AbortOffload => self.abort_offload(frame),
            Verb::BeginReload => self.begin_reload(frame),
            Verb::EndReload => self.end_reload(frame),
            Verb::Reserve => self.reserve(frame),
            Verb::CommitReserved => self.commit_reserved(frame),
            Verb::Renew => self.renew(frame),
            Verb::Release => self.release(frame),
            Verb::Unspecified => Err(Error::invalid(format!("there is no verb {} here", frame.verb)).into()),
        }
    }

    fn hello(&mut self, frame: &Frame) -> Result<(), End> {
        let ask: wire::HelloRequest = decode(frame)?;
        if ask.protocol != LOCAL_PROTOCOL {
            let text = format!(
                "this server speaks protocol {LOCAL_PROTOCOL}, not {}: update the older side",
                ask.protocol
            );
            return Err(Error::invalid(text).into());
        }
        if self.client.is_some() {
            return Err(Error::invalid("Hello was said on this connection already").into());
        }
        let client = self.door.engine.hello(self.socket).inspect_err(|error| {
            if error.kind == ErrorKind::Limit {
                self.asking.refused(Refusal::Clients);
            }
        })?;
        self.client = Some(client);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let reply = wire::HelloReply { client: client.0, version, instance: self.door.engine.instance };
        let (peer, _): (Peer, _) = self.asking.peer();
        // A descriptor that may not be sent now is no reason to turn anybody away: the socket alone does too.
        match ask.rings.then(|| self.door.sent.begin(self.socket, peer, client)) {
            Some(Ok(_sending)) => Ok(self.send_with_rings(frame.verb, &reply)?),
            _ => Ok(self.send(frame.verb, 0, &reply, &[])?),
        }
    }

    fn send_with_rings(&self, verb: u8, reply: &impl Message) -> io::Result<()> {
        let body = reply.encode_to_vec();
        match self.socket.send_with_rings(verb, 0, &body, send_deadline()) {
            Err(error) if self.door.sent.refused_by_system(&error).is_some() => {
                self.send(verb, 0, reply, &[])
            }
            sent => {
                self.answered(verb);
                sent
            }
        }
    }

    fn attach_slab(&self, frame: &Frame) -> Result<(), End> {
        let ask: wire::AttachSlabRequest = decode(frame)?;
        let region =
            self.door.engine.attach_slab(&codec::namespace_id(&ask.namespace)?, ask.slab, ask.generation)?;
        let reply = wire::AttachSlabReply { slab_bytes: region.len() as u64 };
        let (peer, _): (Peer, _) = self.asking.peer();
        let _sending = self.door.sent.begin(self.socket, peer, self.said_hello()?)?;
        self.send(frame.verb, 0, &reply, &[region.fd().as_fd()]).map_err(|error| {
            self.door.sent.refused_by_system(&error).map_or(End::Socket(error), End::Refused)
        })
    }

    fn lookup(&self, frame: &Frame) -> Result<(), End> {
        let found = self.door.engine.lookup(&codec::lookup::ask(&decode(frame)?)?)?;
        Ok(self.send(frame.verb, 0, &codec::lookup::reply(found), &[])?)
    }

    fn begin_offload(&self, frame: &Frame) -> Result<(), End> {
        let raw: wire::BeginOffloadRequest = decode(frame)?;
        let (client, ask) = (self.own(raw.client)?, codec::offload::begin(&raw)?);
        let begun = match self.door.engine.begin_offload_now(client, &ask)? {
            Some(begun) => begun,
            None => self.wait_for(self.door.engine.begin_offload(client, &ask))??,
        };
        Ok(self.send(frame.verb, 0, &codec::offload::begun(begun), &[])?)
    }

    fn commit_offload(&self, frame: &Frame) -> Result<(), End> {
        let raw: wire::CommitOffloadRequest = decode(frame)?;
        let (client, ask) = (self.own(raw.client)?, codec::offload::commit(&raw)?);
        let (committed, later) = if ask.durable {
            (self.wait_for(self.door.engine.commit_offload(client, &ask))??, None)
        } else {
            let (committed, later) = self.door.engine.commit_offload_now(client, &ask)?;
            (committed, Some(later))
        };
        self.send(frame.verb, 0, &codec::offload::committed(committed), &[])?;
        drop(later); // after the answer: the caller need not wait for write-behind to start
        Ok(())
    }

    fn abort_offload(&self, frame: &Frame) -> Result<(), End> {
        let raw: wire::AbortOffloadRequest = decode(frame)?;
        Ok(self.door.engine.abort_offload(self.own(raw.client)?, LeaseId(raw.lease))?)
    }

    fn begin_reload(&self, frame: &Frame) -> Result<(), End> {
        let raw: wire::BeginReloadRequest = decode(frame)?;
        let (client, ask) = (self.own(raw.client)?, codec::reload::begin(&raw)?);
        let mut run = match self.door.engine.begin_reload_now(client, &ask)? {
            Some(run) => run,
            None => self.wait_for(self.door.engine.begin_reload(client, &ask))??,
        };
        Ok(self.stream_reload(frame.verb, &mut run)?)
    }

    fn end_reload(&self, frame: &Frame) -> Result<(), End> {
        let raw: wire::EndReloadRequest = decode(frame)?;
        Ok(self.door.engine.end_reload(self.own(raw.client)?, &codec::reload::end(raw)?)?)
    }

    fn reserve(&self, frame: &Frame) -> Result<(), End> {
        let raw: wire::ReserveRequest = decode(frame)?;
        let (client, ask) = (self.own(raw.client)?, codec::held::reserve(&raw)?);
        let reserved = self.door.engine.reserve(client, &ask)?;
        Ok(self.send(frame.verb, 0, &codec::held::reserved(&reserved), &[])?)
    }

    fn commit_reserved(&self, frame: &Frame) -> Result<(), End> {
        let raw: wire::CommitReservedRequest = decode(frame)?;
        let (client, ask) = (self.own(raw.client)?, codec::held::commit(&raw)?);
        let (committed, later) = self.door.engine.commit_reserved(client, &ask)?;
        let (mut durable, mut later) = (None, Some(later));
        if ask.durable {
            later = None;
            durable = Some(self.wait_for(self.door.engine.reserved_durable(&ask, &committed))?);
        }
        self.send(frame.verb, 0, &codec::held::committed(&committed.outcomes, durable), &[])?;
        drop(later); // after the answer, as for a commit
        Ok(())
    }

    fn renew(&self, frame: &Frame) -> Result<(), End> {
        let raw: wire::RenewRequest = decode(frame)?;
        let (client, leases) = (self.own(raw.client)?, codec::held::renew(&raw)?);
        let renewed = self.door.engine.renew(client, &leases);
        Ok(self.send(frame.verb, 0, &codec::held::renewed(renewed), &[])?)
    }

    fn release(&self, frame: &Frame) -> Result<(), End> {
        let raw: wire::ReleaseRequest = decode(frame)?;
        Ok(self.door.engine.release(self.own(raw.client)?, &codec::held::release(raw)?)?)
    }

    /// Sends a run's pages as they land; the last frame has no FLAG_MORE.
    fn stream_reload(&self, verb: u8, run: &mut ReloadRun) -> io::Result<()> {
        let mut reply = codec::reload::begun(run);
        loop {
            let more = !run.is_done();
            self.send(verb, if more { FLAG_MORE } else { 0 }, &reply, &[])?;
            if !more {
                return Ok(());
            }
            self.wait_for(run.wait())?;
            reply = codec::reload::landed(run);
        }
    }

    fn said_hello(&self) -> Result<ClientId, Error> {
        self.client.ok_or_else(|| Error::invalid("say Hello first on this connection"))
    }

    /// The client that a request names: this connection's own, and still known; another's number is refused.
    fn own(&self, named: u64) -> Result<ClientId, Error> {
        if self.client.is_some_and(|own| own.0 == named) {
            return self.door.engine.clients.check(named);
        }
        Err(Error::new(ErrorKind::LeaseUnknown, "the request names another client than this connection's"))
    }

    /// Waits for what a verb waits for, or until the peer hangs up: nobody takes the answer then.
    fn wait_for<T>(&self, wait: impl Future<Output = T>) -> io::Result<T> {
        self.door.waits.block_on(async {
            let mut wait = pin!(wait);
            loop {
                match timeout(LOCAL_LOOK, wait.as_mut()).await {
                    Ok(done) => return Ok(done),
                    Err(_) if self.socket.peer_is_gone()? => {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    Err(_) => {}
                }
            }
        })
    }

    fn answered(&self, verb: u8) {
        if let Some(arrived) = self.arrived.take() {
            self.door.calls.answered(verb, arrived);
        }
    }

    fn send(&self, verb: u8, flags: u8, reply: &impl Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.answered(verb);
        self.socket.send_by(verb, flags, &reply.encode_to_vec(), fds, send_deadline())
    }
}

fn send_deadline() -> Instant {
    Instant::now() + Duration::from_millis(LOCAL_SEND_MS_MAX)
}

/// Why a connection ends on which nothing more can be received; none: its peer left.
fn received_in_vain(error: &io::Error) -> Option<Cause> {
    match error.kind() {
        io::ErrorKind::TimedOut => Some(Cause::Stalled),
        io::ErrorKind::InvalidData => Some(Cause::Malformed),
        io::ErrorKind::OutOfMemory => Some(Cause::Memory),
        _ => None,
    }
}

/// The same where nothing more can be sent.
fn sent_in_vain(error: &io::Error) -> Option<Cause> {
    (error.kind() == io::ErrorKind::TimedOut).then_some(Cause::Unread)
}

fn decode<T: Message + Default>(frame: &Frame) -> Result<T, Error> {
    T::decode(frame.body.as_slice())
        .map_err(|error| Error::invalid(format!("a message does not parse: {error}")))
}

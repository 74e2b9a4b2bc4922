//! One connection that speaks frames: receive a frame, do its verb, answer. Owns: the frames' order on one stream, and the verbs
//! that every door of frames has. Must not know: what the verbs decide, what a door adds to them.

use super::farewell;
use crate::access::{Guest, Guests};
use crate::connections::asking::Asking;
use crate::connections::{Cause, Door, Refusal};
use crate::doors::calls::CallSeconds;
use crate::doors::codec;
use crate::doors::needs::rule_of_frame;
use crate::engine::Engine;
use crate::limits::{FRAME_MS_MAX, LOCAL_LOOK, LOCAL_SEND_MS_MAX, SPOKEN_PROTOCOL};
use prost::Message;
use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::time::timeout;
use turnkv_pool::ClientId;
use turnkv_proto::wire::{self, Verb};
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::{FLAG_FAILURE, Frame, LocalSocket};

/// What ends a request, or its connection.
pub(in crate::doors) enum End {
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

/// What every connection of a door of frames needs.
pub(in crate::doors) struct Shared {
    pub(in crate::doors) engine: Arc<Engine>,
    pub(in crate::doors) calls: Arc<CallSeconds>,
    /// Runs the few verbs that must wait.
    pub(in crate::doors) waits: Handle,
    pub(in crate::doors) door: Door,
    /// How long a thread stays awake for the next request.
    pub(in crate::doors) spin: Duration,
    pub(in crate::doors) guests: Guests,
}

/// What a door adds to the frames that all of its kind have.
pub(in crate::doors) trait Verbs: Sized {
    /// What all of its connections need.
    fn shared(&self) -> &Shared;

    /// A connection says Hello: which client it is one of.
    fn greet(
        &self,
        socket: &LocalSocket,
        asking: &Asking,
        ask: &wire::HelloRequest,
    ) -> Result<ClientId, Error>;

    /// Sends the answer to Hello.
    fn welcome(
        &self,
        connection: &Connection<'_, Self>,
        reply: &wire::HelloReply,
        _rings: bool,
    ) -> io::Result<()> {
        connection.send(Verb::Hello as u8, 0, reply, &[])
    }

    /// Does one of its own verbs: those of its reach.
    fn act(&self, connection: &Connection<'_, Self>, verb: Verb, frame: &Frame) -> Result<(), End>;

    /// A client's connection has ended.
    fn leave(&self, client: ClientId);
}

/// Serves a connection until its peer leaves. `first`: a frame that was received already.
pub(in crate::doors) fn serve<D: Verbs>(
    door: &D,
    socket: &Arc<LocalSocket>,
    asking: &Asking,
    mut first: Option<Frame>,
) {
    let shared = door.shared();
    let (client, arrived) = (None, Cell::new(None));
    let guest = shared.guests.visitor(asking.caller());
    let mut connection = Connection { door, shared, socket, asking, guest, client, arrived };
    loop {
        let received = match first.take() {
            Some(frame) => Ok(frame),
            None => socket.recv_spin(shared.spin, Duration::from_millis(FRAME_MS_MAX)),
        };
        let (cause, error) = match received {
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
            tracing::debug!(door = shared.door.name(), %error, "a connection ends");
        }
        if let Some(cause) = cause {
            farewell::end(socket, asking, cause);
        }
        break;
    }
    if let Some(client) = connection.client {
        door.leave(client);
    }
    // A slab that the peer has not read keeps the socket.
    socket.shutdown();
}

/// One connection in service.
pub(in crate::doors) struct Connection<'a, D> {
    door: &'a D,
    shared: &'a Shared,
    pub(in crate::doors) socket: &'a Arc<LocalSocket>,
    pub(in crate::doors) asking: &'a Asking,
    /// What its caller may.
    pub(in crate::doors) guest: Guest,
    client: Option<ClientId>,
    /// When the request in service arrived; taken by its first answer.
    arrived: Cell<Option<Instant>>,
}

impl<D: Verbs> Connection<'_, D> {
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
                if matches!(verb, Verb::AbortOffload | Verb::EndReload | Verb::Release | Verb::Settled) =>
            {
                tracing::debug!(%error, ?verb, "refused");
                Ok(())
            }
            Err(End::Refused(error)) => self.send(frame.verb, FLAG_FAILURE, &error.to_failure(), &[]),
        }
    }

    fn act(&mut self, verb: Verb, frame: &Frame) -> Result<(), End> {
        let (need, reach) = rule_of_frame(verb);
        self.guest.asks(need, verb.as_str_name())?;
        if verb == Verb::Hello {
            return self.hello(frame);
        }
        self.said_hello()?;
        match verb {
            Verb::Lookup => self.lookup(frame),
            Verb::Unspecified => Err(Error::invalid(format!("there is no verb {} here", frame.verb)).into()),
            verb => {
                reach.check(self.shared.door, verb.as_str_name())?;
                self.door.act(self, verb, frame)
            }
        }
    }

    fn hello(&mut self, frame: &Frame) -> Result<(), End> {
        let ask: wire::HelloRequest = decode(frame)?;
        if ask.protocol != SPOKEN_PROTOCOL {
            let text = format!(
                "this server speaks protocol {SPOKEN_PROTOCOL}, not {}: update the older side",
                ask.protocol
            );
            return Err(Error::invalid(text).into());
        }
        if self.client.is_some() {
            return Err(Error::invalid("Hello was said on this connection already").into());
        }
        let client = self.door.greet(self.socket, self.asking, &ask).inspect_err(|error| {
            if error.kind == ErrorKind::Limit {
                self.asking.refused(Refusal::Clients);
            }
        })?;
        self.client = Some(client);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let memory = if self.shared.door.is_network() { 0 } else { self.shared.engine.memory() };
        let instance = self.shared.engine.instance;
        let reply = wire::HelloReply { client: client.0, version, instance, memory };
        Ok(self.door.welcome(self, &reply, ask.rings)?)
    }

    fn lookup(&self, frame: &Frame) -> Result<(), End> {
        let (engine, ask) = (&self.shared.engine, codec::lookup::ask(&decode(frame)?, &self.guest)?);
        let wants_posts = engine.cluster().is_some() && self.wait_for(engine.find_prefix(&ask))?;
        let found = engine.lookup(&ask)?;
        Ok(self.send(frame.verb, 0, &codec::lookup::reply(found, wants_posts), &[])?)
    }

    /// The client that this connection is one of.
    pub(in crate::doors) fn said_hello(&self) -> Result<ClientId, Error> {
        self.client.ok_or_else(|| Error::invalid("say Hello first on this connection"))
    }

    /// The client that a request names: this connection's own, and still known; another's number is refused.
    pub(in crate::doors) fn own(&self, named: u64) -> Result<ClientId, Error> {
        if self.client.is_some_and(|own| own.0 == named) {
            return self.shared.engine.clients.check(named);
        }
        Err(Error::new(ErrorKind::LeaseUnknown, "the request names another client than this connection's"))
    }

    /// Waits for what a verb waits for, or until the peer hangs up: nobody takes the answer then.
    pub(in crate::doors) fn wait_for<T>(&self, wait: impl Future<Output = T>) -> io::Result<T> {
        self.shared.waits.block_on(async {
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

    /// The request in service is answered.
    pub(in crate::doors) fn answered(&self, verb: u8) {
        if let Some(arrived) = self.arrived.take() {
            self.shared.calls.answered(self.shared.door, verb, arrived);
        }
    }

    /// Sends a frame of an answer.
    pub(in crate::doors) fn send(
        &self,
        verb: u8,
        flags: u8,
        reply: &impl Message,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.answered(verb);
        self.socket.send_by(verb, flags, &reply.encode_to_vec(), fds, send_deadline())
    }
}

/// A verb that its door does not do, whatever its reach says.
pub(in crate::doors) fn is_not_done(verb: Verb) -> End {
    End::Refused(Error::new(ErrorKind::Internal, format!("nobody does {}", verb.as_str_name())))
}

/// By when a frame of an answer must have left.
pub(in crate::doors) fn send_deadline() -> Instant {
    Instant::now() + Duration::from_millis(LOCAL_SEND_MS_MAX)
}

/// The message of a frame.
pub(in crate::doors) fn decode<T: Message + Default>(frame: &Frame) -> Result<T, Error> {
    T::decode(frame.body.as_slice())
        .map_err(|error| Error::invalid(format!("a message does not parse: {error}")))
}

/// Why a connection ends on which nothing more can be received; none: its peer left.
pub(in crate::doors) fn received_in_vain(error: &io::Error) -> Option<Cause> {
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

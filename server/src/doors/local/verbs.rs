//! The local door's own verbs: slots that a process of this host maps. Owns: their order. Must not know: what they decide, how
//! frames come and go.

use super::sent::SentSlabs;
use crate::connections::Peer;
use crate::connections::asking::Asking;
use crate::doors::codec;
use crate::doors::frames::connection::{Connection, End, Shared, Verbs, decode, is_not_done, send_deadline};
use crate::engine::reload::ReloadRun;
use prost::Message;
use std::io;
use std::os::fd::AsFd;
use turnkv_pool::{ClientId, LeaseId};
use turnkv_proto::Error;
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::{FLAG_MORE, Frame, LocalSocket};

/// What serves every connection of the door.
pub(super) struct LocalService {
    pub(super) shared: Shared,
    pub(super) sent: SentSlabs,
}

type OnSocket<'a> = Connection<'a, LocalService>;

impl Verbs for LocalService {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn greet(&self, socket: &LocalSocket, _: &Asking, ask: &wire::HelloRequest) -> Result<ClientId, Error> {
        self.shared.engine.hello(socket, ask.library)
    }

    /// A descriptor that may not be sent now is no reason to turn anybody away: the socket alone does too.
    fn welcome(&self, connection: &OnSocket<'_>, reply: &wire::HelloReply, rings: bool) -> io::Result<()> {
        let (peer, _): (Peer, _) = connection.asking.peer();
        let client = ClientId(reply.client);
        match rings.then(|| self.sent.begin(connection.socket, peer, client)) {
            Some(Ok(_sending)) => self.send_with_rings(connection, reply),
            _ => connection.send(Verb::Hello as u8, 0, reply, &[]),
        }
    }

    fn act(&self, connection: &OnSocket<'_>, verb: Verb, frame: &Frame) -> Result<(), End> {
        match verb {
            Verb::AttachSlab => self.attach_slab(connection, frame),
            Verb::BeginOffload => self.begin_offload(connection, frame),
            Verb::CommitOffload => self.commit_offload(connection, frame),
            Verb::AbortOffload => self.abort_offload(connection, frame),
            Verb::BeginReload => self.begin_reload(connection, frame),
            Verb::EndReload => self.end_reload(connection, frame),
            Verb::Reserve => self.reserve(connection, frame),
            Verb::CommitReserved => self.commit_reserved(connection, frame),
            Verb::Renew => self.renew(connection, frame),
            Verb::Release => self.release(connection, frame),
            Verb::Settled => self.settled(connection, frame),
            Verb::TakeOver => self.take_over(connection, frame),
            verb => Err(is_not_done(verb)),
        }
    }

    fn leave(&self, client: ClientId) {
        self.shared.engine.clients.goodbye(client);
    }
}

impl LocalService {
    fn send_with_rings(&self, connection: &OnSocket<'_>, reply: &wire::HelloReply) -> io::Result<()> {
        let (verb, body) = (Verb::Hello as u8, reply.encode_to_vec());
        match connection.socket.send_with_rings(verb, 0, &body, send_deadline()) {
            Err(error) if self.sent.refused_by_system(&error).is_some() => {
                connection.send(verb, 0, reply, &[])
            }
            sent => {
                connection.answered(verb);
                sent
            }
        }
    }

    fn attach_slab(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let ask: wire::AttachSlabRequest = decode(frame)?;
        let region = self.shared.engine.attach_slab(
            &connection.guest.namespace(&ask.namespace)?,
            ask.slab,
            ask.generation,
        )?;
        let reply = wire::AttachSlabReply { slab_bytes: region.len() as u64 };
        let (peer, _): (Peer, _) = connection.asking.peer();
        let _sending = self.sent.begin(connection.socket, peer, connection.said_hello()?)?;
        connection
            .send(frame.verb, 0, &reply, &[region.fd().as_fd()])
            .map_err(|error| self.sent.refused_by_system(&error).map_or(End::Socket(error), End::Refused))
    }

    fn begin_offload(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::BeginOffloadRequest = decode(frame)?;
        let (client, ask) = (connection.own(raw.client)?, codec::offload::begin(&raw, &connection.guest)?);
        let begun = match self.shared.engine.begin_offload_now(client, &ask)? {
            Some(begun) => begun,
            None => connection.wait_for(self.shared.engine.begin_offload(client, &ask))??,
        };
        Ok(connection.send(frame.verb, 0, &codec::offload::begun(begun), &[])?)
    }

    fn commit_offload(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::CommitOffloadRequest = decode(frame)?;
        let (client, ask) = (connection.own(raw.client)?, codec::offload::commit(&raw)?);
        let (committed, later) = if ask.durable {
            (connection.wait_for(self.shared.engine.commit_offload(client, &ask))??, None)
        } else {
            let (committed, later) = self.shared.engine.commit_offload_now(client, &ask)?;
            (committed, Some(later))
        };
        connection.send(frame.verb, 0, &codec::offload::committed(committed), &[])?;
        drop(later); // after the answer: the caller need not wait for write-behind to start
        Ok(())
    }

    fn abort_offload(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::AbortOffloadRequest = decode(frame)?;
        Ok(self.shared.engine.abort_offload(connection.own(raw.client)?, LeaseId(raw.lease))?)
    }

    fn begin_reload(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::BeginReloadRequest = decode(frame)?;
        let (client, ask) = (connection.own(raw.client)?, codec::reload::begin(&raw, &connection.guest)?);
        let mut run = match self.shared.engine.begin_reload_now(client, &ask)? {
            Some(run) => run,
            None => connection.wait_for(self.shared.engine.begin_reload(client, &ask))??,
        };
        Ok(self.stream_reload(connection, frame.verb, &mut run)?)
    }

    fn end_reload(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::EndReloadRequest = decode(frame)?;
        Ok(self.shared.engine.end_reload(connection.own(raw.client)?, &codec::reload::end(raw)?)?)
    }

    fn reserve(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::ReserveRequest = decode(frame)?;
        let (client, ask) = (connection.own(raw.client)?, codec::held::reserve(&raw, &connection.guest)?);
        let reserved = self.shared.engine.reserve(client, &ask)?;
        Ok(connection.send(frame.verb, 0, &codec::held::reserved(&reserved), &[])?)
    }

    fn commit_reserved(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::CommitReservedRequest = decode(frame)?;
        let (client, ask) = (connection.own(raw.client)?, codec::held::commit(&raw, &connection.guest)?);
        let (committed, later) = self.shared.engine.commit_reserved(client, &ask)?;
        let (mut durable, mut later) = (None, Some(later));
        if ask.durable {
            later = None;
            durable = Some(connection.wait_for(self.shared.engine.reserved_durable(&ask, &committed))?);
        }
        connection.send(frame.verb, 0, &codec::held::committed(&committed.outcomes, durable), &[])?;
        drop(later); // after the answer, as for a commit
        Ok(())
    }

    fn renew(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::RenewRequest = decode(frame)?;
        let (client, leases) = (connection.own(raw.client)?, codec::held::renew(&raw)?);
        let renewed = self.shared.engine.renew(client, &leases);
        Ok(connection.send(frame.verb, 0, &codec::held::renewed(renewed), &[])?)
    }

    fn release(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::ReleaseRequest = decode(frame)?;
        Ok(self.shared.engine.release(connection.own(raw.client)?, &codec::held::release(raw)?)?)
    }

    fn settled(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::SettledRequest = decode(frame)?;
        self.shared.engine.settled(connection.own(raw.client)?, raw.mapped);
        Ok(())
    }

    fn take_over(&self, connection: &OnSocket<'_>, frame: &Frame) -> Result<(), End> {
        let raw: wire::TakeOverRequest = decode(frame)?;
        let client = connection.own(raw.client)?;
        let ask = codec::held::take_over(raw, &connection.guest)?;
        let taken = self.shared.engine.take_over(client, &ask)?;
        Ok(connection.send(frame.verb, 0, &codec::held::taken_over(taken), &[])?)
    }

    /// Sends a run's pages as they land; the last frame has no FLAG_MORE.
    fn stream_reload(&self, connection: &OnSocket<'_>, verb: u8, run: &mut ReloadRun) -> io::Result<()> {
        let mut reply = codec::reload::begun(run);
        loop {
            let more = !run.is_done();
            connection.send(verb, if more { FLAG_MORE } else { 0 }, &reply, &[])?;
            if !more {
                return Ok(());
            }
            connection.wait_for(run.wait())?;
            reply = codec::reload::landed(run);
        }
    }
}

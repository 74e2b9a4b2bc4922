//! The framed door's own verbs: pages over a network. Owns: their order. Must not know: what they decide, how bytes travel.

use crate::connections::asking::Asking;
use crate::doors::codec;
use crate::doors::frames::connection::{Connection, End, Shared, Verbs, decode, is_not_done};
use crate::engine::clients::RemoteOwner;
use crate::engine::remote::reload::{ReloadAudience, ToldPage};
use std::io;
use std::sync::Arc;
use turnkv_pool::ClientId;
use turnkv_proto::Error;
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::{FLAG_MORE, Frame, LocalSocket};

/// What serves one connection of the door.
pub(super) struct FramedService {
    pub(super) shared: Arc<Shared>,
    /// Who is at its other end.
    pub(super) owner: RemoteOwner,
}

type OnNetwork<'a> = Connection<'a, FramedService>;

impl Verbs for FramedService {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn greet(&self, _: &LocalSocket, _: &Asking, ask: &wire::HelloRequest) -> Result<ClientId, Error> {
        Ok(self.shared.engine.hello_remote(&self.owner, ask.client)?.id)
    }

    fn act(&self, connection: &OnNetwork<'_>, verb: Verb, frame: &Frame) -> Result<(), End> {
        match verb {
            Verb::OpenRail => self.open_rail(connection, frame),
            Verb::RemoteOffload => self.offload(connection, frame),
            Verb::RemoteReload => self.reload(connection, frame),
            verb => Err(is_not_done(verb)),
        }
    }

    fn leave(&self, client: ClientId) {
        self.shared.engine.goodbye_remote(client);
    }
}

impl FramedService {
    fn open_rail(&self, connection: &OnNetwork<'_>, frame: &Frame) -> Result<(), End> {
        let ask: wire::OpenRailRequest = decode(frame)?;
        let client = self.shared.engine.remote_client(connection.own(ask.client)?)?;
        let offers = codec::remote::offers(&ask)?;
        let remote = &self.shared.engine.remote;
        let lost = remote.compare_rails(&client, &ask.held, ask.names_framed);
        let taken = if offers.is_empty() { None } else { Some(remote.open_rail(&client, &offers)?) };
        let reply = codec::remote::taken(taken, lost);
        Ok(connection.send(frame.verb, 0, &reply, &[])?)
    }

    fn offload(&self, connection: &OnNetwork<'_>, frame: &Frame) -> Result<(), End> {
        let engine = &self.shared.engine;
        let raw: wire::RemoteOffloadRequest = decode(frame)?;
        let client = connection.own(raw.begin.as_ref().map_or(0, |begin| begin.client))?;
        let (client, ask) = (engine.remote_client(client)?, codec::remote::offload(&raw, &connection.guest)?);
        drop(raw);
        let mut begun = match engine.begin_offload_now(client.id, &ask.begin)? {
            Some(begun) => begun,
            None => connection.wait_for(engine.begin_offload(client.id, &ask.begin))??,
        };
        let gone = || connection.socket.peer_is_gone().unwrap_or(true);
        // Waited for to its end whatever becomes of the peer: transfers of it may be under way.
        let filled = engine.fill_remote(&client, &ask, &mut begun, &gone);
        let committed = self.shared.waits.block_on(filled)?;
        Ok(connection.send(frame.verb, 0, &codec::remote::offloaded(begun, committed), &[])?)
    }

    fn reload(&self, connection: &OnNetwork<'_>, frame: &Frame) -> Result<(), End> {
        let engine = &self.shared.engine;
        let raw: wire::RemoteReloadRequest = decode(frame)?;
        let client = connection.own(raw.begin.as_ref().map_or(0, |begin| begin.client))?;
        let (client, ask) = (engine.remote_client(client)?, codec::remote::reload(&raw, &connection.guest)?);
        drop(raw);
        let mut run = match engine.begin_reload_now(client.id, &ask.begin)? {
            Some(run) => run,
            None => connection.wait_for(engine.begin_reload(client.id, &ask.begin))??,
        };
        let mut telling = Telling { connection, verb: frame.verb, covered: run.covered, failed: None };
        let written = self.shared.waits.block_on(engine.write_remote(&client, &ask, &mut run, &mut telling));
        match telling.failed {
            Some(error) => Err(End::Socket(error)),
            None => Ok(written?),
        }
    }
}

/// The peer of a reload, as frames.
struct Telling<'a> {
    connection: &'a OnNetwork<'a>,
    verb: u8,
    /// Said with the first frame.
    covered: u32,
    failed: Option<io::Error>,
}

impl ReloadAudience for Telling<'_> {
    fn tell(&mut self, pages: Vec<ToldPage>, more: bool) -> bool {
        let reply = codec::remote::reloaded(pages, std::mem::take(&mut self.covered));
        let flags = if more { FLAG_MORE } else { 0 };
        match self.connection.send(self.verb, flags, &reply, &[]) {
            Ok(()) => true,
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }

    fn has_left(&self) -> bool {
        self.connection.socket.peer_is_gone().unwrap_or(true)
    }
}

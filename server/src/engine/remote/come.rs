//! Clients of other hosts come and go. Owns: that the pool knows of one as long as it is connected, and the thread that takes
//! completions. Must not know: rails, verbs.

use crate::engine::Engine;
use crate::engine::clients::{Clients, RemoteOwner};
use crate::engine::remotes::clients::RemoteClient;
use crate::engine::remotes::transfers::Transfers;
use crate::limits::REMOTE_LAND_WAIT;
use crate::supervise::Supervisor;
use std::sync::Arc;
use turnkv_pool::ClientId;
use turnkv_proto::{Error, ErrorKind};

/// A call of a connection that has left, until its transfers have ended.
struct CallerLeft<'a> {
    clients: &'a Clients,
    client: ClientId,
}

impl Drop for CallerLeft<'_> {
    fn drop(&mut self) {
        self.clients.left_call_ended(self.client);
    }
}

impl Engine {
    /// Starts the thread that takes completions; it ends when the engine is dropped.
    pub(in crate::engine) fn run_remote(
        engine: &Arc<Engine>,
        supervisor: &Supervisor,
    ) -> std::io::Result<()> {
        let weak = Arc::downgrade(engine);
        supervisor.thread("turnkv-remote", move || {
            while let Some(engine) = weak.upgrade() {
                engine.remote.land(REMOTE_LAND_WAIT);
            }
        })
    }

    /// A connection of a client on another host says Hello: joins the client that it names, if that is connected and the same
    /// caller's, else becomes a new one.
    pub(crate) fn hello_remote(&self, owner: &RemoteOwner, joined: u64) -> Result<Arc<RemoteClient>, Error> {
        let (id, is_new) = self.clients.hello_remote(owner, joined)?;
        if !is_new && let Some(known) = self.remote.find(id) {
            return Ok(known);
        }
        let peer = owner.from.user();
        self.decide().pool.introduce_client(id, peer);
        Ok(self.remote.add(id, peer))
    }

    /// A connection of it has ended, and no call of it is in service there. With the last one its rails end, and its leases.
    pub(crate) fn goodbye_remote(&self, client: ClientId) {
        if self.clients.goodbye(client) {
            self.remote.remove(client);
        }
    }

    /// Ends the transfers of a call, however long they take while its client is there. One whose connections have all left, though
    /// calls of it are in service, is gone: its rails end, and the transfers with them.
    pub(super) async fn end_transfers(
        &self,
        client: &RemoteClient,
        transfers: Transfers<'_>,
        gone: &dyn Fn() -> bool,
    ) {
        let mut left = None;
        let mut look = || {
            if left.is_none() && gone() {
                left = Some(self.caller_left(client.id));
            }
        };
        transfers.end(&mut look).await;
    }

    /// A connection has left whose call goes on.
    fn caller_left(&self, client: ClientId) -> CallerLeft<'_> {
        if self.clients.caller_left(client) {
            self.remote.remove(client);
        }
        CallerLeft { clients: &self.clients, client }
    }

    /// The client of this number, if it is connected.
    pub(crate) fn remote_client(&self, client: ClientId) -> Result<Arc<RemoteClient>, Error> {
        let left = || Error::new(ErrorKind::LeaseUnknown, "this client has left");
        self.remote.find(client).ok_or_else(left)
    }
}

//! Who comes and goes: a connection's Hello, the begin and the end of inline calls. Owns: that the pool knows of a client as long
//! as it is there. Must not know: how a process is found to be gone.

use super::clients::{EPHEMERAL, InlineCaller, LeftSlots};
use super::outliving::Outliving;
use super::{Core, Engine};
use std::sync::Arc;
use turnkv_pool::ClientId;
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::LocalSocket;

/// An inline call in service: its caller is known until the last of its calls is over.
pub(crate) struct InlineCall {
    engine: Arc<Engine>,
    caller: InlineCaller,
    /// The client that its leases are of.
    pub(crate) client: ClientId,
}

impl Drop for InlineCall {
    fn drop(&mut self) {
        if self.engine.clients.end_call(self.caller) {
            self.engine.decide().pool.forget_client(self.client);
        }
    }
}

impl Engine {
    /// A connection of a process on this host says Hello. `library`: which copy of a client library in it does.
    pub(crate) fn hello(&self, socket: &LocalSocket, library: u64) -> Result<ClientId, Error> {
        let (client, user) = self.clients.hello(socket, library)?;
        let holder = self.outliving.as_ref().map(|_| self.clients.holder(client));
        let mut core = self.decide();
        core.pool.introduce_client(client, user);
        if let (Some(table), Some(holder)) = (&mut core.slot_table, holder) {
            table.introduce(client, holder);
        }
        Ok(client)
    }

    /// A client says that it writes to no slot that an earlier server granted it in this memory. `mapped`: nor has it any mapped, but
    /// for what it has taken over.
    pub(crate) fn settled(&self, client: ClientId, mapped: bool) {
        for left in self.clients.take_settled(client, LeftSlots::Writing) {
            tracing::info!(client = client.0, "a client that the server before knew writes nothing any more");
            self.end_client(left);
        }
        if mapped {
            for left in self.clients.take_settled(client, LeftSlots::Mapped) {
                tracing::info!(
                    client = client.0,
                    "a client that the server before knew has said what it has mapped"
                );
                self.end_client(left);
            }
        }
    }

    /// What a client that is nobody any more leased is free.
    pub(super) fn end_client(&self, client: ClientId) {
        let now = self.now();
        let mut core = self.decide_in_slices(|core| core.pool.client_gone(client, now));
        if let Some(table) = &mut core.slot_table {
            table.forget(client);
        }
    }

    /// Names the page memory, to whoever may map it; 0: it does not outlive this process.
    pub(crate) fn memory(&self) -> u64 {
        self.outliving.as_ref().map_or(0, Outliving::memory)
    }

    /// A simulated process says Hello.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn join(&self, client: u64, alive: Arc<std::sync::atomic::AtomicBool>) {
        let client = client & !EPHEMERAL;
        self.clients.join(client, alive);
        self.decide().pool.introduce_client(ClientId(client), InlineCaller::User(0, 0).user());
    }

    /// An inline call begins.
    pub(crate) fn begin_call(self: &Arc<Self>, caller: InlineCaller) -> Result<InlineCall, Error> {
        let begun = self.clients.begin_call(caller);
        let (client, first) = begun.inspect_err(|_| self.metrics.refused_callers.increment(1))?;
        if first {
            self.decide().pool.introduce_client(client, caller.user());
        }
        Ok(InlineCall { engine: Arc::clone(self), caller, client })
    }
}

impl Core {
    /// Checks that slots may be leased to a client. A process may have been found to be gone since its call began: what is leased
    /// to it after that, nobody would end. A caller of inline verbs is known as long as one of its calls is in service.
    pub(super) fn check_present(&self, client: ClientId) -> Result<(), Error> {
        if client.0 & EPHEMERAL != 0 || self.pool.is_present(client) {
            return Ok(());
        }
        let text = format!("the process of client {} is gone: nothing is leased to it any more", client.0);
        Err(Error::new(ErrorKind::LeaseUnknown, text))
    }
}

#[cfg(test)]
mod tests;

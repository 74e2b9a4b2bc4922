//! Who comes and goes: a connection's Hello, the begin and the end of inline calls. Owns: that the pool knows of a client as long
//! as it is there. Must not know: how a process is found to be gone.

use super::clients::{EPHEMERAL, InlineCaller};
use super::{Core, Engine};
use std::sync::Arc;
use turnkv_pool::ClientId;
use turnkv_proto::{Error, ErrorKind};
use turnkv_tier::dram::table::Holder;
use turnkv_transfer::{LocalSocket, began};

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
    /// A connection of a process on this host says Hello.
    pub(crate) fn hello(&self, socket: &LocalSocket) -> Result<ClientId, Error> {
        let (client, user) = self.clients.hello(socket)?;
        let holder = self.outliving.as_ref().map(|_| self.holder(client));
        let mut core = self.decide();
        core.pool.introduce_client(client, user);
        if let (Some(table), Some(holder)) = (&mut core.slot_table, holder) {
            table.introduce(client, holder);
        }
        Ok(client)
    }

    /// How the next server tells whether a client's process lives.
    fn holder(&self, client: ClientId) -> Holder {
        let pid = self.clients.process_of(client).map(|(pid, _)| pid);
        let began = pid.and_then(|pid| Some((pid, began(pid)?)));
        began.map_or(Holder::Unknown, |(pid, began)| Holder::Process { pid: pid as u32, began })
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

//! Leases of pages that this process has mapped. Owns: renewing them in the background, releasing them for
//! certain. Must not know: what is mapped where.
//!
//! Nothing breaks when a renewal fails: time alone never frees a held lease. A server that does not hear of
//! one counts it as quarantined. A server that takes over the memory of one before is told what is mapped, before anything else. Should a server nevertheless say that a lease of ours is over, whatever is
//! mapped under it is not to be trusted any more: [`LocalPool::is_lost`].

use super::connection::{Connection, Server};
use super::held::{HeldLease, HeldName, HeldSlots};
use super::lent::Lent;
use super::pool::LocalPool;
use super::talk::{decode, receive, send};
use super::writes::{Account, Mapping};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{RENEW_LEASES_MAX, RENEW_PAUSE_MAX, RENEW_PAUSE_MIN, RENEW_WAIT, RENEWALS_PER_LEASE};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::FLAG_FAILURE;

/// What became of the wish to map what a lease is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holding {
    /// It may be mapped.
    Held,
    /// So much may not be mapped. The lease is one to copy from, as it was.
    Refused,
}

/// A wish to map slots, from before they are asked for: the server after this one is not told that all is said meanwhile.
#[derive(Debug)]
pub(crate) struct WillMap(Option<Mapping>);

impl WillMap {
    /// Slots are about to be asked for on this connection.
    pub(crate) fn begin(lent: &Lent) -> WillMap {
        WillMap(lent.begin_mapping())
    }
}

impl LocalPool {
    /// Makes the lease that an operation was just given a held one. Only after this may its slots be mapped.
    pub(crate) async fn hold(
        self: &Arc<Self>,
        lent: &mut Lent,
        lease: u64,
        (slots, wish): (HeldSlots, WillMap),
        deadline: Deadline,
    ) -> Result<Holding> {
        let renew = wire::RenewRequest { client: lent.client(), leases: vec![lease] };
        // The lease runs from the server's receipt: counted from before the request was sent, it is renewed in time
        // however late the answer comes.
        let asked = Instant::now();
        let reply: wire::RenewReply = lent.call(Verb::Renew, &renew, deadline).await?;
        if !reply.gone.is_empty() {
            return Err(Error::new(
                ErrorKind::LeaseExpired,
                "the lease ended before its pages could be mapped",
            ));
        }
        if !reply.refused.is_empty() {
            return Ok(Holding::Refused);
        }
        lent.keep_lease();
        let instance = lent.server().instance;
        let mut held = self.held.lock();
        // The answer of a server that is gone may be read after another one was told what is mapped: this is not among it.
        if held.instance != instance {
            return Err(Error::unavailable("the server restarted"));
        }
        let mapping = wish.0.into_iter().collect();
        let (now, orphans) = (Some(lease), BTreeMap::new());
        held.leases.insert((instance, lease), HeldLease { of: slots, now, orphans, is_left: false, mapping });
        held.given_up.runtime = Some(Handle::current());
        if !std::mem::replace(&mut held.kept, true) {
            drop(tokio::spawn(keep(Arc::downgrade(self), asked, pause(reply.lease_ms))));
        }
        Ok(Holding::Held)
    }

    /// Slots that were added to a lease that is held already.
    pub(crate) fn hold_more(
        &self,
        (server, lease): (&Server, u64),
        now: &Server,
        slots: BTreeMap<u32, wire::SlotRef>,
    ) -> Result<()> {
        let mut held = self.held.lock();
        let is_current = held.instance == now.instance;
        match held.leases.get_mut(&(server.instance, lease)).filter(|_| is_current) {
            Some(known) => {
                known.of.slots.extend(slots);
                Ok(())
            }
            None => Err(Error::unavailable("the server restarted")),
        }
    }

    /// The lease that one held first of this server is now, at the server that answered last. None: it has nothing of it.
    pub(crate) fn lease_now(&self, server: &Server, lease: u64) -> Option<u64> {
        self.held.lock().leases.get(&(server.instance, lease))?.now
    }

    /// The same for a lease that slots are to be added to: none that lost some, because their positions would be given again.
    pub(crate) fn lease_to_extend(&self, server: &Server, lease: u64) -> Option<u64> {
        let held = self.held.lock();
        held.leases.get(&(server.instance, lease)).filter(|known| known.orphans.is_empty())?.now
    }

    /// Whether the server that answered last has this slot under a lease of ours.
    pub(crate) fn is_held(&self, server: &Server, lease: u64, position: u32) -> bool {
        let held = self.held.lock();
        let known = held.leases.get(&(server.instance, lease));
        known.is_some_and(|known| known.now.is_some() && known.of.slots.contains_key(&position))
    }

    /// Whether the server said that this lease is over although we did not release it.
    pub(crate) fn is_lost(&self, server: &Server, lease: u64) -> bool {
        self.held.lock().lost.contains(&(server.instance, lease))
    }

    /// Whether that was ever said of any lease.
    pub(crate) fn has_lost(&self) -> bool {
        !self.held.lock().lost.is_empty()
    }

    /// Gives slots back that are not mapped any more (no positions: all of the lease; else ascending), now or when a
    /// connection can be had.
    pub(crate) fn release(
        self: &Arc<Self>,
        server: &Server,
        lease: u64,
        positions: &[u32],
        corrupt: Vec<u32>,
    ) {
        let told = {
            let mut held = self.held.lock();
            let told = held.give_up((server.instance, lease), positions);
            told.map(|told| (held.instance, told))
        };
        let is_told = match told {
            Some((instance, (lease, positions))) => self.send_release(instance, lease, positions, corrupt),
            // What it was mapped from is given up: that may have been all that a server before had leased.
            None => self.has_open() && self.tell_settled(),
        };
        if !is_told {
            self.tell_later();
        }
    }

    /// False: it waits for a connection.
    fn send_release(&self, instance: u64, lease: u64, positions: Vec<u32>, corrupt: Vec<u32>) -> bool {
        let server = self.server().0;
        if server.instance != instance {
            return true; // that server process is gone, and another was not told of these slots
        }
        let release = wire::ReleaseRequest { lease, client: server.client, positions, corrupt };
        let is_sent = self.has_open() && self.tell(&server, Verb::Release, &release);
        if !is_sent {
            self.held.lock().unsent.push((server, release));
        }
        is_sent
    }

    /// Sends releases that found no connection.
    pub(super) fn send_unsent(&self, server: &Server) {
        let unsent = std::mem::take(&mut self.held.lock().unsent);
        for (from, release) in unsent.into_iter().filter(|(from, _)| from == server) {
            if !self.tell(&from, Verb::Release, &release) {
                self.held.lock().unsent.push((from, release));
            }
        }
    }

    /// Tells a server, on a connection that has just said Hello, what is mapped since those before it.
    pub(super) async fn say_what_is_mapped(&self, connection: &Connection, deadline: Deadline) -> Result<()> {
        let left = {
            let mut held = self.held.lock();
            held.say_again = None;
            held.left()
        };
        for (name, slots) in left {
            let Some(mapping) = connection.account.as_ref().map(Account::begin_mapping) else {
                return Ok(());
            };
            let reply = ask_to_take_over(connection, slots, deadline).await?;
            if reply.no_room {
                let (mut held, again) = (self.held.lock(), pause(reply.lease_ms));
                held.say_again = Some(held.say_again.map_or(again, |other| other.min(again)));
            } else {
                self.note_taken(connection, name, &reply, mapping);
            }
        }
        Ok(())
    }

    fn note_taken(
        &self,
        connection: &Connection,
        name: HeldName,
        reply: &wire::TakeOverReply,
        mapping: Mapping,
    ) {
        let instance = connection.server.instance;
        let released = {
            let mut held = self.held.lock();
            if held.instance != instance {
                return;
            }
            held.taken(name, reply, mapping)
        };
        if !released.is_empty() {
            let all = released.len() == reply.positions.len();
            let _is_sent =
                self.send_release(instance, reply.lease, if all { Vec::new() } else { released }, Vec::new());
        }
    }

    /// Renews every lease held, and sends releases that could not be sent before. Returns how long after the
    /// first request the next time is due.
    async fn renew_all(self: &Arc<Self>) -> Result<Duration> {
        let deadline = Deadline::after(RENEW_WAIT);
        if self.held.lock().say_again.is_some() {
            drop(self.connect(deadline).await?); // each connection that is made says what is left
        }
        let mut lent = self.acquire(deadline).await?;
        let server = lent.server();
        let mut next = self.held.lock().say_again.unwrap_or(RENEW_PAUSE_MAX);
        // After a connection was had: a server that is new has been told by then.
        let leases: Vec<u64> = self.held.lock().leases.values().filter_map(|lease| lease.now).collect();
        for leases in leases.chunks(RENEW_LEASES_MAX) {
            let renew = wire::RenewRequest { client: server.client, leases: leases.to_vec() };
            let reply: wire::RenewReply = lent.call(Verb::Renew, &renew, deadline).await?;
            next = next.min(pause(reply.lease_ms));
            let mut held = self.held.lock();
            let is_its = held.instance == server.instance;
            for gone in reply.gone.into_iter().filter(|_| is_its) {
                if let Some(name) = held.name_of(gone) {
                    tracing::warn!(lease = gone, "the server ended a lease of pages that are mapped");
                    held.leases.remove(&name);
                    held.lost.insert(name);
                }
            }
        }
        drop(lent); // at rest, so that the releases can use it
        self.send_unsent(&server);
        Ok(next)
    }
}

/// Renews until nothing is held any more: first so long after it was asked last.
async fn keep(pool: Weak<LocalPool>, mut asked: Instant, mut pause: Duration) {
    loop {
        let due = (asked + pause).max(Instant::now() + RENEW_PAUSE_MIN);
        tokio::time::sleep_until(due.into()).await;
        let Some(pool) = pool.upgrade() else { return };
        {
            let mut held = pool.held.lock();
            if !held.is_active() {
                held.kept = false;
                return;
            }
        }
        asked = Instant::now();
        match pool.renew_all().await {
            Ok(next) => pause = next,
            Err(error) => tracing::debug!(%error, "mapped pages were not renewed: trying again"),
        }
    }
}

/// Asks a server to take over what is mapped of one lease.
async fn ask_to_take_over(
    connection: &Connection,
    of: HeldSlots,
    deadline: Deadline,
) -> Result<wire::TakeOverReply> {
    let HeldSlots { namespace, shard, reserved, slots } = of;
    let (positions, slots) = slots.into_iter().unzip();
    let client = connection.server.client;
    let ask = wire::TakeOverRequest {
        client,
        namespace: namespace.to_vec().into(),
        shard,
        positions,
        slots,
        reserved,
    };
    send(&connection.socket, Verb::TakeOver, &ask, deadline)?;
    let frame = receive(&connection.socket, deadline).await?;
    match decode(Verb::TakeOver, &frame) {
        // An older server does not know how to, or this one has no such namespace open: all of it stays mapped, and nobody's.
        Err(error) if frame.flags & FLAG_FAILURE != 0 => {
            tracing::debug!(%error, "the server does not take over what is mapped");
            Ok(wire::TakeOverReply::default())
        }
        reply => reply,
    }
}

fn pause(lease_ms: u32) -> Duration {
    Duration::from_millis(u64::from(lease_ms) / RENEWALS_PER_LEASE).clamp(RENEW_PAUSE_MIN, RENEW_PAUSE_MAX)
}

#[cfg(test)]
mod tests;

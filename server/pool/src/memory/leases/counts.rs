//! What leases add up to, by client, by user and in all. Owns: these sums, and whose process a client is.
//! Must not know: which lease is where; how much anyone may hold (`share` says).

use super::kind::LeaseKind;
use crate::ids::{ClientId, UserId};
use hashbrown::HashMap;

/// What one client holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Leases of any kind, those in quarantine too.
    pub(crate) leases: u32,
    /// Slots under these.
    pub(crate) leased: u32,
    /// Of these, under held leases.
    pub(crate) held: u32,
    pub(crate) leased_bytes: u64,
    /// Of these, under leases that time does not end.
    pub(crate) lasting_bytes: u64,
}

/// What all clients of one user hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserHolding {
    pub(crate) leases: u32,
    /// Bytes under leases that time does not end.
    pub(crate) lasting_bytes: u64,
}

/// What was said of a client.
#[derive(Clone, Copy)]
struct Known {
    user: UserId,
    /// Its process is gone: its leases are being ended.
    gone: bool,
}

/// The sums.
#[derive(Default)]
pub(crate) struct Counts {
    clients: HashMap<ClientId, Holding>,
    users: HashMap<UserId, UserHolding>,
    known: HashMap<ClientId, Known>,
    /// Leases, those in quarantine too.
    pub(crate) leases: u32,
    /// Leases in quarantine.
    pub(crate) quarantined: u32,
    /// Bytes of slots under held leases.
    pub(crate) held_bytes: u64,
    pub(crate) quarantined_bytes: u64,
    /// Bytes of slots under leases that time does not end.
    pub(crate) lasting_bytes: u64,
}

impl Counts {
    /// What a client holds.
    pub(crate) fn of(&self, client: ClientId) -> Holding {
        self.clients.get(&client).copied().unwrap_or_default()
    }

    /// What the clients of a client's user hold.
    pub(crate) fn of_user(&self, client: ClientId) -> UserHolding {
        self.users.get(&self.user_of(client)).copied().unwrap_or_default()
    }

    /// Whose process a client is.
    pub(crate) fn user_of(&self, client: ClientId) -> UserId {
        self.known.get(&client).map(|known| known.user).unwrap_or_default()
    }

    /// Clients that hold anything.
    pub(crate) fn clients(&self) -> impl Iterator<Item = (ClientId, Holding)> {
        self.clients.iter().map(|(client, holding)| (*client, *holding))
    }

    /// Users who hold anything.
    pub(crate) fn users(&self) -> impl Iterator<Item = (UserId, UserHolding)> {
        self.users.iter().map(|(user, holding)| (*user, *holding))
    }

    /// Whether it was said who a client is, and not that it is gone.
    pub(crate) fn is_present(&self, client: ClientId) -> bool {
        self.known.get(&client).is_some_and(|known| !known.gone)
    }

    /// A client is gone: nothing is leased to it any more.
    pub(crate) fn depart(&mut self, client: ClientId) {
        if let Some(known) = self.known.get_mut(&client) {
            known.gone = true;
        }
    }

    /// Says whose process a client is. One that holds leases keeps its user.
    pub(crate) fn introduce(&mut self, client: ClientId, user: UserId) {
        if !self.clients.contains_key(&client) {
            self.known.insert(client, Known { user, gone: false });
        }
    }

    /// A client that is gone is nobody's any more.
    pub(crate) fn forget(&mut self, client: ClientId) {
        if !self.clients.contains_key(&client) {
            self.known.remove(&client);
        }
    }

    /// A lease begins.
    pub(super) fn begin(&mut self, client: ClientId, kind: LeaseKind) {
        let user = self.user_of(client);
        self.clients.entry(client).or_default().leases += 1;
        self.users.entry(user).or_default().leases += 1;
        self.leases += 1;
        self.quarantined += u32::from(kind.is_quarantined());
    }

    /// A lease, whose slots were counted out, is over.
    pub(super) fn end(&mut self, client: ClientId, kind: LeaseKind) {
        let user = self.user_of(client);
        self.leases -= 1;
        self.quarantined -= u32::from(kind.is_quarantined());
        if let Some(holding) = self.users.get_mut(&user) {
            holding.leases -= 1;
            if holding.leases == 0 {
                debug_assert_eq!(holding.lasting_bytes, 0, "who has no lease holds nothing");
                self.users.remove(&user);
            }
        }
        if let Some(holding) = self.clients.get_mut(&client) {
            holding.leases -= 1;
            if holding.leases == 0 {
                debug_assert_eq!(holding.leased, 0, "who has no lease holds nothing");
                self.clients.remove(&client);
            }
        }
    }

    /// A lease becomes one of another kind.
    pub(super) fn turn(&mut self, before: LeaseKind, kind: LeaseKind) {
        self.quarantined += u32::from(kind.is_quarantined());
        self.quarantined -= u32::from(before.is_quarantined());
    }

    /// So many more slots are under a lease of this kind.
    pub(super) fn count_in(&mut self, client: ClientId, kind: LeaseKind, slots: u32, slot_bytes: u64) {
        let bytes = u64::from(slots) * slot_bytes;
        let (held, lasting) = (kind.is_held(), if kind.is_lasting() { bytes } else { 0 });
        let user = self.user_of(client);
        let counts = self.clients.entry(client).or_default();
        counts.leased += slots;
        counts.leased_bytes += bytes;
        counts.held += if held { slots } else { 0 };
        counts.lasting_bytes += lasting;
        self.users.entry(user).or_default().lasting_bytes += lasting;
        self.held_bytes += if held { bytes } else { 0 };
        self.quarantined_bytes += if kind.is_quarantined() { bytes } else { 0 };
        self.lasting_bytes += lasting;
    }

    /// So many are not any more.
    pub(super) fn count_out(&mut self, client: ClientId, kind: LeaseKind, slots: u32, slot_bytes: u64) {
        let bytes = u64::from(slots) * slot_bytes;
        let (held, lasting) = (kind.is_held(), if kind.is_lasting() { bytes } else { 0 });
        let user = self.user_of(client);
        self.held_bytes -= if held { bytes } else { 0 };
        self.quarantined_bytes -= if kind.is_quarantined() { bytes } else { 0 };
        self.lasting_bytes -= lasting;
        if let Some(holding) = self.users.get_mut(&user) {
            holding.lasting_bytes -= lasting;
        }
        let Some(counts) = self.clients.get_mut(&client) else { return };
        counts.leased -= slots;
        counts.leased_bytes -= bytes;
        counts.held -= if held { slots } else { 0 };
        counts.lasting_bytes -= lasting;
    }
}

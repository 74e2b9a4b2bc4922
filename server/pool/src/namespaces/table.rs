//! Namespaces: what a page is, whose it is.
//! Owns: the table of namespaces and tenants. Must not know: pages, leases, sessions.
//!
//! ```text
//! FREE --open--> OPEN --begin to retire--> RETIRING --nothing of it is left--> FREE (the next life of the place)
//! ```
//! What names a namespace names a life of its place: from the moment it retires nobody finds it, and it is
//! not taken for the namespace that has the place next.

use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::limits::TENANTS_KEPT;
use crate::namespaces::retiring::Retiring;
use crate::sizing::prefill::Prefill;
use hashbrown::HashMap;
use std::collections::VecDeque;
use turnkv_proto::NamespaceId;

/// What the pool needs to know of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceDesc {
    /// SHA-256 of everything that must agree.
    pub id: NamespaceId,
    /// Whose pages these are; slabs are never shared between tenants.
    pub tenant: String,
    /// Bytes of one shard of a page.
    pub shard_bytes: u64,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Shards of a page.
    pub shards: u16,
}

/// One place of the table.
pub(crate) struct NamespacePlace {
    desc: NamespaceDesc,
    life: u32,
    is_open: bool,
    /// When a call named it last.
    used: Now,
    prefill: Prefill,
}

/// The namespaces that are open, and those that retire.
#[derive(Default)]
pub(crate) struct Namespaces {
    places: Vec<NamespacePlace>,
    by_id: HashMap<NamespaceId, u16>,
    free: VecDeque<u16>,
    /// Those whose pages and sessions are being dropped, in the order in which they began to.
    retiring: VecDeque<Retiring>,
    tenants: Vec<String>,
}

impl Namespaces {
    pub(crate) fn get(&self, ns: NamespaceIndex) -> Option<&NamespaceDesc> {
        self.place(ns).map(|place| &place.desc)
    }

    /// Describes an open namespace, or says that it is not open.
    pub(crate) fn desc(&self, ns: NamespaceIndex) -> Result<&NamespaceDesc, PoolError> {
        self.get(ns).ok_or(PoolError::NamespaceUnknown)
    }

    /// Finds an open namespace.
    pub(crate) fn find(&self, id: &NamespaceId) -> Option<NamespaceIndex> {
        self.by_id.get(id).map(|at| self.index(*at))
    }

    /// The id of the namespace at a place.
    pub(crate) fn id(&self, ns: NamespaceIndex) -> NamespaceId {
        self.places[usize::from(ns.0)].desc.id
    }

    /// The id of the namespace that has a place now, be it that it retires.
    pub(crate) fn id_at(&self, at: u16) -> NamespaceId {
        self.places[usize::from(at)].desc.id
    }

    /// Tokens of a page of the namespace that has a place now.
    pub(crate) fn page_tokens_at(&self, at: u16) -> u32 {
        self.places[usize::from(at)].desc.page_tokens
    }

    /// What names the namespace that has a place now.
    pub(crate) fn index(&self, at: u16) -> NamespaceIndex {
        NamespaceIndex(at, self.places[usize::from(at)].life)
    }

    /// The descriptions of all places, of those too that nobody has now.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &NamespaceDesc> {
        self.places.iter().map(|place| &place.desc)
    }

    /// Places, whoever has them.
    pub(crate) fn places_len(&self) -> usize {
        self.places.len()
    }

    /// Namespaces that are open.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Namespaces that are open, by place, with when each was used last.
    pub(crate) fn open(&self) -> impl Iterator<Item = (NamespaceIndex, Now)> {
        let open = self.places.iter().enumerate().filter(|(_, place)| place.is_open);
        open.map(|(at, place)| (NamespaceIndex(at as u16, place.life), place.used))
    }

    /// The namespace at a place, if it is open; none beyond the last place.
    pub(crate) fn open_at(&self, at: u16) -> Option<Option<NamespaceIndex>> {
        let place = self.places.get(usize::from(at))?;
        Some(place.is_open.then_some(NamespaceIndex(at, place.life)))
    }

    pub(crate) fn tenant(&self, tenant: u32) -> &str {
        &self.tenants[tenant as usize]
    }

    pub(crate) fn prefill(&self, ns: NamespaceIndex) -> Option<&Prefill> {
        self.place(ns).map(|place| &place.prefill)
    }

    pub(crate) fn prefill_mut(&mut self, ns: NamespaceIndex) -> Option<&mut Prefill> {
        self.place_mut(ns).map(|place| &mut place.prefill)
    }

    /// Somebody uses a namespace: it is not the next to retire.
    pub(crate) fn note_use(&mut self, ns: NamespaceIndex, now: Now) {
        if let Some(place) = self.place_mut(ns) {
            place.used = now;
        }
    }

    /// Namespaces that retire.
    pub(crate) fn retiring(&self) -> usize {
        self.retiring.len()
    }

    /// Takes the namespace that began to retire first.
    pub(crate) fn next_retiring(&mut self) -> Option<Retiring> {
        self.retiring.pop_front()
    }

    /// One that was taken is not gone: it stays the first, or comes after the others.
    pub(crate) fn put_back(&mut self, retiring: Retiring, first: bool) {
        if first {
            self.retiring.push_front(retiring);
        } else {
            self.retiring.push_back(retiring);
        }
    }

    /// A namespace begins to retire: nobody finds it from now on.
    pub(crate) fn begin_to_retire(&mut self, ns: NamespaceIndex) {
        self.close(ns);
        self.retiring.push_back(Retiring::new(ns));
    }

    fn close(&mut self, ns: NamespaceIndex) {
        if let Some(place) = self.place_mut(ns) {
            place.is_open = false;
            let id = place.desc.id;
            self.by_id.remove(&id);
        }
    }

    /// Nothing is left of the namespace that had a place: another one may have it.
    pub(crate) fn vacate(&mut self, at: u16) {
        let place = &mut self.places[usize::from(at)];
        debug_assert!(!place.is_open, "an open namespace keeps its place");
        place.life = place.life.wrapping_add(1);
        self.free.push_back(at);
    }

    fn place(&self, ns: NamespaceIndex) -> Option<&NamespacePlace> {
        self.places.get(usize::from(ns.0)).filter(|place| place.is_open && place.life == ns.1)
    }

    fn place_mut(&mut self, ns: NamespaceIndex) -> Option<&mut NamespacePlace> {
        self.places.get_mut(usize::from(ns.0)).filter(|place| place.is_open && place.life == ns.1)
    }

    /// Gives a namespace a place: one that was vacated, else a new one. True: it is a new one.
    pub(crate) fn settle(&mut self, desc: NamespaceDesc, used: Now) -> (NamespaceIndex, bool) {
        let id = desc.id;
        let vacated = self.free.pop_front();
        let at = vacated.unwrap_or(self.places.len() as u16);
        let life = vacated.map_or(0, |at| self.places[usize::from(at)].life);
        let place = NamespacePlace { desc, life, is_open: true, used, prefill: Prefill::default() };
        match vacated {
            Some(at) => self.places[usize::from(at)] = place,
            None => self.places.push(place),
        }
        self.by_id.insert(id, at);
        (NamespaceIndex(at, life), vacated.is_none())
    }

    /// A tenant's number. `in_use`: says of every number whether something is that tenant's still; the others
    /// may be given to somebody else.
    pub(crate) fn intern(&mut self, tenant: &str, in_use: impl FnOnce(usize) -> Vec<bool>) -> u32 {
        if let Some(at) = self.tenants.iter().position(|known| known == tenant) {
            return at as u32;
        }
        let unused = match self.tenants.len() < TENANTS_KEPT {
            true => None,
            false => in_use(self.tenants.len()).iter().position(|used| !used),
        };
        match unused {
            Some(at) => tenant.clone_into(&mut self.tenants[at]),
            None => self.tenants.push(tenant.to_owned()),
        }
        unused.unwrap_or(self.tenants.len() - 1) as u32
    }
}

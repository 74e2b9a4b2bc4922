//! Namespaces: what a page is, whose it is.
//! Owns: the table of namespaces and tenants. Must not know: leases, sessions.
//!
//! ```text
//! FREE --open--> OPEN --begin to retire--> RETIRING --nothing of it is left--> FREE (the next life of the place)
//! ```
//! What names a namespace names a life of its place: from the moment it retires nobody finds it, and it is
//! not taken for the namespace that has the place next.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::limits::{PAGE_TOKENS_MAX, TENANT_BYTES_MAX, TENANTS_KEPT};
use crate::namespaces::retire::Retiring;
use crate::sizing::prefill::Prefill;
use hashbrown::HashMap;
use std::collections::VecDeque;
use turnkv_proto::NamespaceId;
use turnkv_proto::limits::SHARDS_MAX;

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
    pub(crate) used: Now,
    prefill: Prefill,
}

/// The namespaces that are open, and those that retire.
#[derive(Default)]
pub(crate) struct Namespaces {
    places: Vec<NamespacePlace>,
    by_id: HashMap<NamespaceId, u16>,
    free: VecDeque<u16>,
    /// Those whose pages and sessions are being dropped, in the order in which they began to.
    pub(crate) retiring: VecDeque<Retiring>,
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

    /// The id of the namespace at a place.
    pub(crate) fn id(&self, ns: NamespaceIndex) -> NamespaceId {
        self.places[usize::from(ns.0)].desc.id
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

    pub(crate) fn tenant(&self, tenant: u32) -> &str {
        &self.tenants[tenant as usize]
    }

    pub(crate) fn prefill(&self, ns: NamespaceIndex) -> Option<&Prefill> {
        self.place(ns).map(|place| &place.prefill)
    }

    pub(crate) fn prefill_mut(&mut self, ns: NamespaceIndex) -> Option<&mut Prefill> {
        self.place_mut(ns).map(|place| &mut place.prefill)
    }

    /// Nobody finds the namespace from now on.
    pub(crate) fn close(&mut self, ns: NamespaceIndex) {
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
    fn settle(&mut self, desc: NamespaceDesc, used: Now) -> (NamespaceIndex, bool) {
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
    fn intern(&mut self, tenant: &str, in_use: impl FnOnce(usize) -> Vec<bool>) -> u32 {
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

impl Pool {
    /// Opens a namespace, or finds it open. The same id with another description is refused. At the limit:
    /// `retire_oldest` makes room.
    pub fn open_namespace(&mut self, desc: NamespaceDesc) -> Result<NamespaceIndex, PoolError> {
        if let Some(ns) = self.namespace(&desc.id) {
            let same = self.namespaces.get(ns) == Some(&desc);
            return if same {
                Ok(ns)
            } else {
                Err(PoolError::Invalid("this namespace id is open with another description"))
            };
        }
        self.fits(&desc)?;
        if self.namespaces.len() >= usize::from(self.config.limits.namespaces_max) {
            return Err(PoolError::Limit("namespaces_max"));
        }
        let in_use = |tenants: usize| self.slots.tenants_in_use(tenants);
        let tenant = self.namespaces.intern(&desc.tenant, in_use);
        let (shards, shard_bytes) = (desc.shards, desc.shard_bytes);
        let (ns, is_new) = self.namespaces.settle(desc, self.call.now());
        if is_new {
            self.pages.add_namespace(shards);
            self.slots.add_class(shard_bytes, tenant);
            self.curves.add();
        } else {
            self.pages.renew_namespace(ns.0, shards);
            self.slots.renew_class(ns.0, shard_bytes, tenant);
            self.curves.renew(ns.0);
        }
        Ok(ns)
    }

    /// Whether this pool could hold pages of a namespace at all.
    pub fn fits(&self, desc: &NamespaceDesc) -> Result<(), PoolError> {
        if desc.shards == 0 || u32::from(desc.shards) > SHARDS_MAX {
            return Err(PoolError::Invalid("a page has 1 to 64 shards"));
        }
        if desc.page_tokens == 0 || desc.page_tokens > PAGE_TOKENS_MAX {
            return Err(PoolError::Invalid("a page has 1 to 4096 tokens"));
        }
        if desc.tenant.len() > TENANT_BYTES_MAX {
            return Err(PoolError::Invalid("a tenant's name has at most 128 bytes"));
        }
        if desc.shard_bytes == 0 || desc.shard_bytes > self.config.slab_bytes {
            return Err(PoolError::Invalid("a shard must fit a slab: raise slab_bytes or lower page_tokens"));
        }
        Ok(())
    }

    /// Finds an open namespace.
    pub fn namespace(&self, id: &NamespaceId) -> Option<NamespaceIndex> {
        self.namespaces.by_id.get(id).map(|at| self.namespaces.index(*at))
    }

    /// Finds an open namespace for somebody who uses it: it is not the next to retire.
    pub fn use_namespace(&mut self, id: &NamespaceId, now: Now) -> Option<NamespaceIndex> {
        let ns = self.namespace(id)?;
        self.call.advance(now);
        let used = self.call.now();
        self.namespaces.place_mut(ns)?.used = used;
        Some(ns)
    }

    /// Describes an open namespace.
    pub fn namespace_desc(&self, ns: NamespaceIndex) -> Option<&NamespaceDesc> {
        self.namespaces.get(ns)
    }

    /// Some of the namespaces that are open, in no order.
    pub fn open_namespaces(&self, max: usize) -> Vec<NamespaceIndex> {
        self.namespaces.open().take(max).map(|(ns, _)| ns).collect()
    }
}

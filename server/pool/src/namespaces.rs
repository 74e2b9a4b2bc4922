//! Namespaces: what a page is, whose it is.
//! Owns: the table of namespaces and tenants. Must not know: leases, sessions.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::NamespaceIndex;
use crate::limits::{PAGE_TOKENS_MAX, SHARDS_MAX, TENANT_BYTES_MAX};
use crate::prefill::Prefill;
use hashbrown::HashMap;
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

/// The namespaces that were opened. They live as long as the pool, so an index never names another one.
#[derive(Default)]
pub(crate) struct Namespaces {
    list: Vec<NamespaceDesc>,
    by_id: HashMap<NamespaceId, u16>,
    tenants: Vec<String>,
    prefills: Vec<Prefill>,
}

impl Namespaces {
    pub(crate) fn get(&self, ns: NamespaceIndex) -> Option<&NamespaceDesc> {
        self.list.get(usize::from(ns.0))
    }

    /// The id of an open namespace.
    pub(crate) fn id(&self, ns: NamespaceIndex) -> NamespaceId {
        self.list[usize::from(ns.0)].id
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &NamespaceDesc> {
        self.list.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn tenant(&self, tenant: u32) -> &str {
        &self.tenants[tenant as usize]
    }

    pub(crate) fn prefill(&self, ns: NamespaceIndex) -> Option<&Prefill> {
        self.prefills.get(usize::from(ns.0))
    }

    pub(crate) fn prefill_mut(&mut self, ns: NamespaceIndex) -> Option<&mut Prefill> {
        self.prefills.get_mut(usize::from(ns.0))
    }

    fn intern(&mut self, tenant: &str) -> u32 {
        let at = self.tenants.iter().position(|known| known == tenant).unwrap_or_else(|| {
            self.tenants.push(tenant.to_owned());
            self.tenants.len() - 1
        });
        at as u32
    }
}

impl Pool {
    /// Opens a namespace, or finds it open. The same id with another description is refused.
    pub fn open_namespace(&mut self, desc: NamespaceDesc) -> Result<NamespaceIndex, PoolError> {
        if let Some(ns) = self.namespace(&desc.id) {
            let same = self.namespaces.get(ns) == Some(&desc);
            return if same {
                Ok(ns)
            } else {
                Err(PoolError::Invalid("this namespace id is open with another description"))
            };
        }
        if desc.shards == 0 || desc.shards > SHARDS_MAX {
            return Err(PoolError::Invalid("a page has 1 to 256 shards"));
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
        if self.namespaces.len() >= usize::from(self.config.limits.namespaces_max) {
            return Err(PoolError::Limit("namespaces_max"));
        }
        let ns = self.namespaces.list.len() as u16;
        let tenant = self.namespaces.intern(&desc.tenant);
        self.pages.add_namespace(desc.shards);
        self.slots.add_class(desc.shard_bytes, tenant);
        self.curves.add();
        self.namespaces.by_id.insert(desc.id, ns);
        self.namespaces.list.push(desc);
        self.namespaces.prefills.push(Prefill::default());
        Ok(NamespaceIndex(ns))
    }

    /// Finds an open namespace.
    pub fn namespace(&self, id: &NamespaceId) -> Option<NamespaceIndex> {
        self.namespaces.by_id.get(id).copied().map(NamespaceIndex)
    }

    /// Describes an open namespace.
    pub fn namespace_desc(&self, ns: NamespaceIndex) -> Option<&NamespaceDesc> {
        self.namespaces.get(ns)
    }

    pub(crate) fn desc(&self, ns: NamespaceIndex) -> Result<&NamespaceDesc, PoolError> {
        self.namespaces.get(ns).ok_or(PoolError::NamespaceUnknown)
    }
}

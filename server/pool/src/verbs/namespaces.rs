//! Namespaces: opened, found, described. Owns: the verbs, and what fits this pool. Must not know: how one makes way.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::limits::{PAGE_TOKENS_MAX, TENANT_BYTES_MAX};
use crate::namespaces::table::NamespaceDesc;
use std::collections::BTreeSet;
use turnkv_proto::NamespaceId;
use turnkv_proto::limits::SHARDS_MAX;

/// Namespaces of some tenants that are being found.
#[derive(Debug, Default)]
pub struct TenantNamespaces {
    /// Those found.
    pub found: BTreeSet<NamespaceIndex>,
    /// Sessions of them.
    pub sessions: u64,
    /// The place of the table that comes next.
    next: u16,
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
        if self.namespaces.len() >= usize::from(self.store.limits().namespaces_max) {
            return Err(PoolError::Limit("namespaces_max"));
        }
        let in_use = |tenants: usize| self.store.slots().tenants_in_use(tenants);
        let tenant = self.namespaces.intern(&desc.tenant, in_use);
        let (shards, shard_bytes) = (desc.shards, desc.shard_bytes);
        let (ns, is_new) = self.namespaces.settle(desc, self.store.call.now());
        if is_new {
            self.store.add_namespace(shards, shard_bytes, tenant);
            self.curves.add();
        } else {
            self.store.renew_namespace(ns.0, shards, shard_bytes, tenant);
            self.curves.renew(ns.0);
        }
        Ok(ns)
    }

    /// Whether this pool could hold pages of a namespace at all.
    fn fits(&self, desc: &NamespaceDesc) -> Result<(), PoolError> {
        if desc.shards == 0 || u32::from(desc.shards) > SHARDS_MAX {
            return Err(PoolError::Invalid("a page has 1 to 64 shards"));
        }
        if desc.page_tokens == 0 || desc.page_tokens > PAGE_TOKENS_MAX {
            return Err(PoolError::Invalid("a page has 1 to 4096 tokens"));
        }
        if desc.tenant.len() > TENANT_BYTES_MAX {
            return Err(PoolError::Invalid("a tenant's name has at most 128 bytes"));
        }
        if desc.shard_bytes == 0 || desc.shard_bytes > self.store.config().slab_bytes {
            return Err(PoolError::Invalid("a shard must fit a slab: raise slab_bytes or lower page_tokens"));
        }
        Ok(())
    }

    /// Finds an open namespace.
    pub fn namespace(&self, id: &NamespaceId) -> Option<NamespaceIndex> {
        self.namespaces.find(id)
    }

    /// Finds an open namespace for somebody who uses it: it is not the next to retire.
    pub fn use_namespace(&mut self, id: &NamespaceId, now: Now) -> Option<NamespaceIndex> {
        let ns = self.namespace(id)?;
        self.store.call.advance(now);
        let used = self.store.call.now();
        self.namespaces.note_use(ns, used);
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

    /// Finds some more of the open namespaces of these tenants. True: that is all.
    pub fn find_of_tenants(&mut self, tenants: &BTreeSet<String>, finding: &mut TenantNamespaces) -> bool {
        self.store.call.begin();
        let slice = self.store.call.slice();
        while let Some(open) = self.namespaces.open_at(finding.next) {
            if self.store.call.is_over(slice) {
                return false;
            }
            finding.next += 1;
            self.store.call.step();
            let theirs = |ns: &NamespaceIndex| {
                self.namespace_desc(*ns).is_some_and(|desc| tenants.contains(&desc.tenant))
            };
            if let Some(ns) = open.filter(theirs) {
                finding.sessions += self.session_count(Some(ns));
                finding.found.insert(ns);
            }
        }
        true
    }
}

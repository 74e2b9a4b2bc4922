//! Opening and finding namespaces. Owns: the step from the wire's id to the pool's index. Must not know: pages.

use super::{Engine, malformed, refuse};
use turnkv_pool::{NamespaceDesc, NamespaceIndex};
use turnkv_proto::{CheckedSpec, Error, ErrorKind, NamespaceId, wire};

impl Engine {
    /// Opens a namespace: the same spec always gives the same id. It is in the catalog before the reply leaves, so
    /// that its pages are known after a restart.
    pub(crate) fn open_namespace(
        &self,
        raw: &wire::NamespaceSpec,
    ) -> Result<wire::OpenNamespaceReply, Error> {
        let spec = CheckedSpec::try_from(raw).map_err(|error| Error::invalid(error.to_string()))?;
        let desc = describe(&spec);
        if desc.shard_bytes > self.settings.dram.slab_bytes {
            let text = format!(
                "a page shard of {} bytes does not fit a slab of {}: set dram.slab_bytes to at least that",
                desc.shard_bytes, self.settings.dram.slab_bytes
            );
            return Err(Error::new(ErrorKind::Limit, text));
        }
        let known = self.core().pool.namespace(&desc.id).is_some();
        if !known {
            if let Some(catalog) = &self.catalog {
                catalog.put_namespace(&spec)?;
            }
            self.core().pool.open_namespace(desc).map_err(refuse)?;
        }
        Ok(wire::OpenNamespaceReply {
            namespace: spec.id().0.to_vec().into(),
            shard_bytes: spec.shard_bytes(),
            page_tokens: spec.page_tokens(),
        })
    }

    /// Bytes of one shard of a page; 0 for a namespace that is not open.
    pub(super) fn shard_bytes(&self, ns: NamespaceIndex) -> u64 {
        self.core().pool.namespace_desc(ns).map_or(0, |desc| desc.shard_bytes)
    }

    /// The pool's index of a namespace that was opened.
    pub(super) fn find_namespace(&self, id: &[u8]) -> Result<NamespaceIndex, Error> {
        let id = NamespaceId::parse(id).map_err(malformed)?;
        let found = self.core().pool.namespace(&id);
        found.ok_or_else(|| {
            Error::new(ErrorKind::NamespaceUnknown, format!("namespace {id} is not open here"))
        })
    }
}

/// What the pool must know of a namespace.
pub(super) fn describe(spec: &CheckedSpec) -> NamespaceDesc {
    NamespaceDesc {
        id: spec.id(),
        tenant: spec.tenant().to_owned(),
        shard_bytes: spec.shard_bytes(),
        page_tokens: spec.page_tokens(),
        shards: spec.shards(),
    }
}

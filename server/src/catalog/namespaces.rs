//! The catalog's rows of namespaces. Owns: the specs that were opened. Must not know: the pool's indices.

use super::Catalog;
use prost::Message;
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};
use turnkv_proto::{CheckedSpec, Error, wire};

/// Namespace id -> `wire::NamespaceSpec`.
const NAMESPACES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("namespaces");

impl Catalog {
    /// Saves a namespace, durably.
    pub(crate) fn put_namespace(&self, spec: &CheckedSpec) -> Result<(), Error> {
        let value = wire::NamespaceSpec::from(spec).encode_to_vec();
        self.write(|write| {
            write.open_table(NAMESPACES)?.insert(spec.id().0.as_slice(), value.as_slice())?;
            Ok(())
        })
        .map_err(super::unwritable)
    }
}

pub(super) fn create(write: &WriteTransaction) -> Result<(), redb::Error> {
    write.open_table(NAMESPACES)?;
    Ok(())
}

/// Specs that still check.
pub(super) fn load(read: &ReadTransaction) -> Result<Vec<CheckedSpec>, redb::Error> {
    let mut namespaces = Vec::new();
    for row in read.open_table(NAMESPACES)?.iter()? {
        let (_, spec) = row?;
        match wire::NamespaceSpec::decode(spec.value()).map(|raw| CheckedSpec::try_from(&raw)) {
            Ok(Ok(spec)) => namespaces.push(spec),
            _ => tracing::warn!("a saved namespace does not check: its pages are dropped"),
        }
    }
    Ok(namespaces)
}

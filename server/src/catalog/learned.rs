//! The catalog's rows of what was learned. Owns: their form: a checksum, then bytes that mean something to the pool alone. Must not
//! know: what is learned.

use super::tables::LEARNED;
use super::{Catalog, CatalogError};
use turnkv_proto::NamespaceId;
use turnkv_transfer::checksum;

/// The key of the row of all namespaces together; those of a namespace have its id.
const OF_ALL: &[u8] = b"all";

impl Catalog {
    /// Saves what was learned of namespaces, or of all of them (none), in one transaction, each in place of what was saved before.
    /// Blocking.
    pub(crate) fn put_learned(&self, learned: &[(Option<NamespaceId>, Vec<u8>)]) -> Result<(), CatalogError> {
        if learned.is_empty() {
            return Ok(());
        }
        self.write(|write| {
            let mut table = write.open_table(LEARNED)?;
            for (of, bytes) in learned {
                let row = [&checksum(bytes).to_le_bytes()[..], bytes].concat();
                table.insert(key(of.as_ref()), row.as_slice())?;
            }
            Ok(())
        })
    }

    /// What is saved as learned of a namespace, or of all of them. None: nothing is. An empty answer: what is saved does not check.
    /// Blocking.
    pub(crate) fn learned(&self, of: Option<&NamespaceId>) -> Result<Option<Vec<u8>>, CatalogError> {
        self.read(|read| {
            let row = read.open_table(LEARNED)?.get(key(of))?;
            Ok(row.map(|row| checked(row.value()).unwrap_or_default().to_vec()))
        })
    }
}

fn key(of: Option<&NamespaceId>) -> &[u8] {
    of.map_or(OF_ALL, |id| id.0.as_slice())
}

fn checked(row: &[u8]) -> Option<&[u8]> {
    let (sum, bytes) = row.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == checksum(bytes)).then_some(bytes)
}

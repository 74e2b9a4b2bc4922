//! Which tier a catalog is of. Owns: the row that says so, and what becomes of a catalog that says another. Must not know: what
//! else is in it.
//!
//! Notes of segments and the lists of sessions are about the pages of one tier. With another they would be harmless and wrong:
//! what was evicted comes back, lists end where nothing is found, and are saved so.
//!
//! ```text
//! no tier named ------------------------------------------> taken
//! this tier -----------------------------------------------> taken
//! another, which is still where it was --------------------> refused
//! another, which is not there, and this one holds something > refused
//! another, which is not there, and this one is empty ------> taken, and said
//! ```

use super::CatalogError;
use super::tables::TIER;
use prost::Message;
use redb::{ReadableTable, WriteTransaction};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use turnkv_tier::nvme::{NvmeTier, TierId};

const KEY: &[u8] = b"of";

/// The tier that a catalog is opened for.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    /// Which it is.
    pub(crate) id: TierId,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Its place was empty: nothing is saved of it anywhere.
    pub(crate) is_new: bool,
}

/// The tier as saved.
#[derive(Clone, PartialEq, Message)]
struct OwnerRow {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    path: Vec<u8>,
}

impl Owner {
    /// Whoever a test is.
    #[cfg(test)]
    pub(crate) fn any() -> Owner {
        Owner { id: TierId([0; 16]), path: PathBuf::from("/nowhere"), is_new: false }
    }

    /// Makes a catalog this tier's, if it is nobody's. An error: it is another's, and stays as it is.
    pub(super) fn take(&self, write: &WriteTransaction) -> Result<(), CatalogError> {
        let path = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let own = OwnerRow { id: self.id.0.to_vec(), path: path.as_os_str().as_bytes().to_vec() };
        let mut table = write.open_table(TIER)?;
        let saved = table.get(KEY)?.map(|row| row.value().to_vec());
        if saved.as_deref() == Some(&own.encode_to_vec()) {
            return Ok(());
        }
        let named = saved.as_deref().and_then(read);
        if saved.is_some() && named.is_none() {
            tracing::warn!("the catalog's row of its tier does not check: it is taken for this tier's");
        }
        if let Some((id, path)) = named.filter(|(id, _)| *id != self.id) {
            if !self.is_new || NvmeTier::peek(&path).is_some_and(|found| found.id == id) {
                let own = self.path.clone();
                return Err(CatalogError::OtherTier { id, path, own_id: self.id, own });
            }
            tracing::warn!(
                "the catalog was of the NVMe tier {id}, which is not at {} any more: it is of the new, empty one at {} ({}) from \
                 now on",
                path.display(),
                self.path.display(),
                self.id
            );
        }
        table.insert(KEY, own.encode_to_vec().as_slice())?;
        Ok(())
    }
}

fn read(row: &[u8]) -> Option<(TierId, PathBuf)> {
    let saved = OwnerRow::decode(row).ok()?;
    let id = TierId(saved.id.try_into().ok()?);
    Some((id, Path::new(OsStr::from_bytes(&saved.path)).to_owned()))
}

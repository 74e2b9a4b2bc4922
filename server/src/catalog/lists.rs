//! The catalog's rows of lists: chunks of pages that sessions and pins share, each saved once. Owns: their form, and how many
//! rows need each. Must not know: what a row is besides its list; whether the pages are still there.
//!
//! A chunk is named by its last page, which names its whole prefix; it knows the chunk before it. It is needed by each row
//! whose list goes on after it and by each chunk that comes after it; the last of these that goes takes it along.

use super::CatalogError;
use super::tables::LISTS;
use prost::Message;
use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata, WriteTransaction};
use turnkv_pool::ListChunk;
use turnkv_proto::{BlockHash, NamespaceId, pack_hashes, unpack_hashes};

/// A chunk as saved.
#[derive(Clone, PartialEq, Message)]
struct SavedChunk {
    /// Rows and chunks that need it.
    #[prost(uint32, tag = "1")]
    needed: u32,
    /// The last page of the chunk before it; empty: it is the first.
    #[prost(bytes = "vec", tag = "2")]
    before: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    hashes: Vec<u8>,
}

/// Where the pool's lists are read, and how many chunks may be saved.
pub(crate) struct ListSource<'a> {
    /// The chunk that ends with a page and some of those before it; none: the page has gone.
    pub(crate) chunks: &'a dyn Fn(&NamespaceId, &BlockHash) -> Vec<ListChunk>,
    /// Chunks that the catalog may hold.
    pub(crate) chunks_max: u64,
}

/// What became of a list that a row needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needed {
    /// It is saved; so many chunks are new.
    Saved(usize),
    /// A page of it has gone since its owner was looked at.
    Gone,
    /// There is no room for it.
    Full,
}

/// The chunks, in a transaction that writes.
pub(super) struct Lists<'a> {
    table: redb::Table<'a, &'static [u8], &'static [u8]>,
}

impl<'a> Lists<'a> {
    pub(super) fn open(write: &'a WriteTransaction) -> Result<Lists<'a>, CatalogError> {
        Ok(Lists { table: write.open_table(LISTS)? })
    }

    /// Chunks saved.
    pub(super) fn len(&self) -> Result<u64, CatalogError> {
        Ok(self.table.len()?)
    }

    /// One row more needs the list that ends with a page; what is not saved yet of it is.
    pub(super) fn need(
        &mut self,
        ns: &NamespaceId,
        last: &BlockHash,
        source: &ListSource<'_>,
    ) -> Result<Needed, CatalogError> {
        let (mut fresh, mut next) = (Vec::<ListChunk>::new(), Some(*last));
        let mut known = Vec::new().into_iter();
        let saved = loop {
            let Some(at) = next else { break None };
            if let Some(saved) = self.get(ns, &at)? {
                break Some((at, saved));
            }
            if known.len() == 0 {
                known = (source.chunks)(ns, &at).into_iter();
            }
            let Some(chunk) = known.next() else { return Ok(Needed::Gone) };
            next = chunk.before;
            fresh.push(chunk);
        };
        if self.len()? + fresh.len() as u64 > source.chunks_max {
            return Ok(Needed::Full);
        }
        if let Some((at, saved)) = saved {
            self.put(ns, &at, &SavedChunk { needed: saved.needed.saturating_add(1), ..saved })?;
        }
        for chunk in &fresh {
            let before = chunk.before.map_or(Vec::new(), |before| before.0.to_vec());
            let saved = SavedChunk { needed: 1, before, hashes: pack_hashes(&chunk.hashes) };
            if let Some(last) = chunk.hashes.last() {
                self.put(ns, last, &saved)?;
            }
        }
        Ok(Needed::Saved(fresh.len()))
    }

    /// One row less needs the list that ends with a page. Returns how many chunks went with it.
    pub(super) fn release(&mut self, ns: &NamespaceId, last: &BlockHash) -> Result<usize, CatalogError> {
        let (mut gone, mut next) = (0, Some(*last));
        while let Some(at) = next {
            let Some(saved) = self.get(ns, &at)? else { break };
            if saved.needed > 1 {
                self.put(ns, &at, &SavedChunk { needed: saved.needed - 1, ..saved })?;
                break;
            }
            self.table.remove(key(ns, &at).as_slice())?;
            gone += 1;
            next = BlockHash::parse_optional(&saved.before).ok().flatten();
        }
        Ok(gone)
    }

    fn get(&self, ns: &NamespaceId, last: &BlockHash) -> Result<Option<SavedChunk>, CatalogError> {
        let row = self.table.get(key(ns, last).as_slice())?;
        Ok(row.and_then(|row| SavedChunk::decode(row.value()).ok()))
    }

    fn put(&mut self, ns: &NamespaceId, last: &BlockHash, saved: &SavedChunk) -> Result<(), CatalogError> {
        self.table.insert(key(ns, last).as_slice(), saved.encode_to_vec().as_slice())?;
        Ok(())
    }
}

/// The chunks, to be read while rows are brought back.
pub(super) fn read(read: &ReadTransaction) -> Result<ReadLists, CatalogError> {
    Ok(ReadLists(read.open_table(LISTS)?))
}

/// See [`read`].
pub(super) struct ReadLists(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl ReadLists {
    /// The chunk that ends with a page; none: it is not saved, or does not check.
    pub(super) fn get(&self, ns: &NamespaceId, last: &BlockHash) -> Result<Option<ListChunk>, CatalogError> {
        let row = self.0.get(key(ns, last).as_slice())?;
        let Some(saved) = row.and_then(|row| SavedChunk::decode(row.value()).ok()) else { return Ok(None) };
        let hashes = unpack_hashes(&saved.hashes).ok().filter(|hashes| hashes.last() == Some(last));
        let before = BlockHash::parse_optional(&saved.before).ok();
        Ok(hashes.zip(before).map(|(hashes, before)| ListChunk { before, hashes }))
    }

    /// Chunks saved.
    pub(super) fn len(&self) -> Result<u64, CatalogError> {
        Ok(self.0.len()?)
    }
}

fn key(ns: &NamespaceId, last: &BlockHash) -> Vec<u8> {
    [ns.0.as_slice(), last.0.as_slice()].concat()
}

#[cfg(test)]
mod tests;

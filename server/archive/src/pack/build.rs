//! A pack that is being filled. Owns: when it is full. Must not know: who fills it.

use crate::blob::StoredBlob;
use crate::id::{Digest, ObjectId};
use crate::limits::PACK_BLOBS_MAX;
use crate::pack::format::{Entry, PackIndex, write_end};
use bytes::Bytes;
use std::collections::HashSet;

/// Blobs on their way into a pack.
pub(crate) struct PackBuilder {
    id: ObjectId,
    bytes: u64,
    blobs: Vec<Bytes>,
    entries: Vec<Entry>,
    /// Digests of the entries.
    digests: HashSet<Digest>,
}

impl PackBuilder {
    /// An empty one.
    pub(crate) fn new() -> PackBuilder {
        PackBuilder {
            id: ObjectId::new(),
            bytes: 0,
            blobs: Vec::new(),
            entries: Vec::new(),
            digests: HashSet::new(),
        }
    }

    /// Nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes that are in it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a blob still fits into a pack of so many bytes. Into an empty one every blob does.
    pub(crate) fn fits(&self, blob: &StoredBlob, pack_bytes: u64) -> bool {
        let fits = self.bytes + blob.bytes.len() as u64 <= pack_bytes;
        self.is_empty() || fits && self.entries.len() < PACK_BLOBS_MAX
    }

    /// Adds a blob. One that is in it already is left out: an index with a blob twice would be refused.
    pub(crate) fn add(&mut self, blob: StoredBlob) {
        if !self.digests.insert(blob.digest) {
            return;
        }
        let StoredBlob { digest, decoded_bytes, codec, checksum, bytes } = blob;
        let stored_bytes = bytes.len() as u32;
        self.entries.push(Entry { digest, offset: self.bytes, stored_bytes, decoded_bytes, codec, checksum });
        self.bytes += u64::from(stored_bytes);
        self.blobs.push(bytes);
    }

    /// The object's pieces, and its index.
    pub(crate) fn finish(mut self) -> (Vec<Bytes>, PackIndex) {
        let end = write_end(self.id, self.bytes, &mut self.entries);
        let object_bytes = self.bytes + end.len() as u64;
        self.blobs.push(Bytes::from(end));
        (self.blobs, PackIndex { id: self.id, object_bytes, entries: self.entries })
    }
}

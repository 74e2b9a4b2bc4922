//! The bytes of a pack. Owns: their layout, parsing and its checks. Must not know: where packs are kept.
//!
//! Blobs stand one behind the other from offset 0, without gaps. Then the index: one entry a blob, in ascending order of digests.
//! Then the trailer, the pack's last bytes. All numbers are little-endian.
//!
//! | entry offset | bytes | field |
//! |---|---|---|
//! | 0 | 32 | digest: SHA-256 of the blob, decoded |
//! | 32 | 8 | offset of the blob in the pack |
//! | 40 | 4 | bytes as stored |
//! | 44 | 4 | bytes decoded |
//! | 48 | 1 | codec: 0 = as it is, 1 = an encoded page of turnkv-codec, 2 = one frame of zstd |
//! | 49 | 7 | zero |
//! | 56 | 8 | CRC-64/NVME of the bytes as stored |
//!
//! | trailer offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `TKVPACK1` |
//! | 8 | 4 | format version |
//! | 12 | 4 | entries |
//! | 16 | 16 | the pack's id |
//! | 32 | 8 | offset of the index |
//! | 40 | 8 | CRC-64/NVME of the index |
//! | 48 | 8 | zero |
//! | 56 | 8 | CRC-64/NVME of bytes 0..56 |

use crate::blob::{BlobCodec, StoredBlob};
use crate::error::Error;
use crate::id::{Digest, ObjectId};
use crate::limits::{BLOB_BYTES_MAX, PACK_BLOBS_MAX};
use bytes::Bytes;
use turnkv_transfer::checksum;

const MAGIC: &[u8; 8] = b"TKVPACK1";
const VERSION: u32 = 1;

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 64;
/// Bytes of the trailer.
pub(crate) const TRAILER_BYTES: usize = 64;

const ENTRY_DIGEST: usize = 0;
const ENTRY_OFFSET: usize = 32;
const ENTRY_STORED_BYTES: usize = 40;
const ENTRY_DECODED_BYTES: usize = 44;
const ENTRY_CODEC: usize = 48;
const ENTRY_ZERO: usize = 49;
const ENTRY_CHECKSUM: usize = 56;

const TRAILER_VERSION: usize = 8;
const TRAILER_ENTRIES: usize = 12;
const TRAILER_ID: usize = 16;
const TRAILER_INDEX_OFFSET: usize = 32;
const TRAILER_INDEX_CHECKSUM: usize = 40;
const TRAILER_ZERO: usize = 48;
const TRAILER_CHECKSUM: usize = 56;

const _: () =
    assert!(ENTRY_CHECKSUM + 8 == ENTRY_BYTES && TRAILER_CHECKSUM + 8 == TRAILER_BYTES, "nothing is left");

/// Where a blob is in its pack, and as what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) digest: Digest,
    pub(crate) offset: u64,
    pub(crate) stored_bytes: u32,
    pub(crate) decoded_bytes: u32,
    pub(crate) codec: BlobCodec,
    pub(crate) checksum: u64,
}

/// What a pack has, in ascending order of digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackIndex {
    pub(crate) id: ObjectId,
    /// Bytes of the whole object.
    pub(crate) object_bytes: u64,
    pub(crate) entries: Vec<Entry>,
}

impl PackIndex {
    /// The entry of a blob.
    pub(crate) fn find(&self, digest: &Digest) -> Option<&Entry> {
        let at = self.entries.binary_search_by(|entry| entry.digest.cmp(digest)).ok()?;
        self.entries.get(at)
    }
}

impl Entry {
    /// The blob, from the bytes that were read where it stands.
    pub(crate) fn blob(&self, bytes: Bytes) -> StoredBlob {
        let Entry { digest, decoded_bytes, codec, checksum, .. } = *self;
        StoredBlob { digest, decoded_bytes, codec, checksum, bytes }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[ENTRY_DIGEST..ENTRY_OFFSET].copy_from_slice(&self.digest.0);
        bytes[ENTRY_OFFSET..ENTRY_STORED_BYTES].copy_from_slice(&self.offset.to_le_bytes());
        bytes[ENTRY_STORED_BYTES..ENTRY_DECODED_BYTES].copy_from_slice(&self.stored_bytes.to_le_bytes());
        bytes[ENTRY_DECODED_BYTES..ENTRY_CODEC].copy_from_slice(&self.decoded_bytes.to_le_bytes());
        bytes[ENTRY_CODEC] = self.codec as u8;
        bytes[ENTRY_CHECKSUM..].copy_from_slice(&self.checksum.to_le_bytes());
        out.extend_from_slice(&bytes);
    }

    fn parse(bytes: &[u8; ENTRY_BYTES]) -> Result<Entry, &'static str> {
        let codec = BlobCodec::from_number(bytes[ENTRY_CODEC]).ok_or("an entry's codec is not known")?;
        if bytes[ENTRY_ZERO..ENTRY_CHECKSUM] != [0; ENTRY_CHECKSUM - ENTRY_ZERO] {
            return Err("an entry's zeros are not zero");
        }
        let entry = Entry {
            digest: Digest(array(bytes, ENTRY_DIGEST)),
            offset: u64::from_le_bytes(array(bytes, ENTRY_OFFSET)),
            stored_bytes: u32::from_le_bytes(array(bytes, ENTRY_STORED_BYTES)),
            decoded_bytes: u32::from_le_bytes(array(bytes, ENTRY_DECODED_BYTES)),
            codec,
            checksum: u64::from_le_bytes(array(bytes, ENTRY_CHECKSUM)),
        };
        if entry.decoded_bytes == 0 || u64::from(entry.decoded_bytes) > BLOB_BYTES_MAX {
            return Err("an entry's decoded bytes are none, or too many");
        }
        if entry.stored_bytes == 0 || entry.stored_bytes > entry.decoded_bytes {
            return Err("an entry's stored bytes are none, or more than its decoded bytes");
        }
        Ok(entry)
    }
}

/// What a trailer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    entries: usize,
    /// Where the index begins.
    pub(crate) index_offset: u64,
    index_checksum: u64,
    object_bytes: u64,
}

impl Trailer {
    /// From the last bytes of the object of a pack, which has so many in all.
    pub(crate) fn parse(id: ObjectId, object_bytes: u64, tail: &[u8]) -> Result<Trailer, Error> {
        let damaged = |fault: &str| Error::damaged(format!("pack {id}"), fault);
        let bytes =
            tail.last_chunk::<TRAILER_BYTES>().ok_or_else(|| damaged("it is shorter than a trailer"))?;
        if !bytes.starts_with(MAGIC) {
            return Err(damaged("it does not end with a pack's trailer"));
        }
        if checksum(&bytes[..TRAILER_CHECKSUM]) != u64::from_le_bytes(array(bytes, TRAILER_CHECKSUM)) {
            return Err(damaged("its trailer has another checksum"));
        }
        let version = u32::from_le_bytes(array(bytes, TRAILER_VERSION));
        if version != VERSION {
            return Err(damaged(&format!("its version is {version}; this program knows {VERSION}")));
        }
        let named = ObjectId(array(bytes, TRAILER_ID));
        if named != id {
            return Err(damaged(&format!("it is pack {named}")));
        }
        let entries = u32::from_le_bytes(array(bytes, TRAILER_ENTRIES)) as usize;
        let index_offset = u64::from_le_bytes(array(bytes, TRAILER_INDEX_OFFSET));
        let index_checksum = u64::from_le_bytes(array(bytes, TRAILER_INDEX_CHECKSUM));
        let index_bytes = (entries * ENTRY_BYTES) as u64;
        let whole = index_offset.checked_add(index_bytes + TRAILER_BYTES as u64);
        if entries == 0 || entries > PACK_BLOBS_MAX || whole != Some(object_bytes) {
            return Err(damaged(&format!("it has {object_bytes} bytes, not those that its trailer tells")));
        }
        if bytes[TRAILER_ZERO..TRAILER_CHECKSUM] != [0; TRAILER_CHECKSUM - TRAILER_ZERO] {
            return Err(damaged("its trailer's zeros are not zero"));
        }
        Ok(Trailer { entries, index_offset, index_checksum, object_bytes })
    }

    /// The index, from exactly its bytes.
    pub(crate) fn parse_index(&self, id: ObjectId, bytes: &[u8]) -> Result<PackIndex, Error> {
        let damaged = |fault: &str| Error::damaged(format!("pack {id}"), fault);
        if checksum(bytes) != self.index_checksum {
            return Err(damaged("its index has another checksum"));
        }
        let (chunks, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        if chunks.len() != self.entries || !rest.is_empty() {
            return Err(damaged("its index has another length"));
        }
        let entries: Result<Vec<Entry>, &'static str> = chunks.iter().map(Entry::parse).collect();
        let entries = entries.map_err(damaged)?;
        if entries.windows(2).any(|pair| pair[0].digest >= pair[1].digest) {
            return Err(damaged("its index is out of order, or has a blob twice"));
        }
        let mut places: Vec<(u64, u32)> =
            entries.iter().map(|entry| (entry.offset, entry.stored_bytes)).collect();
        places.sort_unstable();
        let end = places.iter().try_fold(0u64, |end, (offset, stored_bytes)| {
            if *offset == end { end.checked_add((*stored_bytes).into()) } else { None }
        });
        if end != Some(self.index_offset) {
            return Err(damaged("its blobs do not stand one behind the other"));
        }
        Ok(PackIndex { id, object_bytes: self.object_bytes, entries })
    }
}

/// The index and the trailer of a pack whose blobs end at an offset. Sorts the entries.
pub(crate) fn write_end(id: ObjectId, index_offset: u64, entries: &mut [Entry]) -> Vec<u8> {
    entries.sort_unstable_by_key(|entry| entry.digest);
    let mut out = Vec::with_capacity(entries.len() * ENTRY_BYTES + TRAILER_BYTES);
    entries.iter().for_each(|entry| entry.write(&mut out));
    let mut trailer = [0; TRAILER_BYTES];
    trailer[..TRAILER_VERSION].copy_from_slice(MAGIC);
    trailer[TRAILER_VERSION..TRAILER_ENTRIES].copy_from_slice(&VERSION.to_le_bytes());
    trailer[TRAILER_ENTRIES..TRAILER_ID].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    trailer[TRAILER_ID..TRAILER_INDEX_OFFSET].copy_from_slice(&id.0);
    trailer[TRAILER_INDEX_OFFSET..TRAILER_INDEX_CHECKSUM].copy_from_slice(&index_offset.to_le_bytes());
    trailer[TRAILER_INDEX_CHECKSUM..TRAILER_ZERO].copy_from_slice(&checksum(&out).to_le_bytes());
    let sum = checksum(&trailer[..TRAILER_CHECKSUM]);
    trailer[TRAILER_CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(&trailer);
    out
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

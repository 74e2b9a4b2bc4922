//! Every byte this tier puts on a device. Owns: layouts, offsets, encoding, decoding, verification.
//! Must not know: files, threads, which extents are live.
//!
//! All numbers are little-endian. A block is 4096 bytes. A segment is `segment_bytes` long:
//!
//! ```text
//! block 0          segment header
//! block 1..        extents: one header block, then the payload padded to whole blocks
//! ...              footer entries, ending just before the last block (sealed segments only)
//! last block       footer trailer (sealed segments only)
//! ```
//!
//! Superblock. There are two copies, equal: on a block device the first block, and the last block of the
//! first MiB (segments begin behind it, between the copies is zero); in a directory the files `superblock`
//! and `superblock.2`. Places made before there were two have only the first; it counts alone, and the other
//! is written when they are opened:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `TKVSUPER` |
//! | 8 | 4 | format version |
//! | 12 | 4 | zero |
//! | 16 | 8 | segment_bytes |
//! | 24 | 16 | device id, random |
//! | 40 | 8 | CRC-64/NVME of bytes 0..40 |
//!
//! Segment header:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `TKVSEGMT` |
//! | 8 | 4 | format version |
//! | 12 | 4 | segment number |
//! | 16 | 8 | epoch: the tier's sequence when the segment was prepared |
//! | 24 | 16 | nonce: random, secret, new whenever the segment is prepared |
//! | 40 | 16 | device id, as in the superblock |
//! | 56 | 8 | CRC-64/NVME of bytes 0..56 |
//!
//! Extent header. Its checksum starts from the segment's nonce and covers its own place. A client never sees
//! a nonce, so no payload can hold 4 KiB that pass as a header; and what an earlier use of the segment left
//! behind verifies under no later nonce:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `TKVEXTNT` |
//! | 8 | 4 | format version |
//! | 12 | 4 | codec: 0 = the payload as it is, 1 = packed, as turnkv-codec's `page` says |
//! | 16 | 4 | segment number |
//! | 20 | 4 | block of this header |
//! | 24 | 144 | record (below) |
//! | 168 | 8 | CRC-64/NVME of nonce, then bytes 0..168 |
//!
//! Record, also one footer entry:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 32 | namespace |
//! | 32 | 32 | block hash |
//! | 64 | 32 | parent's block hash; zero when there is none |
//! | 96 | 8 | sequence: the highest of a shard is the one that counts |
//! | 104 | 8 | CRC-64/NVME of the payload |
//! | 112 | 4 | block of the extent's header |
//! | 116 | 4 | payload bytes as stored: those of a packed one are fewer than decoded |
//! | 120 | 4 | payload bytes decoded; equal for codec 0 |
//! | 124 | 4 | tail_tokens |
//! | 128 | 2 | shard |
//! | 130 | 2 | shards |
//! | 132 | 1 | 1 when there is a parent |
//! | 133 | 11 | zero |
//!
//! Footer trailer:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `TKVFOOTR` |
//! | 8 | 4 | format version |
//! | 12 | 4 | segment number |
//! | 16 | 4 | entries |
//! | 20 | 4 | first block of the entries |
//! | 24 | 8 | CRC-64/NVME of the entries |
//! | 32 | 8 | CRC-64/NVME of nonce, then bytes 0..32 |

use crate::limits::{BLOCK, BLOCK_BYTES, PAYLOAD_BYTES_MAX};
use crate::tier::ExtentMeta;
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_transfer::{Checksum, checksum as crc};

/// The format these tables describe.
pub(crate) const VERSION: u32 = 1;
/// Where segments begin on a block device: the superblock's copies have the space before.
pub(crate) const DEVICE_BASE: u64 = 1 << 20;
/// The payload as it is.
const CODEC_RAW: u32 = 0;
/// A page of turnkv-codec, which says itself how it was encoded.
const CODEC_PACKED: u32 = 1;

const MAGIC: usize = 0;
const FORMAT: usize = 8;

const SUPER_MAGIC: &[u8; 8] = b"TKVSUPER";
const SUPER_SEGMENT_BYTES: usize = 16;
const SUPER_DEVICE: usize = 24;
const SUPER_CRC: usize = 40;

const SEGMENT_MAGIC: &[u8; 8] = b"TKVSEGMT";
const SEGMENT_NUMBER: usize = 12;
const SEGMENT_EPOCH: usize = 16;
const SEGMENT_NONCE: usize = 24;
const SEGMENT_DEVICE: usize = 40;
const SEGMENT_CRC: usize = 56;

const EXTENT_MAGIC: &[u8; 8] = b"TKVEXTNT";
const EXTENT_CODEC: usize = 12;
const EXTENT_SEGMENT: usize = 16;
const EXTENT_BLOCK: usize = 20;
const EXTENT_RECORD: usize = 24;
const EXTENT_CRC: usize = EXTENT_RECORD + RECORD_BYTES;

/// Bytes of a record, so of a footer entry.
pub(crate) const RECORD_BYTES: usize = 144;
const RECORD_NAMESPACE: usize = 0;
const RECORD_HASH: usize = 32;
const RECORD_PARENT: usize = 64;
const RECORD_SEQUENCE: usize = 96;
const RECORD_CHECKSUM: usize = 104;
const RECORD_BLOCK: usize = 112;
const RECORD_STORED: usize = 116;
const RECORD_DECODED: usize = 120;
const RECORD_TAIL: usize = 124;
const RECORD_SHARD: usize = 128;
const RECORD_SHARDS: usize = 130;
const RECORD_HAS_PARENT: usize = 132;

const FOOTER_MAGIC: &[u8; 8] = b"TKVFOOTR";
const FOOTER_SEGMENT: usize = 12;
const FOOTER_ENTRIES: usize = 16;
const FOOTER_FIRST: usize = 20;
const FOOTER_ENTRIES_CRC: usize = 24;
const FOOTER_CRC: usize = 32;

const _: () = assert!(EXTENT_CRC + 8 <= BLOCK, "an extent header fits its block");
const _: () = assert!(RECORD_HAS_PARENT < RECORD_BYTES, "a record holds its fields");

/// One block, as it is on the device.
pub(crate) type Block = [u8; BLOCK];

/// A segment's secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonce(pub(crate) [u8; 16]);

impl std::fmt::Debug for Nonce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nonce(secret)")
    }
}

/// Identity of one tier's storage, so that segments of another are never taken for its own.
pub(crate) type DeviceId = [u8; 16];

/// What the superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) segment_bytes: u64,
    pub(crate) device: DeviceId,
}

/// What a block says in a superblock's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// A superblock of this format.
    Current(Superblock),
    /// One of another version: whole, as far as that can be told.
    Other,
    /// Nothing that verifies.
    Damaged,
}

/// What a segment header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) segment: u32,
    pub(crate) epoch: u64,
    pub(crate) nonce: Nonce,
    pub(crate) device: DeviceId,
}

/// One extent of a segment: what its header and its footer entry say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) meta: ExtentMeta,
    pub(crate) block: u32,
    pub(crate) sequence: u64,
    /// Payload bytes on the device: fewer than `meta` says where it is packed.
    pub(crate) stored_bytes: u32,
}

impl Record {
    /// Blocks the extent takes: its header and its padded payload.
    pub(crate) fn blocks(&self) -> u32 {
        extent_blocks(self.stored_bytes)
    }

    /// Is its payload packed?
    pub(crate) fn is_packed(&self) -> bool {
        self.stored_bytes != self.meta.payload_bytes
    }

    fn codec(&self) -> u32 {
        if self.is_packed() { CODEC_PACKED } else { CODEC_RAW }
    }
}

/// What a footer trailer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) entries: u32,
    pub(crate) first_block: u32,
    entries_crc: u64,
}

impl Trailer {
    /// Whole blocks the entries take.
    pub(crate) fn entry_blocks(&self) -> u32 {
        entry_blocks(self.entries as usize)
    }
}

fn seeded_crc(nonce: &Nonce, bytes: &[u8]) -> u64 {
    let mut checksum = Checksum::new();
    checksum.update(&nonce.0);
    checksum.update(bytes);
    checksum.finish()
}

/// Payload bytes rounded up to whole blocks.
pub(crate) fn padded(payload_bytes: u32) -> u64 {
    u64::from(payload_bytes).next_multiple_of(BLOCK_BYTES)
}

/// Blocks of an extent with such a payload, header included.
pub(crate) fn extent_blocks(payload_bytes: u32) -> u32 {
    1 + u64::from(payload_bytes).div_ceil(BLOCK_BYTES) as u32
}

/// Blocks that `entries` footer entries take.
pub(crate) fn entry_blocks(entries: usize) -> u32 {
    (entries * RECORD_BYTES).div_ceil(BLOCK) as u32
}

fn put<const N: usize>(target: &mut [u8], at: usize, bytes: [u8; N]) {
    target[at..at + N].copy_from_slice(&bytes);
}

fn get<const N: usize>(source: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&source[at..at + N]);
    bytes
}

fn get_u32(source: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(source, at))
}

fn get_u64(source: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(source, at))
}

fn is_current(block: &[u8], magic: &[u8; 8]) -> bool {
    block[MAGIC..MAGIC + 8] == *magic && get_u32(block, FORMAT) == VERSION
}

fn start(magic: &[u8; 8]) -> Box<Block> {
    let mut block = Box::new([0; BLOCK]);
    put(&mut block[..], MAGIC, *magic);
    put(&mut block[..], FORMAT, VERSION.to_le_bytes());
    block
}

impl Superblock {
    /// As a block.
    pub(crate) fn encode(&self) -> Box<Block> {
        let mut block = start(SUPER_MAGIC);
        put(&mut block[..], SUPER_SEGMENT_BYTES, self.segment_bytes.to_le_bytes());
        put(&mut block[..], SUPER_DEVICE, self.device);
        let crc = crc(&block[..SUPER_CRC]);
        put(&mut block[..], SUPER_CRC, crc.to_le_bytes());
        block
    }

    /// From a block.
    pub(crate) fn decode(block: &Block) -> Version {
        if !Superblock::has_magic(block) || get_u64(block, SUPER_CRC) != crc(&block[..SUPER_CRC]) {
            return Version::Damaged;
        }
        if get_u32(block, FORMAT) != VERSION {
            return Version::Other;
        }
        let (segment_bytes, device) = (get_u64(block, SUPER_SEGMENT_BYTES), get(block, SUPER_DEVICE));
        Version::Current(Superblock { segment_bytes, device })
    }

    /// Does a block begin as a superblock does?
    pub(crate) fn has_magic(block: &[u8]) -> bool {
        block[MAGIC..MAGIC + 8] == *SUPER_MAGIC
    }
}

impl SegmentHeader {
    /// As a block.
    pub(crate) fn encode(&self) -> Box<Block> {
        let mut block = start(SEGMENT_MAGIC);
        put(&mut block[..], SEGMENT_NUMBER, self.segment.to_le_bytes());
        put(&mut block[..], SEGMENT_EPOCH, self.epoch.to_le_bytes());
        put(&mut block[..], SEGMENT_NONCE, self.nonce.0);
        put(&mut block[..], SEGMENT_DEVICE, self.device);
        let crc = crc(&block[..SEGMENT_CRC]);
        put(&mut block[..], SEGMENT_CRC, crc.to_le_bytes());
        block
    }

    /// From a block that verifies and names this device and segment.
    pub(crate) fn decode(block: &Block, device: &DeviceId, segment: u32) -> Option<SegmentHeader> {
        SegmentHeader::decode_any(block)
            .filter(|header| header.device == *device && header.segment == segment)
    }

    /// From a block that verifies, of whatever device and segment.
    pub(crate) fn decode_any(block: &Block) -> Option<SegmentHeader> {
        let good =
            is_current(block, SEGMENT_MAGIC) && get_u64(block, SEGMENT_CRC) == crc(&block[..SEGMENT_CRC]);
        good.then(|| SegmentHeader {
            segment: get_u32(block, SEGMENT_NUMBER),
            epoch: get_u64(block, SEGMENT_EPOCH),
            nonce: Nonce(get(block, SEGMENT_NONCE)),
            device: get(block, SEGMENT_DEVICE),
        })
    }
}

fn encode_record(record: &Record, target: &mut [u8]) {
    let meta = &record.meta;
    put(target, RECORD_NAMESPACE, meta.namespace.0);
    put(target, RECORD_HASH, meta.hash.0);
    put(target, RECORD_PARENT, meta.parent.map_or([0; 32], |parent| parent.0));
    put(target, RECORD_SEQUENCE, record.sequence.to_le_bytes());
    put(target, RECORD_CHECKSUM, meta.checksum.to_le_bytes());
    put(target, RECORD_BLOCK, record.block.to_le_bytes());
    put(target, RECORD_STORED, record.stored_bytes.to_le_bytes());
    put(target, RECORD_DECODED, meta.payload_bytes.to_le_bytes());
    put(target, RECORD_TAIL, meta.tail_tokens.to_le_bytes());
    put(target, RECORD_SHARD, meta.shard.to_le_bytes());
    put(target, RECORD_SHARDS, meta.shards.to_le_bytes());
    target[RECORD_HAS_PARENT] = u8::from(meta.parent.is_some());
}

fn decode_record(source: &[u8]) -> Option<Record> {
    let parent = match source[RECORD_HAS_PARENT] {
        0 => None,
        1 => Some(BlockHash(get(source, RECORD_PARENT))),
        _ => return None,
    };
    let (stored_bytes, payload_bytes) = (get_u32(source, RECORD_STORED), get_u32(source, RECORD_DECODED));
    let fits = stored_bytes > 0 && stored_bytes <= payload_bytes && payload_bytes <= PAYLOAD_BYTES_MAX;
    let meta = ExtentMeta {
        namespace: NamespaceId(get(source, RECORD_NAMESPACE)),
        hash: BlockHash(get(source, RECORD_HASH)),
        parent,
        shard: u16::from_le_bytes(get(source, RECORD_SHARD)),
        shards: u16::from_le_bytes(get(source, RECORD_SHARDS)),
        tail_tokens: get_u32(source, RECORD_TAIL),
        payload_bytes,
        checksum: get_u64(source, RECORD_CHECKSUM),
    };
    let shard_ok = meta.shard < meta.shards;
    (fits && shard_ok).then(|| Record {
        meta,
        block: get_u32(source, RECORD_BLOCK),
        sequence: get_u64(source, RECORD_SEQUENCE),
        stored_bytes,
    })
}

/// Writes an extent's header into `target`, the block before its payload.
pub(crate) fn encode_extent(record: &Record, segment: u32, nonce: &Nonce, target: &mut Block) {
    target.fill(0);
    put(target, MAGIC, *EXTENT_MAGIC);
    put(target, FORMAT, VERSION.to_le_bytes());
    put(target, EXTENT_CODEC, record.codec().to_le_bytes());
    put(target, EXTENT_SEGMENT, segment.to_le_bytes());
    put(target, EXTENT_BLOCK, record.block.to_le_bytes());
    encode_record(record, &mut target[EXTENT_RECORD..EXTENT_RECORD + RECORD_BYTES]);
    let crc = seeded_crc(nonce, &target[..EXTENT_CRC]);
    put(target, EXTENT_CRC, crc.to_le_bytes());
}

/// The record of the extent header at `block_number`, if these bytes are one, of this segment and this nonce.
pub(crate) fn decode_extent(block: &[u8], segment: u32, block_number: u32, nonce: &Nonce) -> Option<Record> {
    let here = is_current(block, EXTENT_MAGIC)
        && get_u32(block, EXTENT_SEGMENT) == segment
        && get_u32(block, EXTENT_BLOCK) == block_number
        && get_u64(block, EXTENT_CRC) == seeded_crc(nonce, &block[..EXTENT_CRC]);
    if !here {
        return None;
    }
    decode_record(&block[EXTENT_RECORD..EXTENT_RECORD + RECORD_BYTES])
        .filter(|record| record.block == block_number && record.codec() == get_u32(block, EXTENT_CODEC))
}

/// A footer: its entry blocks and its trailer, contiguous, for the end of a segment of `segment_blocks`.
/// Returns the first block and the bytes.
pub(crate) fn encode_footer(
    records: &[Record],
    segment: u32,
    nonce: &Nonce,
    segment_blocks: u32,
) -> (u32, Vec<u8>) {
    let blocks = entry_blocks(records.len());
    let first = segment_blocks - 1 - blocks;
    let entries_bytes = records.len() * RECORD_BYTES;
    let mut bytes = vec![0; (blocks as usize + 1) * BLOCK];
    for (record, target) in records.iter().zip(bytes.chunks_exact_mut(RECORD_BYTES)) {
        encode_record(record, target);
    }
    let entries_crc = crc(&bytes[..entries_bytes]);
    let mut block = start(FOOTER_MAGIC);
    put(&mut block[..], FOOTER_SEGMENT, segment.to_le_bytes());
    put(&mut block[..], FOOTER_ENTRIES, (records.len() as u32).to_le_bytes());
    put(&mut block[..], FOOTER_FIRST, first.to_le_bytes());
    put(&mut block[..], FOOTER_ENTRIES_CRC, entries_crc.to_le_bytes());
    let crc = seeded_crc(nonce, &block[..FOOTER_CRC]);
    put(&mut block[..], FOOTER_CRC, crc.to_le_bytes());
    bytes[blocks as usize * BLOCK..].copy_from_slice(&block[..]);
    (first, bytes)
}

/// The trailer in a segment's last block, if it verifies.
pub(crate) fn decode_trailer(
    block: &[u8],
    segment: u32,
    nonce: &Nonce,
    segment_blocks: u32,
) -> Option<Trailer> {
    let good = is_current(block, FOOTER_MAGIC)
        && get_u32(block, FOOTER_SEGMENT) == segment
        && get_u64(block, FOOTER_CRC) == seeded_crc(nonce, &block[..FOOTER_CRC]);
    let trailer = Trailer {
        entries: get_u32(block, FOOTER_ENTRIES),
        first_block: get_u32(block, FOOTER_FIRST),
        entries_crc: get_u64(block, FOOTER_ENTRIES_CRC),
    };
    let room = u64::from(segment_blocks) * BLOCK_BYTES / RECORD_BYTES as u64;
    let placed = good
        && u64::from(trailer.entries) <= room
        && trailer.first_block.checked_add(trailer.entry_blocks() + 1) == Some(segment_blocks);
    placed.then_some(trailer)
}

/// The records of a footer whose entry blocks are `bytes`, if they verify and lie in order before the footer.
pub(crate) fn decode_entries(bytes: &[u8], trailer: &Trailer) -> Option<Vec<Record>> {
    let bytes = bytes.get(..trailer.entries as usize * RECORD_BYTES)?;
    if crc(bytes) != trailer.entries_crc {
        return None;
    }
    let mut end = 1u32;
    let mut records = Vec::with_capacity(trailer.entries as usize);
    for source in bytes.chunks_exact(RECORD_BYTES) {
        let record = decode_record(source)?;
        let next = record.block.checked_add(record.blocks())?;
        if record.block < end || next > trailer.first_block {
            return None;
        }
        end = next;
        records.push(record);
    }
    Some(records)
}

#[cfg(test)]
mod tests;

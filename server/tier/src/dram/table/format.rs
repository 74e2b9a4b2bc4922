//! The slot table's bytes: a header, words for each slab, an entry for each slot, a word of its use. Owns: offsets, sizes,
//! seals. Must not know: memory, files, when an entry is written.
//!
//! Specified for readers in docs/reference/slot-table.md; all numbers are little-endian.

use super::entry::{Geometry, Holder, SlotEntry, Unfit, VERSION};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_transfer::checksum;

/// What the table begins with.
pub(super) const MAGIC: [u8; 8] = *b"TURNKVST";
/// Bytes of the header, and of the unit in which the slabs' words are laid out.
pub(super) const HEADER_BYTES: usize = 4096;
/// Bytes of one entry: three cache lines.
pub(super) const ENTRY_BYTES: usize = 192;

pub(super) const MAGIC_AT: usize = 0;
pub(super) const VERSION_AT: usize = 8;
pub(super) const ENTRY_BYTES_AT: usize = 12;
pub(super) const SLAB_BYTES_AT: usize = 16;
pub(super) const SLAB_COUNT_AT: usize = 24;
pub(super) const STRIDE_AT: usize = 28;
pub(super) const BOOT_AT: usize = 32;
pub(super) const USER_AT: usize = 48;
pub(super) const TABLE_ID_AT: usize = 56;
pub(super) const CHECK_AT: usize = 64;
/// Bytes of the header that say something at its begin.
pub(super) const HEADER_USED_BYTES: usize = 72;
/// Where the readers' names begin, in the header: as many as a word has bits, but for the last one.
pub(super) const READERS_AT: usize = 128;
/// Bytes of a reader's name: its holder and library, each with its complement.
pub(super) const READER_BYTES: usize = 32;
/// Readers that have a name. Who comes when all are taken is one of the others, whom nobody can tell apart.
pub(super) const READERS_MAX: usize = 63;
/// The bit of a slot that others have mapped.
pub(super) const OTHERS: u64 = 1 << READERS_MAX;
/// What a slab's word says when slots of it are mapped, and each of its entries says by whom.
pub(super) const MAPPED: u64 = 2;

/// Bytes of what is said of a slab.
pub(super) const SLAB_WORDS_BYTES: usize = 24;
/// Of these, which memory of the slab was made last: its generation << 32, and the complement of that. 0: none ever was.
pub(super) const SLAB_GENERATION_AT: usize = 16;
/// Bytes of the word of a slot's use.
pub(super) const USE_BYTES: usize = 8;
/// Where the order of the use begins in it, in bits: behind the count of reads and the check.
const USE_ORDER_BIT: u32 = 16;
/// The last order that a word has room for: later uses are told apart no more.
const USE_ORDER_MAX: u64 = u64::MAX >> USE_ORDER_BIT;

/// The seal of an entry; 0: there is none.
pub(super) const SEAL_AT: usize = 0;
pub(super) const NAMESPACE_AT: usize = 8;
pub(super) const HASH_AT: usize = 40;
pub(super) const PARENT_AT: usize = 72;
pub(super) const CHECKSUM_AT: usize = 104;
pub(super) const SEQUENCE_AT: usize = 112;
pub(super) const PAGE_BYTES_AT: usize = 120;
pub(super) const TAIL_TOKENS_AT: usize = 124;
pub(super) const GENERATION_AT: usize = 128;
pub(super) const SHARD_AT: usize = 132;
pub(super) const SHARDS_AT: usize = 134;
pub(super) const HAS_PARENT_AT: usize = 136;
/// Where what the seal covers ends.
const SEALED_TO: usize = 144;
/// Which readers have the slot mapped, one bit each; its complement follows. Both 0: nobody.
pub(super) const MAPPED_AT: usize = 144;
/// Which library of the holder's process may be writing the slot; its complement follows.
pub(super) const LIBRARY_AT: usize = 160;
/// Who may be writing the slot; its complement follows.
pub(super) const HOLDER_AT: usize = 176;

const _: () = assert!(SEALED_TO <= MAPPED_AT && MAPPED_AT + 16 == LIBRARY_AT && LIBRARY_AT + 16 == HOLDER_AT);
const _: () = assert!(HOLDER_AT + 16 == ENTRY_BYTES && ENTRY_BYTES.is_multiple_of(64));
const _: () =
    assert!(HEADER_USED_BYTES <= READERS_AT && READERS_AT + READERS_MAX * READER_BYTES <= HEADER_BYTES);

/// What the seal covers, in words.
pub(super) const BODY_WORDS: usize = (SEALED_TO - NAMESPACE_AT) / 8;
/// Where these words begin.
pub(super) const BODY_AT: usize = NAMESPACE_AT;

/// Where the entry of a slot begins.
pub(super) fn entry_at(geometry: &Geometry, slab: u32, slot: u32) -> usize {
    let position = slab as usize * geometry.stride as usize + slot as usize;
    entries_at(geometry) + position * ENTRY_BYTES
}

/// Where the slot is whose entry a place lies in.
pub(super) fn slot_at(geometry: &Geometry, place: usize) -> (u32, u32) {
    let position = (place - entries_at(geometry)) / ENTRY_BYTES;
    let stride = geometry.stride as usize;
    ((position / stride) as u32, (position % stride) as u32)
}

/// Where the words of a slab are: who has it mapped, with its complement, and its generation.
pub(super) fn slab_at(slab: u32) -> usize {
    HEADER_BYTES + slab as usize * SLAB_WORDS_BYTES
}

/// Where entries begin: after the slabs' words.
pub(super) fn entries_at(geometry: &Geometry) -> usize {
    HEADER_BYTES + (geometry.slab_count as usize * SLAB_WORDS_BYTES).next_multiple_of(HEADER_BYTES)
}

/// Where the word of a slot's use is: these words come after all entries.
pub(super) fn use_at(geometry: &Geometry, slab: u32, slot: u32) -> usize {
    let position = slab as usize * geometry.stride as usize + slot as usize;
    entry_at(geometry, geometry.slab_count, 0) + position * USE_BYTES
}

/// Bytes of the whole table. Of these only what is written takes memory.
pub(super) fn table_bytes(geometry: &Geometry) -> usize {
    use_at(geometry, geometry.slab_count, 0)
}

/// The word of a slab's generation: one, so that it is written at once.
pub(super) fn encode_generation(generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(!generation)
}

/// Which memory of a slab was made last, by the words of the slab; none: none ever was.
///
/// # Errors
/// The word contradicts itself: nobody knows which memory of it others have.
pub(super) fn decode_generation(words: &[u8]) -> Result<Option<u32>, Unfit> {
    let word = u64::from_le_bytes(take(words, SLAB_GENERATION_AT));
    let generation = (word >> 32) as u32;
    match word {
        0 => Ok(None),
        word if word == encode_generation(generation) => Ok(Some(generation)),
        _ => Err(Unfit::Damaged),
    }
}

/// The word of a use: its order among all uses, how often the page was read, and a check of both.
pub(super) fn encode_use(order: u64, reads: u8) -> u64 {
    let word = order.min(USE_ORDER_MAX) << USE_ORDER_BIT | u64::from(reads) << 8;
    word | u64::from(use_check(word))
}

/// The order of a use and the reads, by its word. A damaged word says nothing, like one that was never written.
pub(super) fn decode_use(word: u64) -> (u64, u8) {
    match word as u8 == use_check(word) {
        true => (word >> USE_ORDER_BIT, (word >> 8) as u8),
        false => (0, 0),
    }
}

/// A word of zeros does not fit its check.
fn use_check(word: u64) -> u8 {
    (word >> 8).to_le_bytes().iter().fold(0x5A, |check: u8, byte| check.rotate_left(1) ^ byte)
}

/// The header of a table.
pub(super) fn encode_header(
    geometry: &Geometry,
    boot: [u8; 16],
    user: u32,
    id: u64,
) -> [u8; HEADER_USED_BYTES] {
    let mut bytes = [0; HEADER_USED_BYTES];
    put(&mut bytes, MAGIC_AT, &MAGIC);
    put(&mut bytes, VERSION_AT, &VERSION.to_le_bytes());
    put(&mut bytes, ENTRY_BYTES_AT, &(ENTRY_BYTES as u32).to_le_bytes());
    put(&mut bytes, SLAB_BYTES_AT, &geometry.slab_bytes.to_le_bytes());
    put(&mut bytes, SLAB_COUNT_AT, &geometry.slab_count.to_le_bytes());
    put(&mut bytes, STRIDE_AT, &geometry.stride.to_le_bytes());
    put(&mut bytes, BOOT_AT, &boot);
    put(&mut bytes, USER_AT, &user.to_le_bytes());
    put(&mut bytes, TABLE_ID_AT, &id.to_le_bytes());
    let sum = checksum_of(&bytes[..CHECK_AT], 0, 0);
    put(&mut bytes, CHECK_AT, &sum.to_le_bytes());
    bytes
}

/// The table's id, if its header is of this layout and fits. What is wrong is said in the order in which it can be known.
pub(super) fn decode_header(
    bytes: &[u8],
    geometry: &Geometry,
    boot: [u8; 16],
    user: u32,
) -> Result<u64, Unfit> {
    check_header(bytes)?;
    let found = Geometry {
        slab_bytes: u64::from_le_bytes(take(bytes, SLAB_BYTES_AT)),
        slab_count: u32::from_le_bytes(take(bytes, SLAB_COUNT_AT)),
        stride: u32::from_le_bytes(take(bytes, STRIDE_AT)),
    };
    let entry_bytes = u32::from_le_bytes(take(bytes, ENTRY_BYTES_AT));
    if found != *geometry || entry_bytes as usize != ENTRY_BYTES {
        return Err(Unfit::Geometry { slab_bytes: found.slab_bytes });
    }
    if take::<16>(bytes, BOOT_AT) != boot {
        return Err(Unfit::Boot);
    }
    let owner = u32::from_le_bytes(take(bytes, USER_AT));
    if owner != user {
        return Err(Unfit::User { user: owner });
    }
    Ok(u64::from_le_bytes(take(bytes, TABLE_ID_AT)))
}

/// Bytes of the slabs that a table speaks of, if its header is of this layout.
pub(super) fn decode_slab_bytes(bytes: &[u8]) -> Result<u64, Unfit> {
    check_header(bytes)?;
    Ok(u64::from_le_bytes(take(bytes, SLAB_BYTES_AT)))
}

fn check_header(bytes: &[u8]) -> Result<(), Unfit> {
    if bytes.len() < HEADER_USED_BYTES {
        return Err(Unfit::Short);
    }
    if take::<8>(bytes, MAGIC_AT) != MAGIC {
        return Err(Unfit::NoTable);
    }
    let version = u32::from_le_bytes(take(bytes, VERSION_AT));
    if version != VERSION {
        return Err(Unfit::Version { version });
    }
    if u64::from_le_bytes(take(bytes, CHECK_AT)) != checksum_of(&bytes[..CHECK_AT], 0, 0) {
        return Err(Unfit::Damaged);
    }
    Ok(())
}

/// What the seal of an entry covers.
pub(super) fn encode_entry(entry: &SlotEntry, sequence: u64) -> [u8; BODY_WORDS * 8] {
    let mut bytes = [0; BODY_WORDS * 8];
    let mut at = |offset: usize, value: &[u8]| put(&mut bytes, offset - BODY_AT, value);
    at(NAMESPACE_AT, &entry.namespace.0);
    at(HASH_AT, &entry.hash.0);
    at(PARENT_AT, &entry.parent.map_or([0; 32], |parent| parent.0));
    at(CHECKSUM_AT, &entry.checksum.to_le_bytes());
    at(SEQUENCE_AT, &sequence.to_le_bytes());
    at(PAGE_BYTES_AT, &entry.bytes.to_le_bytes());
    at(TAIL_TOKENS_AT, &entry.tail_tokens.to_le_bytes());
    at(GENERATION_AT, &entry.generation.to_le_bytes());
    at(SHARD_AT, &entry.shard.to_le_bytes());
    at(SHARDS_AT, &entry.shards.to_le_bytes());
    at(HAS_PARENT_AT, &u32::from(entry.parent.is_some()).to_le_bytes());
    bytes
}

/// The seal of an entry's body at its place in a table; never 0, which is no seal.
pub(super) fn seal_of(body: &[u8], id: u64, place: usize) -> u64 {
    checksum_of(body, id, place as u64).max(1)
}

/// An entry and its sequence, if it is sealed at this place of this table.
pub(super) fn decode_entry(bytes: &[u8], id: u64, place: usize) -> Option<(SlotEntry, u64)> {
    let seal = u64::from_le_bytes(take(bytes, SEAL_AT));
    if seal == 0 || seal != seal_of(&bytes[BODY_AT..SEALED_TO], id, place) {
        return None;
    }
    let parent = take(bytes, PARENT_AT);
    let has_parent = u32::from_le_bytes(take(bytes, HAS_PARENT_AT)) == 1;
    let entry = SlotEntry {
        namespace: NamespaceId(take(bytes, NAMESPACE_AT)),
        hash: BlockHash(take(bytes, HASH_AT)),
        parent: has_parent.then_some(BlockHash(parent)),
        shard: u16::from_le_bytes(take(bytes, SHARD_AT)),
        shards: u16::from_le_bytes(take(bytes, SHARDS_AT)),
        tail_tokens: u32::from_le_bytes(take(bytes, TAIL_TOKENS_AT)),
        bytes: u32::from_le_bytes(take(bytes, PAGE_BYTES_AT)),
        checksum: u64::from_le_bytes(take(bytes, CHECKSUM_AT)),
        generation: u32::from_le_bytes(take(bytes, GENERATION_AT)),
    };
    Some((entry, u64::from_le_bytes(take(bytes, SEQUENCE_AT))))
}

/// Who may be writing the slot of an entry. A word that does not fit its complement says that nobody knows.
pub(super) fn decode_holder(bytes: &[u8]) -> Option<Holder> {
    name_at(bytes, HOLDER_AT, LIBRARY_AT)
}

/// The reader of a name in the header.
pub(super) fn decode_reader(name: &[u8]) -> Option<Holder> {
    name_at(name, 0, 16)
}

/// Which readers have the slot of an entry mapped. None: nobody can say.
pub(super) fn decode_mapped(bytes: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(take(bytes, MAPPED_AT));
    let complement = u64::from_le_bytes(take(bytes, MAPPED_AT + 8));
    (complement == !word || (word, complement) == (0, 0)).then_some(word)
}

/// A process and a library whose words are at these places, each followed by its complement.
fn name_at(bytes: &[u8], holder: usize, library: usize) -> Option<Holder> {
    let word = u64::from_le_bytes(take(bytes, holder));
    let complement = u64::from_le_bytes(take(bytes, holder + 8));
    match word {
        0 if complement == 0 => None,
        word if complement == !word => Some(Holder::of_words(word, decode_library(bytes, library))),
        _ => Some(Holder::Unknown),
    }
}

/// Which library of the holder's process it is. 0, and a word that does not fit its complement: any of them.
fn decode_library(bytes: &[u8], at: usize) -> u64 {
    let library = u64::from_le_bytes(take(bytes, at));
    let complement = u64::from_le_bytes(take(bytes, at + 8));
    if complement == !library { library } else { 0 }
}

/// The numbers at an offset.
pub(super) fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut taken = [0; N];
    taken.copy_from_slice(&bytes[at..at + N]);
    taken
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// One go over all of it: an entry is short, and to begin a checksum costs more than to go on with it.
fn checksum_of(bytes: &[u8], id: u64, place: u64) -> u64 {
    let mut all = [0; BODY_WORDS * 8 + 16];
    put(&mut all, 0, bytes);
    put(&mut all, bytes.len(), &id.to_le_bytes());
    put(&mut all, bytes.len() + 8, &place.to_le_bytes());
    checksum(&all[..bytes.len() + 16])
}

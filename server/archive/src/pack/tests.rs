//! Packs come back as they were built, and nothing else passes for one, checksums made good or not.

use super::build::PackBuilder;
use super::format::{ENTRY_BYTES, PackIndex, TRAILER_BYTES, Trailer};
use crate::blob::{Coder, Compression};
use crate::error::Error;
use crate::id::{Digest, ObjectId};
use bytes::Bytes;
use turnkv_mutate::{Random, each_seed, mutate_bytes};
use turnkv_transfer::checksum;

fn parse(id: ObjectId, object: &[u8]) -> Result<PackIndex, Error> {
    let trailer = Trailer::parse(id, object.len() as u64, object)?;
    trailer.parse_index(id, &object[trailer.index_offset as usize..object.len() - TRAILER_BYTES])
}

fn build(random: &mut Random) -> (PackIndex, Vec<Bytes>, Vec<u8>) {
    let (mut pack, mut coder) = (PackBuilder::new(), Coder::new().unwrap());
    let mut blobs = Vec::new();
    for _ in 0..1 + random.below(5) {
        let mut bytes: Vec<u8> = (0..1 + random.below(3000)).map(|_| random.number() as u8).collect();
        let repeats = random.below(bytes.len());
        bytes[..repeats].fill(7);
        let bytes = Bytes::from(bytes);
        let compression = if random.one_in(2) { Compression::Zstd(1) } else { Compression::None };
        pack.add(coder.encode(compression, Digest::of(&bytes), &bytes));
        blobs.push(bytes);
    }
    let (pieces, index) = pack.finish();
    (index, blobs, pieces.concat())
}

/// Makes the checksums of an index and a trailer good again.
fn seal(object: &mut [u8], index_offset: usize) {
    let end = object.len();
    if end < TRAILER_BYTES || index_offset > end - TRAILER_BYTES {
        return;
    }
    let sum = checksum(&object[index_offset..end - TRAILER_BYTES]);
    object[end - 24..end - 16].copy_from_slice(&sum.to_le_bytes());
    let sum = checksum(&object[end - TRAILER_BYTES..end - 8]);
    object[end - 8..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn what_is_built_is_read() {
    each_seed(100, |random| {
        let (index, blobs, object) = build(random);
        assert_eq!(parse(index.id, &object).unwrap(), index);
        let mut coder = Coder::new().unwrap();
        for blob in &blobs {
            let entry = index.find(&Digest::of(blob)).unwrap();
            let stored = &object[entry.offset as usize..][..entry.stored_bytes as usize];
            assert_eq!(coder.decode(&entry.blob(Bytes::copy_from_slice(stored))).unwrap(), blob);
        }
        assert!(parse(ObjectId::new(), &object).is_err(), "another pack's id");
    });
}

/// A collection that lost a pack while it moved its blobs came upon one of them again in another: the new pack could not be read.
#[test]
fn a_blob_that_is_added_twice_is_in_it_once() {
    let (mut pack, mut coder) = (PackBuilder::new(), Coder::new().unwrap());
    let blobs = ["one", "two", "one", "two", "two"].map(|text| Bytes::from_static(text.as_bytes()));
    for blob in &blobs {
        pack.add(coder.encode(Compression::None, Digest::of(blob), blob));
    }
    let (pieces, index) = pack.finish();
    assert_eq!(index.entries.len(), 2);
    assert_eq!(parse(index.id, &pieces.concat()).unwrap(), index);
}

#[test]
fn nothing_else_passes_for_a_pack() {
    each_seed(2000, |random| {
        let (index, _, object) = build(random);
        let end = index.entries.len() * ENTRY_BYTES + TRAILER_BYTES;
        let (blobs, tail) = object.split_at(object.len() - end);
        let mut mutated = [blobs, &mutate_bytes(random, tail)[..]].concat();
        if let Ok(parsed) = parse(index.id, &mutated) {
            assert_eq!(parsed, index, "its checksums do not tell");
        }
        seal(&mut mutated, blobs.len());
        if let Ok(parsed) = parse(index.id, &mutated) {
            let within = |entry: &super::format::Entry| {
                entry.offset + u64::from(entry.stored_bytes) <= blobs.len() as u64
            };
            assert!(parsed.entries.iter().all(within), "no blob is read outside of its pack");
        }
    });
}

#[test]
fn blobs_that_were_changed_are_not_decoded_to_anything() {
    each_seed(500, |random| {
        let (index, _, object) = build(random);
        let entry = *random.pick(&index.entries).unwrap();
        let stored = &object[entry.offset as usize..][..entry.stored_bytes as usize];
        let mutated = mutate_bytes(random, stored);
        let mut blob = entry.blob(Bytes::from(mutated.clone()));
        let mut coder = Coder::new().unwrap();
        assert_eq!(coder.decode(&blob).is_ok(), mutated == stored);
        // With a good checksum the digest decides.
        blob.checksum = checksum(&blob.bytes);
        if let Ok(decoded) = coder.decode(&blob) {
            assert_eq!(Digest::of(&decoded), entry.digest);
        }
    });
}

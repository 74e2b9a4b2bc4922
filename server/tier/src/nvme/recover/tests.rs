//! Crashes, as bytes on a device: any prefix of writes, any torn block, forged headers.
//!
//! The story: a killed process leaves an open segment in which some writes landed whole, some in part and some not at
//! all, in any order. Recovery must find exactly those that verify.

use super::super::config::NvmeConfig;
use super::super::format::{Record, encode_extent, encode_footer};
use super::*;
use crate::tier::ExtentMeta;
use proptest::prelude::*;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use turnkv_transfer::checksum;

mod several;

const SEGMENT: u64 = 1 << 20;
const BLOCKS: u32 = 256;
const NONCE: Nonce = Nonce([5; 16]);

fn open(path: &Path) -> Device {
    let config = NvmeConfig { segment_bytes: SEGMENT, ..NvmeConfig::new(path, 4 * SEGMENT) };
    Device::open(&config, &mut Vec::new()).unwrap()
}

fn record(number: u64, block: u32, payload: &[u8]) -> Record {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    let meta = ExtentMeta {
        namespace: NamespaceId([1; 32]),
        hash: BlockHash(hash),
        parent: None,
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        payload_bytes: payload.len() as u32,
        checksum: checksum(payload),
    };
    Record { stored_bytes: meta.payload_bytes, meta, block, sequence: number + 1 }
}

fn payload(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index as u64 * 31 + number * 7 + index as u64 / 251) as u8).collect()
}

/// One segment's bytes in memory, as writes land.
struct Image {
    bytes: Vec<u8>,
    device: [u8; 16],
}

impl Image {
    fn new(device: [u8; 16]) -> Image {
        let mut bytes = vec![0; SEGMENT as usize];
        let header = SegmentHeader { segment: 0, epoch: 0, nonce: NONCE, device };
        bytes[..BLOCK].copy_from_slice(&header.encode()[..]);
        Image { bytes, device }
    }

    fn put(&mut self, record: &Record, payload: &[u8]) {
        let mut header = [0; BLOCK];
        encode_extent(record, 0, &NONCE, &mut header);
        let at = record.block as usize * BLOCK;
        self.bytes[at..at + BLOCK].copy_from_slice(&header);
        self.bytes[at + BLOCK..at + BLOCK + payload.len()].copy_from_slice(payload);
    }

    fn seal(&mut self, records: &[Record]) {
        let (first, bytes) = encode_footer(records, 0, &NONCE, BLOCKS);
        self.bytes[first as usize * BLOCK..].copy_from_slice(&bytes);
    }

    /// What is recovered from it, and how.
    fn recover(&self, device: &Device, dir: &Path) -> (Vec<Recovered>, OpenReport, Log) {
        assert_eq!(self.device, device.id);
        std::fs::write(dir.join("segment-000000.kv"), &self.bytes).unwrap();
        let mut report = OpenReport::default();
        let (log, mut extents) = recover(device, &mut report).unwrap();
        extents.sort_by_key(|extent| extent.at);
        (extents, report, log)
    }
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn exactly_what_verifies_comes_back(
        sizes in proptest::collection::vec(1usize..40_000, 1..24),
        landed in any::<u32>(),
        torn in proptest::collection::vec((any::<proptest::sample::Index>(), 1u8..), 0..6),
        zeroed in proptest::collection::vec(any::<proptest::sample::Index>(), 0..3),
    ) {
        let dir = place();
        let device = open(dir.path());
        let mut image = Image::new(device.id);
        let mut block = 1;
        let mut written = Vec::new();
        for (number, size) in sizes.iter().enumerate() {
            let bytes = payload(number as u64, *size);
            let record = record(number as u64, block, &bytes);
            if block + record.blocks() > BLOCKS - 8 { break }
            block += record.blocks();
            if landed >> number & 1 == 1 { image.put(&record, &bytes) }
            written.push((record, bytes));
        }
        for (at, mask) in torn {
            let at = BLOCK + at.index(image.bytes.len() - BLOCK);
            image.bytes[at] ^= mask;
        }
        for at in zeroed {
            let at = (1 + at.index(BLOCKS as usize - 1)) * BLOCK;
            image.bytes[at..at + BLOCK].fill(0);
        }
        // An extent is good if its header's covered bytes and its payload are as they were written.
        let good = |(number, (record, bytes)): (usize, &(Record, Vec<u8>))| {
            let at = record.block as usize * BLOCK;
            let mut header = [0; BLOCK];
            encode_extent(record, 0, &NONCE, &mut header);
            let whole = image.bytes[at..at + 176] == header[..176]
                && image.bytes[at + BLOCK..at + BLOCK + bytes.len()] == bytes[..];
            (landed >> number & 1 == 1 && whole).then_some((record.block, record.meta.clone()))
        };
        let expected: Vec<_> = written.iter().enumerate().filter_map(good).collect();
        let (found, report, log) = image.recover(&device, dir.path());
        let found: Vec<_> = found.into_iter().map(|extent| (extent.at.block, extent.meta)).collect();
        prop_assert_eq!(&found, &expected);
        prop_assert_eq!(report.scanned, 1);
        prop_assert_eq!(log.live().1, expected.len() as u64);
    }

    #[test]
    fn a_sealed_segment_cut_or_garbled_anywhere_never_lies(cut in any::<proptest::sample::Index>(), mask in 1u8..) {
        let dir = place();
        let device = open(dir.path());
        let mut image = Image::new(device.id);
        let bytes: Vec<Vec<u8>> = (0..8).map(|number| payload(number, 100_000)).collect();
        let records: Vec<Record> =
            bytes.iter().enumerate().map(|(number, bytes)| record(number as u64, 1 + number as u32 * 26, bytes)).collect();
        records.iter().zip(&bytes).for_each(|(record, bytes)| image.put(record, bytes));
        image.seal(&records);
        let at = cut.index(image.bytes.len());
        image.bytes[at] ^= mask;
        let (found, report, _) = image.recover(&device, dir.path());
        for extent in &found {
            prop_assert!(records.iter().any(|record| record.meta == extent.meta && record.block == extent.at.block));
        }
        // One byte costs at most one extent, or, in the segment's own header, all of them.
        let header = at < 64;
        prop_assert!(if header { found.is_empty() } else { found.len() >= 7 }, "{} of 8, {:?}", found.len(), report);
    }
}

#[test]
fn a_header_inside_a_payload_is_not_an_extent() {
    let dir = place();
    let device = open(dir.path());
    for nonce in [Nonce([0; 16]), Nonce([6; 16])] {
        let mut image = Image::new(device.id);
        let forged_payload = payload(9, 4096);
        let mut bytes = vec![0; 40_960];
        let mut header = [0; BLOCK];
        encode_extent(&record(9, 3, &forged_payload), 0, &nonce, &mut header);
        bytes[BLOCK..2 * BLOCK].copy_from_slice(&header);
        bytes[2 * BLOCK..3 * BLOCK].copy_from_slice(&forged_payload);
        let host = record(1, 1, &bytes);
        image.put(&host, &bytes);
        let found = image.recover(&device, dir.path()).0;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].meta, host.meta);
        // Torn, its blocks are looked at one by one: still nothing.
        image.bytes[5 * BLOCK] ^= 1;
        assert!(image.recover(&device, dir.path()).0.is_empty());
    }
}

#[test]
fn what_an_earlier_use_left_behind_is_gone() {
    let dir = place();
    let device = open(dir.path());
    let mut image = Image::new(device.id);
    let bytes = payload(1, 50_000);
    let records = [record(1, 1, &bytes)];
    image.put(&records[0], &bytes);
    image.seal(&records);
    assert_eq!(image.recover(&device, dir.path()).0.len(), 1);
    let header = SegmentHeader { segment: 0, epoch: 9, nonce: Nonce([6; 16]), device: device.id };
    image.bytes[..BLOCK].copy_from_slice(&header.encode()[..]);
    assert!(image.recover(&device, dir.path()).0.is_empty());
}

#[test]
fn the_youngest_segment_goes_on_and_its_footer_is_gone() {
    let dir = place();
    let device = open(dir.path());
    let mut image = Image::new(device.id);
    let bytes = payload(1, 50_000);
    let records = [record(1, 1, &bytes)];
    image.put(&records[0], &bytes);
    image.seal(&records);
    let (_, report, mut log) = image.recover(&device, dir.path());
    assert_eq!((report.footers, report.scanned), (1, 0));
    let placed = log.append(&records[0].meta, records[0].stored_bytes, false);
    let super::super::log::Append::Placed(placed) = placed else { panic!("{placed:?}") };
    assert_eq!((placed.at, placed.record.sequence), (log.segment(0).at(0, 15), 3));
    let mut trailer = [0; BLOCK];
    let file = File::open(dir.path().join("segment-000000.kv")).unwrap();
    file.read_exact_at(&mut trailer, SEGMENT - BLOCK as u64).unwrap();
    assert_eq!(trailer, [0; BLOCK]);
}

#[test]
fn a_segment_file_of_another_size_is_made_again() {
    let dir = place();
    let device = open(dir.path());
    let path = dir.path().join("segment-000001.kv");
    OpenOptions::new().create(true).truncate(true).write(true).open(&path).unwrap().set_len(4096).unwrap();
    // Its creation was cut off: nothing is in it, nothing is told of it.
    assert!(matches!(device.existing(1).unwrap(), Existing::Resized(_)));
    let mut report = OpenReport::default();
    recover(&device, &mut report).unwrap();
    assert_eq!((report.damaged, report.extents), (0, 0));
    device.create(1).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SEGMENT);
    assert!(matches!(device.existing(1).unwrap(), Existing::File(_)));
}

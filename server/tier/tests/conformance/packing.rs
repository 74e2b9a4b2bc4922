//! Pages that shrink take less of the device, and come back to the byte: while it runs, after a stop, after a kill; those that do
//! not shrink are as they were. What is damaged is missed, never wrong.

use crate::support::*;
use std::os::unix::fs::FileExt;
use turnkv_tier::nvme::{Codec, NvmeConfig, NvmeTier, Packing};
use turnkv_tier::{ExtentMeta, Location, TierError};
use turnkv_transfer::checksum;

const PAGE: u32 = 100_000;
const CODECS: [Codec; 3] = [Codec::Codebook, Codec::Huffman, Codec::Zstd];

/// bf16 values near zero, as caches have them: few exponents, the rest at random.
fn values(bytes: u32, seed: u64) -> Vec<u8> {
    let random = pattern(2 * bytes, seed);
    let value = |two: &[u8]| {
        let exponent = 118 + u16::from(two[0].count_ones() as u8);
        let rest = u16::from(two[1]);
        (exponent << 7 | rest & 0x7f | (rest & 0x80) << 8).to_le_bytes()
    };
    let mut page: Vec<u8> = random.chunks_exact(2).flat_map(value).collect();
    page.truncate(bytes as usize);
    page
}

fn meta_of(seed: u64, page: &[u8]) -> ExtentMeta {
    ExtentMeta { payload_bytes: page.len() as u32, checksum: checksum(page), ..meta(seed, 1) }
}

fn put(tier: &NvmeTier, bench: &Bench, seed: u64, page: &[u8]) -> Result<Location, TierError> {
    let slot = bench.slot(0, page.len() as u32);
    slot.claim().unwrap().fill(page);
    let (done, told) = promise();
    tier.write(meta_of(seed, page), slot, done);
    answer(&told)
}

fn get(tier: &NvmeTier, bench: &Bench, at: Location, page: &[u8]) -> Result<(), TierError> {
    let target = bench.slot(1, page.len() as u32);
    target.claim().unwrap().fill(&vec![0xa5; page.len()]);
    let (done, told) = promise();
    tier.read(at, page.len() as u32, checksum(page), target.clone(), done);
    answer(&told)?;
    assert!(target.page().to_vec() == page, "what was verified is what was written");
    Ok(())
}

fn packing(bench: Bench, packing: Packing) -> Bench {
    Bench { config: NvmeConfig { packing, ..bench.config }, ..bench }
}

#[test]
fn pages_that_shrink_come_back_and_take_less() {
    everywhere(|bench| {
        let mut bench = packing(bench, Packing::Off);
        for (life, codec) in CODECS.into_iter().enumerate() {
            bench = packing(bench, Packing::Always(codec));
            let (tier, _, _) = bench.open();
            let before = tier.usage();
            for seed in 0..6 {
                let page = values(PAGE + seed as u32 * 777, 10 * life as u64 + seed);
                let at = put(&tier, &bench, 100 * life as u64 + seed, &page).unwrap();
                get(&tier, &bench, at, &page).unwrap();
            }
            let after = tier.usage();
            let payload = after.written_bytes;
            assert!(after.stored_bytes < payload * 9 / 10, "{codec:?}: {} of {payload}", after.stored_bytes);
            assert!(after.live_bytes - before.live_bytes < payload * 95 / 100, "{codec:?}");
            assert_eq!((after.reads, after.read_bytes), (6, payload));
            tier.shutdown().unwrap();
        }
    });
}

#[test]
fn a_tier_holds_more_of_what_shrinks() {
    everywhere(|bench| {
        let held = |packing_: Packing, bench: &Bench| {
            let bench = Bench {
                config: NvmeConfig { packing: packing_, ..bench.config.clone() },
                region: region(4 << 20),
            };
            let (tier, _, _) = bench.open();
            let page = values(PAGE, 5);
            let held = (0..).take_while(|seed| put(&tier, &bench, *seed, &page).is_ok()).count();
            tier.shutdown().unwrap();
            held
        };
        let packed = held(Packing::Always(Codec::Codebook), &bench);
        let place = place();
        let other = Bench::new(place.path().to_owned(), bench.config.engine);
        let raw = held(Packing::Off, &other);
        assert!(packed * 100 >= raw * 125, "{packed} pages instead of {raw}");
    });
}

#[test]
fn what_was_packed_is_there_after_a_stop_and_after_a_kill_whatever_the_setting() {
    everywhere(|bench| {
        let mut bench = packing(bench, Packing::Always(Codec::Codebook));
        let pages: Vec<Vec<u8>> = (0..20).map(|seed| values(PAGE, seed)).collect();
        let (tier, _, _) = bench.open();
        for (seed, page) in pages.iter().enumerate() {
            put(&tier, &bench, seed as u64, page).unwrap();
        }
        drop(tier); // as a crash leaves it: the open segment has no footer
        for life in 0..3 {
            bench = packing(bench, [Packing::Off, Packing::Auto, Packing::Always(Codec::Zstd)][life]);
            let (tier, recovered, report) = bench.open();
            assert_eq!(recovered.len(), pages.len(), "{report:?}");
            assert_eq!((report.damaged, report.unreadable), (0, 0));
            for extent in &recovered {
                let seed = u64::from_le_bytes(extent.meta.hash.0[..8].try_into().unwrap());
                let page = &pages[seed as usize];
                assert_eq!(extent.meta, meta_of(seed, page));
                get(&tier, &bench, extent.at, page).unwrap();
            }
            let live = tier.usage().live_bytes;
            assert!(live < pages.len() as u64 * u64::from(PAGE) * 9 / 10, "{live}");
            tier.shutdown().unwrap();
        }
    });
}

#[test]
fn many_at_once_all_land() {
    everywhere(|bench| {
        let bench = packing(bench, Packing::Always(Codec::Codebook));
        let (tier, _, _) = bench.open();
        let pages: Vec<Vec<u8>> = (0..30).map(|seed| values(PAGE, seed)).collect();
        let slot = |number: usize| bench.region.slot(number << 17, PAGE as usize).unwrap();
        let write = |(number, page): (usize, &Vec<u8>)| {
            slot(number).claim().unwrap().fill(page);
            let (done, told) = promise();
            tier.write(meta_of(number as u64, page), slot(number), done);
            told
        };
        let writes: Vec<_> = pages.iter().enumerate().map(write).collect();
        let places: Vec<Location> = writes.iter().map(|told| answer(told).unwrap()).collect();
        let read = |((number, page), at): ((usize, &'_ Vec<u8>), &Location)| {
            slot(number).claim().unwrap().fill(&vec![0; PAGE as usize]);
            let (done, told) = promise();
            tier.read(*at, PAGE, checksum(page), slot(number), done);
            (told, slot(number), page.clone())
        };
        let reads: Vec<_> = pages.iter().enumerate().zip(&places).map(read).collect();
        for (told, target, page) in reads {
            answer(&told).unwrap();
            assert!(target.page().to_vec() == page);
        }
        assert_eq!((tier.usage().queued_ops, tier.usage().inflight_bytes), (0, 0));
    });
}

#[test]
fn bytes_that_are_not_those_of_their_checksum_are_not_written() {
    everywhere(|bench| {
        let bench = packing(bench, Packing::Always(Codec::Codebook));
        let (tier, _, _) = bench.open();
        let page = values(PAGE, 1);
        let slot = bench.slot(0, PAGE);
        slot.claim().unwrap().fill(&page);
        let (done, told) = promise();
        tier.write(ExtentMeta { checksum: 1, ..meta_of(1, &page) }, slot, done);
        assert_eq!(answer(&told), Err(TierError::Changed));
        assert_eq!((tier.usage().changed_writes, tier.usage().live_extents), (1, 0));
        let at = put(&tier, &bench, 2, &page).unwrap();
        get(&tier, &bench, at, &page).unwrap();
    });
}

/// Every bit that is turned on the device costs that page alone, as a miss.
#[test]
fn a_flipped_bit_is_a_miss() {
    let place = place();
    let file = place.path().join("device");
    std::fs::File::create(&file).unwrap().set_len((1 << 20) + SEGMENTS * SEGMENT).unwrap();
    for codec in CODECS {
        let bench = packing(Bench::new(file.clone(), ENGINES[1]), Packing::Always(codec));
        let (tier, _, _) = bench.open();
        let page = values(PAGE, 1);
        let at = put(&tier, &bench, 1, &page).unwrap();
        let payload = (1 << 20) + u64::from(at.segment) * SEGMENT + (u64::from(at.block) + 1) * 4096;
        let device = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
        let stored = tier.usage().stored_bytes;
        let (mut missed, mut tried) = (0, 0);
        for bit in (0..stored * 8).step_by(9_973).chain(0..96) {
            let mut byte = [0];
            device.read_exact_at(&mut byte, payload + bit / 8).unwrap();
            device.write_all_at(&[byte[0] ^ 1 << (bit % 8)], payload + bit / 8).unwrap();
            device.sync_all().unwrap();
            tried += 1;
            match get(&tier, &bench, at, &page) {
                Err(TierError::Checksum(there)) => missed += u64::from(there == at),
                Ok(()) => {} // a bit that means nothing: a place of the book that no code names
                other => panic!("{other:?}"),
            }
            device.write_all_at(&byte, payload + bit / 8).unwrap();
            device.sync_all().unwrap();
        }
        assert!(missed * 10 > tried * 9, "{codec:?}: {missed} of {tried}");
        assert_eq!(tier.usage().checksum_failures, missed);
        get(&tier, &bench, at, &page).unwrap();
        tier.shutdown().unwrap();
    }
}

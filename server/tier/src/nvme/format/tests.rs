//! What is encoded is decoded, and nothing else is.

use super::*;
use proptest::prelude::*;

pub(crate) fn arb_record() -> impl Strategy<Value = Record> {
    let ids = (any::<[u8; 32]>(), any::<[u8; 32]>(), proptest::option::of(any::<[u8; 32]>()));
    let numbers = (1u32..=PAYLOAD_BYTES_MAX, any::<u64>(), any::<u64>(), 1u32..1 << 20, any::<u32>());
    (ids, numbers, 1u16..=64).prop_flat_map(|(ids, numbers, shards)| {
        (Just(ids), Just(numbers), 0..shards).prop_map(move |(ids, numbers, shard)| Record {
            meta: ExtentMeta {
                namespace: NamespaceId(ids.0),
                hash: BlockHash(ids.1),
                parent: ids.2.map(BlockHash),
                shard,
                shards,
                tail_tokens: numbers.4,
                payload_bytes: numbers.0,
                checksum: numbers.1,
            },
            block: numbers.3,
            sequence: numbers.2,
            stored_bytes: 1 + (numbers.2 % u64::from(numbers.0)) as u32,
        })
    })
}

const NONCE: Nonce = Nonce([9; 16]);

proptest! {
    #[test]
    fn an_extent_header_is_read_back_only_where_it_belongs(record in arb_record(), flip in 0usize..EXTENT_CRC * 8 + 64) {
        let mut block = [0xAA; BLOCK];
        encode_extent(&record, 5, &NONCE, &mut block);
        prop_assert_eq!(decode_extent(&block, 5, record.block, &NONCE), Some(record.clone()));
        prop_assert_eq!(decode_extent(&block, 6, record.block, &NONCE), None);
        prop_assert_eq!(decode_extent(&block, 5, record.block + 1, &NONCE), None);
        prop_assert_eq!(decode_extent(&block, 5, record.block, &Nonce([8; 16])), None);
        block[flip / 8] ^= 1 << (flip % 8);
        prop_assert_eq!(decode_extent(&block, 5, record.block, &NONCE), None);
    }

    #[test]
    fn a_footer_is_read_back_and_no_bit_of_it_may_flip(
        sizes in proptest::collection::vec(1u32..50_000, 0..80), seed in arb_record(), flip in any::<proptest::sample::Index>()
    ) {
        let blocks = 4096;
        let mut next = 1;
        let records: Vec<Record> = sizes.iter().map(|size| {
            let mut record = Record { block: next, ..seed.clone() };
            (record.meta.payload_bytes, record.stored_bytes) = (*size, size.div_ceil(1 + size % 3));
            next += record.blocks();
            record
        }).collect();
        let (first, mut bytes) = encode_footer(&records, 3, &NONCE, blocks);
        prop_assert_eq!(first as usize + bytes.len() / BLOCK, blocks as usize);
        let read = |bytes: &[u8]| {
            let trailer = decode_trailer(&bytes[bytes.len() - BLOCK..], 3, &NONCE, blocks)?;
            decode_entries(bytes, &trailer)
        };
        prop_assert_eq!(read(&bytes), Some(records.clone()));
        let covered = records.len() * RECORD_BYTES;
        let at = flip.index((covered + FOOTER_CRC + 8) * 8);
        let byte = if at / 8 < covered { at / 8 } else { bytes.len() - BLOCK + at / 8 - covered };
        bytes[byte] ^= 1 << (at % 8);
        prop_assert_eq!(read(&bytes), None);
    }

    #[test]
    fn arbitrary_bytes_are_nothing(bytes in proptest::collection::vec(any::<u8>(), BLOCK)) {
        prop_assert_eq!(decode_extent(&bytes, 0, 1, &NONCE), None);
        prop_assert_eq!(decode_trailer(&bytes, 0, &NONCE, 256), None);
        let block: &Block = bytes.first_chunk().unwrap();
        prop_assert_eq!(Superblock::decode(block), Version::Damaged);
        prop_assert_eq!(SegmentHeader::decode(block, &[0; 16], 0), None);
    }
}

#[test]
fn headers_of_segments_and_superblocks_are_read_back() {
    let superblock = Superblock { segment_bytes: 1 << 28, device: [4; 16] };
    assert_eq!(Superblock::decode(&superblock.encode()), Version::Current(superblock));
    let mut later = superblock.encode();
    put(&mut later[..], FORMAT, (VERSION + 1).to_le_bytes());
    assert_eq!(Superblock::decode(&later), Version::Damaged, "a turned bit is no other version");
    let sum = crc(&later[..SUPER_CRC]);
    put(&mut later[..], SUPER_CRC, sum.to_le_bytes());
    assert_eq!(Superblock::decode(&later), Version::Other);
    let header = SegmentHeader { segment: 8, epoch: 99, nonce: NONCE, device: [4; 16] };
    assert_eq!(SegmentHeader::decode(&header.encode(), &[4; 16], 8), Some(header));
    assert_eq!(SegmentHeader::decode_any(&header.encode()), Some(header));
    assert_eq!(SegmentHeader::decode(&header.encode(), &[5; 16], 8), None);
    assert_eq!(SegmentHeader::decode(&header.encode(), &[4; 16], 9), None);
}

#[test]
fn entries_out_of_order_or_overlapping_are_refused() {
    let meta = ExtentMeta {
        namespace: NamespaceId([0; 32]),
        hash: BlockHash([0; 32]),
        parent: None,
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        payload_bytes: 8192,
        checksum: 0,
    };
    let record = |block| Record { meta: meta.clone(), block, sequence: 1, stored_bytes: 8192 };
    for (blocks, good) in
        [([1, 4], true), ([1, 3], false), ([4, 1], false), ([0, 4], false), ([1, 252], false)]
    {
        let (_, bytes) = encode_footer(&blocks.map(record), 0, &NONCE, 256);
        let trailer = decode_trailer(&bytes[BLOCK..], 0, &NONCE, 256).unwrap();
        assert_eq!(decode_entries(&bytes, &trailer).is_some(), good, "{blocks:?}");
    }
}

/// Whatever becomes of a block: what is read from it is what was sealed in it, or nothing.
#[test]
fn damaged_blocks_are_what_was_sealed_or_nothing() {
    let meta = ExtentMeta {
        namespace: NamespaceId([1; 32]),
        hash: BlockHash([2; 32]),
        parent: Some(BlockHash([3; 32])),
        shard: 1,
        shards: 2,
        tail_tokens: 5,
        payload_bytes: 8192,
        checksum: 99,
    };
    let records: Vec<Record> = (0..60u64)
        .map(|at| Record {
            meta: meta.clone(),
            block: 1 + at as u32 * 3,
            sequence: at,
            stored_bytes: 8192 - at as u32,
        })
        .collect();
    let (_, footer) = encode_footer(&records, 3, &NONCE, 256);
    let mut extent = Box::new([0xAA; BLOCK]);
    encode_extent(&records[4], 3, &NONCE, &mut extent);
    let superblock = Superblock { segment_bytes: 1 << 28, device: [4; 16] };
    let header = SegmentHeader { segment: 3, epoch: 99, nonce: NONCE, device: [4; 16] };
    let whole_block = |bytes: Vec<u8>, like: &Block| {
        let mut block = Box::new(*like);
        let len = bytes.len().min(BLOCK);
        block[..len].copy_from_slice(&bytes[..len]);
        block
    };
    turnkv_mutate::each_seed(1_500, |random| {
        let damage = |random: &mut turnkv_mutate::Random, like: &Block| {
            let bytes = turnkv_mutate::mutate_bytes(random, &like[..256]);
            whole_block(bytes, like)
        };
        let found = Superblock::decode(&damage(random, &superblock.encode()));
        assert!(!matches!(found, Version::Current(found) if found != superblock));
        let found = SegmentHeader::decode(&damage(random, &header.encode()), &[4; 16], 3);
        assert!(found.is_none_or(|found| found == header));
        let found = decode_extent(&*damage(random, &extent), 3, records[4].block, &NONCE);
        assert!(found.is_none_or(|found| found == records[4]));
        let mut bytes = turnkv_mutate::mutate_bytes(random, &footer);
        if random.one_in(2) {
            bytes.resize(footer.len(), 0); // of the right length, as what is read always is
        }
        let trailer =
            bytes.len().checked_sub(BLOCK).and_then(|at| decode_trailer(&bytes[at..], 3, &NONCE, 256));
        if let Some(trailer) = trailer
            && let Some(found) = decode_entries(&bytes, &trailer)
        {
            assert_eq!(found, records);
        }
    });
}

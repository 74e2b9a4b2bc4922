//! Several segments at once: copies of one shard in any of them, with footers and without.

use super::*;

/// A segment of this number with such extents, each with its place.
fn segment(device: &Device, number: u32, extents: &[(Record, Vec<u8>)], sealed: bool) -> Vec<u8> {
    let nonce = Nonce([number as u8 + 1; 16]);
    let mut bytes = vec![0; SEGMENT as usize];
    let header = SegmentHeader { segment: number, epoch: 7, nonce, device: device.id };
    bytes[..BLOCK].copy_from_slice(&header.encode()[..]);
    for (record, payload) in extents {
        let at = record.block as usize * BLOCK;
        let block: &mut [u8; BLOCK] = bytes[at..].first_chunk_mut().unwrap();
        encode_extent(record, number, &nonce, block);
        bytes[at + BLOCK..][..payload.len()].copy_from_slice(payload);
    }
    if sealed {
        let records: Vec<Record> = extents.iter().map(|(record, _)| record.clone()).collect();
        let (first, footer) = encode_footer(&records, number, &nonce, BLOCKS);
        bytes[first as usize * BLOCK..].copy_from_slice(&footer);
    }
    bytes
}

fn write_segment(dir: &Path, number: u32, bytes: &[u8]) {
    std::fs::write(dir.join(format!("segment-{number:06}.kv")), bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn of_the_copies_of_a_shard_the_one_written_last_counts_wherever_it_is(
        copies in proptest::collection::vec((0u64..6, 0u32..3, 1usize..20_000), 1..30).prop_flat_map(|copies| {
            let order: Vec<u64> = (0..copies.len() as u64).collect();
            (Just(copies), Just(order).prop_shuffle())
        }),
        sealed in any::<[bool; 3]>(),
    ) {
        let dir = place();
        let device = open(dir.path());
        let mut extents: Vec<Vec<(Record, Vec<u8>)>> = vec![Vec::new(); 3];
        let mut last: HashMap<u64, (u64, u32, u32)> = HashMap::new();
        let (copies, order) = copies;
        for ((shard, number, size), sequence) in copies.iter().zip(&order) {
            let there = &mut extents[*number as usize];
            let block = there.last().map_or(1, |(record, _)| record.block + record.blocks());
            let bytes = payload(shard * 100 + sequence, *size);
            let copy = Record { sequence: 100 + sequence, ..record(*shard, block, &bytes) };
            if block + copy.blocks() > BLOCKS - 4 { continue }
            let newest = last.entry(*shard).or_insert((0, 0, 0));
            *newest = (*newest).max((copy.sequence, *number, block));
            there.push((copy, bytes));
        }
        for (number, extents) in (0..).zip(&extents) {
            write_segment(dir.path(), number, &segment(&device, number, extents, sealed[number as usize]));
        }
        let mut report = OpenReport::default();
        let (mut log, found) = recover(&device, &mut report).unwrap();
        let mut found: Vec<_> =
            found.into_iter().map(|extent| (extent.sequence, u32::from(extent.at.segment), extent.at.block)).collect();
        found.sort();
        let mut wanted: Vec<_> = last.values().copied().collect();
        wanted.sort();
        prop_assert_eq!(&found, &wanted);
        let written: usize = extents.iter().map(Vec::len).sum();
        prop_assert_eq!(report.superseded, (written - wanted.len()) as u64);
        prop_assert_eq!(log.live().1, wanted.len() as u64);
        // What is written from here on counts more than all of it: notes say up to where the sequence has come.
        log.note_leaving(first_use(wanted[0].1, wanted[0].2), true);
        let notes = log.take_notes(usize::MAX);
        let newest = extents.iter().flatten().map(|(record, _)| record.sequence).max();
        prop_assert!(notes.len() == 1 && Some(notes[0].upto) > newest, "{:?} after {newest:?}", notes);
    }
}

/// A footer says what was written before the last sync. What it does not name, or another use's, is not found through it.
#[test]
fn a_footer_of_another_segment_or_of_an_earlier_use_is_none() {
    let dir = place();
    let device = open(dir.path());
    let bytes = payload(1, 9_000);
    let here = [(record(1, 1, &bytes), bytes.clone())];
    let there = [(record(2, 1, &bytes), bytes.clone()), (record(3, 4, &bytes), bytes)];
    let (mut one, other) = (segment(&device, 0, &here, true), segment(&device, 1, &there, true));
    let end = SEGMENT as usize - 2 * BLOCK;
    one[end..].copy_from_slice(&other[end..]);
    write_segment(dir.path(), 0, &one);
    let mut report = OpenReport::default();
    let (_, found) = recover(&device, &mut report).unwrap();
    assert_eq!((report.scanned, report.footers, found.len()), (1, 0, 1));
    assert_eq!(found[0].meta, here[0].0.meta, "found by its own header");
}

/// Headers in order, but the one behind says that it begins where the first still is: whatever is found, nothing twice.
#[test]
fn an_extent_is_no_part_of_another() {
    let dir = place();
    let device = open(dir.path());
    let (outer, inner) = (payload(1, 30_000), payload(2, 3_000));
    let mut image = Image::new(device.id);
    image.put(&record(1, 1, &outer), &outer);
    // Written whole behind the first one's back, as by a writer that believed the place to be free.
    image.put(&record(2, 4, &inner), &inner);
    let (found, ..) = image.recover(&device, dir.path());
    let found: Vec<u32> = found.iter().map(|extent| extent.at.block).collect();
    assert_eq!(found, [4], "the first is damaged by the second, which is whole");
    image.put(&record(1, 1, &outer), &outer);
    let (found, ..) = image.recover(&device, dir.path());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].at.block, 1, "and the other way round");
}

//! Shards are cut into K and V and joined again, whatever the ranges; ranges that leave a byte out, or have it twice, are refused.

use super::*;
use turnkv_mutate::{Random, each_seed};

type Ranges = Vec<(u32, u32)>;

/// Ranges that together have every byte of a shard once, in an order of chance, each K or V.
fn ranges(random: &mut Random) -> (u64, Ranges, Ranges) {
    let (mut end, mut k, mut v) = (0, Vec::new(), Vec::new());
    for number in 0..2 + random.below(12) {
        let range = (end, 1 + random.below(40) as u32);
        end += range.1;
        // Each has one at least.
        let to_k = if number < 2 { number == 0 } else { random.one_in(2) };
        let side = if to_k { &mut k } else { &mut v };
        let at = random.below(side.len() + 1);
        side.insert(at, range);
    }
    (u64::from(end), k, v)
}

#[test]
fn a_shard_that_is_cut_is_joined_to_what_it_was() {
    each_seed(500, |random| {
        let (shard_bytes, k, v) = ranges(random);
        let split = Split::KeyValue { k: k.clone(), v: v.clone() };
        split.check(shard_bytes).unwrap();
        let shard: Bytes = (0..shard_bytes).map(|_| random.number() as u8).collect();
        let cut = split.cut(&shard);
        let sizes: Vec<(Part, u32)> = cut.iter().map(|(part, bytes)| (*part, bytes.len() as u32)).collect();
        assert_eq!(sizes, split.parts(shard_bytes), "readers expect parts of these sizes");
        for ((part, bytes), (name, ranges)) in cut.iter().zip([(Part::K, &k), (Part::V, &v)]) {
            let of_ranges = ranges.iter().flat_map(|(at, bytes)| *at..*at + *bytes);
            let wanted: Vec<u8> = of_ranges.map(|at| shard[at as usize]).collect();
            assert!(*part == name && *bytes == wanted, "{part:?} of {ranges:?}");
        }
        let parts = cut.into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(split.join(shard_bytes, parts), shard);
    });
}

#[test]
fn a_byte_that_is_in_no_range_or_in_two_is_named() {
    each_seed(500, |random| {
        let (shard_bytes, mut k, mut v) = ranges(random);
        let side = if random.one_in(2) { &mut k } else { &mut v };
        let at = random.below(side.len());
        match random.below(6) {
            0 => side[at].0 += 1,
            1 => side[at].1 += 1,
            2 => side[at].1 -= 1,
            3 => side.push((shard_bytes as u32, 1)),
            4 => side.push((random.below(shard_bytes as usize) as u32, 0)),
            _ => side.push(side[at]),
        }
        let refused = Split::KeyValue { k, v }.check(shard_bytes);
        assert!(
            matches!(&refused, Err(Error::Invalid { field, .. }) if field == "turnkv.split"),
            "{refused:?}"
        );
    });
}

#[test]
fn ranges_at_the_ends_of_their_numbers_are_refused_and_not_added_up_wrong() {
    let one = vec![(0, 1)];
    for (k, v, shard_bytes) in [
        (vec![(0, u32::MAX)], vec![(u32::MAX, u32::MAX)], 1),
        (vec![(0, u32::MAX), (u32::MAX, 1)], one.clone(), u64::from(u32::MAX) + 1),
        (vec![(u32::MAX, 1)], one.clone(), 1),
        (one.clone(), Vec::new(), 1),
        (Vec::new(), one.clone(), 1),
        (one.clone(), vec![(1, 1)], u64::MAX),
    ] {
        let split = Split::KeyValue { k, v };
        assert!(split.check(shard_bytes).is_err(), "{split:?} of {shard_bytes}");
    }
    let many = |count: usize| (0..count as u32).map(|at| (at, 1)).collect::<Vec<_>>();
    let most = SPLIT_RANGES_MAX;
    let rest = |count: usize| vec![(count as u32, 1)];
    let with = |count: usize| Split::KeyValue { k: many(count), v: rest(count) }.check(count as u64 + 1);
    assert!(with(most).is_ok());
    assert!(matches!(with(most + 1), Err(Error::Invalid { field, .. }) if field == "turnkv.split.k"));
}

#[test]
fn layers_divide_a_shard_evenly_or_not_at_all() {
    for (layers, shard_bytes, comes_out_even) in [
        (1, 2, true),
        (1, 3, false),
        (2, 4, true),
        (2, 6, false),
        (3, 4096, false),
        (0, 4096, false),
        (4, 0, false),
        (1 << 31, 1 << 32, false),
        (u32::MAX, 64, false),
        (1, 1 << 33, false),
    ] {
        let split = Split::by_layers(layers, shard_bytes);
        assert_eq!(split.is_some(), comes_out_even, "{layers} layers of {shard_bytes} bytes");
        if let Some(split) = split {
            split.check(shard_bytes).unwrap();
        }
    }
}

//! What arrives is what was sent. Owns: sizes, offsets, many at once, full queues.

use std::sync::Arc;
use std::time::Duration;

use super::{Bench, Ends, Stretch, assert_content, completions, fill, lend, pattern, read, region};
use crate::fabric::{Access, CompletionQueue, Op, Outcome, WhyUnposted};
use crate::limits::OPERATION_BYTES_MAX;

const MIB: usize = 1 << 20;

/// Sizes around those at which something changes: words, lines, pages, the sizes of socket buffers, a slot.
const SIZES: [usize; 20] = [
    1,
    2,
    3,
    7,
    8,
    31,
    32,
    33,
    63,
    64,
    4095,
    4096,
    4097,
    65_535,
    65_536,
    131_072,
    262_143,
    MIB + 1,
    2 * MIB - 1,
    2 * MIB,
];

/// Both ways, at odd and even places; the bytes beside them stay as they were.
pub(crate) fn every_size_and_offset_arrives<E: Ends>(ends: &E) {
    let total = 2 * MIB + 4096;
    let bench = Bench::new(ends, total, 4);
    for (index, &bytes) in SIZES.iter().enumerate() {
        for offset in [0, 1, 2001] {
            let seed = (index * 8 + offset) as u64;
            let (there, here) = (pattern(seed, total), pattern(seed + 1, total));
            fill(&bench.memory, 0, &there);
            fill(&bench.slab, 0, &here);
            let place = Stretch { remote: offset, local: 2047 - offset, bytes };
            assert_eq!(bench.run(bench.read(place, seed)), Outcome::Done);
            let mut wanted = here.clone();
            wanted[place.local..place.local + bytes].copy_from_slice(&there[offset..offset + bytes]);
            assert_content(&bench.slab, 0, &wanted, "the slab after a read");
            assert_content(&bench.memory, 0, &there, "the memory after a read");

            fill(&bench.slab, 0, &here);
            assert_eq!(bench.run(bench.write(place, seed)), Outcome::Done);
            let mut wanted = there.clone();
            wanted[offset..offset + bytes].copy_from_slice(&here[place.local..place.local + bytes]);
            assert_content(&bench.memory, 0, &wanted, "the memory after a write");
            assert_content(&bench.slab, 0, &here, "the slab after a write");
        }
    }
    assert_eq!(bench.rail.initiator.queued_bytes(), 0);
}

/// One operation of as many bytes as one may have, both ways.
pub(crate) fn the_largest_operation_arrives<E: Ends>(ends: &E) {
    let bench = Bench::new(ends, OPERATION_BYTES_MAX, 1);
    let (there, here) = (pattern(1, OPERATION_BYTES_MAX), pattern(2, OPERATION_BYTES_MAX));
    fill(&bench.memory, 0, &there);
    let place = Stretch { remote: 0, local: 0, bytes: OPERATION_BYTES_MAX };
    assert_eq!(bench.run(bench.read(place, 1)), Outcome::Done);
    assert_content(&bench.slab, 0, &there, "the slab after a read");
    fill(&bench.slab, 0, &here);
    assert_eq!(bench.run(bench.write(place, 2)), Outcome::Done);
    assert_content(&bench.memory, 0, &here, "the memory after a write");
}

/// Reads and writes mixed, as many as the queue holds, posted anew as they complete.
pub(crate) fn many_are_under_way_at_once<E: Ends>(ends: &E) {
    let (bytes, count, at_once) = (4096 + 40, 600, 64);
    let bench = Bench::new(ends, bytes * count, at_once);
    let (there, here) = (pattern(1, bytes * count), pattern(2, bytes * count));
    fill(&bench.memory, 0, &there);
    fill(&bench.slab, 0, &here);
    let (mut posted, mut done) = (0, Vec::new());
    while done.len() < count {
        while posted < count {
            let place = Stretch { remote: posted * bytes, local: posted * bytes, bytes };
            let operation = if posted % 3 == 0 {
                bench.write(place, posted as u64)
            } else {
                bench.read(place, posted as u64)
            };
            match bench.rail.initiator.post(operation) {
                Ok(()) => posted += 1,
                Err(unposted) => {
                    assert_eq!(unposted.why, WhyUnposted::Full);
                    break;
                }
            }
        }
        assert!(bench.completions.poll(&mut done, super::PATIENCE) > 0, "{} are done", done.len());
    }
    let mut names: Vec<_> = done.iter().map(|done| done.op.0).collect();
    names.sort_unstable();
    assert!(names.into_iter().eq(0..count as u64), "each once");
    assert!(done.iter().all(|done| done.outcome == Outcome::Done));
    for index in 0..count {
        let part = index * bytes..(index + 1) * bytes;
        let wanted = if index % 3 == 0 { &here[part.clone()] } else { &there[part.clone()] };
        assert_content(&bench.slab, part.start, wanted, "the slab");
        assert_content(&bench.memory, part.start, wanted, "the memory");
    }
    assert_eq!(bench.rail.initiator.queued_bytes(), 0);
}

/// Four rails of one client complete into one queue, whichever of them moved the bytes.
pub(crate) fn several_rails_share_a_queue<E: Ends>(ends: &E) {
    let (bytes, count) = (100_000, 80);
    let client = ends.client();
    let queue = CompletionQueue::new(count);
    let rails: Vec<_> = (0..4).map(|_| ends.rail(&client, &queue)).collect();
    let (memory, slab) = (region(bytes * count), region(bytes * count));
    ends.attach(&slab);
    let there = pattern(3, bytes * count);
    fill(&memory, 0, &there);
    let key = lend(E::domain(&client), &memory, Access::Read);
    for index in 0..count {
        let place = Stretch { remote: index * bytes, local: index * bytes, bytes };
        rails[index % 4].initiator.post(read(key, &slab, place, index as u64)).expect("there is room");
    }
    let outcomes = completions(&queue, count);
    assert!(outcomes.values().all(|outcome| *outcome == Outcome::Done));
    assert_content(&slab, 0, &there, "the slab");
}

/// An operation for which there is no place comes back, and goes once a completion was taken; completions
/// that nobody took hold their places.
pub(crate) fn a_full_queue_hands_back<E: Ends>(ends: &E) {
    let bench = Bench::new(ends, 4096, 3);
    let place = Stretch { remote: 0, local: 0, bytes: 4096 };
    assert_eq!(bench.run(bench.read(place, 9)), Outcome::Done);
    let shares = Arc::strong_count(&bench.slab);
    (0..3).for_each(|op| bench.post(bench.read(place, op)));
    let refused = bench.rail.initiator.post(bench.read(place, 3)).expect_err("the queue is full");
    assert_eq!((refused.why, refused.operation.op()), (WhyUnposted::Full, Op(3)));
    let mut taken = Vec::new();
    assert!(bench.completions.poll(&mut taken, super::PATIENCE) > 0);
    bench.post(refused.operation);
    while taken.len() < 4 {
        assert!(bench.completions.poll(&mut taken, super::PATIENCE) > 0);
    }
    assert_eq!(bench.completions.poll(&mut taken, Duration::from_millis(20)), 0, "there are no more");
    assert_eq!(Arc::strong_count(&bench.slab), shares, "no share of a slot is kept");
}

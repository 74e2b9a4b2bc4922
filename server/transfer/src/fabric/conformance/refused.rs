//! Keys and bounds that are not right. Owns: what a target must not let anyone reach.

use super::{Bench, Ends, Stretch, assert_content, fill, lend, pattern, read, region, write};
use crate::fabric::{Access, Outcome, RegionKey};

const BYTES: usize = 64 << 10;

/// A key that was never given out.
pub(crate) fn an_unknown_key_is_refused<E: Ends>(ends: &E) {
    let forge = |key: RegionKey| RegionKey { key: key.key ^ 0x5a5a, ..key };
    both_ways(ends, forge, Stretch { remote: 0, local: 0, bytes: BYTES });
}

/// A key whose bearer believes that there is more memory than was lent: one byte too many, or far away.
pub(crate) fn what_lies_outside_is_refused<E: Ends>(ends: &E) {
    let more = |key: RegionKey| RegionKey { bytes: 1 << 40, ..key };
    both_ways(ends, more, Stretch { remote: 1, local: 0, bytes: BYTES });
    both_ways(ends, more, Stretch { remote: 1 << 39, local: 0, bytes: 16 });
    both_ways(ends, more, Stretch { remote: BYTES, local: 0, bytes: 1 });
}

/// Tries to read and to write with a key that `forge` makes of a good one: refused, nothing changed.
fn both_ways<E: Ends>(ends: &E, forge: impl Fn(RegionKey) -> RegionKey, place: Stretch) {
    for reads in [true, false] {
        let bench = Bench::new(ends, BYTES, 4);
        let (there, here) = (pattern(1, BYTES), pattern(2, BYTES));
        fill(&bench.memory, 0, &there);
        fill(&bench.slab, 0, &here);
        let key = forge(bench.key);
        let operation =
            if reads { read(key, &bench.slab, place, 1) } else { write(key, &bench.slab, place, 1) };
        bench.assert_refused(bench.run(operation));
        assert_content(&bench.memory, 0, &there, "the memory");
        assert_content(&bench.slab, 0, &here, "the slab");
        bench.goes_on_or_says_not();
    }
}

/// Memory lent for reading is not written, and the other way round.
pub(crate) fn what_was_not_lent_for_this_is_refused<E: Ends>(ends: &E) {
    for access in [Access::Read, Access::Write] {
        let bench = Bench::new(ends, BYTES, 4);
        let (there, here) = (pattern(1, BYTES), pattern(2, BYTES));
        let memory = region(BYTES);
        fill(&memory, 0, &there);
        fill(&bench.slab, 0, &here);
        let key = lend(bench.domain(), &memory, access);
        let place = Stretch { remote: 0, local: 0, bytes: BYTES };
        let (good, bad) = (read(key, &bench.slab, place, 1), write(key, &bench.slab, place, 2));
        let (good, bad) = if access.reads() { (good, bad) } else { (bad, good) };
        assert_eq!(bench.run(good), Outcome::Done);
        let held = if access.reads() { &there } else { &here };
        let other = pattern(3, BYTES);
        fill(if access.reads() { &bench.slab } else { &memory }, 0, &other);
        bench.assert_refused(bench.run(bad));
        let kept = if access.reads() { &memory } else { &bench.slab };
        assert_content(kept, 0, held, "what was not to be written");
        bench.goes_on_or_says_not();
    }
}

/// A key is good until it is taken back.
pub(crate) fn a_key_taken_back_is_refused<E: Ends>(ends: &E) {
    let bench = Bench::new(ends, BYTES, 4);
    let memory = region(BYTES);
    let key = lend(bench.domain(), &memory, Access::ReadWrite);
    let place = Stretch { remote: 0, local: 0, bytes: BYTES };
    assert_eq!(bench.run(write(key, &bench.slab, place, 1)), Outcome::Done);
    bench.take_back(key);
    bench.assert_refused(bench.run(write(key, &bench.slab, place, 2)));
    bench.goes_on_or_says_not();
}

/// Two clients side by side: what one lent cannot be reached over the other's rail.
pub(crate) fn a_key_opens_nothing_in_another_domain<E: Ends>(ends: &E) {
    for reads in [true, false] {
        let (bench, other) = (Bench::new(ends, BYTES, 4), Bench::new(ends, BYTES, 4));
        let (there, here) = (pattern(1, BYTES), pattern(2, BYTES));
        fill(&other.memory, 0, &there);
        fill(&bench.slab, 0, &here);
        let place = Stretch { remote: 0, local: 0, bytes: BYTES };
        let (key, slab) = (other.key, &bench.slab);
        let foreign = if reads { read(key, slab, place, 1) } else { write(key, slab, place, 1) };
        bench.assert_refused(bench.run(foreign));
        assert_content(&other.memory, 0, &there, "the other client's memory");
        assert_content(&bench.slab, 0, &here, "the slab");
        assert_eq!(other.run(other.read(place, 2)), Outcome::Done, "the other's own rail goes on");
    }
}

/// Each registration stands alone.
pub(crate) fn memory_lent_twice_has_two_keys<E: Ends>(ends: &E) {
    let bench = Bench::new(ends, BYTES, 4);
    let again = lend(bench.domain(), &bench.memory, Access::Read);
    assert_ne!(again.key, bench.key.key);
    assert_eq!(bench.domain().registrations(), 2);
    bench.take_back(again);
    bench.domain().deregister(again).expect("an unknown key is no error");
    assert_eq!(bench.domain().registrations(), 1);
    let place = Stretch { remote: 0, local: 0, bytes: BYTES };
    assert_eq!(bench.run(bench.write(place, 1)), Outcome::Done);
}

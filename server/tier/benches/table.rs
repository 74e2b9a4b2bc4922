//! What it costs to note in the slot table what became of a slot. Owns: the measurement. Must not know: why slots change.
#![allow(clippy::print_stdout, reason = "the table is the product")]
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::hint::black_box;
use std::time::{Duration, Instant};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_tier::dram::table::{Geometry, Holder, SlotEntry, SlotTable};

/// Slots that are noted in one round, far apart: more of the table than a core's cache holds.
const SLOTS: u32 = 1 << 16;
/// Rounds of each; the middle one counts.
const ROUNDS: usize = 9;

fn main() {
    let geometry = Geometry::new(1 << 30, 4);
    let mut table = SlotTable::create(geometry, [1; 16], 1, 1).unwrap();
    let holder = Some(Holder::Process { pid: 4711, began: 5, library: 6 });
    let grant = measure(|slab, slot| {
        table.void(slab, slot);
        table.hold(slab, slot, holder);
    });
    let commit = measure(|slab, slot| {
        table.seal(slab, slot, &entry(slot));
        table.hold(slab, slot, None);
    });
    let evict = measure(|slab, slot| {
        table.void(slab, slot);
        table.hold(slab, slot, None);
    });
    let used = measure(|slab, slot| table.touch(slab, slot, 3));
    println!("| a slot is | ns |\n|---|---|");
    for (what, took) in [("granted", grant), ("filled", commit), ("given up", evict), ("used", used)] {
        println!("| {what} | {:.0} |", took.as_nanos() as f64 / f64::from(SLOTS));
    }
}

fn entry(slot: u32) -> SlotEntry {
    SlotEntry {
        namespace: NamespaceId([1; 32]),
        hash: BlockHash([slot as u8; 32]),
        parent: Some(BlockHash([2; 32])),
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        bytes: 1 << 20,
        checksum: u64::from(slot),
        generation: 0,
    }
}

/// The middle of some rounds over all slots, each of them a long way from the one before. The first round, which takes the table's
/// memory from the system, does not count.
fn measure(mut note: impl FnMut(u32, u32)) -> Duration {
    let mut round = || {
        let began = Instant::now();
        for at in 0..SLOTS {
            let far = at.wrapping_mul(40_503) % SLOTS;
            note(black_box(far % 4), black_box(far / 4));
        }
        began.elapsed()
    };
    round();
    let mut rounds: Vec<Duration> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_unstable();
    rounds[ROUNDS / 2]
}

//! Tests of how an entry is packed.

use super::{BLOCK, Cell, ENDS, TAIL, UNUSED, USES};
use crate::ids::NvmePlace;
use crate::index::flags::{CellFlags, DIRTY, FILLED, ON_NVME, PROMOTING, WRITING};
use proptest::prelude::*;

/// What a cell is to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Plain {
    place: (u16, u16, u32),
    ends: u32,
    uses: u8,
    flags: [bool; 5],
    tail: u32,
    user: u16,
}

const FLAGS: [CellFlags; 5] = [FILLED, PROMOTING, WRITING, ON_NVME, DIRTY];

impl Plain {
    fn of(cell: &Cell) -> Plain {
        let place = cell.place();
        Plain {
            place: (place.segment, place.generation, place.block),
            ends: cell.ends(),
            uses: cell.uses(),
            flags: FLAGS.map(|flag| cell.has(flag)),
            tail: cell.tail_tokens(),
            user: cell.user(),
        }
    }
}

#[test]
fn a_cell_that_holds_nothing_says_so() {
    assert_eq!(Plain::of(&Cell::EMPTY), Plain { user: UNUSED, ..Plain::default() });
}

#[test]
fn counts_stay_where_they_are_full() {
    let mut cell = Cell::EMPTY;
    cell.set_ends(1 << 20);
    cell.set_uses(u8::MAX);
    assert_eq!((cell.ends(), u32::from(cell.uses())), (ENDS.max, USES.max));
    const _: () = assert!(ENDS.max >= 2, "whether a list ends at a page beside one that is known is told");
}

proptest! {
    #[test]
    fn what_is_written_is_read_and_nothing_else_changes(
        steps in prop::collection::vec((0..6u8, any::<u16>(), any::<u16>(), any::<u32>()), 1..64),
    ) {
        let (mut cell, mut plain) = (Cell::EMPTY, Plain { user: UNUSED, ..Plain::default() });
        for (what, one, two, three) in steps {
            match what {
                0 => {
                    plain.place = (one, two, three & BLOCK.max);
                    cell.set_place(NvmePlace { segment: one, generation: two, block: plain.place.2 });
                }
                1 => {
                    plain.ends = three & ENDS.max;
                    cell.set_ends(plain.ends);
                }
                2 => {
                    plain.uses = (three & USES.max) as u8;
                    cell.set_uses(plain.uses);
                }
                3 => {
                    plain.tail = three & TAIL.max;
                    cell.set_tail_tokens(plain.tail);
                }
                4 => {
                    plain.user = one & UNUSED;
                    cell.set_user(plain.user);
                }
                _ => {
                    let (at, on) = (usize::from(one) % FLAGS.len(), two % 2 == 0);
                    plain.flags[at] = on;
                    if on { cell.set(FLAGS[at]) } else { cell.clear(FLAGS[at]) }
                }
            }
            prop_assert_eq!(&Plain::of(&cell), &plain);
        }
    }
}

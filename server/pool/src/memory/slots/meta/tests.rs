//! Tests of how a slot is packed.

use super::{IO_MASK, SLOT_LEASES_MAX, SlotMeta, SlotState};
use crate::ids::NONE;

const STATES: [SlotState; 5] =
    [SlotState::Free, SlotState::Used, SlotState::Reserved, SlotState::Found, SlotState::Doomed];

#[test]
fn state_leases_and_operations_do_not_touch_one_another() {
    for state in STATES {
        let mut meta = SlotMeta::new(7, state);
        assert!(!meta.is_held());
        for ios in 1..=IO_MASK {
            meta.add_io();
            assert_eq!((meta.state(), meta.leases(), meta.ios(), meta.owner), (state, 0, ios, 7));
        }
        for leases in 1..=1000 {
            meta.add_lease();
            assert_eq!((meta.state(), meta.leases(), meta.ios()), (state, leases, IO_MASK));
        }
        for next in STATES {
            meta.become_state(next);
            assert_eq!((meta.state(), meta.leases(), meta.ios()), (next, 1000, IO_MASK));
        }
        (0..IO_MASK).for_each(|_| meta.drop_io());
        assert!(meta.is_held(), "leases hold it");
        (0..1000).for_each(|_| meta.drop_lease());
        assert!(!meta.is_held());
    }
}

#[test]
fn as_many_leases_as_it_counts_leave_its_state_alone() {
    let mut meta = SlotMeta::new(NONE, SlotState::Doomed);
    (0..SLOT_LEASES_MAX).for_each(|_| meta.add_lease());
    meta.add_io();
    assert_eq!((meta.state(), meta.leases(), meta.ios()), (SlotState::Doomed, SLOT_LEASES_MAX, 1));
}

//! The cache of mappings at its bound, and which of them a new one replaces.

use super::*;
use turnkv_transfer::{HugePages, RegionOptions};

fn region(bytes: usize) -> Arc<Region> {
    let options = RegionOptions {
        bytes,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "test".to_owned(),
    };
    Region::create(&options).unwrap().0
}

#[test]
fn a_slab_that_was_cut_anew_or_belongs_to_another_server_makes_room_at_once() {
    let (slabs, region) = (MappedSlabs::default(), region(4096));
    for key in [(1, 1, 1), (1, 2, 1), (1, 3, 5)] {
        slabs.keep(key, &region);
    }
    slabs.keep((1, 2, 2), &region);
    assert_eq!(slabs.count(), 3);
    assert!(slabs.find((1, 2, 1)).is_none(), "its memory is another tenant's now");
    assert!(slabs.find((1, 2, 2)).is_some() && slabs.find((1, 1, 1)).is_some());
    slabs.keep((2, 1, 1), &region);
    assert_eq!(slabs.count(), 1, "slabs of a server that is gone");
    assert!(slabs.find((1, 1, 1)).is_none(), "the same numbers of another server are another slab");
}

#[test]
fn no_more_slabs_stay_mapped_than_may_and_a_slot_keeps_its_own() {
    let slabs = MappedSlabs::default();
    let first = region(4096);
    let (shared, slot) = (region(4096), first.slot(0, 4096).unwrap());
    slabs.keep((1, 0, 1), &first);
    let watched = Arc::downgrade(&first);
    drop(first);
    for slab in 1..SLABS_MAX as u32 {
        slabs.keep((1, slab, 1), &shared);
    }
    assert_eq!(slabs.count(), SLABS_MAX);
    for slab in SLABS_MAX as u32..SLABS_MAX as u32 + 3 {
        slabs.keep((1, slab, 1), &shared);
        assert_eq!(slabs.count(), SLABS_MAX, "one makes room for {slab}");
        assert!(slabs.find((1, slab, 1)).is_some(), "the new one is there");
    }
    slabs.forget();
    assert_eq!((slabs.count(), watched.strong_count()), (0, 1), "the slot still has its memory");
    drop(slot);
    assert_eq!(watched.strong_count(), 0);
}

#[test]
fn faulting_in_ends_with_the_mapping_and_takes_any_length() {
    for bytes in [4096, PREFAULT_PIECE_BYTES - 4096, PREFAULT_PIECE_BYTES, PREFAULT_PIECE_BYTES + 4096] {
        prefault(&Arc::downgrade(&region(bytes))).unwrap();
        let kept = region(bytes);
        prefault(&Arc::downgrade(&kept)).unwrap();
        assert_eq!(Arc::strong_count(&kept), 1, "{bytes} bytes: nothing holds it back");
    }
}

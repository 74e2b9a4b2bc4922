//! Pinning slabs: piece by piece, no copy over the end of a piece or of a slab, nothing pinned that is
//! unmapped.

use super::*;
use crate::limits::REGISTER_PIECE_BYTES;

/// Slab bytes of one piece and some pages.
const LARGE: usize = REGISTER_PIECE_BYTES + 16 * PAGE;

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn slab(bytes: usize) -> Arc<Region> {
    let options = RegionOptions {
        bytes,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "test".to_owned(),
    };
    Region::create(&options).unwrap().0
}

/// Out of the first page of the device's memory into a slot, and back into the second one.
fn there_and_back(rig: &Rig, slot: &crate::Slot) {
    let at = |page: usize| rig.memory.plan(&[(page * PAGE, slot.len())]).unwrap();
    let page = |page: usize| vec![SlotPage { slot: slot.clone().into(), plan: at(page) }];
    wait(rig.device.fill(page(0), None).unwrap().landed()).unwrap();
    let expected = &pattern(0, PAGE)[..slot.len()];
    assert!(slot.page().to_vec() == expected);
    let landed = wait(rig.device.drain(page(1), None, 0, true).unwrap().landed()).unwrap();
    assert_eq!(landed.checksums, [checksum(expected)]);
    assert!(rig.read(1)[..slot.len()] == *expected);
}

#[test]
fn a_slab_is_pinned_in_pieces_and_no_copy_spans_two() {
    for copy in [CopyChoice::Engine, CopyChoice::Batch, CopyChoice::Kernel] {
        let device = DeviceOptions { copy, ..DeviceOptions::default() };
        let rig = Rig::new(HostOptions { device, ..strict() }, 4);
        let slab = slab(LARGE);
        let astride = slab.slot(REGISTER_PIECE_BYTES - PAGE / 2 - 24, PAGE).unwrap();
        there_and_back(&rig, &astride);
        eventually("all of it is pinned", || {
            rig.control.registered() == [REGISTER_PIECE_BYTES as u64, (LARGE - REGISTER_PIECE_BYTES) as u64]
        });
        eventually("and counted", || rig.device.stats().registered_bytes == LARGE as u64);
        let before = rig.device.stats().direct_bytes;
        there_and_back(&rig, &astride);
        assert_eq!(rig.device.stats().direct_bytes - before, 2 * PAGE as u64);
        rig.assert_no_faults();
    }
}

/// The first page of one slab lies right behind the last one of another, on the device too.
#[test]
fn no_copy_spans_the_ends_of_two_slabs() {
    let slabs: Vec<Arc<Region>> = (0..16).map(|_| slab(2 * PAGE)).collect();
    let end = |slab: &Arc<Region>| slab.as_ptr().addr() + slab.len();
    let behind = |slab: &Arc<Region>| slabs.iter().find(|next| next.as_ptr().addr() == end(slab)).cloned();
    let Some((first, next)) = slabs.iter().find_map(|slab| Some((Arc::clone(slab), behind(slab)?))) else {
        return; // this kernel lays them out apart
    };
    let device = DeviceOptions { copy: CopyChoice::Engine, ..DeviceOptions::default() };
    let rig = Rig::new(HostOptions { device, ..strict() }, 4);
    let pages = || {
        let slots = [first.slot(PAGE, PAGE).unwrap(), next.slot(0, PAGE).unwrap()];
        let plan = |at: usize| rig.memory.plan(&[(at * PAGE, PAGE)]).unwrap();
        slots
            .into_iter()
            .enumerate()
            .map(|(at, slot)| SlotPage { slot: slot.into(), plan: plan(at) })
            .collect::<Vec<_>>()
    };
    wait(rig.device.fill(pages(), None).unwrap().landed()).unwrap();
    eventually("both are pinned", || rig.control.registered() == [2 * PAGE as u64; 2]);
    eventually("and counted", || rig.device.stats().registered_bytes == 4 * PAGE as u64);
    wait(rig.device.fill(pages(), None).unwrap().landed()).unwrap();
    assert!(rig.device.stats().direct_bytes >= 2 * PAGE as u64);
    wait(rig.device.drain(pages(), None, 0, true).unwrap().landed()).unwrap();
    assert!(rig.read(0) == pattern(0, PAGE) && rig.read(1) == pattern(1, PAGE));
    rig.assert_no_faults();
}

#[test]
fn as_much_of_a_slab_is_pinned_as_there_is_room_for() {
    let device =
        DeviceOptions { pinned_bytes_max: Some(REGISTER_PIECE_BYTES as u64 + 1), ..DeviceOptions::default() };
    let rig = Rig::new(HostOptions { device, ..strict() }, 4);
    let slab = slab(LARGE);
    let (first, last) = (slab.slot(0, PAGE).unwrap(), slab.slot(LARGE - PAGE, PAGE).unwrap());
    there_and_back(&rig, &first);
    eventually("the rest is refused", || rig.device.stats().refused == 1);
    assert_eq!(rig.control.registered(), [REGISTER_PIECE_BYTES as u64]);
    let before = rig.device.stats();
    there_and_back(&rig, &first);
    there_and_back(&rig, &last);
    let after = rig.device.stats();
    assert_eq!(after.direct_bytes - before.direct_bytes, 2 * PAGE as u64);
    assert_eq!(after.staged_bytes - before.staged_bytes, 2 * PAGE as u64);
    rig.assert_no_faults();
}

/// What stays registered when its mapping goes counts as registered for whoever maps something there next.
#[test]
fn a_device_that_is_closed_leaves_nothing_registered() {
    let rig = Rig::new(strict(), 4);
    let (large, small) = (slab(LARGE), slab(2 * PAGE));
    for slab in [&large, &small] {
        there_and_back(&rig, &slab.slot(0, PAGE).unwrap());
    }
    let all = (LARGE + 2 * PAGE) as u64;
    eventually("both are pinned", || rig.control.registered().iter().sum::<u64>() == all);
    let Rig { device, control, memory, .. } = rig;
    drop((device, memory));
    eventually("slabs that others still map are pinned by nobody", || control.registered().is_empty());
    assert_eq!((Arc::strong_count(&large), Arc::strong_count(&small)), (1, 1));
    assert_eq!(control.faults(), Vec::<String>::new());
}

#[test]
fn a_slab_that_goes_while_it_is_being_pinned_leaves_nothing_registered() {
    let register_pause = Duration::from_millis(100);
    let rig = Rig::new(HostOptions { register_pause, ..strict() }, 4);
    let slab = slab(LARGE);
    there_and_back(&rig, &slab.slot(0, PAGE).unwrap());
    eventually("a piece of it is pinned", || !rig.control.registered().is_empty());
    drop(slab);
    eventually("nothing of it is pinned", || rig.control.registered().is_empty());
    eventually("nor counted", || rig.device.stats().registered_bytes == 0);
    rig.assert_no_faults();
}

/// Two GPUs of one process on one pool: neither keeps a slab for the other's sake.
#[test]
fn a_slab_that_several_devices_have_pinned_goes_with_its_last_user() {
    let rigs = [Rig::new(strict(), 4), Rig::new(strict(), 4)];
    for round in 0..3 {
        let slab = slab(LARGE);
        for rig in &rigs {
            there_and_back(rig, &slab.slot(round * PAGE, PAGE).unwrap());
        }
        for rig in &rigs {
            eventually("both pin it", || rig.device.stats().registered_bytes == LARGE as u64);
        }
        let slot = slab.slot(0, PAGE).unwrap();
        drop(slab);
        thread::sleep(Duration::from_millis(50));
        assert!(
            rigs.iter().all(|rig| rig.device.stats().registered_bytes == LARGE as u64),
            "a slot is a user"
        );
        drop(slot);
        for rig in &rigs {
            eventually("neither does", || rig.control.registered().is_empty());
            assert_eq!(rig.device.stats().registered_bytes, 0);
        }
    }
    rigs.iter().for_each(Rig::assert_no_faults);
}

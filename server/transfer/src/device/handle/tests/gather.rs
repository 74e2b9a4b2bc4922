//! Pages in small pieces cross the link as large copies: bytes, order, room, gaps, and what is not gathered.

use super::*;
use crate::device::Landed;
use crate::limits::{GATHER_BYTES, KERNEL_PIECES_MIN};

/// More than the ring of a lane holds, so that its places are used again.
const PAGES: usize = GATHER_BYTES / PAGE * 5 / 4;
const PIECE: usize = 12 << 10;
const PIECES: usize = PAGE / PIECE;

fn slow(seed: u64) -> HostOptions {
    HostOptions { delay_max: Duration::from_micros(300), seed, ..strict() }
}

/// Pages that lie as an engine keeps them: a tensor a piece, all pages in each.
struct Scattered {
    rig: Rig,
    pages: usize,
}

impl Scattered {
    /// All of them pages that can be told apart, in device memory and nowhere else.
    fn new(options: HostOptions, pages: usize) -> Self {
        let this = Self { rig: Rig::new(options, pages).registered(), pages };
        (0..pages).for_each(|page| this.write(page, &pattern(page as u64, PAGE)));
        this
    }

    fn offset(&self, page: usize, piece: usize) -> usize {
        (piece * self.pages + page) * PIECE
    }

    fn address(&self, page: usize, piece: usize) -> usize {
        self.rig.memory.address() as usize + self.offset(page, piece)
    }

    fn write(&self, page: usize, bytes: &[u8]) {
        for (piece, bytes) in bytes.chunks(PIECE).enumerate() {
            let target = std::ptr::with_exposed_provenance_mut::<u8>(self.address(page, piece));
            // SAFETY: the piece lies inside the device's memory, which is this process's, and nothing is under way on it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        }
    }

    fn read(&self, page: usize) -> Vec<u8> {
        let piece = |piece: usize| {
            let source = std::ptr::with_exposed_provenance::<u8>(self.address(page, piece));
            // SAFETY: as in `write`.
            unsafe { std::slice::from_raw_parts(source, PIECE) }.to_vec()
        };
        (0..PIECES).flat_map(piece).collect()
    }

    /// With `gap` bytes at the end of each piece that are in no page.
    fn slots(&self, gap: usize) -> Vec<SlotPage> {
        let one = |page: usize| {
            let pieces: Vec<_> = (0..PIECES).map(|at| (self.offset(page, at), PIECE - gap)).collect();
            let plan = self.rig.memory.plan(&pieces).unwrap();
            SlotPage { slot: self.slot(page, PAGE - gap * PIECES).into(), plan }
        };
        (0..self.pages).map(one).collect()
    }

    fn slot(&self, page: usize, bytes: usize) -> Slot {
        self.rig.region.slot(page * PAGE, bytes).unwrap()
    }

    fn has(&self, page: usize) -> Vec<u8> {
        self.slot(page, PAGE).page().to_vec()
    }

    /// Fills slots from the CPU.
    fn in_slots(&self, seed: u64) {
        for page in 0..self.pages {
            self.slot(page, PAGE).claim().unwrap().fill(&pattern(page as u64 + seed, PAGE));
        }
    }

    fn fill(&self, mark: Option<Mark>) -> Landed {
        wait(self.rig.device.fill(self.slots(0), mark).unwrap().landed()).unwrap()
    }
}

/// Launches and calls of the copy engines so far.
fn work(rig: &Rig) -> (u64, u64) {
    let stats = rig.device.stats();
    (stats.launches, stats.engine_calls)
}

/// Out, and back into memory that held something else: every byte and every sum.
#[test]
fn more_than_the_ring_holds_goes_out_and_comes_back() {
    let all = Scattered::new(slow(1), PAGES);
    let before = work(&all.rig);
    let landed = all.fill(Some(all.rig.device.mark(all.rig.engine).unwrap()));
    let (launches, calls) = work(&all.rig);
    assert!(launches - before.0 >= 4, "one a part of the ring");
    assert!(calls - before.1 < (PAGES * PIECES / 8) as u64, "{} calls", calls - before.1);
    for page in 0..PAGES {
        let expected = pattern(page as u64, PAGE);
        assert_eq!(landed.checksums[page], checksum(&expected), "page {page}");
        assert!(all.has(page) == expected, "page {page}");
        all.write(page, &[0xEE; PAGE]);
    }
    for layers in [0, 1] {
        let flight = all.rig.device.drain(all.slots(0), None, layers, true).unwrap();
        assert_eq!(wait(flight.landed()).unwrap().checksums, landed.checksums);
        for page in 0..PAGES {
            assert!(all.read(page) == pattern(page as u64, PAGE), "page {page} back on the device");
            all.write(page, &[0xEE; PAGE]);
        }
    }
    assert_eq!(all.rig.device.stats().staged_bytes, 0);
    all.rig.assert_no_faults();
}

/// An engine's stream that waits for the only layer waits for the pieces, not for what they are taken out of.
#[test]
fn a_layer_is_there_when_its_pieces_are() {
    for seed in 0..8 {
        let all = Scattered::new(slow(seed), 64);
        all.in_slots(7);
        let flight = all.rig.device.drain(all.slots(0), None, 1, true).unwrap();
        wait(flight.enqueued()).unwrap();
        flight.wait_layer(0, all.rig.engine).unwrap();
        let mark = all.rig.device.mark(all.rig.engine).unwrap();
        while !mark.passed().unwrap() {
            thread::yield_now();
        }
        for page in 0..64 {
            assert!(all.read(page) == pattern(page as u64 + 7, PAGE), "page {page} of seed {seed}");
        }
        wait(flight.landed()).unwrap();
        all.rig.assert_no_faults();
    }
}

/// Nothing is read before the engine's stream has written it, also where a kernel reads it.
#[test]
fn pieces_are_read_after_the_mark() {
    let all = Scattered::new(slow(3), 16);
    all.rig.control.hold(all.rig.engine);
    let mark = all.rig.device.mark(all.rig.engine).unwrap();
    let flight = all.rig.device.fill(all.slots(0), Some(mark)).unwrap();
    thread::sleep(Duration::from_millis(30));
    (0..16).for_each(|page| all.write(page, &pattern(page as u64 + 50, PAGE)));
    all.rig.control.let_go();
    let landed = wait(flight.landed()).unwrap();
    for page in 0..16 {
        let expected = pattern(page as u64 + 50, PAGE);
        assert_eq!(landed.checksums[page], checksum(&expected));
        assert!(all.has(page) == expected, "page {page}");
    }
    all.rig.assert_no_faults();
}

/// Pages that are no multiple of anything, in pieces of odd sizes.
#[test]
fn pieces_of_odd_sizes_keep_their_places() {
    for gap in [1, 13, 512] {
        let all = Scattered::new(slow(gap as u64), 24);
        let expected = |page: usize| -> Vec<u8> {
            let whole = pattern(page as u64, PAGE);
            whole.chunks(PIECE).flat_map(|piece| piece[..PIECE - gap].to_vec()).collect()
        };
        let landed = wait(all.rig.device.fill(all.slots(gap), None).unwrap().landed()).unwrap();
        for page in 0..24 {
            assert!(all.slot(page, PAGE - gap * PIECES).page().to_vec() == expected(page), "page {page}");
            assert_eq!(landed.checksums[page], checksum(&expected(page)));
            all.write(page, &[0xEE; PAGE]);
        }
        wait(all.rig.device.drain(all.slots(gap), None, 1, true).unwrap().landed()).unwrap();
        for page in 0..24 {
            let mut right = pattern(page as u64, PAGE);
            right.chunks_mut(PIECE).for_each(|piece| piece[PIECE - gap..].fill(0xEE));
            assert!(all.read(page) == right, "page {page}: nothing is written where the plan has nothing");
        }
        all.rig.assert_no_faults();
    }
}

/// Pages with gaps: those are zeros in a slot, whatever lay at their place in the ring, and nothing is written there on the device.
#[test]
fn gaps_stay_zeros() {
    let rig = Rig::new(slow(5), 16).registered();
    for page in 0..16 {
        rig.region.slot(page * PAGE, PAGE).unwrap().claim().unwrap().fill(&[0xEE; PAGE]);
    }
    let slots = || {
        let one = |page: usize| {
            let runs: Vec<_> = (0..PIECES).map(|at| at * PIECE..at * PIECE + PIECE - 512).collect();
            let plan = rig.memory.page(page * PAGE, PAGE, &runs).unwrap();
            SlotPage { slot: rig.region.slot(page * PAGE, PAGE).unwrap().into(), plan }
        };
        (0..16).map(one).collect::<Vec<_>>()
    };
    let with_gaps = |page: usize, gap: u8| {
        let mut bytes = pattern(page as u64, PAGE);
        bytes.chunks_mut(PIECE).for_each(|piece| piece[PIECE - 512..].fill(gap));
        bytes
    };
    let before = work(&rig).0;
    let landed = wait(rig.device.fill(slots(), None).unwrap().landed()).unwrap();
    assert!(work(&rig).0 > before, "they are gathered");
    for page in 0..16 {
        let slot = rig.region.slot(page * PAGE, PAGE).unwrap();
        assert!(slot.page().to_vec() == with_gaps(page, 0), "page {page} in its slot");
        assert_eq!(landed.checksums[page], checksum(&with_gaps(page, 0)), "page {page}");
        rig.write(page, &[0xEE; PAGE]);
    }
    wait(rig.device.drain(slots(), None, 1, true).unwrap().landed()).unwrap();
    for page in 0..16 {
        assert!(rig.read(page) == with_gaps(page, 0xEE), "page {page} back on the device");
    }
    rig.assert_no_faults();
}

/// A call that fails half-way ends the flight only when what had begun has ended.
#[test]
fn an_error_half_way_is_told_when_nothing_lands_any_more() {
    for call in (0..40).step_by(5) {
        let all = Scattered::new(slow(call), 128);
        all.in_slots(9);
        (0..128).for_each(|page| all.write(page, &[0xEE; PAGE]));
        all.rig.control.fail_after(call, DeviceErrorKind::NoMemory);
        let flight = all.rig.device.drain(all.slots(0), None, 1, true).unwrap();
        if wait(flight.landed()).is_err() {
            let told: Vec<_> = (0..128).map(|page| all.read(page)).collect();
            thread::sleep(Duration::from_millis(20));
            assert!((0..128).all(|page| all.read(page) == told[page]), "it went on after call {call}");
        }
    }
}

/// Few pieces, pieces that touch, and layers go as they are.
#[test]
fn what_needs_no_gathering_is_not_gathered() {
    let rig = Rig::new(strict(), 16).registered();
    let before = work(&rig).0;
    wait(rig.device.fill(rig.pages(0..16, 4 << 10), None).unwrap().landed()).unwrap();
    assert_eq!(work(&rig).0, before, "pieces that touch are one");
    let few = Scattered::new(strict(), KERNEL_PIECES_MIN / PIECES - 1);
    let before = work(&few.rig).0;
    few.fill(None);
    assert_eq!(work(&few.rig).0, before, "few pieces");
}

/// A device without room for the ring copies piece by piece.
#[test]
fn without_device_memory_for_it_pieces_go_one_by_one() {
    let memory_bytes = (64 * PAGE + 2 * TABLE_BYTES + (8 << 20)) as u64;
    let room = HostOptions { memory_bytes, ..strict() };
    let all = Scattered::new(room, 64);
    let landed = all.fill(None);
    for page in 0..64 {
        assert!(all.has(page) == pattern(page as u64, PAGE));
        assert_eq!(landed.checksums[page], checksum(&pattern(page as u64, PAGE)));
    }
    all.rig.assert_no_faults();
}

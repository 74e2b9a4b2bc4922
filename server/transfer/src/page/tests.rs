//! The right to write a slot is one, and what is copied is what was summed, whoever writes meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::checksum::checksum;
use crate::plan::{PageLayout, TensorShape, TensorView};
use crate::region::{HugePages, Region, RegionOptions};

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
fn bytes_have_one_writer_in_this_process() {
    let region = region(4 * 4096);
    let slot = |offset, len| region.slot(offset, len).unwrap();
    let first = slot(4096, 4096).claim().unwrap();
    for (offset, len) in [(4096, 4096), (4097, 1), (8191, 1), (0, 4097), (8191, 100), (0, 4 * 4096)] {
        assert_eq!(slot(offset, len).claim().unwrap_err(), Claimed, "{offset} {len}");
    }
    let beside = [slot(0, 4096).claim().unwrap(), slot(8192, 1).claim().unwrap()];
    drop(beside);
    assert_eq!(first.slot().clone().claim().unwrap_err(), Claimed, "a copy of the place is no other place");
    assert_eq!(first.seal().to_vec(), [0; 4096]);
    assert_eq!(slot(0, 4 * 4096).claim().unwrap().fill(&[5; 4 * 4096]).1, checksum(&[5; 4 * 4096]));
    drop(slot(0, 4096).claim().unwrap());
    assert!(slot(0, 4096).claim().is_ok(), "a right that was dropped is free again");
}

#[test]
fn a_page_is_filled_from_another_that_lies_apart() {
    let region = region(8192);
    let (one, other) = (region.slot(0, 4096).unwrap(), region.slot(4096, 4096).unwrap());
    let (one, sum) = one.claim().unwrap().fill(&[7; 4096]);
    let mut filling = other.claim().unwrap();
    assert_eq!(filling.fill_from(&one), sum);
    assert_eq!(filling.seal().to_vec(), [7; 4096]);
    for overlapping in [region.slot(4095, 4096), region.slot(0, 4095)] {
        let mut overlapping = overlapping.unwrap().claim().unwrap();
        let filled = std::panic::AssertUnwindSafe(|| overlapping.fill_from(&one));
        assert!(std::panic::catch_unwind(filled).is_err(), "shared bytes, or another size");
    }
}

#[test]
fn parts_are_blanked_and_no_byte_beside_them() {
    let bytes = 3 * CHUNK_BYTES;
    let slot = region(bytes).slot(0, bytes).unwrap();
    let part = 100..2 * CHUNK_BYTES + 1;
    let (page, _) = slot.claim().unwrap().fill(&vec![7; bytes]);
    slot.claim().unwrap().blank(part.clone());
    let expected: Vec<u8> = (0..bytes).map(|at| if part.contains(&at) { 0 } else { 7 }).collect();
    assert!(page.to_vec() == expected);
}

/// The writer ends with the looks, also where one of them panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How long it is looked for bytes that change between two looks at them.
const LOOKING: Duration = Duration::from_millis(500);

/// Runs `look` again and again while another mapping of the slot is written all the time, as a peer whose lease is over
/// could.
fn beside_a_writer(bytes: usize, mut look: impl FnMut(&Page)) {
    let region = region(bytes);
    let theirs = Region::from_fd(region.fd().try_clone_to_owned().unwrap(), bytes).unwrap();
    let (page, over) = (region.slot(0, bytes).unwrap().page(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (writing, contents) =
                (theirs.slot(0, bytes).unwrap(), [vec![0x55; bytes], vec![0xAA; bytes]]);
            for content in contents.iter().cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                // SAFETY: the slot is mapped and as long as the content, and nothing refers to it.
                unsafe { shared::copy(content.as_ptr(), writing.as_ptr(), bytes) };
            }
        });
        let _ends = Ends(&over);
        let begun = Instant::now();
        while begun.elapsed() < LOOKING {
            look(&page);
        }
    });
}

#[test]
fn a_checksum_is_of_the_bytes_that_were_copied_whoever_writes_meanwhile() {
    for bytes in [8 << 10, 40 << 10] {
        let mut copy = vec![0; bytes];
        beside_a_writer(bytes, |page| {
            let sum = page.drain(&mut copy);
            assert_eq!(sum, checksum(&copy));
        });
        let buffers = crate::PieceBuffers::new(bytes);
        beside_a_writer(bytes, |page| {
            let mut sum = Checksum::new();
            let copy = buffers.copy_page(page, 0..bytes, &mut sum);
            assert_eq!(sum.finish(), checksum(&copy));
        });
    }
}

#[test]
fn tensors_get_the_bytes_of_the_checksum_whoever_writes_meanwhile() {
    const ROW_BYTES: usize = 1500;
    let bytes = 16 * ROW_BYTES;
    let mut memory = vec![0u8; bytes];
    let shape = TensorShape {
        heads: 1,
        tokens: 16,
        row_bytes: ROW_BYTES,
        head_stride_bytes: bytes,
        token_stride_bytes: ROW_BYTES,
    };
    // SAFETY: the memory outlives the plan, and is looked at between copies only, by this thread.
    let view = unsafe { TensorView::new(memory.as_mut_ptr(), shape).unwrap() };
    let plan = CopyPlan::page(PageLayout::LayerKvHeadToken, &[view], 16, 0, 16).unwrap();
    beside_a_writer(bytes, |page| {
        let sum = page.scatter(&plan);
        assert_eq!(sum, checksum(&memory));
    });
}

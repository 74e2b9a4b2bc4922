//! Pieces of slots read as one array; what cannot be mapped is refused. Owns: the span's tests. Must not
//! know: leases.

use super::{Span, mappings_max};
use crate::checksum::Checksum;
use crate::region::{HugePages, Region, RegionOptions};
use std::io::ErrorKind;
use std::sync::Arc;

const PIECE: usize = 4096;

fn region(pages: usize) -> Arc<Region> {
    let options = RegionOptions {
        bytes: pages * PIECE,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "span-test".to_owned(),
    };
    Region::create(&options).expect("a small region").0
}

fn read(span: &Span, piece: usize) -> u8 {
    // SAFETY: a span's addresses are readable for as long as it lives; nobody writes them meanwhile.
    unsafe { std::ptr::read_volatile(span.address(piece) as *const u8) }
}

fn write(span: &Span, piece: usize, byte: u8) {
    // SAFETY: the piece is mapped writable or private, and this test is alone with it.
    unsafe { std::ptr::write_volatile(span.address(piece) as *mut u8, byte) }
}

#[test]
fn scattered_pieces_read_as_one_array_and_moving_them_moves_no_byte() {
    let region = region(8);
    let (near, far) =
        (region.slot(0, 2 * PIECE).expect("inside"), region.slot(5 * PIECE, 2 * PIECE).expect("inside"));
    near.claim().expect("free").fill(&[1; 2 * PIECE]);
    far.claim().expect("free").fill(&[[2; PIECE], [3; PIECE]].concat());
    let span = Span::reserve(PIECE, 4).expect("room");
    assert_eq!((0..4).map(|piece| read(&span, piece)).collect::<Vec<_>>(), [0, 0, 0, 0]);
    span.map(0, &far, PIECE, false).expect("mapped");
    span.map(1, &near, 0, true).expect("mapped");
    span.map(2, &far, 0, false).expect("mapped");
    assert_eq!((0..4).map(|piece| read(&span, piece)).collect::<Vec<_>>(), [3, 1, 2, 0]);
    write(&span, 1, 9);
    assert_eq!(near.page().to_vec()[0], 9, "what is written through the span is in the slot");
    span.map(2, &near, 0, false).expect("mapped again elsewhere");
    span.clear(1, 1).expect("cleared");
    write(&span, 1, 7);
    assert_eq!((0..4).map(|piece| read(&span, piece)).collect::<Vec<_>>(), [3, 7, 9, 0]);
    assert_eq!(near.page().to_vec()[0], 9, "private memory is nobody's slot");
}

#[test]
fn a_slot_is_copied_into_private_memory_only() {
    let region = region(2);
    let slot = region.slot(0, 2 * PIECE).expect("inside");
    slot.claim().expect("free").fill(&[[5; PIECE], [6; PIECE]].concat());
    let span = Span::reserve(PIECE, 3).expect("room");
    span.map(0, &slot, 0, false).expect("mapped");
    let mut sum = Checksum::new();
    span.copy_in(1, &slot, 0, &mut sum).expect("copied");
    span.copy_in(2, &slot, PIECE, &mut sum).expect("copied");
    assert_eq!(sum.finish(), slot.page().checksum(), "piece by piece as in one go");
    slot.claim().expect("free").fill(&[0; 2 * PIECE]);
    assert_eq!((0..3).map(|piece| read(&span, piece)).collect::<Vec<_>>(), [0, 5, 6], "a copy stays");
    for (piece, offset) in [(0, 0), (3, 0), (1, PIECE + 1), (1, usize::MAX)] {
        let refused = span.copy_in(piece, &slot, offset, &mut sum).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{piece} {offset}");
    }
}

#[test]
fn what_cannot_be_mapped_is_refused_and_changes_nothing() {
    let region = region(2);
    let slot = region.slot(0, PIECE).expect("inside");
    let span = Span::reserve(PIECE, 1).expect("room");
    for (piece, offset) in [(1, 0), (0, 1), (0, PIECE), (0, usize::MAX)] {
        let refused = span.map(piece, &slot, offset, false).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{piece} {offset}");
    }
    span.clear(0, 1).expect("nothing is there to clear");
    assert_eq!(span.clear(7, 1).expect_err("outside").kind(), ErrorKind::InvalidInput);
    assert_eq!(Span::reserve(PIECE + 1, 1).expect_err("ragged").kind(), ErrorKind::InvalidInput);
    assert_eq!(Span::reserve(PIECE, 0).expect_err("empty").kind(), ErrorKind::InvalidInput);
    assert!(mappings_max() > 0);
}

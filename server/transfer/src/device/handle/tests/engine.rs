//! What an engine does with its streams meanwhile: captures of graphs, and streams of ours.

use super::*;
use crate::device::driver::Piece;
use crate::device::plan::DeviceView;
use crate::limits::LAYERED_SUM_BYTES_MIN;
use crate::plan::{PageLayout, TensorShape};

/// An event recorded in a capture is an error everywhere else for ever, and with it the device.
#[test]
fn a_stream_that_is_captured_is_neither_marked_nor_held_up() {
    let rig = Rig::new(strict(), 4).registered();
    let flight = rig.device.drain(rig.pages(0..2, PAGE), None, 1, true).unwrap();
    wait(flight.enqueued()).unwrap();
    rig.control.begin_capture(rig.engine);
    let refused = [rig.device.mark(rig.engine).map(drop), flight.wait_layer(0, rig.engine)];
    for refused in refused {
        let refused = refused.expect_err("the stream is captured");
        assert_eq!(refused.kind, DeviceErrorKind::Invalid, "{refused}");
        assert!(refused.message.contains("graph"), "{refused}");
    }
    rig.device.check().unwrap();
    rig.control.end_capture(rig.engine);
    flight.wait_layer(0, rig.engine).unwrap();
    let mark = rig.device.mark(rig.engine).unwrap();
    wait(rig.device.fill(rig.pages(2..4, PAGE), Some(mark)).unwrap().landed()).unwrap();
    wait(flight.landed()).unwrap();
    rig.assert_no_faults();
}

/// The tables of copies and checksums together are more than a lane has room for, and nothing on the device passes: an engine begins
/// with the first layer all the same.
#[test]
fn layers_are_enqueued_before_their_checksums_have_room() {
    const PIECE: usize = 48;
    const PIECES: usize = PAGE / PIECE;
    let pages = TABLE_BYTES / (size_of::<Piece>() * PIECES) * 3 / 4;
    let rig = Rig::new(strict(), pages).registered();
    for page in 0..pages {
        rig.region.slot(page * PAGE, PAGE).unwrap().claim().unwrap().fill(&pattern(page as u64 + 3, PAGE));
    }
    // From the last to the first, so that no two touch on both sides.
    let scattered = |page: usize| {
        let pieces: Vec<_> = (0..PIECES).rev().map(|at| (page * PAGE + at * PIECE, PIECE)).collect();
        SlotPage {
            slot: rig.region.slot(page * PAGE, PAGE).unwrap().into(),
            plan: rig.memory.plan(&pieces).unwrap(),
        }
    };
    rig.control.hold_all();
    let flight = rig.device.drain((0..pages).map(scattered).collect(), None, 2, true).unwrap();
    wait(flight.enqueued()).unwrap();
    flight.wait_layer(0, rig.engine).unwrap();
    assert!(!flight.is_done());
    rig.control.let_go();
    let landed = wait(flight.landed()).unwrap();
    for page in [0, pages - 1] {
        let expected = pattern(page as u64 + 3, PAGE);
        assert_eq!(landed.checksums[page], checksum(&expected), "page {page}");
        let back: Vec<u8> = rig.read(page).chunks(PIECE).rev().flatten().copied().collect();
        assert!(back == expected, "page {page}");
    }
    rig.assert_no_faults();
}

/// So much that checksums are taken after some of the layers: of pages in pieces of different lengths, and of partial pages, each
/// tensor of which has a gap.
#[test]
fn checksums_of_layers_come_to_those_of_pages() {
    const PIECES: [usize; 6] = [4 << 10, 20 << 10, 8 << 10, 768, 30 << 10, PAGE - (62 << 10) - 768];
    const TOKENS: usize = 16;
    let pages = 3 * LAYERED_SUM_BYTES_MIN / PAGE + 1;
    for tokens in [TOKENS, TOKENS - 1] {
        let rig = Rig::new(strict(), pages).registered();
        for page in 0..pages {
            let bytes = pattern(page as u64 + 3, PAGE);
            rig.region.slot(page * PAGE, PAGE).unwrap().claim().unwrap().fill(&bytes);
        }
        let partial = |page: usize| {
            let row_bytes = PAGE / PIECES.len() / TOKENS;
            let shape = TensorShape {
                heads: 1,
                tokens,
                row_bytes,
                head_stride_bytes: 0,
                token_stride_bytes: row_bytes,
            };
            let address = |at: usize| rig.memory.address() + (page * PAGE + at * row_bytes * TOKENS) as u64;
            // SAFETY: all of it lies in the device's memory, which the rig keeps.
            let view = |at: usize| unsafe { DeviceView::new(address(at), shape) }.unwrap();
            let views: Vec<_> = (0..PIECES.len()).map(view).collect();
            DevicePlan::page(PageLayout::LayerKvTokenHead, &views, TOKENS, 0, tokens).unwrap()
        };
        let whole = |page: usize| {
            let starts =
                PIECES.iter().scan(page * PAGE, |end, bytes| Some(std::mem::replace(end, *end + bytes)));
            rig.memory.plan(&starts.zip(PIECES).collect::<Vec<_>>()).unwrap()
        };
        let plan = |page: usize| if tokens == TOKENS { whole(page) } else { partial(page) };
        let slot = |page: usize| rig.region.slot(page * PAGE, PAGE).unwrap();
        let asked = (0..pages).map(|page| SlotPage { slot: slot(page).into(), plan: plan(page) }).collect();
        let landed = wait(rig.device.drain(asked, None, 3, true).unwrap().landed()).unwrap();
        for page in 0..pages {
            let mut expected = pattern(page as u64 + 3, PAGE);
            plan(page).gaps().for_each(|gap| expected[gap].fill(0));
            assert_eq!(landed.checksums[page], checksum(&expected), "page {page}, {tokens} tokens");
        }
        rig.assert_no_faults();
    }
}

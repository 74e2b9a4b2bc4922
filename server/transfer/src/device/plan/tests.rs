//! Device plans against the CPU's own copies, for every layout that engines keep their KV in.

use std::time::Duration;

use super::*;
use crate::device::{Device, HostControl, HostOptions, SlotPage};
use crate::plan::{CopyPlan, TensorView};
use crate::region::{HugePages, Region, RegionOptions};

const LAYERS: usize = 3;
const HEADS: usize = 2;
const BLOCKS: usize = 4;
const TOKENS: usize = 8;
const ROW: usize = 32;

/// One layout: bytes of all memory, and where the views of a block begin and how they stride. A view is one
/// of K and V of a layer, or both together (MLA).
struct Layout {
    name: &'static str,
    views: usize,
    heads: usize,
    /// Offset of a view's token 0 in this block, and its strides over heads and tokens.
    place: fn(view: usize, block: usize) -> (usize, usize, usize),
    bytes: usize,
}

const VIEWS: usize = 2 * LAYERS;
const HEAD_ROWS: usize = HEADS * ROW;
const BLOCK: usize = TOKENS * HEAD_ROWS;
const ALL: usize = VIEWS * BLOCKS * BLOCK;

/// vLLM's logical [block, head, token, row] in the physical orders that it allocates, SGLang's three, Hugging
/// Face's, MLA.
const LAYOUTS: [Layout; 8] = [
    Layout {
        name: "vLLM NHD: [view][block][token][head][row]",
        views: VIEWS,
        heads: HEADS,
        place: |view, block| ((view * BLOCKS + block) * BLOCK, ROW, HEAD_ROWS),
        bytes: ALL,
    },
    Layout {
        name: "vLLM HND: [view][block][head][token][row]",
        views: VIEWS,
        heads: HEADS,
        place: |view, block| ((view * BLOCKS + block) * BLOCK, TOKENS * ROW, ROW),
        bytes: ALL,
    },
    Layout {
        name: "vLLM BLHNC: [block][view][head][token][row]",
        views: VIEWS,
        heads: HEADS,
        place: |view, block| ((block * VIEWS + view) * BLOCK, TOKENS * ROW, ROW),
        bytes: ALL,
    },
    Layout {
        name: "SGLang layer_first: [view][token of all blocks][head][row]",
        views: VIEWS,
        heads: HEADS,
        place: |view, block| (view * BLOCKS * BLOCK + block * BLOCK, ROW, HEAD_ROWS),
        bytes: ALL,
    },
    Layout {
        name: "SGLang page_first: [token of all blocks][view][head][row]",
        views: VIEWS,
        heads: HEADS,
        place: |view, block| (block * TOKENS * VIEWS * HEAD_ROWS + view * HEAD_ROWS, ROW, VIEWS * HEAD_ROWS),
        bytes: ALL,
    },
    Layout {
        name: "SGLang page_first_direct: [block][view][token][head][row]",
        views: VIEWS,
        heads: HEADS,
        place: |view, block| ((block * VIEWS + view) * BLOCK, ROW, HEAD_ROWS),
        bytes: ALL,
    },
    Layout {
        name: "Hugging Face: a tensor a view, [head][token of all blocks][row]",
        views: VIEWS,
        heads: HEADS,
        place: |view, block| (view * BLOCKS * BLOCK + block * TOKENS * ROW, BLOCKS * TOKENS * ROW, ROW),
        bytes: ALL,
    },
    Layout {
        name: "MLA: [layer][token of all blocks][row], K and V in one",
        views: LAYERS,
        heads: 1,
        place: |view, block| ((view * BLOCKS + block) * TOKENS * ROW, ROW, ROW),
        bytes: LAYERS * BLOCKS * TOKENS * ROW,
    },
];

impl Layout {
    fn shape(&self, view: usize, block: usize) -> (usize, TensorShape) {
        let (offset, head_stride_bytes, token_stride_bytes) = (self.place)(view, block);
        let shape = TensorShape {
            heads: self.heads,
            tokens: TOKENS,
            row_bytes: ROW,
            head_stride_bytes,
            token_stride_bytes,
        };
        (offset, shape)
    }

    fn device(&self, base: *mut u8, block: usize, order: PageLayout, tokens: usize) -> DevicePlan {
        let view = |view| {
            let (offset, shape) = self.shape(view, block);
            // SAFETY: the view lies inside the test's memory, which outlives the copies.
            unsafe { DeviceView::new((base.expose_provenance() + offset) as u64, shape).unwrap() }
        };
        let views: Vec<_> = (0..self.views).map(view).collect();
        DevicePlan::page(order, &views, TOKENS, 0, tokens).unwrap()
    }

    fn cpu(&self, base: *mut u8, block: usize, order: PageLayout, tokens: usize) -> CopyPlan {
        let view = |view| {
            let (offset, shape) = self.shape(view, block);
            // SAFETY: as above.
            unsafe { TensorView::new(base.wrapping_add(offset), shape).unwrap() }
        };
        let views: Vec<_> = (0..self.views).map(view).collect();
        CopyPlan::page(order, &views, TOKENS, 0, tokens).unwrap()
    }
}

fn wait<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    loop {
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
            return value;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn bytes_of(seed: usize, count: usize) -> Vec<u8> {
    (0..count).map(|at| (at.wrapping_mul(31).wrapping_add(seed * 97) >> 3) as u8 ^ at as u8).collect()
}

fn region(bytes: usize) -> Arc<Region> {
    let name = "test".to_owned();
    Region::create(&RegionOptions { bytes, huge_pages: HugePages::Off, touch: false, lock: false, name })
        .unwrap()
        .0
}

/// Whole and partial pages of every layout, in both orders of a slot, with kernels and without: the slot, its
/// checksum and the tensors are what the CPU's copies make of them.
#[test]
fn every_layout_is_copied_as_the_cpu_copies_it() {
    for kernels in [true, false] {
        let control = HostControl::default();
        let options =
            HostOptions { strict: true, kernels, control: control.clone(), ..HostOptions::default() };
        let device = Device::host(options).unwrap();
        for layout in &LAYOUTS {
            for order in [PageLayout::LayerKvHeadToken, PageLayout::LayerKvTokenHead] {
                for tokens in [TOKENS, 5, 1] {
                    compare(&device, &control, layout, order, tokens);
                }
            }
        }
        assert_eq!(control.faults(), Vec::<String>::new());
    }
}

fn compare(device: &Device, control: &HostControl, layout: &Layout, order: PageLayout, tokens: usize) {
    let what = format!("{} {order:?} {tokens} tokens", layout.name);
    let mut memory = bytes_of(1, layout.bytes);
    let base = memory.as_mut_ptr();
    control.adopt(base.expose_provenance() as u64, layout.bytes);
    let block = 2;
    let (plan, cpu) = (layout.device(base, block, order, tokens), layout.cpu(base, block, order, tokens));
    let page_bytes = plan.slot_bytes();
    assert_eq!(page_bytes, cpu.slot_bytes());
    let region = region(3 * page_bytes);
    let slot = |number: usize| region.slot(number * page_bytes, page_bytes).unwrap();
    slot(0).claim().unwrap().fill(&vec![0xEE; page_bytes]);
    let page = vec![SlotPage { slot: slot(0).into(), plan: plan.clone() }];
    let landed = wait(device.fill(page, None).unwrap().landed()).unwrap();
    let (page, expected) = slot(1).claim().unwrap().gather(&cpu);
    assert!(slot(0).page().to_vec() == page.to_vec(), "{what}: the slot, gaps as zeros");
    assert_eq!(landed.checksums, [expected], "{what}: the checksum");

    let fresh = bytes_of(2, page_bytes);
    slot(2).claim().unwrap().fill(&fresh);
    // Gaps are zeros in a slot that the pool has.
    for gap in plan.gaps() {
        slot(2).claim().unwrap().blank(gap);
    }
    let mut copy = memory.clone();
    let by_cpu = slot(2).page().scatter(&layout.cpu(copy.as_mut_ptr(), block, order, tokens));
    let layers = layout.views;
    let page = vec![SlotPage { slot: slot(2).into(), plan }];
    let landed = wait(device.drain(page, None, layers, true).unwrap().landed()).unwrap();
    assert!(memory == copy, "{what}: the tensors");
    assert_eq!(landed.checksums, [by_cpu], "{what}: the checksum where they landed");
}

/// The layers are the tensors in equal groups, also where runs of several are one.
#[test]
fn layers_are_groups_of_tensors() {
    let mut memory = vec![0u8; ALL];
    let blhnc = LAYOUTS[2].device(memory.as_mut_ptr(), 1, PageLayout::LayerKvHeadToken, TOKENS);
    assert_eq!(blhnc.pieces().len(), 1, "dense on both sides: one run");
    let layers = blhnc.layers(LAYERS).unwrap();
    assert_eq!(layers, [0..2 * BLOCK, 2 * BLOCK..4 * BLOCK, 4 * BLOCK..6 * BLOCK]);
    let second: Vec<_> = blhnc.within(layers[1].clone()).collect();
    let start = blhnc.pieces()[0].memory;
    assert_eq!(second, [Run { memory: start + 2 * BLOCK as u64, slot_offset: 2 * BLOCK, bytes: 2 * BLOCK }]);
    assert_eq!(blhnc.layers(4).unwrap_err(), PlanError::Layers { layers: 4, tensors: 6 });
    assert_eq!(blhnc.layers(0).unwrap_err(), PlanError::Layers { layers: 0, tensors: 6 });
}

#[test]
fn impossible_pieces_are_refused_with_the_reason() {
    // SAFETY: plans that are refused are never copied.
    let refused = |pieces: &[(u64, usize)]| unsafe { DevicePlan::runs(pieces).unwrap_err() };
    assert_eq!(refused(&[]), PlanError::Zero("runs"));
    assert_eq!(refused(&[(0, 8)]), PlanError::Null);
    assert_eq!(refused(&[(8, 0)]), PlanError::Zero("a run's bytes"));
    assert_eq!(refused(&[(u64::MAX - 3, 8)]), PlanError::Overflow);
    assert_eq!(refused(&[(8, usize::MAX / 2), (8, usize::MAX / 2 + 2)]), PlanError::Overflow);
    assert_eq!(refused(&vec![(8, 8); DEVICE_RUNS_MAX + 1]), PlanError::Runs(DEVICE_RUNS_MAX + 1));
}

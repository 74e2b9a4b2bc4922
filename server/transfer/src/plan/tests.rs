//! Plans against a naive reference that moves one byte at a time.

use proptest::prelude::*;

use super::*;
use crate::device::{DevicePlan, DeviceView};
use crate::limits::PLAN_VIEWS_MAX;

/// Tensors `[view][head][token][row]` somewhere in one buffer, with strides in either order and padding.
#[derive(Clone, Debug)]
struct Case {
    layout: PageLayout,
    views: usize,
    shape: TensorShape,
    view_bytes: usize,
    page_tokens: usize,
    first_token: usize,
    tokens: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = (1usize..4, 1usize..5, 1usize..24, 1usize..9, 0usize..3, 0usize..3);
    (sizes, any::<[bool; 2]>(), 1usize..9, any::<[prop::sample::Index; 2]>()).prop_map(
        |(
            (views, heads, tokens, row_bytes, pad, view_pad),
            [by_head, token_inner],
            page_tokens,
            [first, count],
        )| {
            let row = row_bytes + pad;
            let (head_stride_bytes, token_stride_bytes) =
                if token_inner { (tokens * row + pad, row) } else { (row, heads * row + pad) };
            let shape = TensorShape { heads, tokens, row_bytes, head_stride_bytes, token_stride_bytes };
            let span = (heads - 1) * head_stride_bytes + (tokens - 1) * token_stride_bytes + row_bytes;
            let first_token = first.index(tokens);
            let most = page_tokens.min(tokens - first_token);
            Case {
                layout: if by_head { PageLayout::LayerKvHeadToken } else { PageLayout::LayerKvTokenHead },
                views,
                shape,
                view_bytes: span + view_pad,
                page_tokens,
                first_token,
                tokens: 1 + count.index(most),
            }
        },
    )
}

impl Case {
    fn slot_bytes(&self) -> usize {
        self.views * self.shape.heads * self.page_tokens * self.shape.row_bytes
    }

    fn plan(&self, memory: *mut u8) -> CopyPlan {
        let views: Vec<_> = (0..self.views)
            // SAFETY: the tests keep the memory (of `views * view_bytes`) alive and to themselves while the
            // plan is used.
            .map(|view| unsafe { TensorView::new(memory.add(view * self.view_bytes), self.shape).unwrap() })
            .collect();
        CopyPlan::page(self.layout, &views, self.page_tokens, self.first_token, self.tokens).unwrap()
    }

    /// (offset in memory, offset in the slot) of every byte of the page.
    fn pairs(&self) -> Vec<(usize, usize)> {
        let mut pairs = Vec::new();
        let shape = &self.shape;
        for view in 0..self.views {
            for head in 0..shape.heads {
                for token in 0..self.tokens {
                    for byte in 0..shape.row_bytes {
                        let memory = view * self.view_bytes
                            + head * shape.head_stride_bytes
                            + (self.first_token + token) * shape.token_stride_bytes
                            + byte;
                        let row = match self.layout {
                            PageLayout::LayerKvHeadToken => head * self.page_tokens + token,
                            PageLayout::LayerKvTokenHead => token * shape.heads + head,
                        };
                        let view_at = view * shape.heads * self.page_tokens;
                        pairs.push((memory, (view_at + row) * shape.row_bytes + byte));
                    }
                }
            }
        }
        pairs
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn runs_are_exactly_the_bytes_of_the_page_in_slot_order(case in cases()) {
        let mut memory = vec![0u8; case.views * case.view_bytes];
        let base = memory.as_mut_ptr();
        let plan = case.plan(base);
        prop_assert_eq!(plan.slot_bytes(), case.slot_bytes());
        let mut position = 0;
        let mut pairs = Vec::new();
        for run in plan.runs() {
            prop_assert!(run.bytes > 0);
            prop_assert!(run.slot_offset >= position, "in order, not overlapping");
            position = run.slot_offset + run.bytes;
            let memory = run.memory.addr() - base.addr();
            pairs.extend((0..run.bytes).map(|byte| (memory + byte, run.slot_offset + byte)));
        }
        prop_assert!(position <= plan.slot_bytes());
        same_on_a_device(&case, base, &plan)?;
        let mut expected = case.pairs();
        expected.sort_unstable_by_key(|&(_, slot)| slot);
        prop_assert_eq!(pairs, expected);
    }
}

/// The device's plan of the same tensors has the same runs, and its layers are all of them, each byte once.
fn same_on_a_device(case: &Case, base: *mut u8, plan: &CopyPlan) -> Result<(), TestCaseError> {
    let address = |memory: *mut u8| memory.addr() as u64;
    let view = |view: usize| {
        // SAFETY: it is only planned, nothing is copied.
        unsafe { DeviceView::new(address(base) + (view * case.view_bytes) as u64, case.shape).unwrap() }
    };
    let views: Vec<_> = (0..case.views).map(view).collect();
    let device =
        DevicePlan::page(case.layout, &views, case.page_tokens, case.first_token, case.tokens).unwrap();
    prop_assert_eq!(device.slot_bytes(), plan.slot_bytes());
    let runs: Vec<_> = plan.runs().map(|run| (address(run.memory), run.slot_offset, run.bytes)).collect();
    let of = |run: &Run<u64>| (run.memory, run.slot_offset, run.bytes);
    prop_assert_eq!(device.pieces().iter().map(of).collect::<Vec<_>>(), runs);
    let bytes = |run: Run<u64>| (0..run.bytes).map(move |at| (run.memory + at as u64, run.slot_offset + at));
    let layers = device.layers(case.views).unwrap();
    let in_layers: Vec<_> = layers.into_iter().flat_map(|part| device.within(part)).flat_map(bytes).collect();
    prop_assert_eq!(in_layers, device.pieces().iter().copied().flat_map(bytes).collect::<Vec<_>>());
    let gaps: usize = device.gaps().map(|gap| gap.len()).sum();
    let runs: usize = device.pieces().iter().map(|run| run.bytes).sum();
    prop_assert_eq!((gaps + runs, gaps > 0), (device.slot_bytes(), device.has_gaps()));
    Ok(())
}

fn shape(heads: usize, tokens: usize, row_bytes: usize) -> TensorShape {
    TensorShape {
        heads,
        tokens,
        row_bytes,
        head_stride_bytes: tokens * row_bytes,
        token_stride_bytes: row_bytes,
    }
}

fn view(memory: &mut [u8], shape: TensorShape) -> TensorView {
    // SAFETY: the tests that use this only plan, they copy nothing.
    unsafe { TensorView::new(memory.as_mut_ptr(), shape).unwrap() }
}

#[test]
fn a_dense_page_of_all_layers_is_one_run() {
    // One block of an engine that keeps its blocks in slot order: [view, head, token, row] without padding.
    let (views, block) = (6, shape(2, 4, 8));
    let view_bytes = 2 * 4 * 8;
    let mut memory = vec![0u8; views * view_bytes];
    let views: Vec<_> = memory.chunks_mut(view_bytes).map(|memory| view(memory, block)).collect();
    let plan = CopyPlan::page(PageLayout::LayerKvHeadToken, &views, 4, 0, 4).unwrap();
    let runs: Vec<_> = plan.runs().collect();
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0], Run { memory: memory.as_mut_ptr(), slot_offset: 0, bytes: memory.len() });
    // The same memory in the other order of the slot: no two rows touch on both sides.
    let plan = CopyPlan::page(PageLayout::LayerKvTokenHead, &views, 4, 0, 4).unwrap();
    assert_eq!(plan.runs().count(), 6 * 2 * 4);
}

#[test]
fn tokens_of_one_head_are_one_run() {
    let mut memory = vec![0u8; 2 * 100 * 8];
    let views = [view(&mut memory, shape(2, 100, 8))];
    let plan = CopyPlan::page(PageLayout::LayerKvHeadToken, &views, 16, 32, 16).unwrap();
    assert_eq!(plan.runs().map(|run| run.bytes).collect::<Vec<_>>(), [128, 128]);
    // A partial page leaves the places of the missing tokens alone.
    let plan = CopyPlan::page(PageLayout::LayerKvHeadToken, &views, 16, 96, 4).unwrap();
    assert_eq!(plan.runs().map(|run| (run.slot_offset, run.bytes)).collect::<Vec<_>>(), [(0, 32), (128, 32)]);
    assert_eq!(plan.slot_bytes(), 2 * 16 * 8);
}

#[test]
fn impossible_pages_are_refused_with_the_reason() {
    let mut memory = vec![0u8; 2 * 10 * 8];
    let views = [view(&mut memory, shape(2, 10, 8))];
    let page = |page_tokens, first, tokens| {
        CopyPlan::page(PageLayout::LayerKvHeadToken, &views, page_tokens, first, tokens).unwrap_err()
    };
    assert_eq!(page(4, 0, 0), PlanError::Zero("tokens"));
    assert_eq!(page(4, 0, 5), PlanError::Tokens { tokens: 5, page_tokens: 4 });
    assert_eq!(page(4, 8, 3), PlanError::Range { first_token: 8, end_token: 11, tensor_tokens: 10 });
    assert_eq!(page(4, usize::MAX, 1), PlanError::Overflow);
    assert_eq!(page(usize::MAX, 0, 1), PlanError::Overflow);
    assert_eq!(page(usize::MAX / 16, 0, 1), PlanError::Overflow, "larger than an address space");
    let many = vec![views[0]; PLAN_VIEWS_MAX + 1];
    let refused = CopyPlan::page(PageLayout::LayerKvHeadToken, &many, 4, 0, 4).unwrap_err();
    assert_eq!(refused, PlanError::Views(PLAN_VIEWS_MAX + 1));
    let none = CopyPlan::page(PageLayout::LayerKvHeadToken, &[], 4, 0, 4).unwrap_err();
    assert_eq!(none, PlanError::Zero("views"));
}

#[test]
fn impossible_shapes_are_refused() {
    let mut byte = 0u8;
    // SAFETY: shapes that are refused are never copied.
    let mut refused = |shape| unsafe { TensorView::new(&raw mut byte, shape).unwrap_err() };
    assert_eq!(refused(shape(0, 1, 1)), PlanError::Zero("heads"));
    assert_eq!(refused(shape(1, 0, 1)), PlanError::Zero("tokens"));
    assert_eq!(refused(shape(1, 1, 0)), PlanError::Zero("row_bytes"));
    let huge = TensorShape { head_stride_bytes: usize::MAX / 2, ..shape(4, 1, 1) };
    assert_eq!(refused(huge), PlanError::Overflow);
    // SAFETY: as above.
    let null = unsafe { TensorView::new(std::ptr::null_mut(), shape(1, 1, 1)).unwrap_err() };
    assert_eq!(null, PlanError::Null);
}

#[test]
fn plans_travel_between_threads() {
    fn assert_send_and_sync<T: Send + Sync>() {}
    assert_send_and_sync::<CopyPlan>();
    assert_send_and_sync::<TensorView>();
}

//! Gather and scatter against a naive reference, with runs shorter and longer than a chunk.

use proptest::prelude::*;

use super::*;
use crate::checksum::checksum;
use crate::plan::{PageLayout, TensorShape, TensorView};

#[derive(Clone, Debug)]
struct Case {
    layout: PageLayout,
    views: usize,
    heads: usize,
    tokens: usize,
    row_bytes: usize,
    pad: usize,
    page_tokens: usize,
    page: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let row_bytes = prop_oneof![1usize..300, Just(256), Just(CHUNK_BYTES), 3000usize..9000];
    (
        any::<bool>(),
        1usize..4,
        1usize..4,
        1usize..20,
        row_bytes,
        0usize..40,
        1usize..8,
        any::<prop::sample::Index>(),
    )
        .prop_map(|(by_head, views, heads, tokens, row_bytes, pad, page_tokens, page)| Case {
            layout: if by_head { PageLayout::LayerKvHeadToken } else { PageLayout::LayerKvTokenHead },
            views,
            heads,
            tokens,
            row_bytes,
            pad,
            page_tokens,
            page: page.index(tokens.div_ceil(page_tokens)),
        })
}

impl Case {
    fn view_bytes(&self) -> usize {
        self.heads * self.tokens * (self.row_bytes + self.pad)
    }

    /// Tokens of the page: fewer than `page_tokens` in the last one.
    fn count(&self) -> usize {
        self.page_tokens.min(self.tokens - self.page * self.page_tokens)
    }

    fn plan(&self, memory: *mut u8) -> CopyPlan {
        let row = self.row_bytes + self.pad;
        let shape = TensorShape {
            heads: self.heads,
            tokens: self.tokens,
            row_bytes: self.row_bytes,
            head_stride_bytes: self.tokens * row,
            token_stride_bytes: row,
        };
        let views: Vec<_> = (0..self.views)
            // SAFETY: the test keeps the memory alive and to itself while the plan is used.
            .map(|view| unsafe { TensorView::new(memory.add(view * self.view_bytes()), shape).unwrap() })
            .collect();
        let first_token = self.page * self.page_tokens;
        CopyPlan::page(self.layout, &views, self.page_tokens, first_token, self.count()).unwrap()
    }

    /// (offset in memory, offset in the slot) of every row.
    fn rows(&self) -> Vec<(usize, usize)> {
        let row = self.row_bytes + self.pad;
        let mut rows = Vec::new();
        for view in 0..self.views {
            for head in 0..self.heads {
                for token in 0..self.count() {
                    let at = head * self.tokens + self.page * self.page_tokens + token;
                    let slot = match self.layout {
                        PageLayout::LayerKvHeadToken => head * self.page_tokens + token,
                        PageLayout::LayerKvTokenHead => token * self.heads + head,
                    } + view * self.heads * self.page_tokens;
                    rows.push((view * self.view_bytes() + at * row, slot * self.row_bytes));
                }
            }
        }
        rows
    }
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|i| ((i + seed).wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 200 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gather_fills_the_slot_and_zeroes_its_gaps(case in cases()) {
        let mut memory = pattern(case.views * case.view_bytes(), 1);
        let plan = case.plan(memory.as_mut_ptr());
        let mut slot = vec![0xEE; plan.slot_bytes()];
        // SAFETY: the slot has the plan's size; the memory is alive and ours.
        let sum = unsafe { plan.gather_into(slot.as_mut_ptr()) };
        let mut expected = vec![0; plan.slot_bytes()];
        for (from, to) in case.rows() {
            expected[to..to + case.row_bytes].copy_from_slice(&memory[from..from + case.row_bytes]);
        }
        prop_assert!(slot == expected, "the slot is as the reference has it");
        prop_assert_eq!(sum, checksum(&expected));
    }

    #[test]
    fn scatter_writes_the_rows_and_nothing_else(case in cases()) {
        let mut memory = vec![0xEE; case.views * case.view_bytes()];
        let plan = case.plan(memory.as_mut_ptr());
        let slot = pattern(plan.slot_bytes(), 2);
        // SAFETY: the slot has the plan's size; the memory is alive and ours.
        let sum = unsafe { plan.scatter_from(slot.as_ptr()) };
        let mut expected = vec![0xEE; memory.len()];
        for (to, from) in case.rows() {
            expected[to..to + case.row_bytes].copy_from_slice(&slot[from..from + case.row_bytes]);
        }
        prop_assert!(memory == expected, "the tensors are as the reference has them");
        prop_assert_eq!(sum, checksum(&slot));
    }
}

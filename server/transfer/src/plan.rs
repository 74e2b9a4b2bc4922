//! Copy plans between a page slot and strided tensors.
//!
//! Owns: which byte of a tensor lies where in a slot. Pure offset arithmetic; the copying is in `strided`. Must not know:
//! where slots come from, what the tensors mean.
//!
//! A page in slot order is one view after another (layer 0 K, layer 0 V, layer 1 K, ...; one view a layer for joint K/V).
//! Within a view the order is the namespace's layout. A partial page has fewer tokens than `page_tokens`; its tokens lie where
//! they would in a whole page, and the places of the missing ones are gaps:
//!
//! ```text
//!   LayerKvHeadToken, 2 heads, 3 of 4 tokens:    h0t0 h0t1 h0t2 ....  h1t0 h1t1 h1t2 ....
//!   LayerKvTokenHead, the same:                  t0h0 t0h1 t1h0 t1h1 t2h0 t2h1 .... ....
//! ```

use thiserror::Error;

use crate::limits::{DEVICE_RUNS_MAX, PLAN_VIEWS_MAX};

pub(crate) mod fragment;

pub(crate) use fragment::{Fragments, PageOf};

/// Order of a page's bytes in its slot, slowest dimension first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLayout {
    /// [layer, K/V, head, token, row]
    LayerKvHeadToken,
    /// [layer, K/V, token, head, row]
    LayerKvTokenHead,
}

/// Why a plan cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// A count that must be at least 1 is 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// More views than [`PLAN_VIEWS_MAX`].
    #[error("{0} views are over PLAN_VIEWS_MAX ({PLAN_VIEWS_MAX})")]
    Views(usize),
    /// More tokens than a page has.
    #[error("{tokens} tokens do not fit a page of {page_tokens}")]
    Tokens {
        /// Tokens asked for.
        tokens: usize,
        /// Tokens of a page.
        page_tokens: usize,
    },
    /// The page reaches past the end of a view.
    #[error("tokens {first_token} to {end_token} are not all in a tensor of {tensor_tokens}")]
    Range {
        /// First token of the page.
        first_token: usize,
        /// One past its last token.
        end_token: usize,
        /// Tokens of the shortest view.
        tensor_tokens: usize,
    },
    /// Sizes that no address space holds.
    #[error("the sizes overflow the address space")]
    Overflow,
    /// More pieces than one page of device memory may be in.
    #[error(
        "a page in {0} pieces is over DEVICE_RUNS_MAX ({DEVICE_RUNS_MAX}): use the layout that the memory has"
    )]
    Runs(usize),
    /// Tensors that are not a whole number for each layer.
    #[error("{tensors} tensors cannot be divided into {layers} layers")]
    Layers {
        /// Layers asked for.
        layers: usize,
        /// Tensors of the plan, or its runs.
        tensors: usize,
    },
    /// A null pointer.
    #[error("a tensor's address is null")]
    Null,
}

/// Sizes and strides of the K or the V of one layer: `[heads, tokens, row]` in any order of strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Heads, at least 1.
    pub heads: usize,
    /// Tokens that the tensor holds, at least 1.
    pub tokens: usize,
    /// Bytes of one token of one head, at least 1, contiguous.
    pub row_bytes: usize,
    /// Bytes from one head to the next.
    pub head_stride_bytes: usize,
    /// Bytes from one token to the next.
    pub token_stride_bytes: usize,
}

impl TensorShape {
    /// Bytes from the first to one past the last byte.
    pub(crate) fn span_bytes(&self) -> Result<usize, PlanError> {
        for (count, name) in [(self.heads, "heads"), (self.tokens, "tokens"), (self.row_bytes, "row_bytes")] {
            if count == 0 {
                return Err(PlanError::Zero(name));
            }
        }
        let heads = (self.heads - 1).checked_mul(self.head_stride_bytes);
        let tokens = (self.tokens - 1).checked_mul(self.token_stride_bytes);
        let span = heads
            .zip(tokens)
            .and_then(|(heads, tokens)| heads.checked_add(tokens)?.checked_add(self.row_bytes));
        span.filter(|&span| isize::try_from(span).is_ok()).ok_or(PlanError::Overflow)
    }
}

/// The K or the V of one layer in the memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct TensorView {
    base: *mut u8,
    shape: TensorShape,
}

// SAFETY: a view is an address and sizes. What may be done with the address, and by whom, was promised in `TensorView::new`,
// for whatever thread runs the copy.
unsafe impl Send for TensorView {}
// SAFETY: as above; `&TensorView` only reads the address itself.
unsafe impl Sync for TensorView {}

impl TensorView {
    /// Describes a tensor whose token 0 of head 0 lies at `base`.
    ///
    /// # Safety
    /// As long as this view or a plan made of it is used, on any thread:
    /// - all bytes of the rows `[head, token]` of the shape are valid: for reads if plans of it are gathered, for writes if
    ///   they are scattered;
    /// - they are initialised if plans are gathered;
    /// - nobody else writes them during a gather, nobody else touches them during a scatter;
    /// - they do not lie inside the slot that is copied to or from.
    ///
    /// # Errors
    /// The shape is empty or larger than the address space, or `base` is null.
    pub unsafe fn new(base: *mut u8, shape: TensorShape) -> Result<Self, PlanError> {
        if base.is_null() {
            return Err(PlanError::Null);
        }
        shape.span_bytes()?;
        Ok(Self { base, shape })
    }
}

/// A contiguous piece of both sides. `A`: an address in the tensors' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<A = *mut u8> {
    /// Where it lies in the tensor.
    pub memory: A,
    /// Where it lies in the slot.
    pub slot_offset: usize,
    /// Its length, at least 1.
    pub bytes: usize,
}

/// What to copy between one slot and the tensors of one page. May be moved to another thread and run there (it is `Send`
/// because whoever made the views promised that for every thread); may be run any number of times.
#[derive(Clone, Debug)]
pub struct CopyPlan {
    fragments: Fragments<*mut u8>,
}

// SAFETY: see `TensorView`: the fragments hold addresses that come from views, under the same promise.
unsafe impl Send for CopyPlan {}
// SAFETY: as above; `&CopyPlan` only reads the addresses themselves.
unsafe impl Sync for CopyPlan {}

impl CopyPlan {
    /// Plans the page of the tokens `[first_token, first_token + tokens)` of all `views`, given in slot order.
    ///
    /// # Errors
    /// The page is empty, longer than `page_tokens`, or not inside every view; too many views; sizes overflow.
    pub fn page(
        layout: PageLayout,
        views: &[TensorView],
        page_tokens: usize,
        first_token: usize,
        tokens: usize,
    ) -> Result<Self, PlanError> {
        let page = PageOf { layout, page_tokens, first_token, tokens };
        let views = views.iter().map(|view| (view.base, view.shape));
        Ok(Self { fragments: Fragments::page(page, views)? })
    }

    /// Bytes of the slot that this plan is for: a whole page, even if the plan's page is partial.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.fragments.slot_bytes()
    }

    /// The runs in slot order. They never overlap in the slot.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.fragments.runs()
    }
}

#[cfg(test)]
mod tests;

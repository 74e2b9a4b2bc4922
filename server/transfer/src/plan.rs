//! Copy plans between a page slot and strided tensors.
//!
//! Owns: which byte of a tensor lies where in a slot. Pure offset arithmetic; the copying is in `strided`.
//! Must not know: where slots come from, what the tensors mean.
//!
//! A page in slot order is one view after another (layer 0 K, layer 0 V, layer 1 K, ...; one view a layer for
//! joint K/V). Within a view the order is the namespace's layout. A partial page has fewer tokens than
//! `page_tokens`; its tokens lie where they would in a whole page, and the places of the missing ones are
//! gaps:
//!
//! ```text
//!   LayerKvHeadToken, 2 heads, 3 of 4 tokens:    h0t0 h0t1 h0t2 ....  h1t0 h1t1 h1t2 ....
//!   LayerKvTokenHead, the same:                  t0h0 t0h1 t1h0 t1h1 t2h0 t2h1 .... ....
//! ```

pub(crate) mod fragment;
mod shape;

pub use fragment::Run;
pub(crate) use fragment::{Fragments, PageOf};
pub use shape::{PageLayout, PlanError, TensorShape};

/// The K or the V of one layer in the memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct TensorView {
    base: *mut u8,
    shape: TensorShape,
}

// SAFETY: a view is an address and sizes. What may be done with the address, and by whom, was promised in
// `TensorView::new`, for whatever thread runs the copy.
unsafe impl Send for TensorView {}
// SAFETY: as above; `&TensorView` only reads the address itself.
unsafe impl Sync for TensorView {}

impl TensorView {
    /// Describes a tensor whose token 0 of head 0 lies at `base`.
    ///
    /// # Safety
    /// As long as this view or a plan made of it is used, on any thread:
    /// - all bytes of the rows `[head, token]` of the shape are valid: for reads if plans of it are gathered,
    ///   for writes if they are scattered;
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

/// What to copy between one slot and the tensors of one page. May be moved to another thread and run there
/// (it is `Send` because whoever made the views promised that for every thread); may be run any number of
/// times.
#[derive(Clone, Debug)]
pub struct CopyPlan {
    fragments: Fragments<*mut u8>,
}

// SAFETY: see `TensorView`: the fragments hold addresses that come from views, under the same promise.
unsafe impl Send for CopyPlan {}
// SAFETY: as above; `&CopyPlan` only reads the addresses themselves.
unsafe impl Sync for CopyPlan {}

impl CopyPlan {
    /// Plans the page of the tokens `[first_token, first_token + tokens)` of all `views`, given in slot
    /// order.
    ///
    /// # Errors
    /// The page is empty, longer than `page_tokens`, or not inside every view; too many views; sizes
    /// overflow.
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

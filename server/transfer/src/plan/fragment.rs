//! The offset arithmetic of a page: two loops around a run for each tensor. Owns: which byte of a tensor lies
//! where in a slot, whatever kind of memory the tensor is in. Must not know: who copies.

use super::shape::{PageLayout, PlanError, TensorShape};
use crate::limits::PLAN_VIEWS_MAX;

/// An address in some memory: a pointer of this process, or a number that only a device can follow.
pub(crate) trait Address: Copy + PartialEq {
    /// The address so many bytes on.
    fn plus(self, bytes: usize) -> Self;
}

impl Address for *mut u8 {
    fn plus(self, bytes: usize) -> Self {
        self.wrapping_add(bytes)
    }
}

impl Address for u64 {
    fn plus(self, bytes: usize) -> Self {
        self.wrapping_add(bytes as u64)
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

/// Which page, of what kind.
#[derive(Clone, Copy)]
pub(crate) struct PageOf {
    pub(crate) layout: PageLayout,
    pub(crate) page_tokens: usize,
    pub(crate) first_token: usize,
    pub(crate) tokens: usize,
}

/// A page of all its tensors, in slot order.
#[derive(Clone, Debug)]
pub(crate) struct Fragments<A> {
    list: Vec<Fragment<A>>,
    slot_bytes: usize,
}

impl<A: Address> Fragments<A> {
    /// Plans a page of tensors given in slot order.
    pub(crate) fn page(
        page: PageOf,
        views: impl ExactSizeIterator<Item = (A, TensorShape)> + Clone,
    ) -> Result<Self, PlanError> {
        check_page(page, views.clone().map(|(_, shape)| shape))?;
        let mut plan = Self { list: Vec::with_capacity(views.len()), slot_bytes: 0 };
        for (base, shape) in views {
            let slot_end = plan.slot_bytes.checked_add(view_bytes(&shape, page.page_tokens)?);
            let slot_end = slot_end.filter(|&end| isize::try_from(end).is_ok()).ok_or(PlanError::Overflow)?;
            plan.append(Fragment::of_view(base, &shape, page, plan.slot_bytes));
            plan.slot_bytes = slot_end;
        }
        Ok(plan)
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = Run<A>> {
        self.list.iter().flat_map(Fragment::runs)
    }

    /// How many runs it has.
    pub(crate) fn count(&self) -> usize {
        self.list.iter().fold(0, |sum, fragment| sum.saturating_add(fragment.count()))
    }

    /// Adds a fragment, as part of the last one if both are one run and the second continues the first on
    /// both sides.
    fn append(&mut self, next: Fragment<A>) {
        if let Some(last) = self.list.last_mut()
            && last.is_one_run()
            && next.is_one_run()
            && last.memory.plus(last.run_bytes) == next.memory
            && last.slot_offset + last.run_bytes == next.slot_offset
        {
            last.run_bytes += next.run_bytes;
            return;
        }
        self.list.push(next);
    }
}

/// Bytes that a whole page of this tensor takes in a slot.
pub(crate) fn view_bytes(shape: &TensorShape, page_tokens: usize) -> Result<usize, PlanError> {
    let rows = shape.heads.checked_mul(page_tokens).ok_or(PlanError::Overflow)?;
    rows.checked_mul(shape.row_bytes).ok_or(PlanError::Overflow)
}

fn check_page(page: PageOf, shapes: impl ExactSizeIterator<Item = TensorShape>) -> Result<(), PlanError> {
    let PageOf { page_tokens, first_token, tokens, .. } = page;
    if shapes.len() > PLAN_VIEWS_MAX {
        return Err(PlanError::Views(shapes.len()));
    }
    if tokens > page_tokens {
        return Err(PlanError::Tokens { tokens, page_tokens });
    }
    if tokens == 0 {
        return Err(PlanError::Zero("tokens"));
    }
    let tensor_tokens = shapes.map(|shape| shape.tokens).min().ok_or(PlanError::Zero("views"))?;
    let end_token = first_token.checked_add(tokens).ok_or(PlanError::Overflow)?;
    if end_token > tensor_tokens {
        return Err(PlanError::Range { first_token, end_token, tensor_tokens });
    }
    Ok(())
}

/// `count` things at a distance.
#[derive(Clone, Copy, Debug)]
struct Dimension {
    count: usize,
    memory_stride: usize,
    slot_stride: usize,
}

impl Dimension {
    const ONE: Self = Self { count: 1, memory_stride: 0, slot_stride: 0 };

    /// Whether runs of `run_bytes` at this distance touch on both sides.
    fn is_dense(&self, run_bytes: usize) -> bool {
        self.count == 1 || (self.memory_stride == run_bytes && self.slot_stride == run_bytes)
    }
}

/// The runs of one view: two loops around a run, instead of a list of thousands. Or, where the tensor is
/// dense, one run.
#[derive(Clone, Copy, Debug)]
struct Fragment<A> {
    memory: A,
    slot_offset: usize,
    outer: Dimension,
    inner: Dimension,
    run_bytes: usize,
}

impl<A: Address> Fragment<A> {
    /// The page's rows of `view`, from `slot_offset` on. Nothing here overflows: the page lies inside the
    /// view, whose span was checked when it was made, and inside the slot, whose size was checked by the
    /// caller.
    fn of_view(base: A, shape: &TensorShape, page: PageOf, slot_offset: usize) -> Self {
        let row = shape.row_bytes;
        let (heads_apart, tokens_apart) = match page.layout {
            PageLayout::LayerKvHeadToken => (page.page_tokens * row, row),
            PageLayout::LayerKvTokenHead => (row, shape.heads * row),
        };
        let heads = Dimension {
            count: shape.heads,
            memory_stride: shape.head_stride_bytes,
            slot_stride: heads_apart,
        };
        let tokens = Dimension {
            count: page.tokens,
            memory_stride: shape.token_stride_bytes,
            slot_stride: tokens_apart,
        };
        let (outer, inner) = match page.layout {
            PageLayout::LayerKvHeadToken => (heads, tokens),
            PageLayout::LayerKvTokenHead => (tokens, heads),
        };
        let memory = base.plus(page.first_token * shape.token_stride_bytes);
        Self { memory, slot_offset, outer, inner, run_bytes: row }.coalesced()
    }

    /// Takes a loop into the run wherever its runs touch on both sides.
    fn coalesced(mut self) -> Self {
        for _ in 0..2 {
            if self.inner.is_dense(self.run_bytes) {
                self.run_bytes *= self.inner.count;
                self.inner = std::mem::replace(&mut self.outer, Dimension::ONE);
            }
        }
        self
    }

    fn count(&self) -> usize {
        self.outer.count.saturating_mul(self.inner.count)
    }

    fn is_one_run(&self) -> bool {
        self.outer.count == 1 && self.inner.count == 1
    }

    fn runs(&self) -> impl Iterator<Item = Run<A>> + use<A> {
        let fragment = *self;
        (0..fragment.outer.count).flat_map(move |outer| {
            (0..fragment.inner.count).map(move |inner| {
                let memory = outer * fragment.outer.memory_stride + inner * fragment.inner.memory_stride;
                let slot = outer * fragment.outer.slot_stride + inner * fragment.inner.slot_stride;
                Run {
                    memory: fragment.memory.plus(memory),
                    slot_offset: fragment.slot_offset + slot,
                    bytes: fragment.run_bytes,
                }
            })
        })
    }
}

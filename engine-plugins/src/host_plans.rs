//! Plans of pages in this process's memory. Owns: what Python says of it -> plans, for the time of one call. Must not know:
//! devices, connections.

use crate::memory::{Runs, View};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use turnkv_client::{CopyPlan, PageLayout, PlanError, TensorShape, TensorView};

/// One plan a page (a shard of it, where a call moves several).
pub(crate) fn of_runs(runs: &Runs) -> PyResult<Vec<CopyPlan>> {
    let view = |(&address, &row_bytes): (&u64, &usize)| {
        let shape =
            TensorShape { heads: 1, tokens: 1, row_bytes, head_stride_bytes: 0, token_stride_bytes: 0 };
        // SAFETY: the caller of the Python method promises (documented there) that the runs are valid, and that nobody else
        // uses them, until the call returns; the plans do not outlive it.
        unsafe { TensorView::new(address as *mut u8, shape) }
    };
    let page = |addresses: &[u64]| {
        let views = addresses.iter().zip(&runs.lengths).map(view).collect::<Result<Vec<_>, _>>()?;
        CopyPlan::page(PageLayout::LayerKvHeadToken, &views, 1, 0, 1)
    };
    let plans: Result<_, PlanError> = runs.addresses.chunks_exact(runs.lengths.len()).map(page).collect();
    plans.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// One plan a page: page i has the tokens from `i * page_tokens` on, the last one what is left of `tokens`.
pub(crate) fn of_views(
    layout: PageLayout,
    views: &[View],
    page_tokens: usize,
    tokens: usize,
) -> PyResult<Vec<CopyPlan>> {
    let tensor = |&(address, heads, head_stride_bytes, token_stride_bytes, row_bytes): &View| {
        let shape = TensorShape { heads, tokens, row_bytes, head_stride_bytes, token_stride_bytes };
        // SAFETY: as in `of_runs`, for the view's rows.
        unsafe { TensorView::new(address as *mut u8, shape) }
    };
    let invalid = |error: PlanError| PyValueError::new_err(error.to_string());
    let tensors = views.iter().map(tensor).collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    let page =
        |first: usize| CopyPlan::page(layout, &tensors, page_tokens, first, page_tokens.min(tokens - first));
    (0..tokens).step_by(page_tokens).map(page).collect::<Result<_, _>>().map_err(invalid)
}

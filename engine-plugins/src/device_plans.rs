//! Plans of pages in device memory. Owns: what Python says of it -> plans, keeping its objects alive until no copy uses them.
//! Must not know: devices, streams, connections.

use crate::memory::{Runs, View};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::any::Any;
use std::sync::Arc;
use turnkv_client::{DevicePlan, DeviceView, PageLayout, PlanError, TensorShape};

/// Whatever keeps device memory from being freed: tensors, most of the time. Let go of on any thread, after the last copy.
type Keeper = Arc<dyn Any + Send + Sync>;

/// One plan a page (a shard of it, where a call moves several).
pub(crate) fn of_runs(runs: &Runs) -> PyResult<Vec<DevicePlan>> {
    let page = |addresses: &[u64]| {
        let pieces: Vec<(u64, usize)> = addresses.iter().copied().zip(runs.lengths.iter().copied()).collect();
        // SAFETY: the caller of the Python method promises (documented there) that the runs are valid memory of the device
        // while `keep` lives, which the plan sees to, and that others use them in the order of the streams it names.
        unsafe { DevicePlan::runs(&pieces) }
    };
    let plans: Result<_, PlanError> = runs.addresses.chunks_exact(runs.lengths.len()).map(page).collect();
    plans.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// One plan a page of strided tensors, as [`crate::host_plans::of_views`] makes them for memory of this process.
pub(crate) fn of_views(
    layout: PageLayout,
    views: &[View],
    page_tokens: usize,
    tokens: usize,
) -> PyResult<Vec<DevicePlan>> {
    let tensor = |&(address, heads, head_stride_bytes, token_stride_bytes, row_bytes): &View| {
        let shape = TensorShape { heads, tokens, row_bytes, head_stride_bytes, token_stride_bytes };
        // SAFETY: as in `of_runs`, for the view's rows.
        unsafe { DeviceView::new(address as u64, shape) }
    };
    let invalid = |error: PlanError| PyValueError::new_err(error.to_string());
    let tensors = views.iter().map(tensor).collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    let page = |first: usize| {
        DevicePlan::page(layout, &tensors, page_tokens, first, page_tokens.min(tokens - first))
    };
    (0..tokens).step_by(page_tokens).map(page).collect::<Result<_, _>>().map_err(invalid)
}

/// The plans, each of which holds `keep` until no copy uses it.
pub(crate) fn keeping(plans: Vec<DevicePlan>, keep: Option<Py<PyAny>>) -> Vec<DevicePlan> {
    let Some(keep) = keep else { return plans };
    let keeper: Keeper = Arc::new(keep);
    plans.into_iter().map(|plan| plan.owned_by(Arc::clone(&keeper))).collect()
}

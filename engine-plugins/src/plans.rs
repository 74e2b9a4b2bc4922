//! Plans of pages in device memory. Owns: what Python gives -> plans, keeping its objects alive until no copy uses them. Must
//! not know: devices, streams, connections.

use crate::buffers::{View, run_addresses};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::any::Any;
use std::sync::Arc;
use turnkv_client::{DevicePlan, DeviceView, PageLayout, PlanError, TensorShape};

/// Whatever keeps device memory from being freed: tensors, most of the time. Let go of on any thread, after the last copy.
type Keeper = Arc<dyn Any + Send + Sync>;

/// One plan a page (a shard of it, where a call moves several), of pages that lie in runs: `addresses` has the runs' addresses as u64, page after page, `lengths` their
/// bytes, the same for every page.
pub(crate) fn of_runs(
    addresses: &Bound<'_, PyAny>,
    lengths: &[usize],
    page_bytes: u64,
    keep: Option<Py<PyAny>>,
) -> PyResult<Vec<DevicePlan>> {
    let addresses = run_addresses(addresses, lengths)?;
    let page = |addresses: &[u64]| {
        let pieces: Vec<(u64, usize)> = addresses.iter().copied().zip(lengths.iter().copied()).collect();
        // SAFETY: the caller of the Python method promises (documented there) that the runs are valid memory of the device
        // while `keep` lives, which the plan sees to, and that others use them in the order of the streams it names.
        unsafe { DevicePlan::runs(&pieces) }
    };
    let plans = addresses.chunks_exact(lengths.len()).map(page).collect();
    checked(plans, page_bytes, keep)
}

/// One plan a page of strided tensors, as [`crate::buffers::plans`] makes them for memory of this process.
pub(crate) fn of_views(
    layout: Option<PageLayout>,
    views: &[View],
    page_tokens: usize,
    tokens: usize,
    page_bytes: u64,
    keep: Option<Py<PyAny>>,
) -> PyResult<Vec<DevicePlan>> {
    let layout = layout.ok_or_else(|| PyValueError::new_err("an opaque namespace has no tensor layout"))?;
    let tensor = |&(address, heads, head_stride_bytes, token_stride_bytes, row_bytes): &View| {
        let shape = TensorShape { heads, tokens, row_bytes, head_stride_bytes, token_stride_bytes };
        // SAFETY: as in `of_runs`, for the view's rows.
        unsafe { DeviceView::new(address as u64, shape) }
    };
    let tensors: Result<Vec<DeviceView>, PlanError> = views.iter().map(tensor).collect();
    let tensors = tensors.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let page = |first: usize| {
        DevicePlan::page(layout, &tensors, page_tokens, first, page_tokens.min(tokens - first))
    };
    checked((0..tokens).step_by(page_tokens).map(page).collect(), page_bytes, keep)
}

fn checked(
    plans: Result<Vec<DevicePlan>, PlanError>,
    page_bytes: u64,
    keep: Option<Py<PyAny>>,
) -> PyResult<Vec<DevicePlan>> {
    let plans = plans.map_err(|error| PyValueError::new_err(error.to_string()))?;
    if let Some(plan) = plans.first().filter(|plan| plan.slot_bytes() as u64 != page_bytes) {
        let text =
            format!("this memory makes pages of {} bytes, pages here have {page_bytes}", plan.slot_bytes());
        return Err(PyValueError::new_err(text));
    }
    let Some(keep) = keep else { return Ok(plans) };
    let keeper: Keeper = Arc::new(keep);
    Ok(plans.into_iter().map(|plan| plan.owned_by(Arc::clone(&keeper))).collect())
}

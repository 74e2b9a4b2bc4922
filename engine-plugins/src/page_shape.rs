//! The pages of a namespace, as memory is cut into them. Owns: that memory and pages fit together, which part of a view is which
//! shard's. Must not know: connections, Python's arguments, how a plan is made.

use crate::buffers::Wanted;
use crate::memory::{OnDevice, Placed, Runs, Strided, View};
use crate::{device_plans, host_plans};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use turnkv_client::{CopyPlan, DevicePlan, Layout, NamespaceSpec, PageLayout};

/// What a namespace's pages are.
#[derive(Clone, Copy)]
pub(crate) struct PageShape {
    /// None for pages that only their engine can read.
    layout: Option<PageLayout>,
    pub(crate) page_tokens: u32,
    /// Of one shard of a page.
    pub(crate) shard_bytes: u64,
}

impl PageShape {
    /// The shape of the pages of `spec`, of which a shard has so many bytes.
    pub(crate) fn new(spec: &NamespaceSpec, page_tokens: u32, shard_bytes: u64) -> PageShape {
        let layout = match spec.layout {
            Layout::LayerKvHeadToken => Some(PageLayout::LayerKvHeadToken),
            Layout::LayerKvTokenHead => Some(PageLayout::LayerKvTokenHead),
            Layout::Opaque => None,
        };
        PageShape { layout, page_tokens, shard_bytes }
    }

    /// Pages in runs of this process's memory.
    pub(crate) fn host_runs(&self, runs: &Runs, wanted: Wanted) -> PyResult<Vec<CopyPlan>> {
        let plans = host_plans::of_runs(runs)?;
        wanted.check("pages of runs", plans.len())?;
        self.checked(plans, CopyPlan::slot_bytes)
    }

    /// Pages of strided tensors in this process's memory.
    pub(crate) fn host_views(&self, strided: &Strided, wanted: Wanted) -> PyResult<Vec<CopyPlan>> {
        let plans = self.of_shards(strided, wanted, host_plans::of_views)?;
        self.checked(plans, CopyPlan::slot_bytes)
    }

    /// Pages in device memory, which hold what keeps that memory until no copy uses it.
    pub(crate) fn on_device(
        &self,
        py: Python<'_>,
        memory: &OnDevice,
        wanted: Wanted,
    ) -> PyResult<Vec<DevicePlan>> {
        let plans = match &memory.pages {
            Placed::Runs(runs) => {
                let plans = device_plans::of_runs(runs.get())?;
                wanted.check("pages of runs", plans.len())?;
                plans
            }
            Placed::Strided(strided) => self.of_shards(strided.get(), wanted, device_plans::of_views)?,
        };
        let plans = self.checked(plans, DevicePlan::slot_bytes)?;
        Ok(device_plans::keeping(plans, memory.keep.as_ref().map(|keep| keep.clone_ref(py))))
    }

    /// How many tokens of the last page of strided tensors are a partial tail; ValueError where something else was `said` (0:
    /// nothing was).
    pub(crate) fn tail_tokens(&self, strided: &Strided, said: u32) -> PyResult<u32> {
        let tail = u32::try_from(strided.tokens % self.page_tokens as usize).unwrap_or_default();
        if said != 0 && said != tail {
            let tokens = strided.tokens;
            let text = format!("{tokens} tokens have a tail of {tail}, tail_tokens={said} says otherwise");
            return Err(PyValueError::new_err(text));
        }
        Ok(tail)
    }

    fn checked<Plan>(&self, plans: Vec<Plan>, bytes: impl Fn(&Plan) -> usize) -> PyResult<Vec<Plan>> {
        match plans.first().map(bytes) {
            Some(bytes) if bytes as u64 != self.shard_bytes => {
                let page = self.shard_bytes;
                let text = format!("this memory makes pages of {bytes} bytes, pages here have {page}");
                Err(PyValueError::new_err(text))
            }
            _ => Ok(plans),
        }
    }

    /// Plans of pages whose heads are divided among neighbouring shards: page after page, of each page one shard after another.
    /// `plans` makes those of one shard, from its part of each view.
    fn of_shards<Plan>(
        &self,
        strided: &Strided,
        wanted: Wanted,
        plans: impl Fn(PageLayout, &[View], usize, usize) -> PyResult<Vec<Plan>>,
    ) -> PyResult<Vec<Plan>> {
        let (Strided { views, tokens }, page_tokens) = (strided, self.page_tokens as usize);
        check_pages(wanted.hashes, *tokens, page_tokens)?;
        let opaque = || PyValueError::new_err("an opaque namespace has no tensor layout");
        let layout = self.layout.ok_or_else(opaque)?;
        let shards = usize::from(wanted.shards.max(1));
        if shards == 1 {
            return plans(layout, views, page_tokens, *tokens);
        }
        let mut all = Vec::with_capacity(shards);
        for shard in 0..shards {
            let part = part_of(views, shard, shards)?;
            all.push(plans(layout, &part, page_tokens, *tokens)?.into_iter());
        }
        Ok((0..wanted.hashes * shards).filter_map(|position| all[position % shards].next()).collect())
    }
}

/// The heads of one of so many shards.
fn part_of(views: &[View], shard: usize, shards: usize) -> PyResult<Vec<View>> {
    let part = |&(address, heads, head_stride, token_stride, row): &View| {
        if !heads.is_multiple_of(shards) {
            let text = format!("a view of {heads} heads cannot be divided among {shards} shards");
            return Err(PyValueError::new_err(text));
        }
        let heads = heads / shards;
        let offset = (shard * heads).checked_mul(head_stride).and_then(|bytes| address.checked_add(bytes));
        let address = offset.ok_or_else(|| PyValueError::new_err("a view's heads end behind all memory"))?;
        Ok((address, heads, head_stride, token_stride, row))
    };
    views.iter().map(part).collect()
}

/// That there is a hash for each page which so many tokens begin.
fn check_pages(hashes: usize, tokens: usize, page_tokens: usize) -> PyResult<()> {
    let pages = tokens.div_ceil(page_tokens);
    if pages != hashes {
        let text = format!("{tokens} tokens are {pages} pages of {page_tokens}, there are {hashes} hashes");
        return Err(PyValueError::new_err(text));
    }
    Ok(())
}

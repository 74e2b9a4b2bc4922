//! What the verbs with pages have in common. Owns: memory as Python gives it -> pages of a namespace, one call of the client.
//! Must not know: arguments of Python, connections.

use crate::buffers::{self, View, Wanted};
use crate::namespace::Namespace;
use crate::plans;
use crate::reports::{OffloadReport, ReloadReport};
use crate::{error, runtime};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use turnkv_client::{
    BlockHash, CopyPlan, DevicePlan, Layout, OffloadOptions, PageLayout, PageSource, PageTarget,
    ReloadOptions,
};

impl Namespace {
    fn layout(&self) -> Option<PageLayout> {
        match self.spec.layout {
            Layout::LayerKvHeadToken => Some(PageLayout::LayerKvHeadToken),
            Layout::LayerKvTokenHead => Some(PageLayout::LayerKvTokenHead),
            Layout::Opaque => None,
        }
    }

    /// Pages of strided views, and of each page the shards that their heads are divided into.
    pub(crate) fn plans(
        &self,
        hashes: &[BlockHash],
        views: &[View],
        tokens: usize,
        shards: u16,
    ) -> PyResult<Vec<CopyPlan>> {
        let page_tokens = self.page_tokens as usize;
        buffers::check_pages(hashes.len(), tokens, page_tokens)?;
        let plans =
            |views: &[View]| buffers::plans(self.layout(), views, page_tokens, tokens, self.shard_bytes);
        buffers::of_shards(views, shards, plans)
    }

    /// Pages of runs, one shard after another.
    pub(crate) fn run_plans(
        &self,
        addresses: &Bound<'_, PyAny>,
        lengths: &[usize],
        wanted: Wanted,
    ) -> PyResult<Vec<CopyPlan>> {
        let plans = buffers::run_plans(addresses, lengths)?;
        wanted.check("pages of runs", plans.len())?;
        match plans.first() {
            Some(plan) if plan.slot_bytes() as u64 != self.shard_bytes => {
                let (bytes, page) = (plan.slot_bytes(), self.shard_bytes);
                Err(PyValueError::new_err(format!("these runs are {bytes} bytes, pages here have {page}")))
            }
            _ => Ok(plans),
        }
    }

    /// Offloads.
    pub(crate) fn send(
        &self,
        py: Python<'_>,
        options: &OffloadOptions,
        hashes: &[BlockHash],
        pages: &[PageSource<'_>],
    ) -> PyResult<OffloadReport> {
        let (namespace, runtime) = self.opened(py)?;
        let report = runtime::run(py, runtime, namespace.offload(options, hashes, pages));
        Ok(report.map_err(|failed| error::from_client(py, failed))?.into())
    }

    /// Reloads.
    pub(crate) fn receive(
        &self,
        py: Python<'_>,
        options: &ReloadOptions,
        hashes: &[BlockHash],
        targets: &mut [PageTarget<'_>],
    ) -> PyResult<ReloadReport> {
        let (namespace, runtime) = self.opened(py)?;
        let report = runtime::run(py, runtime, namespace.reload(options, hashes, targets));
        Ok(report.map_err(|failed| error::from_client(py, failed))?.into())
    }

    /// Pages of strided views on a device, and how many tokens of the last one are a tail.
    pub(crate) fn device_views(
        &self,
        py: Python<'_>,
        hashes: &[BlockHash],
        views: &[View],
        tokens: usize,
        shards: u16,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<(Vec<DevicePlan>, u32)> {
        let page_tokens = self.page_tokens as usize;
        buffers::check_pages(hashes.len(), tokens, page_tokens)?;
        let plans = |views: &[View]| {
            let keep = keep.as_ref().map(|keep| keep.clone_ref(py));
            plans::of_views(self.layout(), views, page_tokens, tokens, self.shard_bytes, keep)
        };
        Ok((
            buffers::of_shards(views, shards, plans)?,
            u32::try_from(tokens % page_tokens).unwrap_or_default(),
        ))
    }
}

//! The pages of one offload or reload. Owns: whatever Python gave for them -> the one call of the client that moves it. Must not
//! know: connections, sessions, a call's settings.

use crate::buffers::{PageBuffers, Wanted};
use crate::device::{DeviceContext, named};
use crate::device_reload::DeviceReload;
use crate::memory::{OnDevice, Placed, Runs, Strided};
use crate::page_shape::PageShape;
use crate::reports::{OffloadReport, ReloadReport};
use crate::{error, runtime};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;
use tokio::runtime::Runtime;
use turnkv_client::{
    BlockHash, CopyPlan, DeviceOrder, DevicePlan, OffloadOptions, PageSource, PageTarget, ReloadOptions,
};

/// The memory of a call's pages.
pub(crate) enum Pages {
    /// Contiguous buffers, one a page.
    Buffers(PageBuffers),
    /// Runs or tensors of this process.
    Host(Vec<CopyPlan>),
    Device(DevicePages),
}

/// Pages in device memory.
pub(crate) struct DevicePages {
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) plans: Vec<DevicePlan>,
    /// What the copies come after, and in how many layers.
    pub(crate) order: DeviceOrder,
}

/// What a reload answers: all of it, or that copies are under way.
#[derive(IntoPyObject)]
pub(crate) enum Reloaded {
    Report(ReloadReport),
    Begun(DeviceReload),
}

impl Pages {
    /// Pages to be read, and how many tokens of the last one are a tail: tensors tell, else `said` does.
    pub(crate) fn sources(
        shape: PageShape,
        given: &Bound<'_, PyAny>,
        wanted: Wanted,
        said: u32,
    ) -> PyResult<(Pages, u32)> {
        let tail = match tensors(given) {
            Some(strided) => shape.tail_tokens(strided.get(), said)?,
            None => said,
        };
        Ok((Pages::parse(shape, given, wanted, false)?, tail))
    }

    /// Pages to be filled.
    pub(crate) fn targets(shape: PageShape, given: &Bound<'_, PyAny>, wanted: Wanted) -> PyResult<Pages> {
        Pages::parse(shape, given, wanted, true)
    }

    fn parse(shape: PageShape, given: &Bound<'_, PyAny>, wanted: Wanted, writable: bool) -> PyResult<Pages> {
        if let Ok(runs) = given.cast::<Runs>() {
            return Ok(Pages::Host(shape.host_runs(runs.get(), wanted)?));
        }
        if let Ok(strided) = given.cast::<Strided>() {
            return Ok(Pages::Host(shape.host_views(strided.get(), wanted)?));
        }
        if let Ok(memory) = given.cast::<OnDevice>() {
            return Ok(Pages::Device(DevicePages::parse(shape, memory, wanted)?));
        }
        Ok(Pages::Buffers(PageBuffers::parse(given, wanted, shape.shard_bytes, writable)?))
    }

    /// Offloads them.
    pub(crate) fn offload(
        &self,
        py: Python<'_>,
        (namespace, runtime): (turnkv_client::Namespace, &'static Runtime),
        options: &OffloadOptions,
        hashes: &[BlockHash],
    ) -> PyResult<OffloadReport> {
        let report = match self {
            Pages::Buffers(buffers) => {
                let sources: Vec<_> = buffers.sources().iter().map(PageSource::Memory).collect();
                runtime::run(py, runtime, namespace.offload(options, hashes, &sources))
            }
            Pages::Host(plans) => {
                let sources: Vec<_> = plans.iter().map(PageSource::Plan).collect();
                runtime::run(py, runtime, namespace.offload(options, hashes, &sources))
            }
            Pages::Device(DevicePages { context, plans, order }) => {
                let device = context.device()?;
                let call = namespace.offload_device(device, options, hashes, plans, order.after);
                runtime::run(py, runtime, call)
            }
        };
        Ok(report.map_err(|failed| error::from_client(py, failed))?.into())
    }

    /// Reloads into them; of device memory, begins to.
    pub(crate) fn reload(
        &mut self,
        py: Python<'_>,
        (namespace, runtime): (turnkv_client::Namespace, &'static Runtime),
        options: &ReloadOptions,
        hashes: &[BlockHash],
    ) -> PyResult<Reloaded> {
        let failed = |failed| error::from_client(py, failed);
        let mut targets: Vec<PageTarget<'_>> = match self {
            Pages::Buffers(buffers) => buffers.targets()?.iter().map(PageTarget::Memory).collect(),
            Pages::Host(plans) => plans.iter().map(PageTarget::Plan).collect(),
            Pages::Device(DevicePages { context, plans, order }) => {
                let call = namespace.reload_device(context.device()?, options, hashes, plans, *order);
                let flight = runtime::run(py, runtime, call).map_err(failed)?;
                return Ok(Reloaded::Begun(DeviceReload::new(Arc::clone(context), runtime, flight)));
            }
        };
        let report = runtime::run(py, runtime, namespace.reload(options, hashes, &mut targets));
        Ok(Reloaded::Report(report.map_err(failed)?.into()))
    }
}

impl DevicePages {
    /// The plans of pages on the device that Python named.
    fn parse(shape: PageShape, given: &Bound<'_, OnDevice>, wanted: Wanted) -> PyResult<DevicePages> {
        let memory = given.get();
        let context = memory.device.get().context()?;
        let plans = shape.on_device(given.py(), memory, wanted)?;
        let order = DeviceOrder { after: memory.stream.map(named), layers: memory.layers };
        Ok(DevicePages { context, plans, order })
    }

    /// Pages on the device of `context`; ValueError for any other.
    pub(crate) fn on(
        context: &Arc<DeviceContext>,
        shape: PageShape,
        given: &Bound<'_, OnDevice>,
        hashes: usize,
    ) -> PyResult<DevicePages> {
        context.device()?;
        let pages = DevicePages::parse(shape, given, Wanted { hashes, shards: 1 })?;
        if !Arc::ptr_eq(context, &pages.context) {
            return Err(PyValueError::new_err("these pages are on another device than the page pool"));
        }
        Ok(pages)
    }
}

/// The tensors that were given, in this process's memory or a device's.
fn tensors<'py>(given: &Bound<'py, PyAny>) -> Option<Bound<'py, Strided>> {
    if let Ok(strided) = given.cast::<Strided>() {
        return Some(strided.clone());
    }
    match &given.cast::<OnDevice>().ok()?.get().pages {
        Placed::Strided(strided) => Some(strided.bind(given.py()).clone()),
        Placed::Runs(_) => None,
    }
}

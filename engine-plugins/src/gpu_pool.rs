//! `turnkv.GpuPagePool` and `turnkv.GpuHit`. Owns: their arguments and answers. Must not know: who gives way, how bytes are copied.

use crate::device::{Device, DeviceContext};
use crate::memory::OnDevice;
use crate::namespace::Namespace;
use crate::pages::DevicePages;
use crate::reports::OffloadReport;
use crate::{error, hashes, runtime};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use turnkv_client::OffloadOptions;

/// Pages kept in device memory.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct GpuPagePool {
    context: Arc<DeviceContext>,
    pool: turnkv_client::GpuPagePool,
}

#[pymethods]
impl GpuPagePool {
    #[new]
    fn new(py: Python<'_>, device: &Device, page_bytes: usize, pages: usize) -> PyResult<GpuPagePool> {
        let context = device.context()?;
        let pool = py.detach(|| turnkv_client::GpuPagePool::new(&context.device, page_bytes, pages));
        let pool = pool.map_err(|failed| error::from_client(py, failed))?;
        Ok(GpuPagePool { context, pool })
    }

    /// How many leading pages are here.
    fn lookup(&self, hashes: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.context.device()?;
        Ok(self.pool.lookup(&hashes::parse(hashes)?))
    }

    /// Copies pages in from memory of the same device; how many leading ones are here then.
    #[pyo3(signature = (namespace, hashes, pages, *, parent = None))]
    fn put(
        &self,
        py: Python<'_>,
        namespace: &Namespace,
        hashes: &Bound<'_, PyAny>,
        pages: &Bound<'_, OnDevice>,
        parent: Option<&[u8]>,
    ) -> PyResult<usize> {
        let hashes = hashes::parse(hashes)?;
        let parent = parent.map(hashes::one).transpose()?;
        let DevicePages { plans, order, .. } =
            DevicePages::on(&self.context, namespace.shape, pages, hashes.len())?;
        let put = self.pool.put(parent.as_ref(), &hashes, &plans, order.after);
        runtime::run(py, runtime::current(py)?, put).map_err(|failed| error::from_client(py, failed))
    }

    /// Copies the leading pages that are here out into memory of the same device.
    fn get(
        &self,
        py: Python<'_>,
        namespace: &Namespace,
        hashes: &Bound<'_, PyAny>,
        pages: &Bound<'_, OnDevice>,
    ) -> PyResult<GpuHit> {
        let hashes = hashes::parse(hashes)?;
        let DevicePages { context, plans, order } =
            DevicePages::on(&self.context, namespace.shape, pages, hashes.len())?;
        let runtime = runtime::current(py)?;
        let hit = runtime::run(py, runtime, self.pool.get(&hashes, &plans, order));
        let hit = hit.map_err(|failed| error::from_client(py, failed))?;
        Ok(GpuHit { context, runtime, hit })
    }

    /// Offloads the leading pages that are here to the pool; they stay here.
    #[pyo3(signature = (namespace, hashes, *, session = None, parent = None, tail_tokens = 0, durable = false,
        deadline_ms = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn write_through(
        &self,
        py: Python<'_>,
        namespace: &Namespace,
        hashes: &Bound<'_, PyAny>,
        session: Option<String>,
        parent: Option<&[u8]>,
        tail_tokens: u32,
        durable: bool,
        deadline_ms: Option<u64>,
    ) -> PyResult<OffloadReport> {
        self.context.device()?;
        let hashes = hashes::parse(hashes)?;
        let parent = parent.map(hashes::one).transpose()?;
        let deadline = deadline_ms.map(Duration::from_millis);
        let options =
            OffloadOptions { session, parent, tail_tokens, durable, deadline, ..OffloadOptions::default() };
        let (opened, runtime) = namespace.opened(py)?;
        let report = runtime::run(py, runtime, self.pool.write_through(&opened, &options, &hashes));
        Ok(report.map_err(|failed| error::from_client(py, failed))?.into())
    }

    /// These pages' conversation will not go on: they give way first.
    fn retire(&self, hashes: &Bound<'_, PyAny>) -> PyResult<()> {
        self.context.device()?;
        self.pool.retire(&hashes::parse(hashes)?);
        Ok(())
    }

    /// What it holds, and how it fared.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.context.device()?;
        let stats = self.pool.stats();
        let dict = PyDict::new(py);
        dict.set_item("capacity_pages", stats.capacity_pages)?;
        dict.set_item("pages", stats.pages)?;
        dict.set_item("pinned", stats.pinned)?;
        dict.set_item("hits", stats.hits)?;
        dict.set_item("misses", stats.misses)?;
        dict.set_item("evicted", stats.evicted)?;
        Ok(dict)
    }
}

/// Pages on their way out of a GPU page pool.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct GpuHit {
    context: Arc<DeviceContext>,
    runtime: &'static Runtime,
    hit: turnkv_client::GpuHit,
}

#[pymethods]
impl GpuHit {
    /// Leading pages that are copied.
    #[getter]
    fn pages(&self) -> usize {
        self.hit.pages()
    }

    /// Holds a stream up until a layer is there; None: the calling thread.
    #[pyo3(signature = (layer, stream))]
    fn wait_layer(&self, py: Python<'_>, layer: usize, stream: Option<u64>) -> PyResult<()> {
        let wait = |stream| self.hit.wait_layer(layer, stream);
        let mark = self.context.hold_up(wait, stream).map_err(|failed| error::from_client(py, failed))?;
        self.context.pass(py, self.runtime, mark)
    }

    /// Waits until the copies are done; how many leading pages that are.
    fn result(&self, py: Python<'_>) -> PyResult<usize> {
        self.context.device()?;
        runtime::run(py, self.runtime, self.hit.finished()).map_err(|failed| error::from_client(py, failed))
    }
}

//! `turnkv.GpuPagePool` and `turnkv.GpuHit`. Owns: their arguments and answers. Must not know: who gives way, how bytes are copied.

use crate::buffers::View;
use crate::device::{Device, Shared};
use crate::namespace::Namespace;
use crate::reports::OffloadReport;
use crate::{error, hashes, runtime};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use turnkv_client::{DeviceOrder, OffloadOptions};

/// Pages kept in device memory.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct GpuPagePool {
    shared: Arc<Shared>,
    pool: turnkv_client::GpuPagePool,
}

#[pymethods]
impl GpuPagePool {
    #[new]
    fn new(py: Python<'_>, device: &Device, page_bytes: usize, pages: usize) -> PyResult<GpuPagePool> {
        let shared = device.shared()?;
        let pool = py.detach(|| turnkv_client::GpuPagePool::new(&shared.device, page_bytes, pages));
        let pool = pool.map_err(|failed| error::from_client(py, failed))?;
        Ok(GpuPagePool { shared, pool })
    }

    /// How many leading pages are here.
    fn lookup(&self, hashes: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.shared.device()?;
        Ok(self.pool.lookup(&hashes::parse(hashes)?))
    }

    /// Copies pages in from strided tensors on the same device; how many leading ones are here then.
    #[pyo3(signature = (namespace, hashes, views, tokens, *, parent = None, stream = None, keep = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn put_strided(
        &self,
        py: Python<'_>,
        namespace: &Namespace,
        hashes: &Bound<'_, PyAny>,
        views: Vec<View>,
        tokens: usize,
        parent: Option<&[u8]>,
        stream: Option<u64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<usize> {
        self.shared.device()?;
        let hashes = hashes::parse(hashes)?;
        let parent = parent.map(hashes::one).transpose()?;
        let (pages, _) = namespace.device_views(py, &hashes, &views, tokens, 1, keep)?;
        let after = stream.map(crate::device::named);
        let put = self.pool.put(parent.as_ref(), &hashes, &pages, after);
        runtime::run(py, runtime::current(py)?, put).map_err(|failed| error::from_client(py, failed))
    }

    /// Copies the leading pages that are here out into strided tensors on the same device.
    #[pyo3(signature = (namespace, hashes, views, tokens, *, stream = None, layers = 0, keep = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn get_strided(
        &self,
        py: Python<'_>,
        namespace: &Namespace,
        hashes: &Bound<'_, PyAny>,
        views: Vec<View>,
        tokens: usize,
        stream: Option<u64>,
        layers: usize,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<GpuHit> {
        self.shared.device()?;
        let hashes = hashes::parse(hashes)?;
        let (pages, _) = namespace.device_views(py, &hashes, &views, tokens, 1, keep)?;
        let order = DeviceOrder { after: stream.map(crate::device::named), layers };
        let runtime = runtime::current(py)?;
        let hit = runtime::run(py, runtime, self.pool.get(&hashes, &pages, order));
        let hit = hit.map_err(|failed| error::from_client(py, failed))?;
        Ok(GpuHit { shared: Arc::clone(&self.shared), runtime, hit })
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
        self.shared.device()?;
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
        self.shared.device()?;
        self.pool.retire(&hashes::parse(hashes)?);
        Ok(())
    }

    /// What it holds, and how it fared.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.shared.device()?;
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
    shared: Arc<Shared>,
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
        let mark = self.shared.hold_up(wait, stream).map_err(|failed| error::from_client(py, failed))?;
        self.shared.pass(py, self.runtime, mark)
    }

    /// Waits until the copies are done; how many leading pages that are.
    fn result(&self, py: Python<'_>) -> PyResult<usize> {
        self.shared.device()?;
        runtime::run(py, self.runtime, self.hit.finished()).map_err(|failed| error::from_client(py, failed))
    }
}

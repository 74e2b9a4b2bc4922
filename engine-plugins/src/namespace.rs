//! `turnkv.Namespace`. Owns: each verb's arguments and answer. Must not know: connections, how memory is found.

use crate::buffers::{PageBuffers, View, Wanted};
use crate::device::{Device, DeviceReload};
use crate::lease::Lease;
use crate::options::{offload_options, reload_options};
use crate::plans;
use crate::pool::Shared;
use crate::reports::{OffloadReport, Prefetched, ReloadReport, TurnBegun};
use crate::{error, hashes, runtime};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use turnkv_client::{EndTurn, NamespaceId, NamespaceSpec, PageSource, PageTarget};

/// The pages of one model in one pool.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct Namespace {
    shared: Arc<Shared>,
    pub(crate) spec: NamespaceSpec,
    id: [u8; 32],
    pub(crate) shard_bytes: u64,
    pub(crate) page_tokens: u32,
}

impl Namespace {
    pub(crate) fn open(py: Python<'_>, shared: Arc<Shared>, spec: NamespaceSpec) -> PyResult<Namespace> {
        let (opened, _) = shared.namespace(py, &spec)?;
        let (id, shard_bytes, page_tokens) = (opened.id().0, opened.shard_bytes(), opened.page_tokens());
        Ok(Namespace { shared, spec, id, shard_bytes, page_tokens })
    }

    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<(turnkv_client::Namespace, &'static Runtime)> {
        self.shared.namespace(py, &self.spec)
    }
}

#[pymethods]
impl Namespace {
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.id)
    }

    #[getter]
    fn shard_bytes(&self) -> u64 {
        self.shard_bytes
    }

    #[getter]
    fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    /// Demotes from DRAM what is on NVMe too (tier = "dram"), or drops everything; of this namespace.
    #[pyo3(signature = (tier = None))]
    fn evict(&self, py: Python<'_>, tier: Option<&str>) -> PyResult<u64> {
        self.opened(py)?; // a server that was started anew learns of it
        self.shared.evict(py, Some(NamespaceId(self.id)), tier)
    }

    /// How many leading pages are in the pool.
    fn lookup(&self, py: Python<'_>, hashes: &Bound<'_, PyAny>) -> PyResult<usize> {
        let hashes = hashes::parse(hashes)?;
        let (namespace, runtime) = self.opened(py)?;
        runtime::run(py, runtime, namespace.lookup(&hashes)).map_err(|failed| error::from_client(py, failed))
    }

    /// Stores pages from contiguous buffers.
    #[pyo3(signature = (hashes, pages, *, session = None, parent = None, shard = 0, shards = 1, tail_tokens = 0, durable = false,
        wait_ms = 0, deadline_ms = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn offload(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
        session: Option<String>,
        parent: Option<&[u8]>,
        shard: u16,
        shards: u16,
        tail_tokens: u32,
        durable: bool,
        wait_ms: u64,
        deadline_ms: Option<u64>,
    ) -> PyResult<OffloadReport> {
        let hashes = hashes::parse(hashes)?;
        let buffers =
            PageBuffers::parse(pages, Wanted { hashes: hashes.len(), shards }, self.shard_bytes, false)?;
        let options =
            offload_options(session, parent, (shard, shards), tail_tokens, durable, wait_ms, deadline_ms)?;
        let sources = buffers.sources();
        let sources: Vec<PageSource<'_>> = sources.into_iter().map(PageSource::Bytes).collect();
        self.send(py, &options, &hashes, &sources)
    }

    /// Stores pages straight from strided tensors.
    #[pyo3(signature = (hashes, views, tokens, *, session = None, parent = None, shard = 0, shards = 1, durable = false, wait_ms = 0,
        deadline_ms = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn offload_strided(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        views: Vec<View>,
        tokens: usize,
        session: Option<String>,
        parent: Option<&[u8]>,
        shard: u16,
        shards: u16,
        durable: bool,
        wait_ms: u64,
        deadline_ms: Option<u64>,
    ) -> PyResult<OffloadReport> {
        let hashes = hashes::parse(hashes)?;
        let plans = self.plans(&hashes, &views, tokens, shards)?;
        let tail_tokens = u32::try_from(tokens % self.page_tokens as usize).unwrap_or_default();
        let options =
            offload_options(session, parent, (shard, shards), tail_tokens, durable, wait_ms, deadline_ms)?;
        let sources: Vec<PageSource<'_>> = plans.iter().map(PageSource::Plan).collect();
        self.send(py, &options, &hashes, &sources)
    }

    /// Stores pages that lie in runs all over memory.
    #[pyo3(signature = (hashes, addresses, lengths, *, session = None, parent = None, shard = 0, shards = 1, tail_tokens = 0,
        durable = false, wait_ms = 0, deadline_ms = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn offload_runs(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        addresses: &Bound<'_, PyAny>,
        lengths: Vec<usize>,
        session: Option<String>,
        parent: Option<&[u8]>,
        shard: u16,
        shards: u16,
        tail_tokens: u32,
        durable: bool,
        wait_ms: u64,
        deadline_ms: Option<u64>,
    ) -> PyResult<OffloadReport> {
        let hashes = hashes::parse(hashes)?;
        let plans = self.run_plans(addresses, &lengths, Wanted { hashes: hashes.len(), shards })?;
        let options =
            offload_options(session, parent, (shard, shards), tail_tokens, durable, wait_ms, deadline_ms)?;
        let sources: Vec<PageSource<'_>> = plans.iter().map(PageSource::Plan).collect();
        self.send(py, &options, &hashes, &sources)
    }

    /// Fills runs all over memory with the leading pages that are there.
    #[pyo3(signature = (hashes, addresses, lengths, *, session = None, shard = 0, shards = 1, deadline_ms = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn reload_runs(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        addresses: &Bound<'_, PyAny>,
        lengths: Vec<usize>,
        session: Option<String>,
        shard: u16,
        shards: u16,
        deadline_ms: Option<u64>,
    ) -> PyResult<ReloadReport> {
        let hashes = hashes::parse(hashes)?;
        let plans = self.run_plans(addresses, &lengths, Wanted { hashes: hashes.len(), shards })?;
        let options = reload_options(session, (shard, shards), deadline_ms);
        let mut targets: Vec<PageTarget<'_>> = plans.iter().map(PageTarget::Plan).collect();
        self.receive(py, &options, &hashes, &mut targets)
    }

    /// Fills writable buffers with the leading pages that are there.
    #[pyo3(signature = (hashes, pages, *, session = None, shard = 0, shards = 1, deadline_ms = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn reload(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
        session: Option<String>,
        shard: u16,
        shards: u16,
        deadline_ms: Option<u64>,
    ) -> PyResult<ReloadReport> {
        let hashes = hashes::parse(hashes)?;
        let mut buffers =
            PageBuffers::parse(pages, Wanted { hashes: hashes.len(), shards }, self.shard_bytes, true)?;
        let options = reload_options(session, (shard, shards), deadline_ms);
        let mut targets: Vec<PageTarget<'_>> =
            buffers.targets()?.into_iter().map(PageTarget::Bytes).collect();
        self.receive(py, &options, &hashes, &mut targets)
    }

    /// Fills strided tensors with the leading pages that are there.
    #[pyo3(signature = (hashes, views, tokens, *, session = None, shard = 0, shards = 1, deadline_ms = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn reload_strided(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        views: Vec<View>,
        tokens: usize,
        session: Option<String>,
        shard: u16,
        shards: u16,
        deadline_ms: Option<u64>,
    ) -> PyResult<ReloadReport> {
        let hashes = hashes::parse(hashes)?;
        let plans = self.plans(&hashes, &views, tokens, shards)?;
        let options = reload_options(session, (shard, shards), deadline_ms);
        let mut targets: Vec<PageTarget<'_>> = plans.iter().map(PageTarget::Plan).collect();
        self.receive(py, &options, &hashes, &mut targets)
    }

    /// Stores pages that lie in runs of device memory.
    #[pyo3(signature = (device, hashes, addresses, lengths, *, stream = None, session = None, parent = None, shard = 0, shards = 1,
        tail_tokens = 0, durable = false, wait_ms = 0, deadline_ms = None, keep = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn offload_device_runs(
        &self,
        py: Python<'_>,
        device: &Device,
        hashes: &Bound<'_, PyAny>,
        addresses: &Bound<'_, PyAny>,
        lengths: Vec<usize>,
        stream: Option<u64>,
        session: Option<String>,
        parent: Option<&[u8]>,
        shard: u16,
        shards: u16,
        tail_tokens: u32,
        durable: bool,
        wait_ms: u64,
        deadline_ms: Option<u64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<OffloadReport> {
        let hashes = hashes::parse(hashes)?;
        let pages = plans::of_runs(addresses, &lengths, self.shard_bytes, keep)?;
        let options =
            offload_options(session, parent, (shard, shards), tail_tokens, durable, wait_ms, deadline_ms)?;
        device.offload(py, self, &options, &hashes, &pages, stream)
    }

    /// Stores pages straight from strided tensors in device memory.
    #[pyo3(signature = (device, hashes, views, tokens, *, stream = None, session = None, parent = None, shard = 0, shards = 1,
        durable = false, wait_ms = 0, deadline_ms = None, keep = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn offload_device_strided(
        &self,
        py: Python<'_>,
        device: &Device,
        hashes: &Bound<'_, PyAny>,
        views: Vec<View>,
        tokens: usize,
        stream: Option<u64>,
        session: Option<String>,
        parent: Option<&[u8]>,
        shard: u16,
        shards: u16,
        durable: bool,
        wait_ms: u64,
        deadline_ms: Option<u64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<OffloadReport> {
        let hashes = hashes::parse(hashes)?;
        let (pages, tail_tokens) = self.device_views(py, &hashes, &views, tokens, shards, keep)?;
        let options =
            offload_options(session, parent, (shard, shards), tail_tokens, durable, wait_ms, deadline_ms)?;
        device.offload(py, self, &options, &hashes, &pages, stream)
    }

    /// Begins to fill runs of device memory with the leading pages that are there.
    #[pyo3(signature = (device, hashes, addresses, lengths, *, stream = None, layers = 0, session = None, shard = 0, shards = 1,
        deadline_ms = None, keep = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn reload_device_runs(
        &self,
        py: Python<'_>,
        device: &Device,
        hashes: &Bound<'_, PyAny>,
        addresses: &Bound<'_, PyAny>,
        lengths: Vec<usize>,
        stream: Option<u64>,
        layers: usize,
        session: Option<String>,
        shard: u16,
        shards: u16,
        deadline_ms: Option<u64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<DeviceReload> {
        let hashes = hashes::parse(hashes)?;
        let pages = plans::of_runs(addresses, &lengths, self.shard_bytes, keep)?;
        let options = reload_options(session, (shard, shards), deadline_ms);
        device.reload(py, self, &options, &hashes, &pages, (stream, layers))
    }

    /// Begins to fill strided tensors in device memory with the leading pages that are there.
    #[pyo3(signature = (device, hashes, views, tokens, *, stream = None, layers = 0, session = None, shard = 0, shards = 1,
        deadline_ms = None, keep = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn reload_device_strided(
        &self,
        py: Python<'_>,
        device: &Device,
        hashes: &Bound<'_, PyAny>,
        views: Vec<View>,
        tokens: usize,
        stream: Option<u64>,
        layers: usize,
        session: Option<String>,
        shard: u16,
        shards: u16,
        deadline_ms: Option<u64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<DeviceReload> {
        let hashes = hashes::parse(hashes)?;
        let (pages, _) = self.device_views(py, &hashes, &views, tokens, shards, keep)?;
        let options = reload_options(session, (shard, shards), deadline_ms);
        device.reload(py, self, &options, &hashes, &pages, (stream, layers))
    }

    /// Leases the leading pages that are there for reading in place.
    #[pyo3(signature = (hashes, *, session = None, shard = 0, shards = 1, deadline_ms = None))]
    fn lease(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        session: Option<String>,
        shard: u16,
        shards: u16,
        deadline_ms: Option<u64>,
    ) -> PyResult<Lease> {
        let hashes = hashes::parse(hashes)?;
        let options = reload_options(session, (shard, shards), deadline_ms);
        let (namespace, runtime) = self.opened(py)?;
        let lease = runtime::run(py, runtime, namespace.lease(&options, &hashes));
        Lease::new(py, lease.map_err(|failed| error::from_client(py, failed))?)
    }

    /// Opens a session's next turn.
    #[pyo3(signature = (session, *, engine = ""))]
    fn begin_turn(&self, py: Python<'_>, session: &str, engine: &str) -> PyResult<TurnBegun> {
        let (namespace, runtime) = self.opened(py)?;
        let begun = runtime::run(py, runtime, namespace.begin_turn_at(session, engine));
        let begun = begun.map_err(|failed| error::from_client(py, failed))?;
        Ok(TurnBegun {
            turn: begun.turn,
            pages: begun.pages,
            dram: begun.dram,
            tail: begun.tail.map(|(hash, _)| PyBytes::new(py, &hash.0).unbind()),
            tail_tokens: begun.tail.map_or(0, |(_, tokens)| tokens),
        })
    }

    /// Tells the session's pages and what is known about its wait.
    #[pyo3(signature = (session, hashes, *, keep = 0, tail_tokens = 0, expected_return_ms = 0, ttl_ms = 0, priority = 0,
        last = false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn end_turn(
        &self,
        py: Python<'_>,
        session: &str,
        hashes: &Bound<'_, PyAny>,
        keep: usize,
        tail_tokens: u32,
        expected_return_ms: u64,
        ttl_ms: u64,
        priority: u32,
        last: bool,
    ) -> PyResult<usize> {
        let hashes = hashes::parse(hashes)?;
        let end = EndTurn { keep, hashes, tail_tokens, expected_return_ms, ttl_ms, priority, last };
        let (namespace, runtime) = self.opened(py)?;
        runtime::run(py, runtime, namespace.end_turn(session, &end))
            .map_err(|failed| error::from_client(py, failed))
    }

    /// What a prefill took, so that hits are worth seconds.
    fn report_prefill(&self, py: Python<'_>, tokens: u64, seconds: f64) -> PyResult<()> {
        let took = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err(format!("seconds must be a time, not {seconds}")))?;
        let (namespace, runtime) = self.opened(py)?;
        runtime::run(py, runtime, namespace.report_prefill(tokens, took))
            .map_err(|failed| error::from_client(py, failed))
    }

    /// A new session that shares the leading pages (0: all, with the tail).
    #[pyo3(signature = (session, fork, pages = 0))]
    fn fork(&self, py: Python<'_>, session: &str, fork: &str, pages: usize) -> PyResult<usize> {
        let (namespace, runtime) = self.opened(py)?;
        let pages = (pages > 0).then_some(pages);
        runtime::run(py, runtime, namespace.fork(session, fork, pages))
            .map_err(|failed| error::from_client(py, failed))
    }

    /// The session's pages after the first `keep` are a dead branch.
    fn supersede(&self, py: Python<'_>, session: &str, keep: usize) -> PyResult<usize> {
        let (namespace, runtime) = self.opened(py)?;
        runtime::run(py, runtime, namespace.supersede(session, keep))
            .map_err(|failed| error::from_client(py, failed))
    }

    /// The session will not return.
    fn close(&self, py: Python<'_>, session: &str) -> PyResult<()> {
        let (namespace, runtime) = self.opened(py)?;
        runtime::run(py, runtime, namespace.close(session)).map_err(|failed| error::from_client(py, failed))
    }

    /// Brings a session's pages, or these, into DRAM ahead of the turn.
    #[pyo3(signature = (session = None, hashes = None))]
    fn prefetch(
        &self,
        py: Python<'_>,
        session: Option<&str>,
        hashes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Prefetched> {
        let hashes = hashes.map(hashes::parse).transpose()?;
        let (namespace, runtime) = self.opened(py)?;
        let begun = match (session, hashes) {
            (Some(session), None) => runtime::run(py, runtime, namespace.prefetch(session)),
            (None, Some(hashes)) => runtime::run(py, runtime, namespace.prefetch_hashes(&hashes)),
            _ => return Err(PyValueError::new_err("prefetch takes a session or hashes")),
        };
        let begun = begun.map_err(|failed| error::from_client(py, failed))?;
        Ok(Prefetched { started: begun.started, ready: begun.ready })
    }

    fn __repr__(&self) -> String {
        let Namespace { shard_bytes, page_tokens, .. } = self;
        format!(
            "Namespace(model='{}', page_tokens={page_tokens}, shard_bytes={shard_bytes})",
            self.spec.model
        )
    }
}

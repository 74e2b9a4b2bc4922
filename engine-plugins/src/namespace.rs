//! `turnkv.Namespace`. Owns: each verb's arguments and answer. Must not know: how connections are kept, how memory is found.

use crate::buffers::Wanted;
use crate::connection::PoolConnection;
use crate::lease::Lease;
use crate::options::{offload_options, reload_options};
use crate::page_shape::PageShape;
use crate::pages::{Pages, Reloaded};
use crate::reports::{OffloadReport, Prefetched, TurnBegun};
use crate::{error, hashes, runtime};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use turnkv_client::{EndTurn, NamespaceId, NamespaceSpec};

/// The pages of one model in one pool.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct Namespace {
    connection: Arc<PoolConnection>,
    spec: NamespaceSpec,
    id: [u8; 32],
    pub(crate) shape: PageShape,
}

impl Namespace {
    pub(crate) fn open(
        py: Python<'_>,
        connection: Arc<PoolConnection>,
        spec: NamespaceSpec,
    ) -> PyResult<Namespace> {
        let (opened, _) = connection.namespace(py, &spec, None)?;
        let shape = PageShape::new(&spec, opened.page_tokens(), opened.shard_bytes());
        Ok(Namespace { connection, spec, id: opened.id().0, shape })
    }

    /// The client's namespace of this process, which is opened anew after a fork.
    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<(turnkv_client::Namespace, &'static Runtime)> {
        self.connection.namespace(py, &self.spec, None)
    }

    /// The same for a call with a deadline, of which what this takes is gone.
    fn opened_by(
        &self,
        py: Python<'_>,
        deadline: &mut Option<Duration>,
    ) -> PyResult<(turnkv_client::Namespace, &'static Runtime)> {
        let began = Instant::now();
        let opened = self.connection.namespace(py, &self.spec, *deadline)?;
        *deadline = deadline.map(|deadline| deadline.saturating_sub(began.elapsed()));
        Ok(opened)
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
        self.shape.shard_bytes
    }

    #[getter]
    fn page_tokens(&self) -> u32 {
        self.shape.page_tokens
    }

    /// Demotes from DRAM what is on NVMe too (tier = "dram"), or drops everything; of this namespace.
    #[pyo3(signature = (tier = None))]
    fn evict(&self, py: Python<'_>, tier: Option<&str>) -> PyResult<u64> {
        self.opened(py)?; // a server that was started anew learns of it
        self.connection.evict(py, Some(NamespaceId(self.id)), tier)
    }

    /// How many leading pages are in the pool.
    #[pyo3(signature = (hashes, *, session = None))]
    fn lookup(&self, py: Python<'_>, hashes: &Bound<'_, PyAny>, session: Option<&str>) -> PyResult<usize> {
        let hashes = hashes::parse(hashes)?;
        let (namespace, runtime) = self.opened(py)?;
        let asked = async {
            match session {
                Some(session) => namespace.lookup_of(session, &hashes).await,
                None => namespace.lookup(&hashes).await,
            }
        };
        runtime::run(py, runtime, asked).map_err(|failed| error::from_client(py, failed))
    }

    /// Stores pages, wherever they lie.
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
        let wanted = Wanted { hashes: hashes.len(), shards };
        let (pages, tail_tokens) = Pages::sources(self.shape, pages, wanted, tail_tokens)?;
        let mut options =
            offload_options(session, parent, (shard, shards), tail_tokens, durable, wait_ms, deadline_ms)?;
        let opened = self.opened_by(py, &mut options.deadline)?;
        pages.offload(py, opened, &options, &hashes)
    }

    /// Fills memory with the leading pages that are there; of device memory, begins to.
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
    ) -> PyResult<Reloaded> {
        let hashes = hashes::parse(hashes)?;
        let mut pages = Pages::targets(self.shape, pages, Wanted { hashes: hashes.len(), shards })?;
        let mut options = reload_options(session, (shard, shards), deadline_ms);
        let opened = self.opened_by(py, &mut options.deadline)?;
        pages.reload(py, opened, &options, &hashes)
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
        let mut options = reload_options(session, (shard, shards), deadline_ms);
        let (namespace, runtime) = self.opened_by(py, &mut options.deadline)?;
        let lease = runtime::run(py, runtime, namespace.lease(&options, &hashes));
        Lease::new(py, lease.map_err(|failed| error::from_client(py, failed))?)
    }

    /// Opens a session's next turn.
    #[pyo3(signature = (session, *, engine = "", ended = 0))]
    fn begin_turn(&self, py: Python<'_>, session: &str, engine: &str, ended: u32) -> PyResult<TurnBegun> {
        let (namespace, runtime) = self.opened(py)?;
        let begun = runtime::run(py, runtime, namespace.begin_turn_after(session, engine, ended));
        let begun = begun.map_err(|failed| error::from_client(py, failed))?;
        Ok(TurnBegun {
            turn: begun.turn,
            pages: begun.pages,
            dram: begun.dram,
            tail: begun.tail.map(|(hash, _)| PyBytes::new(py, &hash.0).unbind()),
            tail_tokens: begun.tail.map_or(0, |(_, tokens)| tokens),
            archived: begun.archived,
            afar: begun.afar,
        })
    }

    /// Tells the session's pages and what is known about its wait.
    #[pyo3(signature = (session, hashes, *, keep = 0, tail_tokens = 0, expected_return_ms = 0, ttl_ms = 0, priority = 0,
        last = false, archive = false))]
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
        archive: bool,
    ) -> PyResult<usize> {
        let hashes = hashes::parse(hashes)?;
        let end = EndTurn { keep, hashes, tail_tokens, expected_return_ms, ttl_ms, priority, last, archive };
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

    /// The session will not return. Whether it waits to be archived first, as may be asked.
    #[pyo3(signature = (session, *, archive = false))]
    fn close(&self, py: Python<'_>, session: &str, archive: bool) -> PyResult<bool> {
        let (namespace, runtime) = self.opened(py)?;
        let closing = async {
            if archive {
                namespace.close_archived(session).await
            } else {
                namespace.close(session).await.map(|()| false)
            }
        };
        runtime::run(py, runtime, closing).map_err(|failed| error::from_client(py, failed))
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
        let PageShape { shard_bytes, page_tokens, .. } = self.shape;
        format!(
            "Namespace(model='{}', page_tokens={page_tokens}, shard_bytes={shard_bytes})",
            self.spec.model
        )
    }
}

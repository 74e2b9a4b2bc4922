//! `turnkv.Span`: pages mapped side by side. Owns: the calls on one span, how long its memory lives. Must not know: what is in
//! the pages.

use crate::namespace::Namespace;
use crate::reports::{OffloadReport, ReloadReport};
use crate::{error, hashes};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use turnkv_client::{CommitOptions, OffloadOptions, PageSpan, ReloadOptions, SpanMemory, Standing};

/// Pages mapped side by side, to be written and read in place.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct Span {
    process: u32,
    runtime: &'static Runtime,
    address: usize,
    bytes: usize,
    /// Locked with the GIL released only.
    span: ManuallyDrop<Mutex<PageSpan>>,
    memory: Arc<SpanMemory>,
}

/// Keeps the address range under tensors.
#[pyclass(frozen, module = "turnkv")]
struct SpanHold {
    _memory: Arc<SpanMemory>,
}

impl Span {
    /// Runs a call on the span with the GIL released. A forked child has mappings that are its parent's to use.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&'static Runtime, &mut PageSpan) -> turnkv_client::Result<T> + Send,
    ) -> PyResult<T> {
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "these pages are mapped for the process that made this object: a forked child makes its own",
            ));
        }
        let (span, runtime) = (&self.span, self.runtime);
        py.detach(|| work(runtime, &mut span.lock().unwrap_or_else(PoisonError::into_inner)))
            .map_err(|failed| error::from_client(py, failed))
    }
}

#[pymethods]
impl Span {
    #[new]
    fn new(
        py: Python<'_>,
        namespace: &Namespace,
        rows: usize,
        places: usize,
        pieces: usize,
    ) -> PyResult<Span> {
        let (opened, runtime) = namespace.opened(py)?;
        let span = PageSpan::new(&opened, rows, places, pieces);
        let span = span.map_err(|failed| error::from_client(py, failed))?;
        let memory = Arc::clone(span.memory());
        Ok(Span {
            process: std::process::id(),
            runtime,
            address: memory.address(0),
            bytes: memory.len(),
            span: ManuallyDrop::new(Mutex::new(span)),
            memory,
        })
    }

    /// Where the first piece is.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// Bytes of the address range.
    #[getter]
    fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whoever keeps an address of the span keeps this object.
    fn memory(&self) -> SpanHold {
        SpanHold { _memory: Arc::clone(&self.memory) }
    }

    #[pyo3(signature = (row, place, count, deadline_ms = None))]
    fn reserve(
        &self,
        py: Python<'_>,
        row: usize,
        place: usize,
        count: usize,
        deadline_ms: Option<u64>,
    ) -> PyResult<usize> {
        let deadline = deadline_ms.map(Duration::from_millis);
        self.with(py, |runtime, span| runtime.block_on(span.reserve(row, place, count, deadline)))
    }

    #[pyo3(signature = (row, place, deadline_ms = None))]
    fn own(&self, py: Python<'_>, row: usize, place: usize, deadline_ms: Option<u64>) -> PyResult<bool> {
        let deadline = deadline_ms.map(Duration::from_millis);
        self.with(py, |runtime, span| runtime.block_on(span.own(row, place, deadline)))
    }

    #[pyo3(signature = (row, place, hashes, *, session = None, deadline_ms = None))]
    fn hold(
        &self,
        py: Python<'_>,
        row: usize,
        place: usize,
        hashes: &Bound<'_, PyAny>,
        session: Option<String>,
        deadline_ms: Option<u64>,
    ) -> PyResult<ReloadReport> {
        let hashes = hashes::parse(hashes)?;
        let deadline = deadline_ms.map(Duration::from_millis);
        let options = ReloadOptions { session, deadline, ..ReloadOptions::default() };
        let hold = |runtime: &Runtime, span: &mut PageSpan| {
            runtime.block_on(span.hold(row, place, &options, &hashes))
        };
        Ok(self.with(py, hold)?.into())
    }

    #[pyo3(signature = (row, place, hashes, *, session = None, parent = None, tail_tokens = 0, siblings = false, keep = false,
        durable = false, deadline_ms = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn commit(
        &self,
        py: Python<'_>,
        row: usize,
        place: usize,
        hashes: &Bound<'_, PyAny>,
        session: Option<String>,
        parent: Option<&[u8]>,
        tail_tokens: u32,
        siblings: bool,
        keep: bool,
        durable: bool,
        deadline_ms: Option<u64>,
    ) -> PyResult<OffloadReport> {
        let hashes = hashes::parse(hashes)?;
        let parent = parent.map(hashes::one).transpose()?;
        let deadline = deadline_ms.map(Duration::from_millis);
        let offload =
            OffloadOptions { session, parent, tail_tokens, durable, deadline, ..OffloadOptions::default() };
        let options = CommitOptions { offload, siblings, keep };
        let commit = |runtime: &Runtime, span: &mut PageSpan| {
            runtime.block_on(span.commit(row, place, &options, &hashes))
        };
        Ok(self.with(py, commit)?.into())
    }

    /// Moves what is at `count` places to others, without copying.
    fn shift(&self, py: Python<'_>, row: usize, source: usize, target: usize, count: usize) -> PyResult<()> {
        self.with(py, |_, span| span.shift(row, source, target, count))
    }

    /// Puts private memory at `count` places.
    fn vacate(&self, py: Python<'_>, row: usize, place: usize, count: usize) -> PyResult<()> {
        self.with(py, |_, span| span.vacate(row, place, count))
    }

    /// Vacates everything and gives every slot back.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |runtime, span| {
            let _inside = runtime.enter();
            span.release_all()
        })
    }

    /// How many places from `place` on, at most `count`, stand as the first one does, and how that is: empty, writable,
    /// read_only or orphan.
    fn run(&self, py: Python<'_>, row: usize, place: usize, count: usize) -> PyResult<(usize, &'static str)> {
        self.with(py, |_, span| {
            let first = span.standing(row, place);
            let same = (place..place + count).take_while(|place| span.standing(row, *place) == first).count();
            Ok((same, standing_name(first)))
        })
    }

    /// Whether what is mapped may not be trusted any more.
    fn is_lost(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |_, span| Ok(span.is_lost()))
    }

    /// What was done so far, and what is mapped now.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (counts, (mapped, spare)) = self.with(py, |_, span| Ok((span.counts(), span.mapped())))?;
        let dict = PyDict::new(py);
        dict.set_item("reserved", counts.reserved)?;
        dict.set_item("held", counts.held)?;
        dict.set_item("copied", counts.copied)?;
        dict.set_item("committed", counts.committed)?;
        dict.set_item("owned", counts.owned)?;
        dict.set_item("mapped", mapped)?;
        dict.set_item("spare", spare)?;
        Ok(dict)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // A forked child has a copy of its parent's leases: the parent will end them.
        if self.process == std::process::id() {
            let _inside = self.runtime.enter();
            // SAFETY: this is the only place that drops the span, and nothing uses it after `Span::drop`.
            unsafe { ManuallyDrop::drop(&mut self.span) };
        }
    }
}

fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Empty => "empty",
        Standing::Writable => "writable",
        Standing::ReadOnly => "read_only",
        Standing::Orphan => "orphan",
    }
}

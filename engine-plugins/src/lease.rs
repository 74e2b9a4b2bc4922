//! `turnkv.Lease`: pages read where they lie, by position: a page, or a shard of it where the call moves several. Owns: how long
//! the mapping under a memoryview lives. Must not know: how slots are granted.

use crate::memory::Runs;
use crate::reports::miss_name;
use crate::{error, host_plans, runtime};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Runtime;
use turnkv_client::{ErrorKind, ReadLease};

/// Pages leased for reading in place.
#[pyclass(module = "turnkv")]
pub(crate) struct Lease {
    positions: usize,
    miss: Option<&'static str>,
    /// None once it was finished. Locked with the GIL held only.
    held: Mutex<Option<Arc<Held>>>,
}

/// A lease and its mapping: shared with the views given out, so that none of them ever points at unmapped memory.
struct Held {
    process: u32,
    runtime: &'static Runtime,
    lease: ManuallyDrop<ReadLease>,
}

/// Keeps the mapping alive under a memoryview.
#[pyclass(frozen, module = "turnkv")]
struct LeaseHold {
    _held: Arc<Held>,
}

impl Lease {
    pub(crate) fn new(py: Python<'_>, lease: ReadLease) -> PyResult<Lease> {
        let (positions, miss) = (lease.len(), lease.miss().map(miss_name));
        let held = Held {
            process: std::process::id(),
            runtime: runtime::current(py)?,
            lease: ManuallyDrop::new(lease),
        };
        Ok(Lease { positions, miss, held: Mutex::new(Some(Arc::new(held))) })
    }

    fn held(&self) -> PyResult<Arc<Held>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone().ok_or_else(|| PyValueError::new_err("this lease is finished"))
    }

    fn take(&self) -> Option<Arc<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Lease {
    fn __len__(&self) -> usize {
        self.positions
    }

    /// Position `index` as a read-only memoryview on the pool's own memory.
    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let position =
            if index < 0 { self.positions.checked_add_signed(index) } else { usize::try_from(index).ok() };
        let held = self.held()?;
        let out_of_range =
            || PyIndexError::new_err(format!("page {index} of a lease on {} pages", self.positions));
        let bytes = position.and_then(|position| held.lease.page(position)).ok_or_else(out_of_range)?;
        let (at, size) = (bytes.as_ptr() as usize, bytes.len());
        let owner = Py::new(py, LeaseHold { _held: Arc::clone(&held) })?;
        py.import("turnkv._buffers")?.getattr("view")?.call1((owner, at, size))
    }

    /// How many leading positions match their checksums, where they lie.
    fn verify(&self, py: Python<'_>) -> PyResult<usize> {
        let held = self.held()?;
        Ok(py.detach(|| (0..self.positions).take_while(|position| held.lease.verify(*position)).count()))
    }

    /// Copies bytes of the positions from `first` on into runs all over memory.
    #[pyo3(signature = (first, target, offset = 0))]
    fn copy_out(
        &self,
        py: Python<'_>,
        first: usize,
        target: &Bound<'_, Runs>,
        offset: usize,
    ) -> PyResult<()> {
        let held = self.held()?;
        let plans = host_plans::of_runs(target.get())?;
        if first.checked_add(plans.len()).is_none_or(|end| end > self.positions) {
            let text =
                format!("{} pages from page {first} on, of a lease on {} pages", plans.len(), self.positions);
            return Err(PyIndexError::new_err(text));
        }
        let mut numbered = plans.iter().enumerate();
        let copied = py.detach(|| {
            numbered.try_for_each(|(index, plan)| held.lease.copy_out(first + index, offset, plan))
        });
        copied.map_err(|failed| error::from_client(py, failed))
    }

    /// Why the lease covers no more pages.
    #[getter]
    fn miss(&self) -> Option<&'static str> {
        self.miss
    }

    /// Milliseconds that the pages may still be read.
    #[getter]
    fn left_ms(&self) -> PyResult<f64> {
        Ok(self.held()?.lease.left().as_secs_f64() * 1e3)
    }

    /// Ends the lease; raises Error (lease_expired) when what was read must be discarded.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.take().ok_or_else(|| PyValueError::new_err("this lease is finished"))?;
        let in_time = !held.lease.left().is_zero() && held.process == std::process::id();
        py.detach(|| drop(held));
        if in_time {
            return Ok(());
        }
        let message = "the lease ended before the reading did".to_owned();
        Err(error::from_client(py, turnkv_client::Error { kind: ErrorKind::LeaseExpired, message }))
    }

    fn __enter__(this: Py<Lease>) -> Py<Lease> {
        this
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, py: Python<'_>, _exc: &Bound<'_, PyAny>) {
        let held = self.take();
        py.detach(|| drop(held));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A forked child has a copy of its parent's lease: the parent will end it.
        if self.process == std::process::id() {
            let _inside = self.runtime.enter();
            // SAFETY: this is the only place that drops the lease, and nothing uses it after `Held::drop`.
            unsafe { ManuallyDrop::drop(&mut self.lease) };
        }
    }
}

//! `turnkv.DeviceReload`. Owns: a reload under way, who waits for it, what came of it. Must not know: how it was begun.

use crate::device::DeviceContext;
use crate::reports::ReloadReport;
use crate::{error, runtime};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Runtime;

/// A reload whose copies are enqueued.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct DeviceReload {
    context: Arc<DeviceContext>,
    runtime: &'static Runtime,
    pages_begun: usize,
    /// Locked with the GIL held only, never across a wait.
    progress: Mutex<Progress>,
}

enum Progress {
    UnderWay(turnkv_client::DeviceReload),
    /// Somebody waits for it.
    Awaited,
    Ended(turnkv_client::Result<turnkv_client::ReloadReport>),
}

impl DeviceReload {
    /// A reload that the client has begun on the device of `context`.
    pub(crate) fn new(
        context: Arc<DeviceContext>,
        runtime: &'static Runtime,
        flight: turnkv_client::DeviceReload,
    ) -> DeviceReload {
        let pages_begun = flight.pages_begun();
        DeviceReload { context, runtime, pages_begun, progress: Mutex::new(Progress::UnderWay(flight)) }
    }

    fn progress(&self) -> PyResult<MutexGuard<'_, Progress>> {
        self.context.device()?;
        Ok(self.progress.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl DeviceReload {
    /// Leading pages that are on their way, or there.
    #[getter]
    fn pages_begun(&self) -> usize {
        self.pages_begun
    }

    /// Holds a stream up until a layer is there; None: the calling thread.
    #[pyo3(signature = (layer, stream))]
    fn wait_layer(&self, py: Python<'_>, layer: usize, stream: Option<u64>) -> PyResult<()> {
        let mark = {
            let progress = self.progress()?;
            let Progress::UnderWay(flight) = &*progress else { return Ok(()) };
            let wait = |stream| flight.wait_layer(layer, stream);
            self.context.hold_up(wait, stream).map_err(|failed| error::from_client(py, failed))?
        };
        self.context.pass(py, self.runtime, mark)
    }

    /// Whether the device has done all of it.
    fn done(&self) -> PyResult<bool> {
        Ok(match &*self.progress()? {
            Progress::UnderWay(flight) => flight.is_done(),
            Progress::Awaited => false,
            Progress::Ended(_) => true,
        })
    }

    /// Waits until the device has done all of it, and says what of it may be used.
    fn result(&self, py: Python<'_>) -> PyResult<ReloadReport> {
        let taken = {
            let mut progress = self.progress()?;
            match std::mem::replace(&mut *progress, Progress::Awaited) {
                Progress::UnderWay(flight) => Some(flight),
                Progress::Awaited => {
                    return Err(PyRuntimeError::new_err("another thread waits for this reload"));
                }
                ended => {
                    *progress = ended;
                    None
                }
            }
        };
        if let Some(flight) = taken {
            let ended = runtime::run(py, self.runtime, flight.finished());
            *self.progress()? = Progress::Ended(ended);
        }
        match &*self.progress()? {
            Progress::Ended(Ok(report)) => Ok(report.clone().into()),
            Progress::Ended(Err(failed)) => Err(error::from_client(py, failed.clone())),
            _ => Err(PyRuntimeError::new_err("another thread waits for this reload")),
        }
    }
}

//! The reactor of this process. Owns: one tokio runtime a process, and what a fork means for it. Must not know: the client.
//!
//! A fork copies memory but no threads. A child that finds its parent's runtime leaves it alone for ever (its threads are
//! gone, so joining them would hang) and makes one of its own.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use tokio::runtime::Runtime;

/// Threads that serve connections while Python does something else. Calls run on the threads that make them.
const REACTOR_THREADS: usize = 1;

/// The runtime and the process it belongs to. Locked with the GIL held only, so no other thread holds it at a fork.
static CURRENT: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// This process's runtime; it lives as long as the process.
pub(crate) fn current(_py: Python<'_>) -> PyResult<&'static Runtime> {
    let process = std::process::id();
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((owner, runtime)) = *current
        && owner == process
    {
        return Ok(runtime);
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder.worker_threads(REACTOR_THREADS).thread_name("turnkv").enable_all().build();
    let runtime =
        built.map_err(|error| PyOSError::new_err(format!("no thread for turnkv's connections: {error}")))?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *current = Some((process, runtime));
    Ok(runtime)
}

/// Runs a call to its end on this thread, with the GIL released.
pub(crate) fn run<F>(py: Python<'_>, runtime: &'static Runtime, call: F) -> F::Output
where
    F: Future + Send,
    F::Output: Send,
{
    py.detach(|| runtime.block_on(call))
}

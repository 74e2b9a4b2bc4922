//! `turnkv.Device` and `turnkv.DeviceStream`. Owns: which process a device belongs to, streams as integers. Must not know: pages,
//! namespaces, how copies are planned or ordered.

use crate::{error, runtime};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use turnkv_client::{
    CopyChoice, DeviceError, DeviceErrorKind, DeviceMark, DeviceOptions, DevicePriority, HostOptions, Stream,
};

/// A GPU, or memory and threads of this process that behave like one.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct Device {
    kind: &'static str,
    context: Arc<DeviceContext>,
}

/// A device and the process that it belongs to.
pub(crate) struct DeviceContext {
    process: u32,
    pub(crate) device: turnkv_client::Device,
    /// A stream that nobody computes on: what waits for it waits for what it was told to wait for. Made when first needed.
    waiting: Mutex<Option<Stream>>,
}

impl DeviceContext {
    /// The device, unless this is a forked child.
    pub(crate) fn device(&self) -> PyResult<&turnkv_client::Device> {
        if self.process != std::process::id() {
            let text = "a forked child cannot use its parent's device: make one in the child";
            return Err(PyRuntimeError::new_err(text));
        }
        Ok(&self.device)
    }

    /// Makes a stream wait; without one, what the calling thread has to wait for.
    pub(crate) fn hold_up(
        &self,
        wait: impl Fn(Stream) -> turnkv_client::Result<()>,
        stream: Option<u64>,
    ) -> turnkv_client::Result<Option<DeviceMark>> {
        if let Some(stream) = stream {
            wait(named(stream))?;
            return Ok(None);
        }
        let waiting = self.waiting()?;
        wait(waiting)?;
        Ok(Some(self.device.mark(waiting)?))
    }

    /// Waits, with the GIL released, until a mark has passed.
    pub(crate) fn pass(
        &self,
        py: Python<'_>,
        runtime: &'static Runtime,
        mark: Option<DeviceMark>,
    ) -> PyResult<()> {
        let Some(mark) = mark else { return Ok(()) };
        let passed = runtime::run(py, runtime, async {
            self.device.passed(&mark)?.landed().await?;
            Ok::<(), DeviceError>(())
        });
        passed.map_err(|failed| error::from_client(py, failed.into()))
    }

    fn waiting(&self) -> turnkv_client::Result<Stream> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = *waiting {
            return Ok(stream);
        }
        let stream = self.device.driver().new_stream(DevicePriority::High)?;
        *waiting = Some(stream);
        Ok(stream)
    }
}

impl Device {
    /// The device, in the process that it belongs to.
    pub(crate) fn device(&self) -> PyResult<&turnkv_client::Device> {
        self.context.device()
    }

    /// The same, to be kept.
    pub(crate) fn context(&self) -> PyResult<Arc<DeviceContext>> {
        self.device()?;
        Ok(Arc::clone(&self.context))
    }
}

/// A stream of ours, which nobody else's work shares.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct DeviceStream {
    context: Arc<DeviceContext>,
    stream: Stream,
}

#[pymethods]
impl DeviceStream {
    #[new]
    fn new(py: Python<'_>, device: &Device) -> PyResult<DeviceStream> {
        let context = device.context()?;
        let stream = context.device.driver().new_stream(DevicePriority::High);
        let stream = stream.map_err(|failed| error::from_client(py, failed.into()))?;
        Ok(DeviceStream { context, stream })
    }

    /// Its handle, for the calls that come after what it waits for. It ends with this object.
    #[getter]
    fn handle(&self) -> u64 {
        self.stream.raw()
    }

    /// Comes after all that another stream was given so far. The calling thread does not wait.
    fn wait(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        let device = self.context.device()?;
        let held_up = device.mark(named(stream)).and_then(|mark| mark.hold_up(self.stream));
        held_up.map_err(|failed| error::from_client(py, failed.into()))
    }
}

impl Drop for DeviceStream {
    fn drop(&mut self) {
        if let Ok(device) = self.context.device() {
            // SAFETY: the stream is ours; whoever was given its handle promised (documented there) to keep this object meanwhile.
            unsafe { device.driver().end_stream(self.stream) };
        }
    }
}

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (ordinal = 0, kind = "cuda", *, staging_bytes = None, pinned_bytes_max = None, copy = "auto",
        kernel_blocks = None, chunk_bytes = None, checksum = true, delay_ms_max = 0, seed = 0, fail_after = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python, one a setting")]
    fn new(
        py: Python<'_>,
        ordinal: u32,
        kind: &str,
        staging_bytes: Option<usize>,
        pinned_bytes_max: Option<u64>,
        copy: &str,
        kernel_blocks: Option<u32>,
        chunk_bytes: Option<usize>,
        checksum: bool,
        delay_ms_max: u64,
        seed: u64,
        fail_after: Option<u64>,
    ) -> PyResult<Device> {
        let usual = DeviceOptions::default();
        let options = DeviceOptions {
            staging_bytes: staging_bytes.unwrap_or(usual.staging_bytes),
            pinned_bytes_max,
            copy: parse_copy(copy)?,
            kernel_blocks: kernel_blocks.unwrap_or(usual.kernel_blocks),
            chunk_bytes: chunk_bytes.unwrap_or(usual.chunk_bytes),
            checksum,
            ..usual
        };
        let delay_max = Duration::from_millis(delay_ms_max);
        let (kind, opened) = match kind {
            "cuda" => ("cuda", py.detach(|| turnkv_client::Device::cuda(ordinal, options))),
            "host" => {
                let host = HostOptions { device: options, delay_max, seed, ..HostOptions::default() };
                let control = host.control.clone();
                let opened = py.detach(|| turnkv_client::Device::host(host));
                if let Some(calls) = fail_after {
                    control.fail_after(calls, DeviceErrorKind::Broken);
                }
                ("host", opened)
            }
            _ => {
                return Err(PyValueError::new_err(format!(
                    "kind must be \"cuda\" or \"host\", not {kind:?}"
                )));
            }
        };
        let device = opened.map_err(|failed| error::from_client(py, failed.into()))?;
        let context = DeviceContext { process: std::process::id(), device, waiting: Mutex::default() };
        Ok(Device { kind, context: Arc::new(context) })
    }

    /// How many CUDA devices there are: 0 without a driver.
    #[staticmethod]
    fn cuda_count(py: Python<'_>) -> u32 {
        py.detach(turnkv_client::Device::cuda_count)
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.kind
    }

    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.device()?.driver().name())
    }

    /// Bytes of device memory: (free, all).
    fn memory(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let device = self.device()?;
        let memory = py.detach(|| device.memory());
        let memory = memory.map_err(|failed| error::from_client(py, failed.into()))?;
        Ok((memory.free_bytes, memory.total_bytes))
    }

    /// What was registered, copied and quarantined so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.device()?.stats();
        let dict = PyDict::new(py);
        dict.set_item("registered_bytes", stats.registered_bytes)?;
        dict.set_item("far_bytes", stats.far_bytes)?;
        dict.set_item("refused", stats.refused)?;
        dict.set_item("direct_bytes", stats.direct_bytes)?;
        dict.set_item("staged_bytes", stats.staged_bytes)?;
        dict.set_item("device_bytes", stats.device_bytes)?;
        dict.set_item("lent_bytes", stats.lent_bytes)?;
        dict.set_item("engine_calls", stats.engine_calls)?;
        dict.set_item("launches", stats.launches)?;
        dict.set_item("quarantined_bytes", stats.quarantined_bytes)?;
        dict.set_item("flights", stats.flights)?;
        Ok(dict)
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("Device(kind='{}', name='{}')", self.kind, self.name()?))
    }
}

/// A stream that Python names by its handle.
pub(crate) fn named(stream: u64) -> Stream {
    // SAFETY: the caller of the Python method promises (documented there) that the integer is a live stream of the device's
    // primary context.
    unsafe { Stream::from_raw(stream) }
}

fn parse_copy(copy: &str) -> PyResult<CopyChoice> {
    match copy {
        "auto" => Ok(CopyChoice::Auto),
        "engine" => Ok(CopyChoice::Engine),
        "batch" => Ok(CopyChoice::Batch),
        "kernel" => Ok(CopyChoice::Kernel),
        other => Err(PyValueError::new_err(format!(
            "copy must be \"auto\", \"engine\", \"batch\" or \"kernel\", not {other:?}"
        ))),
    }
}

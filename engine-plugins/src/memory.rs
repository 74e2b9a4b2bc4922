//! `turnkv.Runs`, `turnkv.Strided` and `turnkv.OnDevice`: where pages lie, as values that calls take as source or target.
//! Owns: what Python says of memory. Must not know: namespaces, hashes, how copies are planned.

use crate::buffers;
use crate::device::Device;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

/// K or V of one layer as Python gives it: address, heads, head stride, token stride, row (bytes).
pub(crate) type View = (usize, usize, usize, usize, usize);

/// Pages that lie in runs all over memory.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct Runs {
    /// Of every run: page after page, of each page (a shard of it, where a call moves several) its runs.
    pub(crate) addresses: Vec<u64>,
    /// Bytes of each run of a page, the same for every page; never empty.
    pub(crate) lengths: Vec<usize>,
}

#[pymethods]
impl Runs {
    #[new]
    fn new(addresses: &Bound<'_, PyAny>, lengths: &Bound<'_, PyAny>) -> PyResult<Runs> {
        if lengths.is_instance_of::<PyBytes>() || lengths.is_instance_of::<PyByteArray>() {
            return Err(PyTypeError::new_err("lengths are whole numbers, a list of them, not bytes"));
        }
        let lengths: Vec<usize> = lengths.extract()?;
        if lengths.is_empty() {
            return Err(PyValueError::new_err("a page is made of at least one run"));
        }
        let addresses = buffers::unsigned_integers(addresses)?;
        if !addresses.len().is_multiple_of(lengths.len()) {
            let (given, runs) = (addresses.len(), lengths.len());
            let text = format!("{given} addresses are not one for each of {runs} runs a page");
            return Err(PyValueError::new_err(text));
        }
        Ok(Runs { addresses, lengths })
    }

    /// Where each run begins.
    #[getter]
    fn addresses(&self) -> Vec<u64> {
        self.addresses.clone()
    }

    /// Bytes of each run of a page.
    #[getter]
    fn lengths(&self) -> Vec<usize> {
        self.lengths.clone()
    }

    fn __repr__(&self) -> String {
        let Runs { addresses, lengths } = self;
        format!("Runs({} addresses, lengths={lengths:?})", addresses.len())
    }
}

/// Pages that are tokens of tensors.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct Strided {
    pub(crate) views: Vec<View>,
    /// Of each view.
    pub(crate) tokens: usize,
}

#[pymethods]
impl Strided {
    #[new]
    fn new(views: Vec<View>, tokens: usize) -> Strided {
        Strided { views, tokens }
    }

    /// K and V of each layer.
    #[getter]
    fn views(&self) -> Vec<View> {
        self.views.clone()
    }

    /// How many tokens each view has.
    #[getter]
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn __repr__(&self) -> String {
        format!("Strided({} views, tokens={})", self.views.len(), self.tokens)
    }
}

/// Runs or tensors in device memory, and when they may be used.
#[pyclass(frozen, module = "turnkv")]
pub(crate) struct OnDevice {
    pub(crate) device: Py<Device>,
    pub(crate) pages: Placed,
    pub(crate) stream: Option<u64>,
    pub(crate) layers: usize,
    pub(crate) keep: Option<Py<PyAny>>,
}

/// What `OnDevice` says of addresses.
pub(crate) enum Placed {
    Runs(Py<Runs>),
    Strided(Py<Strided>),
}

#[pymethods]
impl OnDevice {
    #[new]
    #[pyo3(signature = (device, pages, *, stream = None, layers = 0, keep = None))]
    fn new(
        device: Py<Device>,
        pages: &Bound<'_, PyAny>,
        stream: Option<u64>,
        layers: usize,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<OnDevice> {
        let pages = if let Ok(runs) = pages.cast::<Runs>() {
            Placed::Runs(runs.clone().unbind())
        } else if let Ok(strided) = pages.cast::<Strided>() {
            Placed::Strided(strided.clone().unbind())
        } else {
            let given = pages.get_type().name()?;
            return Err(PyTypeError::new_err(format!("pages on a device are Runs or Strided, not {given}")));
        };
        Ok(OnDevice { device, pages, stream, layers, keep })
    }

    /// Where the memory is.
    #[getter]
    fn device(&self, py: Python<'_>) -> Py<Device> {
        self.device.clone_ref(py)
    }

    /// Runs or Strided.
    #[getter]
    fn pages(&self, py: Python<'_>) -> Py<PyAny> {
        match &self.pages {
            Placed::Runs(runs) => runs.clone_ref(py).into_any(),
            Placed::Strided(strided) => strided.clone_ref(py).into_any(),
        }
    }

    /// The stream to come after.
    #[getter]
    fn stream(&self) -> Option<u64> {
        self.stream
    }

    /// Into how many layers a reload divides the pages.
    #[getter]
    fn layers(&self) -> usize {
        self.layers
    }

    /// What keeps the memory from being freed.
    #[getter]
    fn keep(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.keep.as_ref().map(|keep| keep.clone_ref(py))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let pages = self.pages(py);
        let OnDevice { device, stream, layers, .. } = self;
        let stream = stream.map_or_else(|| "None".to_owned(), |stream| stream.to_string());
        let (device, pages) = (device.bind(py).repr()?, pages.bind(py).repr()?);
        Ok(format!("OnDevice({device}, {pages}, stream={stream}, layers={layers})"))
    }
}

//! `turnkv._turnkv`: the client for Python. Every call that talks to the pool runs with the GIL released.
//!
//! - `pool`: `Pool`: one pool, its connections, what a fork does to them
//! - `namespace`: `Namespace`: pages and sessions of one model; `reports`: what its calls return
//! - `lease`: `Lease`: pages read where they lie; `span`: `Span`: pages mapped side by side, written and read in place
//! - `device`: `Device` and `DeviceReload`: pages in device memory; `gpu_pool`: `GpuPagePool`: pages kept there
//! - `buffers`: the memory of Python's buffers and tensors; `plans`: the same for device memory; `options`: a call's settings
//! - `verbs`: what the verbs with pages have in common
//! - `hashes`: block hashes; `error`: `Error`; `runtime`: the reactor of this process

mod buffers;
mod device;
mod error;
mod gpu_pool;
mod hashes;
mod lease;
mod namespace;
mod options;
mod plans;
mod pool;
mod reports;
mod runtime;
mod span;
mod verbs;

use pyo3::prelude::*;

/// The compiled part of turnkv; `turnkv/_turnkv.pyi` documents it.
#[pymodule]
fn _turnkv(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", error::class(py)?)?;
    module.add_class::<pool::Pool>()?;
    module.add_class::<namespace::Namespace>()?;
    module.add_class::<lease::Lease>()?;
    module.add_class::<span::Span>()?;
    module.add_class::<device::Device>()?;
    module.add_class::<device::DeviceStream>()?;
    module.add_class::<device::DeviceReload>()?;
    module.add_class::<gpu_pool::GpuPagePool>()?;
    module.add_class::<gpu_pool::GpuHit>()?;
    module.add_class::<reports::OffloadReport>()?;
    module.add_class::<reports::ReloadReport>()?;
    module.add_class::<reports::TurnBegun>()?;
    module.add_class::<reports::Prefetched>()?;
    module.add_function(wrap_pyfunction!(hashes::chain_hashes, module)?)?;
    let close_all = wrap_pyfunction!(pool::close_all, module)?;
    py.import("atexit")?.call_method1("register", (close_all,))?;
    Ok(())
}

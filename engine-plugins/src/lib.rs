//! `turnkv._turnkv`: the client for Python. Every call that talks to the pool runs with the GIL released.
//!
//! - `pool`: `Pool`: one pool's settings; `connection`: its client in this process, what a fork does to it
//! - `namespace`: `Namespace`: pages and sessions of one model; `reports`: what its calls return
//! - `memory`: `Runs`, `Strided`, `OnDevice`: where pages lie, as values; `buffers`: contiguous memory of Python's objects
//! - `page_shape`: memory -> pages of a namespace, as `host_plans` and `device_plans`; `pages`: the one call that moves them
//! - `lease`: `Lease`: pages read where they lie; `span`: `Span`: pages mapped side by side, written and read in place
//! - `device`: `Device`, `DeviceStream`; `device_reload`: `DeviceReload`; `gpu_pool`: `GpuPagePool`: pages kept in device memory
//! - `options`: a call's settings; `hashes`: block hashes; `error`: `Error`; `runtime`: the reactor of this process

mod buffers;
mod connection;
mod device;
mod device_plans;
mod device_reload;
mod error;
mod gpu_pool;
mod hashes;
mod host_plans;
mod lease;
mod memory;
mod namespace;
mod options;
mod page_shape;
mod pages;
mod pool;
mod reports;
mod runtime;
mod span;

use pyo3::prelude::*;

/// The compiled part of turnkv; `turnkv/_turnkv.pyi` documents it.
#[pymodule]
fn _turnkv(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", error::class(py)?)?;
    module.add_class::<pool::Pool>()?;
    module.add_class::<namespace::Namespace>()?;
    module.add_class::<memory::Runs>()?;
    module.add_class::<memory::Strided>()?;
    module.add_class::<memory::OnDevice>()?;
    module.add_class::<lease::Lease>()?;
    module.add_class::<span::Span>()?;
    module.add_class::<device::Device>()?;
    module.add_class::<device::DeviceStream>()?;
    module.add_class::<device_reload::DeviceReload>()?;
    module.add_class::<gpu_pool::GpuPagePool>()?;
    module.add_class::<gpu_pool::GpuHit>()?;
    module.add_class::<reports::OffloadReport>()?;
    module.add_class::<reports::ReloadReport>()?;
    module.add_class::<reports::TurnBegun>()?;
    module.add_class::<reports::Prefetched>()?;
    module.add_function(wrap_pyfunction!(hashes::chain_hashes, module)?)?;
    let close_all = wrap_pyfunction!(connection::close_all, module)?;
    py.import("atexit")?.call_method1("register", (close_all,))?;
    Ok(())
}

//! Memory of a GPU, and moving pages between it and slots.
//!
//! - [`cuda`]: a GPU through CUDA's driver library
//! - [`driver`]: the seam to whoever runs the copies: a CUDA driver, or this process's own memory
//!   - `host`: this process's own memory and threads
//! - `handle`: [`Device`] and its lanes; `options`: its settings; `core`: what all of it shares
//!   - `opening`: what is loaded and launched once, before the first copy
//!   - `lane`: one stream and the thread that feeds it; `flight`: copies under way; `staging`: pinned memory
//!   - `register`: pinning slabs for direct copies
//! - `plan`: [`DevicePlan`], which bytes of a slot lie where in device memory; `choose`: who copies them
//! - `buffer`: device memory of ours; `stats`: what the copies came to

mod buffer;
mod choose;
mod core;
pub mod cuda;
pub mod driver;
mod flight;
mod handle;
mod host;
mod lane;
mod opening;
mod options;
mod plan;
mod register;
mod staging;
mod stats;

pub use buffer::{DeviceBuffer, DeviceSlot, ExportedBuffer};
pub use choose::CopyChoice;
pub use cuda::CudaDriver;
pub use driver::{
    CopyRequest, DeviceAddress, DeviceError, DeviceErrorKind, DeviceMemory, Driver, Event, Kernel,
    PagePieces, Piece, Priority, Stream,
};
pub use flight::{Afterwards, Flight, Landed, Mark};
pub use handle::{Device, PageSlot, SlotPage, WeakDevice};
pub use host::{HostControl, HostOptions};
pub use options::DeviceOptions;
pub use plan::{DevicePlan, DeviceView};
pub use stats::DeviceStats;

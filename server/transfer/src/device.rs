//! Memory of a GPU, and moving pages between it and slots.
//!
//! - [`cuda`]: a GPU through CUDA's driver library
//! - [`driver`]: the seam to whoever runs the copies: a CUDA driver, or this process's own memory

pub mod cuda;
pub mod driver;

pub use cuda::CudaDriver;
pub use driver::{
    CopyRequest, DeviceAddress, DeviceError, DeviceErrorKind, DeviceMemory, Driver, Event, Kernel,
    PagePieces, Piece, Priority, Stream,
};

//! Memory of a GPU, and moving pages between it and slots.
//!
//! - [`driver`]: the seam to whoever runs the copies: a CUDA driver, or this process's own memory

pub mod driver;

pub use driver::{
    CopyRequest, DeviceAddress, DeviceError, DeviceErrorKind, DeviceMemory, Driver, Event, Kernel,
    PagePieces, Piece, Priority, Stream,
};

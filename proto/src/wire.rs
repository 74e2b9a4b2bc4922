//! The generated messages and services of package `turnkv.v1`.
//! Owns: the inclusion of generated code and its descriptors. Must not know: anything else.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
#![allow(rustdoc::all)]

tonic::include_proto!("turnkv.v1");

/// The Pool service less `Offload` and `Reload`: a server frames these itself, see [`crate::stream`].
pub mod unary {
    include!(concat!(env!("OUT_DIR"), "/unary/turnkv.v1.rs"));
}

/// The encoded `FileDescriptorSet` of the package, for the reflection service.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/turnkv.v1.bin"));

// `Method`: every method of the package, with its path in an HTTP request and its name in metrics
// (`PoolBeginReload`, `/turnkv.v1.Pool/BeginReload`, `begin_reload`).
include!(concat!(env!("OUT_DIR"), "/methods.rs"));

impl Method {
    /// The method at a path, if it is that of one.
    #[must_use]
    pub fn at(path: &str) -> Option<Method> {
        Method::ALL.iter().copied().find(|method| method.path() == path)
    }
}

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

/// Every method of the package: its path in an HTTP request, and its name in metrics (`/turnkv.v1.Pool/BeginReload`,
/// `begin_reload`).
pub const METHODS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));

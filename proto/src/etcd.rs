//! The generated messages and clients of etcd's API, as far as proto/etcd writes it down.
//! Owns: the inclusion of generated code. Must not know: anything else.
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

/// Keys as they are stored.
pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}

/// The verbs.
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

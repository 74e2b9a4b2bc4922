//! TurnKV's wire: messages, checked ids, layout arithmetic, error kinds.
//!
//! - [`error`]: few kinds of error, each with what to do, as gRPC status and as local-socket failure
//! - `etcd` (feature `etcd`): the part of etcd's API that a member of a cluster asks
//! - [`ids`]: block hashes, namespace ids, session ids
//! - [`layout`]: what a namespace is, how many bytes its pages have, what its id is
//! - [`limits`]: bounds both sides agree on
//! - [`shards`]: which shards of its pages a call moves, and what a position of it is
//! - `stream` (feature `wire`): the inline streams' framing, which copies no payload
//! - `wire` (feature `wire`): the generated messages and services

#![forbid(unsafe_code)]

#[cfg(feature = "wire")]
mod convert;
pub mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod ids;
pub mod layout;
pub mod limits;
#[cfg(feature = "wire")]
mod rope;
pub mod shards;
#[cfg(feature = "wire")]
pub mod stream;
#[cfg(feature = "wire")]
pub mod wire;

pub use error::{Error, ErrorKind};
pub use ids::{BlockHash, IdError, NamespaceId, SessionId, pack_hashes, unpack_hashes};
pub use layout::{Attention, CheckedSpec, Dtype, Group, Layout, LayoutError, Spec};
pub use shards::Shards;
#[cfg(feature = "wire")]
pub use wire::DESCRIPTORS;

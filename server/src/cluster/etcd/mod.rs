//! Members as etcd has them. Owns: the keys, what this member writes there, and what it reads. Must not know: what is believed of it,
//! the directory: no turn and no lookup asks etcd.
//!
//! ```text
//!   /turnkv/NAME/cluster          {"id", "seed", "protocol_floor"}: by whoever came first
//!   /turnkv/NAME/marks/MEMBER     the highest incarnation that a life of it was given
//!   /turnkv/NAME/members/MEMBER   its card, under a lease: gone so long after it was heard last
//! ```
//!
//! - [`follow`]: [`EtcdMembers`], what goes on all the time; [`join`]: a life's begin
//! - [`client`]: the verbs of etcd; [`keys`]: what stands where

mod client;
mod follow;
mod join;
mod keys;

pub(super) use follow::EtcdMembers;

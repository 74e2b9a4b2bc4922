//! Who may do what. Owns: what a caller was granted, and the one decision. Must not know: sockets,
//! certificates, what a verb does.
//!
//! - [`grants`]: roles and tenants, and the words for them in certificates and in the configuration
//! - [`caller`]: who asks, as its door found out; [`users`]: the same of a process of this host, by its user and groups
//! - [`need`]: what verbs can need; [`judge`]: whether a caller may
//! - [`guest`]: one request of a caller, whose namespaces are read through it
//! - [`refusals`]: what is counted and said of those that may not

mod caller;
mod grants;
mod guest;
mod judge;
mod need;
mod refusals;
mod users;

pub(crate) use caller::Caller;
pub(crate) use grants::{Grants, Seen, uri_of_engine};
pub(crate) use guest::{Guest, Guests, TenantOf};
pub(crate) use need::Need;
pub(crate) use users::{Callers, HostUser, UserTable};

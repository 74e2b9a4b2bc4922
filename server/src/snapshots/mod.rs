//! Snapshots: pages of sessions kept outside the pool, and brought back. Owns: what a snapshot takes, what of one fits a namespace,
//! and how much of this host it may take. Must not know: messages, gRPC, the pool's lock.
//!
//! It is one more caller of the engine's own verbs: pages leave by inline reloads and come back by inline offloads, under leases and
//! limits as anybody's.
//!
//! ```text
//!   create:  engine --names--> plan --pages--> read -> archive -> a manifest, last
//!   restore: archive -> pages, verified -> write --all there--> sessions, last
//! ```
//!
//! - [`room`]: what all operations share, and their turns; [`archives`]: tenants' archives, opened
//! - [`create`], [`restore`], [`list`], [`describe`], [`verify`], [`fork`], [`delete`], [`collect`], [`export`], [`import`]: a verb each
//! - [`plan`], [`read`], [`take`]: which pages a snapshot takes, and their bytes; [`write`], [`storing`]: pages into the pool
//! - [`tier`]: sessions that are archived by themselves, and found by their next turn
//! - [`header`]: what a manifest says of a namespace; [`spec_text`]: its spec as JSON; [`summary`]: a snapshot in few words
//! - [`exports`]: the one folder of this host that exports are in
//! - [`progress`], [`counts`], [`refusal`]: how far an operation is, what is counted, what is said when the archive refuses
//! - `testing`: what tests share

mod archives;
pub(crate) mod collect;
mod counts;
pub(crate) mod create;
mod delete;
pub(crate) mod describe;
pub(crate) mod export;
mod exports;
pub(crate) mod fork;
mod header;
pub(crate) mod import;
pub(crate) mod list;
mod plan;
pub(crate) mod progress;
mod read;
mod refusal;
pub(crate) mod restore;
mod room;
mod spec_text;
mod storing;
pub(crate) mod summary;
mod take;
#[cfg(test)]
mod testing;
pub(crate) mod tier;
pub(crate) mod verify;
mod write;

pub(crate) use room::Snapshots;

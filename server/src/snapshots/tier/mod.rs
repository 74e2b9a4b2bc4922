//! The archive tier: sessions go to the archive by themselves, and their next turn finds them there. Owns: when, how fast, and what a
//! store that does not answer means. Must not know: verbs' doors, pages' slots.
//!
//! It is a caller of the engine's own verbs, as snapshots are, and tells turns through [`crate::engine::archived`] alone: nothing that
//! a turn does waits here.
//!
//! ```text
//!   keep:    asked, idle, leaving --one at a time, at a rate--> capture -> bookmark, manifest -> what it supersedes goes
//!   refresh: bookmarks in the store --> what turns know
//!   fetch:   pages that turns want --> as offloads of the server itself
//!   collect: what is too old, or too much, goes
//! ```
//!
//! - [`run`]: all four, beside one another; [`keep`], [`fetch`], [`refresh`], [`collect`]: each
//! - [`known`]: which bookmarks were read
//! - [`pace`]: bytes a second, and pauses that grow; [`counts`]: what is counted

mod collect;
mod counts;
mod fetch;
mod keep;
mod known;
mod pace;
mod refresh;
mod run;

pub(crate) use run::Tier;

//! The named bounds of routing. Owns: constants. Must not know: how a route is chosen.

/// Engines that routes know; beyond it the one not heard of for longest goes.
pub const ENGINES_MAX: usize = 512;
/// Engines one route is chosen among.
pub const CANDIDATES_MAX: usize = 256;
/// Bytes of an engine's name.
pub const NAME_BYTES_MAX: usize = 128;
/// Sessions whose last engine is remembered.
pub const SESSIONS_MAX: usize = 1 << 16;
/// Pages marked with the engines that ran them.
pub const MARKS_MAX: usize = 1 << 18;
/// Every so many pages of a prefix one is marked.
pub const MARK_EVERY: usize = 8;
/// Engines remembered of one marked page.
pub const HOLDERS_MAX: usize = 4;
/// After so long, what an engine did counts half.
pub const HALF_LIFE_MS: u64 = 600 * 1000;
/// What an engine that did twice the mean is held back by, in percent of the prompt's pages.
pub const BALANCE_PERCENT: f64 = 50.0;
/// Prompts of work by which engines may differ before it counts.
pub const SLACK_PROMPTS: u64 = 8;

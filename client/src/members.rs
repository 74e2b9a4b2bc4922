//! The members that a client may go to: those that its address names, and those that they tell of. Owns: its map. Must not know:
//! verbs.
//!
//! - `choice`: [`Members`], the link to each, and which of them is asked next
//! - `learned`: who else there is, as one of them tells; `sessions`: where sessions are whose turns began through this client
//! - `follow`: hears who is there, and looks after members that are sick
//!
//! A client that is given one address has one member, and none of these.

mod choice;
mod follow;
mod learned;
mod sessions;

pub(crate) use choice::{Members, is_among};

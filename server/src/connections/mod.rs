//! Who may be connected: every door asks here before it serves a connection, and gives the place back when it ends.
//! Owns: the caps by door and by peer, the deadlines of silent and idle connections, what is counted of them. Must not know:
//! what is spoken on a connection.
//!
//! ```text
//! accepted --no room--> refused
//!    |
//!  silent --its first request--> asking <--> idle
//!    |                                        |
//!    +--- too long, or the room is needed ----+--> leaving --> gone
//! ```
//!
//! - [`table`]: who has a place; [`caps`]: how many, from the limit of open files
//! - [`door`], [`cause`]: where one entered and whose it is; why it ended
//! - [`watch`]: one connection, as all doors tell of it; [`asking`]: how they tell; [`unread`]: the answers that its peer has not
//!   taken
//! - [`peers`]: what one peer has of what all share
//! - [`room`]: who goes where there is no room
//! - [`accept`], [`stream`]: taking connections, and the bytes of one, for the doors of the async runtime
//! - [`opening`]: TLS on connections of TCP
//! - [`outgoing`]: why HTTP/2 itself ended a connection
//! - [`authority`]: the one header of HTTP/2 that a peer may spell as h2 would not have it
//! - [`frames`]: memory for large frames of HTTP/2
//! - [`counters`]: what is counted and shown

pub(crate) mod accept;
pub(crate) mod asking;
mod authority;
pub(crate) mod caps;
mod cause;
mod counters;
mod door;
mod frames;
pub(crate) mod opening;
mod outgoing;
pub(crate) mod peers;
mod room;
pub(crate) mod stream;
mod table;
mod unread;
pub(crate) mod watch;

pub(crate) use cause::{Cause, Refusal, Refused};
pub(crate) use door::{Door, Peer};
pub(crate) use table::{ConnectionPlace, Connections};

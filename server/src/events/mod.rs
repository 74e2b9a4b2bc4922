//! KV events: which pages are in which tier, told to whoever subscribes, in the format that vLLM has (msgpack over ZeroMQ). Owns: the
//! queue between decisions and messages, and both doors. Must not know: what decides that a page comes or goes.
//!
//! ```text
//!   a decision --tell--> waiting --batch--> a message, numbered --> kept (a ring) --> subscribers, each at its own place in it
//!                             \--full--> "all is cleared"              \--> who asks for messages of before
//! ```
//! - [`telling`]: the queue, and what becomes of it; [`batch`]: what one message says; [`pack`]: its bytes
//! - [`kept`]: messages that were published, as long as there is room
//! - [`zmtp`]: ZeroMQ's wire, as far as it is needed; [`peer`]: one connection that speaks it
//! - [`subscriber`], [`replay`]: who is told as it happens, and who asks for what was; [`door`]: where they connect
//! - [`counts`]: what is counted

mod batch;
mod counts;
mod door;
mod kept;
mod pack;
mod peer;
mod replay;
mod subscriber;
mod telling;
mod zmtp;

pub(crate) use door::EventDoors;
pub(crate) use telling::Events;

//! Memory that outlives the server's process: who keeps its descriptors meanwhile. Owns: what is said to whom for that. Must not know:
//! what is in the memory.
//!
//! - [`custody`]: what is kept, whoever keeps it
//! - [`frames`]: the words of a server and its keeper
//! - [`held`]: what came with this process, and goes to the next program in it
//! - [`keeper`]: the process that keeps: `turnkv keep`
//! - [`link`]: the server's end of it
//! - [`store`]: systemd's descriptor store keeps

pub(crate) mod custody;
mod frames;
pub(crate) mod held;
pub(crate) mod keeper;
pub(crate) mod link;
pub(crate) mod store;

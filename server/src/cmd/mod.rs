//! The operator's commands. Owns: what each prints. Must not know: how the server works.
//!
//! - [`certs`]: an authority and certificates to try with
//! - [`cluster`]: who is in a running server's cluster
//! - [`config`]: the effective configuration
//! - [`connect`]: how they reach a running server
//! - [`drain`]: nothing more is taken, or that is taken back
//! - [`keep`]: page memory is held for a server that is gone
//! - [`named`]: what a person names: hashes, namespaces
//! - [`pin`]: a shared prefix goes last, and another member has it too
//! - [`record`]: a trace of what a live pool is asked
//! - [`resize`]: more or less page memory
//! - [`simulate`]: traces played against the pool with simulated time
//! - [`size`]: what more memory would buy, live or from a trace
//! - [`snapshot`]: sessions' pages kept outside the pool, and brought back
//! - [`upgrade`]: another program takes a running server's place
//! - [`status`]: a running server's tiers, hit ratios, sessions, rates

use std::io::{ErrorKind, Write};

pub(crate) mod certs;
pub(crate) mod cluster;
pub(crate) mod config;
mod connect;
pub(crate) mod drain;
pub(crate) mod keep;
mod named;
pub(crate) mod pin;
pub(crate) mod record;
pub(crate) mod resize;
pub(crate) mod simulate;
pub(crate) mod size;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod upgrade;

/// Prints what a command has to say. Somebody who stops reading, as `head` does, has read enough.
fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Prints what it has to say as JSON or as text.
fn print_as(json: bool, value: &serde_json::Value, text: &str) -> anyhow::Result<()> {
    let text = if json { format!("{value:#}\n") } else { format!("{}\n", text.trim_end()) };
    Ok(print(&text)?)
}

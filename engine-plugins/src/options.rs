//! What Python says of an offload or a reload. Owns: arguments -> the client's options. Must not know: pages, devices.

use crate::hashes;
use pyo3::prelude::*;
use std::time::Duration;
use turnkv_client::{OffloadOptions, ReloadOptions};

/// What Python said of an offload.
pub(crate) fn offload_options(
    session: Option<String>,
    parent: Option<&[u8]>,
    (shard, shards): (u16, u16),
    tail_tokens: u32,
    durable: bool,
    wait_ms: u64,
    deadline_ms: Option<u64>,
) -> PyResult<OffloadOptions> {
    Ok(OffloadOptions {
        session,
        parent: parent.map(hashes::one).transpose()?,
        shard,
        shards,
        tail_tokens,
        durable,
        deadline: deadline_ms.map(Duration::from_millis),
        wait: Duration::from_millis(wait_ms),
    })
}

/// What Python said of a reload.
pub(crate) fn reload_options(
    session: Option<String>,
    (shard, shards): (u16, u16),
    deadline_ms: Option<u64>,
) -> ReloadOptions {
    let deadline = deadline_ms.map(Duration::from_millis);
    ReloadOptions { session, shard, shards, deadline, here_only: false }
}

//! What unit tests of the engine's rooms share. Owns: asks with nothing but what a test is about. Must not know: any one test.

use super::Engine;
use super::offload::BeginOffload;
use super::reload::BeginReload;
use std::sync::Arc;
use turnkv_proto::{BlockHash, NamespaceId, Shards, Spec};

/// Opens a namespace whose pages have so many bytes and one shard.
pub(crate) fn open(engine: &Arc<Engine>, model: &str, page_bytes: u64) -> NamespaceId {
    let spec = Spec::opaque(model, 16, page_bytes).check().unwrap();
    engine.open_namespace(&spec).unwrap();
    spec.id()
}

/// Offers these pages at the root, without a wait.
pub(crate) fn offer(namespace: NamespaceId, hashes: Vec<BlockHash>) -> BeginOffload {
    BeginOffload {
        namespace,
        session: None,
        parent: None,
        hashes,
        shards: Shards::one(0),
        tail_tokens: 0,
        wait_ms: 0,
        durable: false,
    }
}

/// Wants these pages, without a wait.
pub(crate) fn want(namespace: NamespaceId, hashes: Vec<BlockHash>) -> BeginReload {
    BeginReload {
        namespace,
        session: None,
        hashes,
        shards: Shards::one(0),
        wait_ms: 0,
        hold: false,
        may_fetch: false,
    }
}

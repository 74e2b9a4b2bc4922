//! Pins. Owns: a prefix pinned or unpinned. Must not know: what a pin protects.

use super::conversation::{hashes, path};
use crate::context::Context;
use std::rc::Rc;
use turnkv_proto::wire;

/// Pins a conversation, or unpins it.
pub(super) async fn pin(context: &Rc<Context>, space: usize) {
    let path = path(context, space, false);
    let namespace: bytes::Bytes = context.model.borrow().id(space).0.to_vec().into();
    let server = context.server();
    if context.percent(40) {
        let pin = context.model.borrow().hash(space, path[path.len() - 1]).0.to_vec().into();
        match server.unpin(&wire::UnpinRequest { namespace, pin }) {
            Ok(reply) => context.note(u64::from(reply.found)),
            Err(error) => context.refused("Unpin", &error),
        }
        return;
    }
    let ttl_ms = [0, 1_000, 60_000][context.below(3) as usize];
    let ask = wire::PinRequest {
        namespace,
        hashes: hashes(context, space, &path).into(),
        ttl_ms,
        ..Default::default()
    };
    match server.pin(&ask) {
        Ok(reply) => context.note(u64::from(reply.pages)),
        Err(error) => context.refused("Pin", &error),
    }
}

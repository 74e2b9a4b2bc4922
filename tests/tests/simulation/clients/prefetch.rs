//! Prefetch. Owns: pages asked for ahead of need, by name or by session. Must not know: whether they come.

use super::conversation::{hashes, path};
use crate::context::Context;
use std::rc::Rc;
use turnkv_proto::wire;

/// Asks for pages ahead of need.
pub(super) async fn prefetch(context: &Rc<Context>, space: usize) {
    let path = path(context, space, false);
    let namespace = context.model.borrow().id(space).0.to_vec().into();
    let mut ask = wire::PrefetchRequest { namespace, ..Default::default() };
    match context.below(2) {
        0 => ask.hashes = hashes(context, space, &path).into(),
        _ => {
            ask.session = format!("s{space}-{}", path[0]);
            ask.in_ms = [0, 300, 3_000][context.below(3) as usize];
        }
    }
    match context.call("Prefetch", async { context.server().prefetch(&ask) }).await {
        Ok(reply) => context.note(u64::from(reply.started)),
        Err(error) => context.refused("Prefetch", &error),
    }
}

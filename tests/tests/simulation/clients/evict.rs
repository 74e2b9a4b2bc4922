//! Evict, by command. Owns: that command. Must not know: what goes.

use crate::context::Context;
use std::rc::Rc;
use turnkv_proto::wire;

/// Has the pages of a namespace dropped, mostly from DRAM only.
pub(super) async fn evict(context: &Rc<Context>, space: usize) {
    let namespace = context.model.borrow().id(space).0.to_vec().into();
    let tier = if context.percent(80) { wire::TierKind::Dram } else { wire::TierKind::Unspecified };
    let ask = wire::EvictRequest { namespace, tier: tier.into() };
    match context.server().evict(&ask) {
        Ok(reply) => context.note(reply.pages),
        Err(error) => context.refused("Evict", &error),
    }
}

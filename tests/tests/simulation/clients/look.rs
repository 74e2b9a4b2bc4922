//! Looking: lookup, sessions described and listed. Owns: what these may answer. Must not know: what is true.

use super::conversation::{hashes, path};
use super::open;
use crate::context::Context;
use std::rc::Rc;
use turnkv_proto::{ErrorKind, wire};

/// Asks what there is of a conversation and of its session.
pub(super) async fn look(context: &Rc<Context>, space: usize) {
    let path = path(context, space, false);
    let namespace: bytes::Bytes = context.model.borrow().id(space).0.to_vec().into();
    let server = context.server();
    let hashes = hashes(context, space, &path).into();
    let ask = wire::LookupRequest {
        namespace: namespace.clone(),
        hashes,
        session: String::new(),
        ..Default::default()
    };
    let found = match context.call("Lookup", async { server.lookup(&ask) }).await {
        Ok(found) => found,
        Err(error) if error.kind == ErrorKind::NamespaceUnknown => {
            open(context, space).await;
            return;
        }
        Err(error) => return context.refused("Lookup", &error),
    };
    context.note(u64::from(found.present) << 32 | u64::from(found.dram));
    let said = path.get(..found.present as usize);
    let model = context.model.borrow();
    if found.dram > found.present
        || said.is_none_or(|pages| pages.iter().any(|page| !model.was_offered(space, *page)))
    {
        context.broken(format!("Lookup of {space}:{path:?} answers {found:?}"));
    }
    drop(model);
    let describe =
        wire::DescribeRequest { namespace: namespace.clone(), session: format!("s{space}-{}", path[0]) };
    match server.describe_session(&describe) {
        Ok(reply) => context.note(reply.bytes),
        Err(error) => context.refused("Describe", &error),
    }
    match server.list_sessions(&wire::ListRequest { namespace, limit: 3 }) {
        Ok(reply) => context.note(reply.total),
        Err(error) => context.refused("List", &error),
    }
}

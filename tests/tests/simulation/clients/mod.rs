//! What simulated clients do, one verb a file: honestly, carelessly or not at all. Owns: which of it, how a process ends.
//! Must not know: what the server makes of it, but for what it answers.
//!
//! - `conversation`: which pages, named how
//! - `offload`, `reserve`, `reload`: pages in and out
//! - `turn`, `pin`, `prefetch`, `look`, `evict`: what is told and asked beside

mod conversation;
mod evict;
mod look;
mod offload;
mod pin;
mod prefetch;
mod reload;
mod reserve;
mod turn;

use super::context::{Client, Context};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use turnkv_proto::wire;

pub(crate) use reload::read_all;

/// One thing that a client does, from beginning to end.
pub(crate) async fn act(context: Rc<Context>, client: Rc<Client>) {
    let space = context.below(context.model.borrow().spaces.len() as u64) as usize;
    match context.below(100) {
        0..35 => offload::offload(&context, &client, space).await,
        35..62 => reload::reload(&context, &client, space).await,
        62..72 => reserve::reserve(&context, &client, space).await,
        72..84 => turn::turn(&context, space).await,
        84..88 => pin::pin(&context, space).await,
        88..92 => prefetch::prefetch(&context, space).await,
        92..97 => look::look(&context, space).await,
        _ => evict::evict(&context, space).await,
    }
}

/// Opens a namespace; it may be refused.
pub(crate) async fn open(context: &Context, space: usize) {
    let spec = wire::NamespaceSpec::from(&context.model.borrow().spaces[space].spec);
    let server = context.server();
    let opened = context.call("OpenNamespace", async { server.open_namespace(&spec) }).await;
    match opened {
        Ok(reply) if reply.namespace == context.model.borrow().id(space).0.as_slice() => {}
        Ok(_) => context.broken("a namespace has another id".to_owned()),
        Err(error) => context.refused("OpenNamespace", &error),
    }
}

/// A process ends, wherever it was.
pub(crate) fn vanish(client: &Client) {
    client.alive.store(false, Ordering::Relaxed);
}

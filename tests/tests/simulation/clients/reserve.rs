//! Reserve: slots first, names later. Owns: what a client does with slots that it writes in place. Must not know: leases'
//! insides.

use super::conversation::{hashes, parent, path, session};
use super::offload::Given;
use super::open;
use crate::content::Shard;
use crate::context::{Client, Context};
use crate::tasks::pause;
use std::rc::Rc;
use std::time::Duration;
use turnkv_proto::{ErrorKind, wire};
use wire::OffloadOutcome as Outcome;

/// Asks for slots, fills them, and says what they are, or not.
pub(super) async fn reserve(context: &Rc<Context>, client: &Client, space: usize) {
    let path = path(context, space, true);
    let shard = context.below(context.model.borrow().shards(space).into()) as u16;
    let from = if context.percent(70) { 0 } else { context.below(path.len() as u64) as usize };
    let ask = wire::ReserveRequest {
        namespace: context.model.borrow().id(space).0.to_vec().into(),
        shard: shard.into(),
        client: client.id,
        lease: 0,
        pages: (path.len() - from) as u32 + context.below(3) as u32,
    };
    let reply = match context.call("Reserve", async { context.server().reserve(&ask) }).await {
        Ok(reply) => reply,
        Err(error) if error.kind == ErrorKind::NamespaceUnknown => {
            open(context, space).await;
            return;
        }
        Err(error) => return context.refused("Reserve", &error),
    };
    if reply.slots.len() > ask.pages as usize || (reply.lease == 0) != reply.slots.is_empty() {
        return context.broken(format!("Reserve answers {reply:?}"));
    }
    let count = reply.slots.len().min(path.len() - from);
    let mut given = Vec::new();
    for (position, at) in reply.slots[..count].iter().enumerate() {
        let of = Shard { space, page: path[from + position], shard };
        let offload = context.model.borrow_mut().next_offload();
        match context.slot(space, at) {
            Ok(slot) => given.push(Given { of, position: reply.first + position as u32, offload, slot }),
            Err(error) => return context.broken(format!("a reserved slot has no memory: {error}")),
        }
    }
    for one in &given {
        one.fill();
        pause().await;
    }
    if given.is_empty() || context.percent(10) {
        return release(context, client, reply.lease);
    }
    if context.percent(30) {
        context.time.sleep(Duration::from_millis(context.below(u64::from(reply.lease_ms) * 2))).await;
    }
    commit_reserved(context, client, space, &path, from, reply.lease, &given).await;
    if context.percent(80) {
        release(context, client, reply.lease);
    }
}

async fn commit_reserved(
    context: &Rc<Context>,
    client: &Client,
    space: usize,
    path: &[u32],
    from: usize,
    lease: u64,
    given: &[Given],
) {
    let pages = &path[from..from + given.len()];
    let ask = wire::CommitReservedRequest {
        namespace: context.model.borrow().id(space).0.to_vec().into(),
        client: client.id,
        lease,
        session: session(context, space, path),
        parent: parent(context, space, path, from).into(),
        hashes: hashes(context, space, pages).into(),
        shard: given[0].of.shard.into(),
        tail_tokens: 0,
        positions: given.iter().map(|one| one.position).collect(),
        checksums: given.iter().map(|one| one.slot.page().checksum()).collect(),
        siblings: false,
        durable: context.percent(30),
    };
    given.iter().for_each(|one| context.model.borrow_mut().offer(one.of, one.offload));
    let server = context.server();
    let reply = match context.call("CommitReserved", server.commit_reserved(&ask)).await {
        Ok(reply) => reply,
        Err(error) => {
            context.refused("CommitReserved", &error);
            let mut model = context.model.borrow_mut();
            return given.iter().for_each(|one| model.withdraw(one.of, one.offload));
        }
    };
    let mut model = context.model.borrow_mut();
    if reply.outcomes.len() != given.len() {
        context.broken(format!("CommitReserved answers {reply:?} for {} pages", given.len()));
        return;
    }
    context.note(
        reply.outcomes.iter().fold(u64::from(reply.durable), |word, outcome| {
            word.wrapping_mul(31).wrapping_add(*outcome as u64)
        }),
    );
    let outcomes: Vec<Outcome> = reply.outcomes().collect();
    context.say(|| format!("CommitReserved {space}:{pages:?} -> {outcomes:?} durable {}", reply.durable));
    let mut accepted = None;
    for ((one, outcome), page) in given.iter().zip(outcomes).zip(pages) {
        match outcome {
            Outcome::Stored => {
                model.forgive(space, *page);
                model.keep(one.of);
            }
            _ => model.withdraw(one.of, one.offload),
        }
        if !matches!(outcome, Outcome::Stored | Outcome::Present) {
            break;
        }
        accepted = Some(*page);
    }
    if reply.durable
        && let Some(page) = accepted
    {
        model.make_durable(space, page);
    }
}

fn release(context: &Context, client: &Client, lease: u64) {
    if lease == 0 {
        return;
    }
    let ask = wire::ReleaseRequest { lease, client: client.id, ..Default::default() };
    if let Err(error) = context.server().release(&ask) {
        context.refused("Release", &error);
    }
}

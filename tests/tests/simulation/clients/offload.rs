//! Offload: slots are asked for, filled and committed; or not, or too late, or with a lie. Owns: what a client does between
//! the two calls. Must not know: where pages go.

use super::conversation::{hashes, parent, path, session, wait_ms};
use super::open;
use crate::content::{self, Shard};
use crate::context::{Client, Context};
use crate::tasks::pause;
use std::rc::Rc;
use std::time::Duration;
use turnkv_proto::{ErrorKind, Shards, wire};
use turnkv_transfer::Slot;
use wire::OffloadOutcome as Outcome;

/// A slot that was given, and which page it is for.
pub(super) struct Given {
    pub(super) of: Shard,
    pub(super) position: u32,
    pub(super) offload: u64,
    pub(super) slot: Slot,
}

impl Given {
    /// Writes the page.
    pub(super) fn fill(&self) {
        let page = self.slot.claim().expect("a mapping of its own");
        page.fill(&content::bytes(self.of, self.offload, self.slot.len()));
    }
}

/// What a client was given under one lease, and what for.
struct Grant<'a> {
    space: usize,
    pages: &'a [u32],
    shards: Shards,
    lease: u64,
    lease_ms: u32,
    given: Vec<Given>,
    durable: bool,
}

/// Offloads a conversation, some shards of its pages after the other.
pub(super) async fn offload(context: &Rc<Context>, client: &Client, space: usize) {
    let path = path(context, space, true);
    let from = if context.percent(60) { 0 } else { context.below(path.len() as u64) as usize };
    let all = context.model.borrow().shards(space);
    let durable = context.percent(25);
    let mut next = 0;
    while next < all {
        let shards = context.shards(next, all);
        next = shards.end();
        let ask = wire::BeginOffloadRequest {
            namespace: context.model.borrow().id(space).0.to_vec().into(),
            session: session(context, space, &path),
            parent: parent(context, space, &path, from).into(),
            hashes: hashes(context, space, &path[from..]).into(),
            shard: shards.first().into(),
            shards: shards.count() as u32,
            tail_tokens: 0,
            client: client.id,
            wait_ms: wait_ms(context),
            durable,
        };
        let server = context.server();
        let reply = match context.call("BeginOffload", server.begin_offload(&ask)).await {
            Ok(reply) => reply,
            Err(error) if error.kind == ErrorKind::NamespaceUnknown => return open(context, space).await,
            Err(error) => return context.refused("BeginOffload", &error),
        };
        let pages = &path[from..];
        if !begun(context, space, shards, pages, &reply) {
            return;
        }
        if reply.lease == 0 {
            continue;
        }
        let Some(given) = take_slots(context, space, shards, pages, &reply) else {
            return abort(context, client, reply.lease);
        };
        let (lease, lease_ms) = (reply.lease, reply.lease_ms);
        let grant = Grant { space, pages, shards, lease, lease_ms, given, durable };
        if !fill_and_commit(context, client, &grant).await {
            return;
        }
    }
}

/// Checks an answer; false: it makes no sense.
fn begun(
    context: &Context,
    space: usize,
    shards: Shards,
    pages: &[u32],
    reply: &wire::BeginOffloadReply,
) -> bool {
    context.note(
        reply
            .outcomes
            .iter()
            .fold(reply.lease, |word, outcome| word.wrapping_mul(31).wrapping_add(*outcome as u64)),
    );
    let outcomes: Vec<Outcome> = reply.outcomes().collect();
    let granted = outcomes.iter().filter(|outcome| **outcome == Outcome::Granted).count();
    context.say(|| {
        format!(
            "BeginOffload {space}:{pages:?} {shards:?} -> {outcomes:?} lease {:x} durable {}",
            reply.lease, reply.durable
        )
    });
    let taken = |outcome: &Outcome| matches!(outcome, Outcome::Present | Outcome::Granted);
    let torn = |page: &[Outcome]| page.iter().any(taken) && !page.iter().all(taken);
    if outcomes.len() != shards.positions(pages.len())
        || granted != reply.slots.len()
        || (granted > 0) != (reply.lease != 0)
        || outcomes.chunks(shards.count()).any(torn)
    {
        context.broken(format!("BeginOffload answers {reply:?} for {} pages", pages.len()));
        return false;
    }
    let mut model = context.model.borrow_mut();
    for (position, outcome) in outcomes.iter().enumerate() {
        let of = shard_at(space, pages, shards, position);
        if *outcome == Outcome::Present && !model.was_shard_offered(of) {
            context.broken(format!("{of:?} is said to be there and was never offloaded"));
        }
        if *outcome == Outcome::Granted {
            model.forgive(space, of.page); // it had made way: what was said of it before is over
        }
    }
    if reply.durable {
        model.make_durable(space, pages[pages.len() - 1]);
    }
    true
}

/// What a position of a call is.
pub(super) fn shard_at(space: usize, pages: &[u32], shards: Shards, position: usize) -> Shard {
    Shard { space, page: pages[shards.page(position)], shard: shards.shard(position) }
}

fn take_slots(
    context: &Context,
    space: usize,
    shards: Shards,
    pages: &[u32],
    reply: &wire::BeginOffloadReply,
) -> Option<Vec<Given>> {
    let granted = reply.outcomes().enumerate().filter(|(_, outcome)| *outcome == Outcome::Granted);
    let mut given = Vec::new();
    for ((position, _), at) in granted.zip(&reply.slots) {
        match context.slot(space, at) {
            Ok(slot) => {
                let of = shard_at(space, pages, shards, position);
                let offload = context.model.borrow_mut().next_offload();
                given.push(Given { of, position: position as u32, offload, slot });
            }
            Err(error) => {
                context.broken(format!("a slot that was granted has no memory: {error}"));
                return None;
            }
        }
    }
    Some(given)
}

fn abort(context: &Context, client: &Client, lease: u64) {
    if let Err(error) =
        context.server().abort_offload(&wire::AbortOffloadRequest { lease, client: client.id })
    {
        context.refused("AbortOffload", &error);
    }
}

/// Writes pages to their slots and commits them, or does what a client should not; true: the client goes on.
async fn fill_and_commit(context: &Rc<Context>, client: &Client, grant: &Grant<'_>) -> bool {
    let conduct = context.below(100);
    for one in &grant.given {
        one.fill();
        if context.percent(20) {
            pause().await;
        }
    }
    match conduct {
        0..4 => {
            pause().await;
            abort(context, client, grant.lease);
            return false;
        }
        4..7 => {
            write_on(context, grant).await;
            return false;
        }
        7..10 => {
            let late = u64::from(grant.lease_ms) + context.below(400);
            context.time.sleep(Duration::from_millis(late)).await;
        }
        10..12 => return false, // forgets its lease
        _ => {}
    }
    commit(context, client, grant, conduct).await
}

/// Late: the lease is over, and the client goes on writing as long as it lives.
async fn write_on(context: &Context, grant: &Grant<'_>) {
    let rest = Duration::from_millis(u64::from(grant.lease_ms) + context.below(4_000));
    context.time.sleep(rest).await;
    for _ in 0..context.below(4) {
        for one in &grant.given {
            let page = one.slot.claim().expect("a mapping of its own");
            page.fill(&vec![0xEE; one.slot.len()]);
        }
        context.time.sleep(Duration::from_millis(context.below(1_500))).await;
    }
}

/// Commits what was filled, or some of it, or with checksums that lie.
async fn commit(context: &Rc<Context>, client: &Client, grant: &Grant<'_>, conduct: u64) -> bool {
    let Grant { lease, durable, .. } = *grant;
    let lies = (12..16).contains(&conduct);
    let some = (16..24).contains(&conduct);
    let mut sent = Vec::new();
    let mut ask = wire::CommitOffloadRequest { lease, client: client.id, durable, ..Default::default() };
    for one in &grant.given {
        if some && context.percent(30) {
            continue;
        }
        let mut checksum = one.slot.page().checksum();
        if lies && context.percent(50) {
            checksum ^= 1;
            context.model.borrow_mut().taint(one.of);
        }
        context.model.borrow_mut().offer(one.of, one.offload);
        ask.pages.push(one.position);
        ask.checksums.push(checksum);
        sent.push(one);
    }
    let server = context.server();
    match context.call("CommitOffload", server.commit_offload(&ask)).await {
        Err(error) => {
            context.refused("CommitOffload", &error);
            let mut model = context.model.borrow_mut();
            sent.iter().for_each(|one| model.withdraw(one.of, one.offload));
            false
        }
        Ok(reply) => {
            committed(context, grant, &sent, &reply);
            true
        }
    }
}

fn committed(context: &Context, grant: &Grant<'_>, sent: &[&Given], reply: &wire::CommitOffloadReply) {
    context.note(reply.dropped.len() as u64 * 2 + u64::from(reply.durable));
    let mut model = context.model.borrow_mut();
    let mut last = None;
    for one in sent {
        if reply.dropped.contains(&one.position) {
            model.withdraw(one.of, one.offload);
        } else {
            model.keep(one.of);
            last = last.max(Some(one.position));
        }
    }
    context.say(|| {
        format!(
            "CommitOffload lease {:x} last {last:?} dropped {:?} durable {}",
            grant.lease, reply.dropped, reply.durable
        )
    });
    if reply.durable
        && let Some(last) = last
    {
        model.make_durable(grant.space, grant.pages[grant.shards.page(last as usize)]);
    }
}

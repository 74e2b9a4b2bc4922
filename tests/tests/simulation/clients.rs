//! What simulated clients do: offload, reload, hold, reserve, turns, pins; honestly, carelessly or not at all.
//! Must not know: what the server makes of it, but for what it answers.

use super::content::{self, Shard};
use super::context::{Client, Context};
use super::tasks::pause;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use turnkv_proto::{ErrorKind, pack_hashes, wire};
use turnkv_transfer::Slot;
use wire::OffloadOutcome as Outcome;

/// Longest conversation, in pages.
const PATH_MAX: usize = 12;
/// Conversations of a namespace.
const TIPS_MAX: u64 = 10;

/// One thing that a client does, from beginning to end.
pub(crate) async fn act(context: Rc<Context>, client: Rc<Client>) {
    let space = context.below(context.model.borrow().spaces.len() as u64) as usize;
    match context.below(100) {
        0..35 => offload(&context, &client, space).await,
        35..62 => reload(&context, &client, space).await,
        62..72 => reserve(&context, &client, space).await,
        72..84 => turn(&context, space).await,
        84..88 => pin(&context, space).await,
        88..92 => prefetch(&context, space).await,
        92..97 => look(&context, space).await,
        _ => evict(&context, space).await,
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

/// The pages of a conversation, the root first; often a new page or two, sometimes a branch.
fn path(context: &Context, space: usize, grow: bool) -> Vec<u32> {
    let (mut tips, mut model) = (context.tips.borrow_mut(), context.model.borrow_mut());
    let tips = &mut tips[space];
    if tips.is_empty() || (tips.len() as u64) < TIPS_MAX && grow && context.percent(15) {
        let root = model.grow(space, None);
        tips.push(root);
    }
    let at = context.below(tips.len() as u64) as usize;
    if grow {
        let from = model.path(space, tips[at]);
        let branch = context.percent(10);
        let parent = if branch { from[context.below(from.len() as u64) as usize] } else { tips[at] };
        if model.path(space, parent).len() < PATH_MAX && context.percent(60) {
            let mut tip = parent;
            for _ in 0..1 + context.below(3) {
                tip = model.grow(space, Some(tip));
            }
            match branch && (tips.len() as u64) < TIPS_MAX {
                true => tips.push(tip),
                false => tips[at] = tip,
            }
            return model.path(space, tip);
        }
    }
    model.path(space, tips[at])
}

fn hashes(context: &Context, space: usize, pages: &[u32]) -> Vec<u8> {
    let model = context.model.borrow();
    pack_hashes(&pages.iter().map(|page| model.hash(space, *page)).collect::<Vec<_>>())
}

fn parent(context: &Context, space: usize, path: &[u32], from: usize) -> Vec<u8> {
    let model = context.model.borrow();
    from.checked_sub(1).map_or(Vec::new(), |at| model.hash(space, path[at]).0.to_vec())
}

fn session(context: &Context, space: usize, path: &[u32]) -> String {
    if context.percent(30) { String::new() } else { format!("s{space}-{}", path[0]) }
}

fn wait_ms(context: &Context) -> u32 {
    [0, 0, 20, 200, 2_000][context.below(5) as usize]
}

/// Slots that were given, and which pages they are for.
struct Given {
    of: Shard,
    position: u32,
    offload: u64,
    slot: Slot,
}

async fn offload(context: &Rc<Context>, client: &Client, space: usize) {
    let path = path(context, space, true);
    let from = if context.percent(60) { 0 } else { context.below(path.len() as u64) as usize };
    let shards = context.model.borrow().shards(space);
    let durable = context.percent(25);
    for shard in 0..shards {
        let ask = wire::BeginOffloadRequest {
            namespace: context.model.borrow().id(space).0.to_vec().into(),
            session: session(context, space, &path),
            parent: parent(context, space, &path, from).into(),
            hashes: hashes(context, space, &path[from..]).into(),
            shard: shard.into(),
            tail_tokens: 0,
            client: client.id,
            wait_ms: wait_ms(context),
            durable,
        };
        let server = context.server();
        let reply = match context.call("BeginOffload", server.begin_offload(&ask)).await {
            Ok(reply) => reply,
            Err(error) if error.kind == ErrorKind::NamespaceUnknown => {
                open(context, space).await;
                return;
            }
            Err(error) => return context.refused("BeginOffload", &error),
        };
        if !begun(context, space, shard, &path[from..], &reply) {
            return;
        }
        if reply.lease == 0 {
            continue;
        }
        let Some(given) = take_slots(context, space, shard, &path[from..], &reply) else {
            abort(context, client, reply.lease);
            return;
        };
        if !fill_and_commit(
            context,
            client,
            &path[from..],
            space,
            reply.lease,
            reply.lease_ms,
            given,
            durable,
        )
        .await
        {
            return;
        }
    }
}

/// Checks an answer; false: it makes no sense.
fn begun(
    context: &Context,
    space: usize,
    shard: u16,
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
            "BeginOffload {space}:{pages:?} -> {outcomes:?} lease {:x} durable {}",
            reply.lease, reply.durable
        )
    });
    if outcomes.len() != pages.len() || granted != reply.slots.len() || (granted > 0) != (reply.lease != 0) {
        context.broken(format!("BeginOffload answers {reply:?} for {} pages", pages.len()));
        return false;
    }
    let mut model = context.model.borrow_mut();
    for (page, outcome) in pages.iter().zip(&outcomes) {
        if *outcome == Outcome::Present && !model.was_shard_offered(Shard { space, page: *page, shard }) {
            context.broken(format!("page {space}:{page} is said to be there and was never offloaded"));
        }
        if *outcome == Outcome::Granted {
            model.forgive(space, *page); // it had made way: what was said of it before is over
        }
    }
    if reply.durable {
        model.make_durable(space, pages[pages.len() - 1]);
    }
    true
}

fn take_slots(
    context: &Context,
    space: usize,
    shard: u16,
    pages: &[u32],
    reply: &wire::BeginOffloadReply,
) -> Option<Vec<Given>> {
    let granted = reply.outcomes().enumerate().filter(|(_, outcome)| *outcome == Outcome::Granted);
    let mut given = Vec::new();
    for ((position, _), at) in granted.zip(&reply.slots) {
        match context.slot(space, at) {
            Ok(slot) => {
                let of = Shard { space, page: pages[position], shard };
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
#[allow(
    clippy::too_many_arguments,
    clippy::too_many_lines,
    reason = "an offload from its slots to its answer"
)]
async fn fill_and_commit(
    context: &Rc<Context>,
    client: &Client,
    pages: &[u32],
    space: usize,
    lease: u64,
    lease_ms: u32,
    given: Vec<Given>,
    durable: bool,
) -> bool {
    let conduct = context.below(100);
    for one in &given {
        one.slot.fill(&content::bytes(one.of, one.offload, one.slot.len()));
        if context.percent(20) {
            pause().await;
        }
    }
    match conduct {
        0..4 => {
            pause().await;
            abort(context, client, lease);
            return false;
        }
        4..7 => {
            // Late: the lease is over, and the client goes on writing as long as it lives.
            let rest = Duration::from_millis(u64::from(lease_ms) + context.below(4_000));
            context.time.sleep(rest).await;
            for _ in 0..context.below(4) {
                for one in &given {
                    one.slot.fill(&vec![0xEE; one.slot.len()]);
                }
                context.time.sleep(Duration::from_millis(context.below(1_500))).await;
            }
            return false;
        }
        7..10 => context.time.sleep(Duration::from_millis(u64::from(lease_ms) + context.below(400))).await,
        10..12 => {
            // Forgets its lease.
            return false;
        }
        _ => {}
    }
    let lies = (12..16).contains(&conduct);
    let some = (16..24).contains(&conduct);
    let mut sent = Vec::new();
    let mut ask = wire::CommitOffloadRequest { lease, client: client.id, durable, ..Default::default() };
    for one in &given {
        if some && context.percent(30) {
            continue;
        }
        let mut checksum = turnkv_transfer::checksum(one.slot.bytes());
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
    let reply = context.call("CommitOffload", server.commit_offload(&ask)).await;
    match reply {
        Err(error) => {
            context.refused("CommitOffload", &error);
            let mut model = context.model.borrow_mut();
            sent.iter().for_each(|one| model.withdraw(one.of, one.offload));
            false
        }
        Ok(reply) => {
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
                    "CommitOffload lease {lease:x} last {last:?} dropped {:?} durable {}",
                    reply.dropped, reply.durable
                )
            });
            if reply.durable
                && let Some(last) = last
            {
                model.make_durable(space, pages[last as usize]);
            }
            true
        }
    }
}

async fn reload(context: &Rc<Context>, client: &Client, space: usize) {
    let path = path(context, space, false);
    let shard = context.below(context.model.borrow().shards(space).into()) as u16;
    read_path(context, client, space, &path, shard, wait_ms(context), context.percent(25)).await;
}

async fn read_path(
    context: &Rc<Context>,
    client: &Client,
    space: usize,
    path: &[u32],
    shard: u16,
    wait_ms: u32,
    hold: bool,
) {
    let ask = wire::BeginReloadRequest {
        namespace: context.model.borrow().id(space).0.to_vec().into(),
        hashes: hashes(context, space, path).into(),
        shard: shard.into(),
        client: client.id,
        wait_ms,
        session: session(context, space, path),
        hold,
    };
    let server = context.server();
    let mut run = match context.call("BeginReload", server.begin_reload(&ask)).await {
        Ok(run) => run,
        Err(error) if error.kind == ErrorKind::NamespaceUnknown => {
            open(context, space).await;
            return;
        }
        Err(error) => return context.refused("BeginReload", &error),
    };
    let lease = run.lease();
    let ends = context.time.now() + run.lease_time();
    let mut pages = Vec::new();
    while let Some(ready) = context.call("Reload", run.next()).await {
        for page in ready {
            context.note(u64::from(page.index) << 8 | page.miss as u64);
            context.say(|| format!("Reload {space}:{} -> {page:?}", path[page.index as usize]));
            let Some(at) = page.slot.filter(|_| page.miss == 0) else { continue };
            let of = Shard { space, page: path[page.index as usize], shard };
            match context.slot(space, &at) {
                Ok(slot) => pages.push((of, page.index, slot, page.checksum)),
                Err(error) if context.time.now() < ends => {
                    context.broken(format!("a leased slot has no memory: {error}"))
                }
                Err(_) => {}
            }
        }
        if context.percent(30) {
            pause().await;
        }
    }
    let mut corrupt = check_pages(context, &pages, ends);
    if lease == 0 {
        return;
    }
    if hold && !pages.is_empty() {
        let held;
        (corrupt, held) = keep_mapped(context, client, lease, &pages, corrupt).await;
        if held {
            let ask = wire::ReleaseRequest { lease, client: client.id, corrupt, ..Default::default() };
            if let Err(error) = context.server().release(&ask) {
                context.refused("Release", &error);
            }
            return;
        }
    } else if context.percent(10) {
        return; // forgets it
    }
    let end = wire::EndReloadRequest { lease, client: client.id, corrupt };
    if let Err(error) = context.server().end_reload(&end) {
        context.refused("EndReload", &error);
    }
}

/// Positions of pages that do not verify; what is read after the lease's time is not looked at.
fn check_pages(context: &Context, pages: &[(Shard, u32, Slot, u64)], ends: Duration) -> Vec<u32> {
    if context.time.now() >= ends {
        return Vec::new();
    }
    let bad = pages.iter().filter(|(of, _, slot, checksum)| !context.verify(*of, slot, *checksum));
    bad.map(|(_, index, _, _)| *index).collect()
}

/// Maps what it reads for a while and reads it again and again.
async fn keep_mapped(
    context: &Rc<Context>,
    client: &Client,
    lease: u64,
    pages: &[(Shard, u32, Slot, u64)],
    mut corrupt: Vec<u32>,
) -> (Vec<u32>, bool) {
    let ask = wire::RenewRequest { client: client.id, leases: vec![lease] };
    for _ in 0..1 + context.below(6) {
        let reply = match context.server().renew(&ask) {
            Ok(reply) => reply,
            Err(error) => {
                context.refused("Renew", &error);
                return (corrupt, false);
            }
        };
        if !reply.gone.is_empty() || !reply.refused.is_empty() {
            return (corrupt, false);
        }
        let ends = context.time.now() + Duration::from_millis(reply.lease_ms.into());
        context.time.sleep(Duration::from_millis(context.below(reply.lease_ms.into()))).await;
        corrupt.extend(check_pages(context, pages, ends));
        corrupt.sort_unstable();
        corrupt.dedup();
    }
    (corrupt, true)
}

async fn reserve(context: &Rc<Context>, client: &Client, space: usize) {
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
        one.slot.fill(&content::bytes(one.of, one.offload, one.slot.len()));
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
        checksums: given.iter().map(|one| turnkv_transfer::checksum(one.slot.bytes())).collect(),
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

async fn turn(context: &Rc<Context>, space: usize) {
    let path = path(context, space, false);
    let namespace: bytes::Bytes = context.model.borrow().id(space).0.to_vec().into();
    let name = format!("s{space}-{}", path[0]);
    let server = context.server();
    let engine = if context.percent(30) { "engine".to_owned() } else { String::new() };
    let begin = wire::BeginTurnRequest { namespace: namespace.clone(), session: name.clone(), engine };
    let begun = match context.call("BeginTurn", async { server.begin_turn(&begin) }).await {
        Ok(begun) => begun,
        Err(error) if error.kind == ErrorKind::NamespaceUnknown => {
            open(context, space).await;
            return;
        }
        Err(error) => return context.refused("BeginTurn", &error),
    };
    context.note(u64::from(begun.pages));
    if begun.dram > begun.pages {
        context.broken(format!("BeginTurn answers {begun:?}"));
    }
    pause().await;
    let end = wire::EndTurnRequest {
        namespace: namespace.clone(),
        session: name.clone(),
        keep: 0,
        hashes: hashes(context, space, &path).into(),
        tail_tokens: 0,
        expected_return_ms: [0, 500, 5_000][context.below(3) as usize],
        ttl_ms: [0, 2_000][context.below(2) as usize],
        priority: context.below(2) as u32,
        r#final: context.percent(5),
    };
    if let Err(error) = server.end_turn(&end) {
        context.refused("EndTurn", &error);
    }
    let other = format!("{name}-{}", context.below(3));
    match context.below(10) {
        0..3 => {
            let pages = context.below(path.len() as u64 + 1) as u32;
            let fork = wire::ForkRequest { namespace, session: name, fork: other, pages };
            let forked = server.fork(&fork);
            if let Err(error) = forked {
                context.refused("Fork", &error);
            }
        }
        3 => {
            let keep = context.below(path.len() as u64) as u32;
            let superseded = server.supersede(&wire::SupersedeRequest { namespace, session: name, keep });
            if let Err(error) = superseded {
                context.refused("Supersede", &error);
            }
        }
        4 => {
            if let Err(error) = server.close(&wire::CloseRequest { namespace, session: other }) {
                context.refused("Close", &error);
            }
        }
        _ => {}
    }
}

async fn pin(context: &Rc<Context>, space: usize) {
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

async fn prefetch(context: &Rc<Context>, space: usize) {
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

async fn look(context: &Rc<Context>, space: usize) {
    let path = path(context, space, false);
    let namespace: bytes::Bytes = context.model.borrow().id(space).0.to_vec().into();
    let server = context.server();
    let hashes = hashes(context, space, &path).into();
    let ask = wire::LookupRequest { namespace: namespace.clone(), hashes, session: String::new() };
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

async fn evict(context: &Rc<Context>, space: usize) {
    let namespace = context.model.borrow().id(space).0.to_vec().into();
    let tier = if context.percent(80) { wire::TierKind::Dram } else { wire::TierKind::Unspecified };
    let ask = wire::EvictRequest { namespace, tier: tier.into() };
    match context.server().evict(&ask) {
        Ok(reply) => context.note(reply.pages),
        Err(error) => context.refused("Evict", &error),
    }
}

/// A process ends, wherever it was.
pub(crate) fn vanish(client: &Client) {
    client.alive.store(false, Ordering::Relaxed);
}

/// Reads every one of these pages, at the end of its path.
pub(crate) async fn read_all(context: Rc<Context>, client: Rc<Client>, pages: Vec<(usize, u32)>) {
    for (space, page) in pages {
        let path = context.model.borrow().path(space, page);
        let shards = context.model.borrow().shards(space);
        for shard in 0..shards {
            read_path(&context, &client, space, &path, shard, 2_000, false).await;
        }
    }
}

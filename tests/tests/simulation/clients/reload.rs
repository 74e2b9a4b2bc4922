//! Reload: pages are read, looked at, sometimes held. Owns: what a reader checks. Must not know: where the pages were.

use super::conversation::{hashes, path, session, wait_ms};
use super::offload::shard_at;
use super::open;
use crate::content::Shard;
use crate::context::{Client, Context};
use crate::tasks::pause;
use std::rc::Rc;
use std::time::Duration;
use turnkv_proto::{ErrorKind, Shards, wire};
use turnkv_transfer::Slot;

/// Reads a conversation.
pub(super) async fn reload(context: &Rc<Context>, client: &Client, space: usize) {
    let path = path(context, space, false);
    let all = context.model.borrow().shards(space);
    let shards = context.shards(context.below(all.into()) as u16, all);
    read_path(context, client, space, &path, shards, wait_ms(context), context.percent(25)).await;
}

/// Reads a path, looks at what came, and may keep it mapped for a while.
async fn read_path(
    context: &Rc<Context>,
    client: &Client,
    space: usize,
    path: &[u32],
    shards: Shards,
    wait_ms: u32,
    hold: bool,
) {
    let ask = wire::BeginReloadRequest {
        namespace: context.model.borrow().id(space).0.to_vec().into(),
        hashes: hashes(context, space, path).into(),
        shard: shards.first().into(),
        shards: shards.count() as u32,
        client: client.id,
        wait_ms,
        session: session(context, space, path),
        hold,
        here_only: false,
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
            let of = shard_at(space, path, shards, page.index as usize);
            context.say(|| format!("Reload {of:?} -> {page:?}"));
            let Some(at) = page.slot.filter(|_| page.miss == 0) else { continue };
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

/// Reads every one of these pages, at the end of its path.
pub(crate) async fn read_all(context: Rc<Context>, client: Rc<Client>, pages: Vec<(usize, u32)>) {
    for (space, page) in pages {
        let path = context.model.borrow().path(space, page);
        let all = context.model.borrow().shards(space);
        let mut next = 0;
        while next < all {
            let shards = context.shards(next, all);
            next = shards.end();
            read_path(&context, &client, space, &path, shards, 2_000, false).await;
        }
    }
}

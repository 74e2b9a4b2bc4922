//! Offloads that find no slot and wait for one: what they are told is what is so when their wait is over, whatever others did
//! meanwhile.

use super::world::*;
use crate::engine::durable::NotDurable;
use crate::engine::offload::{BeginOffload, OffloadBegun, Outcomes};
use crate::engine::testing::offer;
use crate::simulation::Fault;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use turnkv_pool::{ClientId, LeaseId, Outcome};
use turnkv_proto::Error;

/// Who waits, beside the client that has all slots.
const OTHER: ClientId = ClientId(8);
const WAIT_MS: u32 = 700;

/// A server all of whose slots are leased to its client, and another client that knows of it.
struct Full {
    world: World,
    lease: LeaseId,
    alive: Arc<AtomicBool>,
}

impl Full {
    fn new() -> Full {
        let (world, alive) = (World::new(1), Arc::new(AtomicBool::new(true)));
        world.server.join(OTHER.0, Arc::clone(&alive));
        let all = offer(world.namespace, chain(9, SLOTS));
        let begun = world.run(world.server.engine.begin_offload(CLIENT, &all)).unwrap();
        assert_eq!(begun.slots.len(), SLOTS as usize, "all slots are its");
        let lease = begun.lease.unwrap();
        Full { world, lease, alive }
    }

    /// The slots are free again.
    fn free(&self) {
        self.world.server.engine.abort_offload(CLIENT, self.lease).unwrap();
    }

    fn wish(&self, durable: bool) -> BeginOffload {
        BeginOffload { wait_ms: WAIT_MS, durable, ..offer(self.world.namespace, hashes()) }
    }

    /// The other client waits with an offer of the usual pages; what happens meanwhile, and then what it is told.
    fn waiting(&self, durable: bool, meanwhile: impl FnOnce()) -> Result<OffloadBegun, Error> {
        let wish = self.wish(durable);
        let mut call = pin!(self.world.server.engine.begin_offload(OTHER, &wish));
        assert!(poll(call.as_mut()).is_pending(), "it waits for a slot");
        meanwhile();
        self.world.run(call)
    }
}

fn each(begun: &OffloadBegun) -> &[Outcome] {
    match &begun.outcomes {
        Outcomes::Each(each) => each,
        Outcomes::AllPresent(_) | Outcomes::AllDraining(_) => &[],
    }
}

#[test]
fn who_waits_durably_while_another_stores_the_pages_hears_that_they_are_durable() {
    let full = Full::new();
    let begun = full.waiting(true, || {
        full.free();
        full.world.commit_now(full.world.filled(&hashes()));
        assert!(full.world.dirty_bytes() > 0, "they are in DRAM alone");
    });
    let begun = begun.unwrap();
    assert!(matches!(begun.outcomes, Outcomes::AllPresent(pages) if pages == PAGES as usize));
    assert_eq!((begun.durable, full.world.dirty_bytes()), (Some(Ok(())), 0));
    full.world.is_quiet();
}

#[test]
fn who_waits_durably_hears_why_what_another_stored_is_not_durable() {
    let full = Full::new();
    let begun = full.waiting(true, || {
        full.world.fail(Fault::WriteError);
        full.free();
        full.world.commit_now(full.world.filled(&hashes()));
    });
    assert_eq!(begun.unwrap().durable, Some(Err(NotDurable::Device)));
    full.world.pass(TICK);
    full.world.is_quiet();
}

#[test]
fn who_waits_gets_the_slots_that_became_free_and_nothing_is_said_of_what_is_not_stored_yet() {
    for durable in [false, true] {
        let full = Full::new();
        let begun = full.waiting(durable, || full.free()).unwrap();
        assert!(each(&begun).iter().all(|outcome| matches!(outcome, Outcome::Granted(_))));
        assert_eq!((begun.slots.len(), begun.durable), (PAGES as usize, None));
        full.world.server.engine.abort_offload(OTHER, begun.lease.unwrap()).unwrap();
        full.world.is_quiet();
    }
}

#[test]
fn a_wait_ends_with_its_time_with_a_drain_and_with_its_caller() {
    let full = Full::new();
    let began = full.world.server.engine.moment_after(std::time::Duration::ZERO);
    let begun = full.waiting(true, || ()).unwrap();
    let waited = full.world.server.engine.moment_after(std::time::Duration::ZERO) - began;
    assert!(each(&begun).iter().all(|outcome| *outcome == Outcome::NoSpace) && begun.retry_after_ms > 0);
    assert_eq!((begun.lease, begun.durable), (None, None));
    assert!(waited >= u64::from(WAIT_MS), "after {waited} ms");

    let full = Full::new();
    let begun = full.waiting(true, || {
        full.world.server.engine.drain();
        full.free();
    });
    assert!(matches!(begun.unwrap().outcomes, Outcomes::AllDraining(pages) if pages == PAGES as usize));

    let full = Full::new();
    let told = full.waiting(false, || {
        full.alive.store(false, Ordering::Relaxed);
        full.world.pass(TICK);
        full.free();
    });
    assert!(told.is_err(), "nothing is leased to a process that is gone");
    full.world.is_quiet();
    assert_eq!(full.world.server.engine.stats().pool.leases, 0);
}

#[test]
fn who_does_not_wait_is_told_at_once_and_a_call_that_cannot_wait_says_that_it_would() {
    let full = Full::new();
    let engine = &full.world.server.engine;
    let at_once = BeginOffload { wait_ms: 0, ..full.wish(false) };
    let begun = engine.begin_offload_now(OTHER, &at_once).unwrap().expect("it would not wait");
    assert!(each(&begun).iter().all(|outcome| *outcome == Outcome::NoSpace));
    assert!(engine.begin_offload_now(OTHER, &full.wish(false)).unwrap().is_none());
    full.free();
    assert_eq!(full.world.offload(&hashes()), Ok(()));
    assert!(engine.begin_offload_now(OTHER, &full.wish(true)).unwrap().is_none(), "it asks what is durable");
    let begun = engine.begin_offload_now(OTHER, &full.wish(false)).unwrap().expect("all is here");
    assert!(each(&begun).iter().all(|outcome| *outcome == Outcome::Present));
}

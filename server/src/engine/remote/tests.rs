//! Calls over rails that a test plays: what fails is repeated, what is damaged is not kept, and nothing is given back while a
//! transfer may touch it.

mod carried;
mod faults;

use super::offload::{RemoteOffload, RemotePage};
use super::reload::{ReloadAudience, RemoteReload, ToldPage};
use crate::access::{Caller, Grants};
use crate::config;
use crate::engine::Engine;
use crate::engine::clients::{InlineCaller, RemoteOwner};
use crate::engine::offload::OffloadCommitted;
use crate::engine::remotes::clients::RemoteClient;
use crate::engine::remotes::lent::{Domain, LentRegion, LentSpan};
use crate::engine::remotes::open_rail::{OfferedRail, Taken};
use crate::engine::testing::{offer, open, want};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use turnkv_proto::{BlockHash, Error, NamespaceId};
use turnkv_transfer::fabric::{
    Cause, CompletionQueue, Direction, Engine as Fabric, Initiator, Operation, Outcome, Posted, RailAddress,
    RegionKey, Unposted, WhyUnposted,
};
use turnkv_transfer::{Slot, checksum};

const PAGE: usize = 64 << 10;
const SOON: Duration = Duration::from_secs(20);
const REGION: RegionKey = RegionKey { key: 7, base: 0, bytes: 1 << 20 };
/// Domains with which a client's memory is registered, and one with which it is not.
const FRAMED: Domain = Domain(0);
const NIC: Domain = Domain(1);
const OTHER_NIC: Domain = Domain(2);
const FOREIGN: Domain = Domain(9);

/// A rail whose transfers end as the test says.
#[derive(Debug)]
struct PlayedRail {
    completions: Arc<CompletionQueue>,
    posted: Mutex<Vec<Posted>>,
    came: Condvar,
    dead: AtomicBool,
}

impl Initiator for PlayedRail {
    fn post(&self, operation: Operation) -> Result<(), Unposted> {
        let mut posted = self.posted.lock();
        if self.dead.load(Ordering::Relaxed) {
            return Err(Unposted { operation, why: WhyUnposted::Dead });
        }
        posted.push(self.completions.admit(operation)?);
        self.came.notify_all();
        Ok(())
    }

    fn queued_bytes(&self) -> u64 {
        self.posted.lock().iter().map(|posted| u64::from(posted.operation().bytes())).sum()
    }

    fn close(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    fn death(&self) -> Option<Cause> {
        self.dead.load(Ordering::Relaxed).then_some(Cause::PeerGone)
    }
}

impl PlayedRail {
    /// The next transfer that is posted.
    fn next(&self) -> Posted {
        let deadline = Instant::now() + SOON;
        let mut posted = self.posted.lock();
        while posted.is_empty() {
            assert!(!self.came.wait_until(&mut posted, deadline).timed_out(), "nothing is posted");
        }
        posted.remove(0)
    }

    /// Reads what a client has for every page: this byte.
    fn read(&self, byte: u8) {
        let posted = self.next();
        assert_eq!(posted.operation().direction(), Direction::Read);
        write(posted.operation().local(), byte);
        posted.complete(Outcome::Done);
    }

    /// Ends with the next transfer that is posted, and with what is posted behind it.
    fn end(&self, cause: Cause) {
        let first = self.next();
        let behind = {
            // Under the lock nobody finds the rail alive and posts behind what is taken here.
            let mut posted = self.posted.lock();
            self.close();
            std::mem::take(&mut *posted)
        };
        for posted in std::iter::once(first).chain(behind) {
            posted.complete(Outcome::Failed(cause.clone()));
        }
    }

    /// Does what is posted, and looks at each, until the call is over.
    fn serve<T>(&self, call: &JoinHandle<T>, look: impl Fn(&Operation)) {
        let deadline = Instant::now() + SOON;
        while !call.is_finished() {
            assert!(Instant::now() < deadline, "a call waits although nothing of it is posted here");
            let posted = self.posted.lock().pop();
            if let Some(posted) = posted {
                look(posted.operation());
                write(posted.operation().local(), 9);
                posted.complete(Outcome::Done);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Writes as an engine does, which asks nobody: the call has the right to.
fn write(slot: &Slot, byte: u8) {
    let lent = std::sync::Arc::clone(slot.region());
    let file = std::fs::File::from(lent.fd().try_clone_to_owned().unwrap());
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![byte; slot.len()], slot.offset() as u64).unwrap();
}

struct Rig {
    _dir: TempDir,
    engine: Arc<Engine>,
    namespace: NamespaceId,
    client: Arc<RemoteClient>,
}

/// Nobody in particular, at a host.
fn owner(host: u8) -> RemoteOwner {
    RemoteOwner { from: InlineCaller::Host([10, 0, 0, host].into()), caller: Caller::nobody() }
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("turnkv.toml");
        let limits = "[limits]\nlease_ms = 200\nlease_grace_ms = 100\n";
        std::fs::write(&file, format!("[dram]\nbytes = \"16MiB\"\nlock = false\n{limits}")).unwrap();
        let engine = Engine::start(config::load(Some(&file)).unwrap(), |_| None, None).unwrap();
        let namespace = open(&engine, "m", PAGE as u64);
        let weak = Arc::downgrade(&engine);
        let looked_after = move || {
            while let Some(engine) = weak.upgrade() {
                engine.remote.land(Duration::from_millis(5));
                engine.tick();
            }
        };
        std::thread::Builder::new().name("lands".to_owned()).spawn(looked_after).unwrap();
        let client = engine.hello_remote(&owner(1), 0).unwrap();
        Rig { _dir: dir, engine, namespace, client }
    }

    fn rail(&self) -> Arc<PlayedRail> {
        self.rail_over(Fabric::Framed, FRAMED)
    }

    /// A rail that is not the client's.
    fn unused_rail(&self) -> Arc<PlayedRail> {
        Arc::new(PlayedRail {
            completions: Arc::clone(self.engine.remote.completions()),
            posted: Mutex::default(),
            came: Condvar::new(),
            dead: AtomicBool::new(false),
        })
    }

    fn rail_over(&self, fabric: Fabric, domain: Domain) -> Arc<PlayedRail> {
        let rail = self.unused_rail();
        let initiator: Arc<dyn Initiator> = Arc::clone(&rail) as Arc<dyn Initiator>;
        self.engine.remote.add_played(&self.client, &initiator, fabric, domain);
        rail
    }

    /// Offers pages of this byte; the call runs on a thread of its own.
    fn offload(
        &self,
        pages: u8,
        byte: u8,
        gone: &Arc<AtomicBool>,
    ) -> JoinHandle<Result<Option<OffloadCommitted>, Error>> {
        self.offload_pages(targets(pages, byte), gone)
    }

    /// The same, of pages as they are.
    fn offload_pages(
        &self,
        pages: Vec<RemotePage>,
        gone: &Arc<AtomicBool>,
    ) -> JoinHandle<Result<Option<OffloadCommitted>, Error>> {
        let hashes: Vec<BlockHash> = (1..=pages.len() as u8).map(|at| BlockHash([at; 32])).collect();
        let (engine, client, gone) = (Arc::clone(&self.engine), Arc::clone(&self.client), Arc::clone(gone));
        let ask = RemoteOffload { begin: offer(self.namespace, hashes), pages };
        let call = move || {
            let mut begun = engine.begin_offload_now(client.id, &ask.begin).unwrap().unwrap();
            let gone = || gone.load(Ordering::Relaxed);
            block_on(engine.fill_remote(&client, &ask, &mut begun, &gone))
        };
        std::thread::Builder::new().name("call".to_owned()).spawn(call).unwrap()
    }

    fn leases(&self) -> u32 {
        self.engine.decide().pool.stats().leases as u32
    }
}

fn targets(pages: u8, byte: u8) -> Vec<RemotePage> {
    let keys = [FRAMED, NIC, OTHER_NIC].map(|domain| (domain, REGION)).to_vec();
    let region = Arc::new(LentRegion { keys });
    let page = |at: u8| RemotePage {
        position: u32::from(at),
        checksum: checksum(&vec![byte; PAGE]),
        spans: vec![LentSpan::new(&region, u64::from(at) * PAGE as u64, PAGE as u32).unwrap()],
        carried: Bytes::new(),
    };
    (0..pages).map(page).collect()
}

fn block_on<T>(call: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(call)
}

#[test]
fn pages_are_read_over_all_rails_and_committed() {
    let rig = Rig::new();
    let rails = [rig.rail(), rig.rail()];
    let call = rig.offload(4, 9, &Arc::default());
    let posted = || rails.each_ref().map(|rail| rail.posted.lock().len());
    let deadline = Instant::now() + SOON;
    while posted() != [2, 2] {
        assert!(Instant::now() < deadline, "of two rails the less queued one is taken: {:?}", posted());
        std::thread::yield_now();
    }
    for at in 0..4 {
        rails[at % 2].read(9);
    }
    let committed = call.join().unwrap().unwrap().unwrap();
    assert!(committed.dropped.is_empty());
    assert_eq!((rig.leases(), rig.engine.remote.inflight_bytes()), (0, 0));
}

#[test]
fn what_a_dead_rail_had_is_repeated_on_another() {
    let rig = Rig::new();
    let (first, second) = (rig.rail(), rig.rail());
    let call = rig.offload(2, 9, &Arc::default());
    first.end(Cause::PeerGone);
    second.read(9);
    second.read(9);
    assert!(call.join().unwrap().unwrap().unwrap().dropped.is_empty());
    let call = rig.offload(3, 9, &Arc::default());
    second.end(Cause::Stalled);
    let dropped = call.join().unwrap().unwrap().unwrap().dropped;
    assert_eq!(dropped, [2], "no rail is left: what was there stays, the rest is not kept");
    assert_eq!(rig.leases(), 0);
}

/// A NIC before frames; a rail of a domain that the memory is not registered with never.
#[test]
fn the_fastest_rail_that_reaches_the_memory_is_taken() {
    let rig = Rig::new();
    let foreign = rig.rail_over(Fabric::Verbs, FOREIGN);
    let (framed, slow) = (rig.rail(), rig.rail_over(Fabric::Libfabric, OTHER_NIC));
    let fast = rig.rail_over(Fabric::Verbs, NIC);
    let call = rig.offload(2, 9, &Arc::default());
    fast.read(9);
    fast.read(9);
    assert!(call.join().unwrap().unwrap().unwrap().dropped.is_empty());
    let call = rig.offload(3, 9, &Arc::default());
    fast.end(Cause::Device("it failed".to_owned()));
    slow.end(Cause::PeerGone);
    framed.read(9);
    assert!(call.join().unwrap().unwrap().unwrap().dropped.is_empty(), "three fabrics, one call");
    assert!(foreign.posted.lock().is_empty(), "there is no key for it");
    assert_eq!(rig.leases(), 0);
}

/// A NIC that cannot have a slab fails its transfers and lives on: another rail does what it could not.
#[test]
fn what_a_living_rail_fails_is_repeated_in_another_domain() {
    let rig = Rig::new();
    let (nic, framed) = (rig.rail_over(Fabric::Verbs, NIC), rig.rail());
    let call = rig.offload(1, 9, &Arc::default());
    nic.next().complete(Outcome::Failed(Cause::Device("the slab is not registered".to_owned())));
    framed.read(9);
    assert!(call.join().unwrap().unwrap().unwrap().dropped.is_empty());
    drop(framed);
    assert!(nic.posted.lock().is_empty() && nic.death().is_none());
}

/// A queue pair that is not destroyed keeps what it had: its slot is nobody else's, and the call does not end.
#[test]
fn a_stuck_rail_keeps_its_slot_while_others_go_on() {
    let rig = Rig::new();
    let (stuck, framed) = (rig.rail_over(Fabric::Verbs, NIC), rig.rail());
    let call = rig.offload(1, 9, &Arc::default());
    let kept = stuck.next();
    stuck.close();
    let slot = kept.operation().local().offset();
    for pages in 2..8 {
        let other = rig.offload(pages, 9, &Arc::default());
        framed.serve(&other, |operation| {
            assert_ne!(operation.local().offset(), slot, "a slot that a NIC may touch was given out");
        });
        other.join().unwrap().unwrap();
    }
    assert!(!call.is_finished() && rig.leases() == 1);
    kept.complete(Outcome::Failed(Cause::Cancelled));
    framed.read(9);
    assert!(call.join().unwrap().unwrap().unwrap().dropped.is_empty());
    assert_eq!(rig.leases(), 0);
}

/// Neither end of a rail over a NIC sees that the other one left, and over a slow network those of others see it late: they compare
/// what they have.
#[test]
fn rails_that_only_one_end_has_are_found_by_comparing() {
    let rig = Rig::new();
    let (held, unheld, framed) =
        (rig.rail_over(Fabric::Verbs, NIC), rig.rail_over(Fabric::Verbs, OTHER_NIC), rig.rail());
    let compare = |held: &[u64], framed| rig.engine.remote.compare_rails(&rig.client, held, framed);
    assert_eq!(compare(&[1, 77], false), [77], "the number of a rail that is not here");
    assert!(unheld.death().is_some(), "the client has it no more");
    assert!(held.death().is_none() && framed.death().is_none());
    held.close();
    assert_eq!(compare(&[1, 3], true), [1], "it ended here");
    assert!(framed.death().is_none(), "it was named");
    assert!(compare(&[], true).is_empty() && framed.death().is_some(), "the client has it no more");
}

#[test]
fn a_damaged_page_is_read_once_more_and_then_not_kept() {
    let rig = Rig::new();
    let rail = rig.rail();
    let call = rig.offload(1, 9, &Arc::default());
    rail.read(8);
    rail.read(9);
    assert!(call.join().unwrap().unwrap().unwrap().dropped.is_empty(), "the second time it was whole");
    let call = rig.offload(3, 9, &Arc::default());
    for byte in [9, 8, 8] {
        rail.read(byte);
    }
    assert_eq!(call.join().unwrap().unwrap().unwrap().dropped, [2]);
    assert_eq!(rig.leases(), 0);
}

/// The lease is over by time, and its caller has left; only the transfer's end gives the slot back.
#[test]
fn a_slot_is_not_given_back_while_a_transfer_may_write_it() {
    let rig = Rig::new();
    let rail = rig.rail();
    let gone = Arc::new(AtomicBool::new(false));
    let call = rig.offload(1, 9, &gone);
    let posted = rail.next();
    gone.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(800));
    assert!(!call.is_finished(), "a call ended before its transfers");
    assert_eq!(rig.leases(), 1);
    posted.complete(Outcome::Failed(Cause::PeerGone));
    assert!(call.join().unwrap().is_err());
    assert_eq!((rig.leases(), rig.engine.remote.inflight_bytes()), (0, 0));
}

/// Its rails would carry a byte now and then for hours.
#[test]
fn the_rails_of_a_client_end_when_all_who_could_wait_for_them_have_left() {
    let rig = Rig::new();
    let rail = rig.rail();
    assert_eq!(rig.engine.hello_remote(&owner(1), rig.client.id.0).unwrap().id, rig.client.id);
    let gone = Arc::new(AtomicBool::new(false));
    let call = rig.offload(1, 9, &gone);
    let posted = rail.next();
    gone.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(800));
    assert!(rail.death().is_none(), "another connection of the client is there");
    rig.engine.goodbye_remote(rig.client.id);
    assert!(rail.death().is_some() && rig.engine.remote_client(rig.client.id).is_err());
    assert_eq!(rig.leases(), 1, "what may still be written is nobody else's");
    assert_ne!(rig.engine.hello_remote(&owner(1), rig.client.id.0).unwrap().id, rig.client.id);
    posted.complete(Outcome::Failed(Cause::Cancelled));
    assert!(call.join().unwrap().is_err());
    assert_eq!((rig.leases(), rig.engine.remote.inflight_bytes()), (0, 0));
}

/// Rails of frames end at the same host: each would take as long to stall as the first.
#[test]
fn a_stall_over_frames_ends_what_is_due_of_its_call() {
    let rig = Rig::new();
    let (frozen, other) = (rig.rail(), rig.rail());
    let call = rig.offload(2, 9, &Arc::default());
    let landing = other.next();
    frozen.end(Cause::Stalled);
    write(landing.operation().local(), 9);
    landing.complete(Outcome::Done);
    other.serve(&call, |_| panic!("what the frozen rail had waits for another"));
    let dropped = call.join().unwrap().unwrap().unwrap().dropped;
    assert!(!dropped.is_empty() && other.posted.lock().is_empty(), "{dropped:?}");
    let nic = rig.rail_over(Fabric::Verbs, NIC);
    let call = rig.offload(3, 9, &Arc::default());
    nic.end(Cause::Stalled);
    other.serve(&call, |_| ());
    assert!(call.join().unwrap().unwrap().unwrap().dropped.is_empty(), "a NIC's stall is its own");
    assert_eq!(rig.leases(), 0);
}

#[derive(Default)]
struct Listening {
    pages: Vec<ToldPage>,
    ended: bool,
}

impl ReloadAudience for Listening {
    fn tell(&mut self, pages: Vec<ToldPage>, more: bool) -> bool {
        self.pages.extend(pages);
        self.ended = !more;
        true
    }

    fn has_left(&self) -> bool {
        false
    }
}

/// A reload whose transfers take many times as long as its lease, and whose second page is damaged in DRAM.
#[test]
fn a_reload_is_held_until_its_transfers_end_and_says_what_does_not_verify() {
    let rig = Rig::new();
    let rail = rig.rail();
    let call = rig.offload(2, 9, &Arc::default());
    let posted = [rail.next(), rail.next()];
    let slot = posted[1].operation().local().clone();
    for posted in posted {
        write(posted.operation().local(), 9);
        posted.complete(Outcome::Done);
    }
    call.join().unwrap().unwrap();
    slot.claim().unwrap().fill(&vec![3; PAGE]);
    let (engine, client) = (Arc::clone(&rig.engine), Arc::clone(&rig.client));
    let hashes = vec![BlockHash([1; 32]), BlockHash([2; 32])];
    let begin = want(rig.namespace, hashes);
    let reload = move || {
        let ask = RemoteReload { begin, pages: targets(2, 9), verify: true, may_carry: false };
        let mut run = engine.begin_reload_now(client.id, &ask.begin).unwrap().unwrap();
        let mut listening = Listening::default();
        block_on(engine.write_remote(&client, &ask, &mut run, &mut listening)).map(|()| listening)
    };
    let reload = std::thread::Builder::new().name("call".to_owned()).spawn(reload).unwrap();
    let posted = rail.next();
    assert_eq!(posted.operation().direction(), Direction::Write);
    std::thread::sleep(Duration::from_millis(800));
    assert!(!reload.is_finished() && rig.leases() == 1, "time alone ended a reload that is on its way");
    posted.complete(Outcome::Done);
    let told = reload.join().unwrap().unwrap();
    assert!(told.ended && told.pages.len() == 2);
    assert!(
        told.pages[0].position.found.is_ok() && told.pages[1].position.found.is_err(),
        "{:?}",
        told.pages
    );
    assert_eq!((rig.leases(), rig.engine.remote.inflight_bytes()), (0, 0));
}

#[test]
fn a_client_is_gone_with_its_last_connection_and_its_number_with_it() {
    let rig = Rig::new();
    let caller = owner(1);
    let joined = rig.engine.hello_remote(&caller, rig.client.id.0).unwrap();
    assert_eq!(joined.id, rig.client.id);
    let other = rig.engine.hello_remote(&owner(2), rig.client.id.0).unwrap();
    assert_ne!(other.id, rig.client.id, "another host's number is nobody's to join");
    let tenant = Grants::of_words(["engine/b"]).unwrap();
    let certified = RemoteOwner { caller: Arc::new(Caller::new("b", tenant)), ..caller.clone() };
    let other = rig.engine.hello_remote(&certified, rig.client.id.0).unwrap();
    assert_ne!(other.id, rig.client.id, "nor that of another caller on the same host");
    let offer =
        |engine| OfferedRail { engine, domain: FRAMED, address: RailAddress::new(Vec::new()).unwrap() };
    let unknown = rig.engine.remote.open_rail(&rig.client, &[offer(None), offer(Some(Fabric::Verbs))]);
    let said = unknown.err().unwrap().message;
    assert!(said.contains("rails over framed, not over one that it does not know, verbs"), "{said}");
    let taken = rig.engine.remote.open_rail(&rig.client, &[offer(None), offer(Some(Fabric::Framed))]);
    let Ok(Taken::Framed { at: 1, secret, .. }) = taken else { panic!("frames are taken") };
    let rail = rig.rail();
    rig.engine.goodbye_remote(rig.client.id);
    assert!(rail.death().is_none(), "a connection is left");
    assert!(rig.engine.remote.join_rail(secret).is_some() && rig.engine.remote.join_rail(secret).is_none());
    rig.engine.goodbye_remote(rig.client.id);
    assert!(rail.death().is_some());
    assert_ne!(rig.engine.hello_remote(&caller, rig.client.id.0).unwrap().id, rig.client.id);
}

//! What a restart makes of what NVMe has. Owns: the promise that what was about to leave leaves first again, and that the rest
//! fits as it did. Must not know: where notes of extents are kept meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{PAGE, desc, finish_turn, one_slab};
use std::collections::BTreeMap;
use turnkv_pool::*;
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

const ID: NamespaceId = NamespaceId([1; 32]);
const PAGES: u32 = 10;

/// A device of ten extents to a segment, and what is noted of them.
#[derive(Default)]
struct Device {
    extents: BTreeMap<NvmePlace, Stranger>,
    written: u32,
}

impl Device {
    /// Everything that waits is written, and what became of extents is noted.
    fn serve(&mut self, pool: &mut Pool, now: Now) {
        for write in pool.next_writes(u64::MAX, now) {
            let place =
                NvmePlace { segment: (self.written / 10) as u16, generation: 0, block: self.written % 10 };
            let stranger = Stranger {
                hash: write.hash,
                parent: write.parent,
                shard: write.shard,
                shards: write.shards,
                tail_tokens: write.tail_tokens,
                bytes: write.bytes as u32,
                checksum: write.checksum,
                place,
                sequence: u64::from(self.written),
                leaving: false,
            };
            self.written += 1;
            assert!(pool.written(write.page, 0, place, now));
            self.extents.insert(place, stranger);
        }
        for (place, note) in pool.take_effects().notes {
            match note {
                PlaceNote::Dead(_) | PlaceNote::Moved(_) => drop(self.extents.remove(&place)),
                PlaceNote::Leaving(leaving) => {
                    self.extents.get_mut(&place).expect("a note is of what is there").leaving = leaving;
                }
            }
        }
        pool.check().unwrap();
    }

    /// A pool that finds all this.
    fn restart(&self, nvme_pages: u64) -> (Pool, NamespaceIndex) {
        let mut pool = Pool::new(plain::config(nvme_pages * PAGE)).unwrap();
        assert_eq!(pool.keep_strangers(self.extents.values().map(|stranger| (ID, *stranger))), 0);
        let ns = pool.open_namespace(desc(1, "a", PAGE, 1)).unwrap();
        if let Some(adoption) = pool.begin_adoption(ns) {
            let mut adoption = adoption.plan(pool.namespace_desc(ns).unwrap());
            while pool.adopt(&mut adoption, u64::MAX) {}
        }
        pool.check().unwrap();
        (pool, ns)
    }

    fn verdicts(&self, pool: &mut Pool, name: u32) -> (usize, usize) {
        let hashes = hashes(name);
        let of = self.extents.values().filter(|stranger| hashes.contains(&stranger.hash));
        let judged: Vec<Reclaim> = of.map(|one| pool.reclaim_verdict(&ID, &one.hash, 0, one.place)).collect();
        let count = |cold: bool| judged.iter().filter(|one| matches!(one, Reclaim::Cold(_)) == cold).count();
        (count(false), count(true))
    }
}

fn session(name: u32) -> SessionId {
    SessionId::parse(&format!("s{name}")).unwrap()
}

fn hashes(name: u32) -> Vec<BlockHash> {
    (0..PAGES).map(|at| plain::hash(name * 1000 + at)).collect()
}

fn turn(pool: &mut Pool, ns: NamespaceIndex, name: u32, now: Now) {
    pool.begin_turn(ns, &session(name), now).unwrap();
    finish_turn(pool, ns, &session(name), &hashes(name), 0, now);
}

#[test]
fn pages_of_sessions_that_were_closed_leave_first_after_a_restart() {
    let mut device = Device::default();
    let (mut pool, ns) = one_slab(40, 1000, PolicyKind::Lru);
    for name in [1, 2, 3] {
        turn(&mut pool, ns, name, 0);
        device.serve(&mut pool, 0);
    }
    pool.close(ns, &session(1), 1).unwrap();
    pool.close(ns, &session(3), 1).unwrap();
    turn(&mut pool, ns, 3, 2); // it came back
    device.serve(&mut pool, 2);
    let (mut pool, ns) = device.restart(1000);
    assert_eq!(
        pool.lookup(ns, &hashes(1), 0).unwrap().present,
        PAGES,
        "what leaves is there until it has left"
    );
    let (mut pool, _) = {
        drop((pool, ns));
        device.restart(1000)
    };
    assert_eq!(device.verdicts(&mut pool, 1), (0, 10), "closed");
    assert_eq!(device.verdicts(&mut pool, 2), (10, 0), "it waits");
    assert_eq!(device.verdicts(&mut pool, 3), (10, 0), "opened again");
}

#[test]
fn what_was_chosen_to_leave_before_a_restart_leaves_after_it_and_nothing_else() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let mut device = Device::default();
        let (mut pool, ns) = one_slab(20, 100, policy);
        for name in 1..=9 {
            turn(&mut pool, ns, name, u64::from(name));
            device.serve(&mut pool, u64::from(name));
        }
        pool.demote_all(None);
        for name in 10..=11 {
            turn(&mut pool, ns, name, u64::from(name));
            device.serve(&mut pool, u64::from(name));
        }
        pool.demote_all(None);
        device.serve(&mut pool, 20);
        let before: Vec<(usize, usize)> = (1..=11).map(|name| device.verdicts(&mut pool, name)).collect();
        let leaving: usize = before.iter().map(|(_, cold)| cold).sum();
        assert!(leaving >= 10, "there was no room for all: {before:?}");
        let (mut pool, _) = device.restart(100);
        let after: Vec<(usize, usize)> = (1..=11).map(|name| device.verdicts(&mut pool, name)).collect();
        assert_eq!(before, after, "{policy:?}");
    }
}

#[test]
fn what_was_written_first_leaves_first_after_a_restart_and_branches_before_what_they_share() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let mut device = Device::default();
        let (mut pool, ns) = one_slab(400, 1000, policy);
        // A shared prefix of five pages, then twenty branches of ten, the last one of which goes on with the first one.
        let path = |name: u32| -> Vec<BlockHash> {
            (0..5).map(plain::hash).chain((0..10).map(|at| plain::hash(name * 100 + at))).collect()
        };
        for name in 1..=20 {
            let id = session(name);
            pool.begin_turn(ns, &id, name.into()).unwrap();
            finish_turn(&mut pool, ns, &id, &path(name), 0, name.into());
            device.serve(&mut pool, name.into());
        }
        let longer: Vec<BlockHash> = path(1).into_iter().chain((5000..5005).map(plain::hash)).collect();
        pool.begin_turn(ns, &session(1), 30).unwrap();
        finish_turn(&mut pool, ns, &session(1), &longer, 0, 30);
        device.serve(&mut pool, 30);
        // Room for about half of the 210 extents.
        let (mut pool, ns) = device.restart(140);
        for at in 0..50 {
            pool.maintain(at);
        }
        let mut cold = Vec::new();
        for name in 1..=20 {
            let of = device.extents.values().filter(|one| path(name)[5..].contains(&one.hash));
            let judged = of.map(|one| pool.reclaim_verdict(&ID, &one.hash, 0, one.place));
            cold.push(judged.filter(|verdict| matches!(verdict, Reclaim::Cold(_))).count());
        }
        let leaving: usize = cold.iter().sum();
        assert!((80..150).contains(&leaving), "{policy:?}: {cold:?}");
        assert_eq!(cold[0], 0, "{policy:?}: it was gone on with: {cold:?}");
        let first_staying = cold[1..].iter().position(|pages| *pages < 10).unwrap() + 1;
        assert!(
            cold[first_staying + 1..].iter().all(|pages| *pages == 0),
            "{policy:?}: oldest first: {cold:?}"
        );
        assert_eq!(pool.lookup(ns, &path(1)[..5], 60).unwrap().present, 5);
    }
}

//! What stays on NVMe. Owns: promises about pages that somebody was told are durable, about who goes before whom when segments
//! are emptied, and what NVMe lets go of while DRAM keeps it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{CLIENT, PAGE, finish_turn, hashes, one_slab, present, read, session};
use turnkv_pool::*;
use turnkv_proto::NamespaceId;

const ID: NamespaceId = NamespaceId([1; 32]);
/// Pages of a segment.
const SEGMENT: u32 = 10;

/// A pool and the device behind it: places are given out in order.
struct World {
    pool: Pool,
    ns: NamespaceIndex,
    /// By page, the place it was written to last.
    places: Vec<Option<NvmePlace>>,
    next: u32,
}

impl World {
    fn new(slots: u64, nvme_pages: u64) -> World {
        let (mut pool, ns) = one_slab(slots, nvme_pages, PolicyKind::Lru);
        pool.shape_nvme(80, u64::from(SEGMENT) * PAGE, 0);
        World { pool, ns, places: vec![None; 10_000], next: 0 }
    }

    /// A session that has these pages and waits.
    fn turn(&mut self, range: std::ops::Range<u32>) -> Vec<PageKey> {
        let name = session(&format!("s{}", range.start));
        self.pool.begin_turn(self.ns, &name, 0).unwrap();
        let kept = finish_turn(&mut self.pool, self.ns, &name, &hashes(range), 0, 0).1;
        self.write();
        kept
    }

    fn write(&mut self) -> usize {
        let mut written = 0;
        loop {
            let writes = self.pool.next_writes(u64::MAX, 0);
            if writes.is_empty() {
                self.pool.check().unwrap();
                return written;
            }
            for write in writes {
                let (segment, block) = ((self.next / SEGMENT) as u16, self.next);
                self.next += 1;
                let place = NvmePlace { segment, generation: 0, block };
                assert!(self.pool.written(write.page, 0, place, 0));
                let page = u32::from_le_bytes(write.hash.0[..4].try_into().unwrap());
                self.places[page as usize] = Some(place);
                written += 1;
            }
        }
    }

    fn verdict(&mut self, page: u32) -> Reclaim {
        let place = self.places[page as usize].unwrap();
        self.pool.reclaim_verdict(&ID, &plain::hash(page), 0, place)
    }

    /// Empties a segment that these pages are in, as the server does.
    fn empty(&mut self, range: std::ops::Range<u32>) {
        let extent = |page: u32| {
            let place = self.places[page as usize].unwrap();
            LiveExtent { namespace: ID, hash: plain::hash(page), shard: 0, bytes: PAGE as u32, place }
        };
        let extents = range.map(extent).collect();
        let mut pass = self.pool.begin_pass(extents, true, 0);
        loop {
            let step = self.pool.step_pass(&mut pass, u32::MAX, 0);
            for read in step.reads {
                assert!(self.pool.promoted(read.page, 0, 0));
            }
            if step.writes_ready > 0 {
                self.write();
            }
            self.pool.check().unwrap();
            if let PassNext::Over { .. } = step.next {
                return;
            }
        }
    }

    fn reload(&mut self, range: std::ops::Range<u32>) {
        let plan = self.pool.begin_reload(read(self.ns, &hashes(range)), 0).unwrap();
        for step in plan.pages {
            if let ReloadStep::Promote(read) = step {
                assert!(self.pool.promoted(read.page, 0, 0));
            }
        }
        self.pool.end_reload(plan.lease.unwrap(), CLIENT, &[], 0).unwrap();
    }

    fn present(&mut self, range: std::ops::Range<u32>) -> u32 {
        present(&mut self.pool, self.ns, range)
    }

    fn on_nvme(&self, pages: &[PageKey]) -> usize {
        pages.iter().filter(|page| self.pool.is_on_nvme(**page) == Some(true)).count()
    }

    /// Spends all that may be written again.
    fn spend_credit(&mut self) {
        let key = self.turn(9_000..9_001)[0];
        for _ in 0..2 * self.pool.stats().nvme.capacity_bytes / PAGE / limits::REWRITE_BURST_SHARE {
            assert_eq!(self.pool.rewrite(key, 0), Rewrite::Dirty);
            self.write();
        }
    }
}

#[test]
fn what_was_promised_is_on_nvme_as_long_as_it_is_here() {
    let mut world = World::new(64, 1000);
    let (promised, other) = (world.turn(0..8), world.turn(100..108));
    assert!(world.pool.make_durable(&promised[..6]).is_empty());
    for (pages, victim) in [(&promised, 3), (&other, 3)] {
        world.pool.drop_page(pages[victim]);
        world.pool.check().unwrap();
    }
    let stats = world.pool.stats();
    assert_eq!(
        (world.present(0..8), stats.evicted_pages),
        (3, 5),
        "what NVMe lets go of is gone, and counted"
    );
    assert_eq!((world.present(100..108), stats.let_go_pages), (8, 5), "nobody was promised these");
    assert_eq!(world.on_nvme(&other), 3);
}

#[test]
fn a_promise_made_when_all_was_written_already_holds_for_ancestors_too() {
    let mut world = World::new(64, 1000);
    let pages = world.turn(0..8);
    assert!(world.pool.make_durable(&pages[7..]).is_empty(), "all are on NVMe");
    world.pool.drop_page(pages[2]);
    assert_eq!(world.present(0..8), 2, "its ancestors were promised with it");
}

#[test]
fn what_nvme_found_at_a_start_may_have_been_promised() {
    let mut world = World::new(64, 1000);
    let id = NamespaceId([5; 32]);
    let stranger = |at: u32| Stranger {
        hash: plain::hash(at),
        parent: at.checked_sub(1).map(plain::hash),
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        bytes: PAGE as u32,
        checksum: 0,
        place: NvmePlace { segment: 0, generation: 0, block: at },
        sequence: u64::from(at),
        leaving: false,
    };
    assert_eq!(world.pool.keep_strangers((0..8).map(|at| (id, stranger(at)))), 0);
    world.ns = world.pool.open_namespace(plain::desc(5, "", PAGE, 1)).unwrap();
    let mut adoption =
        world.pool.begin_adoption(world.ns).unwrap().plan(world.pool.namespace_desc(world.ns).unwrap());
    while world.pool.adopt(&mut adoption, u64::MAX) {}
    world.reload(0..8);
    let key = world.pool.page_key(world.ns, &plain::hash(2)).unwrap();
    world.pool.drop_page(key);
    world.pool.check().unwrap();
    assert_eq!((world.present(0..8), world.pool.stats().evicted_pages), (2, 6));
}

#[test]
fn more_promises_than_nvme_can_keep_end_in_the_order_of_the_policy() {
    // All of NVMe, and more, would fit into DRAM.
    let mut world = World::new(400, 100);
    for name in 0..40 {
        let kept = world.turn(name * 10..name * 10 + 10);
        world.pool.make_durable(&kept);
        world.reload(0..10);
        for _ in 0..20 {
            world.pool.maintain(0);
        }
        let last = name * 10;
        world.empty(0..last + 10);
        assert_eq!(world.present(0..10), 10, "the first session is in constant use: {name}");
        assert_eq!(world.present(last..last + 10), 10, "the last one is new");
    }
    let here: u32 = (0..40).map(|name| world.present(name * 10..name * 10 + 10)).sum();
    let stats = world.pool.stats();
    assert_eq!(stats.nvme.pages, u64::from(here), "all that is here is on NVMe");
    assert!((40..=80).contains(&here), "{here} pages of 80 that pages may keep");
    assert_eq!(stats.evicted_pages, 400 - u64::from(here), "the others are counted");
}

#[test]
fn what_nvme_let_go_of_is_written_again_once_there_is_room_and_not_before() {
    let mut world = World::new(400, 100);
    // No more at once than NVMe takes in time.
    let first: Vec<PageKey> = (0..4).flat_map(|name| world.turn(name * 10..name * 10 + 10)).collect();
    for name in 10..15 {
        world.turn(name * 10..name * 10 + 10);
    }
    // More than may stay, and all of it is in DRAM: nobody was promised any of it.
    world.empty(0..40);
    let let_go = 40 - world.on_nvme(&first);
    assert!(let_go > 0 && world.pool.stats().dram.pages == 90, "{let_go} are in DRAM only");
    assert_eq!(world.pool.stats().let_go_pages, let_go as u64);
    assert!(world.pool.stats().behind);
    assert_eq!(world.write(), 0, "there is no room yet");
    world.pool.resize_nvme(200 * PAGE, 100, 80);
    world.pool.allow_rewrites(20 * PAGE);
    assert_eq!(world.write(), let_go, "now there is");
    assert_eq!((world.on_nvme(&first), world.pool.stats().behind), (40, false));
}

#[test]
fn closed_sessions_go_before_those_that_wait() {
    let mut world = World::new(40, 200);
    // One page in eight is of a session that waits; the others are closed at once.
    for name in 0..15 {
        world.turn(name * 10..name * 10 + 2);
        let closed = 1000 + name * 20;
        world.turn(closed..closed + 14);
        world.pool.close(world.ns, &session(&format!("s{closed}")), 0).unwrap();
        while !world.pool.expire(0) {}
    }
    world.spend_credit();
    let kept: u64 = world.pool.kept_by_segment().iter().sum();
    assert!(kept < 100 * PAGE, "{kept}: what leaves does not make a segment dear to empty");
    // Somebody goes on where a session was closed: it is like any other.
    world.reload(1000..1014);
    for name in (0..15).rev() {
        let closed = 1000 + name * 20;
        let stays = |verdict: Reclaim| matches!(verdict, Reclaim::Hot(_));
        assert_eq!(stays(world.verdict(closed + 13)), name == 0, "a closed one goes, {name}");
        world.empty(closed..closed + 14);
        assert!(stays(world.verdict(name * 10 + 1)), "{name}");
        assert_eq!(world.present(closed..closed + 14), if name == 0 { 14 } else { 0 });
    }
}

#[test]
fn a_segment_of_which_little_stays_is_emptied_by_moving_whatever_was_moved_before() {
    let mut world = World::new(200, 200);
    // Three pages of ten stay in the first segment, eight in the next one.
    let first: Vec<u32> = (0..10).map(|at| 100 * at).collect();
    let second: Vec<u32> = (10..20).map(|at| 100 * at).collect();
    for page in first.iter().chain(&second) {
        world.turn(*page..*page + 1);
    }
    // Enough elsewhere that the tier is not roomy.
    world.turn(5000..5110);
    world.spend_credit();
    world.pool.demote_all(None);
    for page in first[3..].iter().chain(&second[8..]) {
        let key = world.pool.page_key(world.ns, &plain::hash(*page)).unwrap();
        world.pool.drop_page(key);
    }
    assert!(first[..3].iter().all(|page| matches!(world.verdict(*page), Reclaim::Hot(_))), "cheap");
    assert!(second[..8].iter().all(|page| matches!(world.verdict(*page), Reclaim::Cold(_))), "dear");
}

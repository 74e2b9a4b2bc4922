//! Sessions' lists against a plain world, in which each session has a list of hashes of its own. Owns: that lists which share
//! all they can answer like those, whatever is done to sessions and pages, over a restart as well. Must not know: how they are
//! kept.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plain;

use plain::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use turnkv_pool::*;
use turnkv_proto::{BlockHash, SessionId};

/// Pages of the longest path: several chunks of a record.
const LONGEST: usize = 3 * LIST_CHUNK_PAGES as usize + 7;

#[derive(Clone, Debug)]
enum Op {
    /// A turn that goes on for so many pages after the first `keep` of its list, on one of several branches.
    Turn {
        session: u8,
        keep: usize,
        pages: usize,
        branch: u8,
        priority: u32,
        tell_all: bool,
    },
    /// An offload that names its session, and no turn around it.
    Offload {
        session: u8,
        keep: usize,
        pages: usize,
        branch: u8,
    },
    Fork {
        session: u8,
        fork: u8,
        pages: usize,
    },
    Supersede {
        session: u8,
        keep: usize,
    },
    Close {
        session: u8,
    },
    Expect {
        session: u8,
    },
    /// A page and all after it are lost.
    Lose {
        session: u8,
        at: usize,
    },
    /// Pages of somebody else come, and push others out.
    Flood {
        pages: u32,
    },
    Wait {
        ms: u64,
    },
    /// A session is saved and forgotten, and comes back from its record.
    Restart {
        session: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let session = || 0..6_u8;
    prop_oneof![
        8 => (session(), 0..LONGEST, 1..40_usize, 0..3_u8, 0..3_u32, any::<bool>()).prop_map(
            |(session, keep, pages, branch, priority, tell_all)| Op::Turn { session, keep, pages, branch, priority, tell_all }
        ),
        4 => (session(), 0..LONGEST, 1..40_usize, 0..3_u8)
            .prop_map(|(session, keep, pages, branch)| Op::Offload { session, keep, pages, branch }),
        5 => (session(), session(), 0..LONGEST).prop_map(|(session, fork, pages)| Op::Fork { session, fork, pages }),
        2 => (session(), 0..LONGEST).prop_map(|(session, keep)| Op::Supersede { session, keep }),
        1 => session().prop_map(|session| Op::Close { session }),
        1 => session().prop_map(|session| Op::Expect { session }),
        2 => (session(), 0..LONGEST).prop_map(|(session, at)| Op::Lose { session, at }),
        2 => (1..200_u32).prop_map(|pages| Op::Flood { pages }),
        2 => (1..400_u64).prop_map(|ms| Op::Wait { ms }),
        3 => session().prop_map(|session| Op::Restart { session }),
    ]
}

/// The pool, and what its sessions should have.
struct World {
    pool: Pool,
    ns: NamespaceIndex,
    now: Now,
    lists: BTreeMap<u8, Vec<BlockHash>>,
    floods: u32,
}

fn name(session: u8) -> SessionId {
    SessionId::parse(&format!("s{session}")).unwrap()
}

/// The pages of a branch after a prefix.
fn grow(prefix: &[BlockHash], pages: usize, branch: u8) -> Vec<BlockHash> {
    let mut list = prefix.to_vec();
    for _ in 0..pages.min(LONGEST.saturating_sub(prefix.len())) {
        list.push(BlockHash::chain(list.last(), &[u32::from(branch)]));
    }
    list
}

impl World {
    fn new(policy: PolicyKind) -> World {
        let (pool, ns) = one_slab(300, 0, policy);
        World { pool, ns, now: 0, lists: BTreeMap::new(), floods: 0 }
    }

    /// Offloads what comes after the first `keep` pages. Returns how many of the list are there now.
    fn offload(&mut self, session: Option<&SessionId>, list: &[BlockHash], keep: usize) -> usize {
        if keep == list.len() {
            return keep;
        }
        let parent = keep.checked_sub(1).map(|at| list[at]);
        let ask = OffloadAsk { session, parent, ..ask(self.ns, None, &list[keep..]) };
        let plan = self.pool.begin_offload(ask, self.now).unwrap();
        let granted = |(_, outcome): &(u32, &Outcome)| matches!(outcome, Outcome::Granted(_));
        let filled: Vec<(u32, u64)> =
            (0..).zip(&plan.outcomes).filter(granted).map(|(at, _)| (at, 0)).collect();
        if let Some(lease) = plan.lease {
            self.pool.commit_offload(lease, CLIENT, &filled, self.now).unwrap();
        }
        let accepted = |outcome: &&Outcome| matches!(outcome, Outcome::Granted(_) | Outcome::Present);
        keep + plan.outcomes.iter().take_while(accepted).count()
    }

    fn apply(&mut self, op: &Op) {
        self.now += 1;
        match *op {
            Op::Turn { session, keep, pages, branch, priority, tell_all } => {
                self.turn(session, keep, pages, branch, priority, tell_all);
            }
            Op::Offload { session, keep, pages, branch } => {
                let old = self.lists.get(&session).cloned().unwrap_or_default();
                let list = grow(&old[..keep.min(old.len())], pages, branch);
                let there = self.offload(Some(&name(session)), &list, keep.min(old.len()));
                let list = list[..there].to_vec();
                // An offload of what is in the list already does not cut it.
                let new = if there == keep.min(old.len()) || old.starts_with(&list) { old } else { list };
                self.lists.insert(session, new);
            }
            Op::Fork { session, fork, pages } => {
                let forked = self.pool.fork(self.ns, &name(session), &name(fork), pages as u32, self.now);
                match self.lists.get(&session).filter(|_| session != fork).cloned() {
                    Some(mut list) => {
                        list.truncate(if pages == 0 { list.len() } else { pages });
                        assert_eq!(forked, Ok(list.len() as u32));
                        self.lists.insert(fork, list);
                    }
                    None => assert!(forked.is_err()),
                }
            }
            Op::Supersede { session, keep } => {
                let left = self.pool.supersede(self.ns, &name(session), keep as u32, self.now);
                match self.lists.get_mut(&session) {
                    Some(list) => {
                        list.truncate(keep);
                        assert_eq!(left, Ok(list.len() as u32));
                    }
                    None => assert_eq!(left, Err(PoolError::SessionUnknown)),
                }
            }
            Op::Close { session } => {
                let closed = self.pool.close(self.ns, &name(session), self.now);
                assert_eq!(closed.is_ok(), self.lists.remove(&session).is_some());
            }
            Op::Expect { session } => {
                let told = self.pool.expect_return(self.ns, &name(session), 50, self.now);
                assert_eq!(told.is_ok(), self.lists.contains_key(&session));
            }
            Op::Lose { session, at } => {
                let page = self.lists.get(&session).and_then(|list| list.get(at).copied());
                if let Some(page) = page {
                    let read = self.pool.begin_reload(read(self.ns, &[page]), self.now).unwrap();
                    self.pool.end_reload(read.lease.unwrap(), CLIENT, &[0], self.now).unwrap();
                }
            }
            Op::Flood { pages } => {
                self.floods += 1;
                let list: Vec<BlockHash> = (0..pages).map(|at| hash(self.floods << 16 | at)).collect();
                self.offload(None, &list, 0);
            }
            Op::Wait { ms } => {
                self.now += ms;
                self.pool.expire(self.now);
            }
            Op::Restart { session } => self.restart(session),
        }
    }

    fn turn(&mut self, session: u8, keep: usize, pages: usize, branch: u8, priority: u32, tell_all: bool) {
        let begun = self.pool.begin_turn(self.ns, &name(session), self.now).unwrap();
        let old = self.lists.entry(session).or_default().clone();
        assert_eq!(begun.pages as usize, old.len());
        let keep = keep.min(old.len());
        let list = grow(&old[..keep], pages, branch);
        let there = self.offload(None, &list, keep);
        // Making room may have taken pages of the list itself.
        let present = self.pool.lookup(self.ns, &list, self.now).unwrap().present as usize;
        let said = if tell_all { 0 } else { keep };
        let end =
            EndTurn { keep: said as u32, hashes: &list[said..], priority, ttl_ms: 300, ..end_turn(0, &[]) };
        let kept = self.pool.end_turn(self.ns, &name(session), end, self.now).unwrap() as usize;
        assert_eq!(kept, present, "{there} of {} were taken", list.len());
        self.lists.insert(session, list[..kept].to_vec());
    }

    /// As the catalog does it: chunks that lists share, and a record that names the last of them.
    fn restart(&mut self, session: u8) {
        let Some(record) = self.pool.session_record(self.ns, &name(session), self.now) else {
            return assert!(!self.lists.contains_key(&session));
        };
        let mut chunks = Vec::new();
        let mut next = record.base;
        while let Some(last) = next {
            let some = self.pool.list_chunks(self.ns, &last, 2);
            next = some.last().expect("its pages are here").before;
            chunks.extend(some);
        }
        let base: Vec<BlockHash> = chunks.iter().rev().flat_map(|chunk| chunk.hashes.clone()).collect();
        assert!(chunks.iter().all(|chunk| chunk.hashes.len() == LIST_CHUNK_PAGES as usize));
        assert_eq!([base, record.hashes.clone()].concat(), self.lists[&session]);
        self.pool.close(self.ns, &name(session), self.now).unwrap();
        let (mut start, mut before) = (None, None);
        let rest = ListChunk { before: record.base, hashes: record.hashes.clone() };
        for chunk in chunks.iter().rev().chain([&rest]) {
            assert_eq!(chunk.before, before, "each chunk knows the one before it");
            before = chunk.hashes.last().copied();
            start = self.pool.list_start(self.ns, start, &chunk.hashes).or(start);
        }
        let back = self.pool.restore_session(&record, start, self.now).unwrap();
        assert_eq!(back as usize, self.lists[&session].len());
        if record.protected_ms > 0 {
            let mut retaining = Retaining::new(self.ns, &record.session, record.protected_ms);
            while !self.pool.retain_some(&mut retaining, self.now) {}
        }
    }

    /// Pages that went take the rest of every list with them.
    fn verify(&mut self) {
        self.pool.check().unwrap();
        let ended: BTreeSet<SessionId> =
            self.pool.take_forgotten().into_iter().map(|(_, name)| name).collect();
        self.lists.retain(|session, _| !ended.contains(&name(*session)));
        assert_eq!(self.pool.stats().sessions as usize, self.lists.len());
        for (session, list) in &mut self.lists {
            let found = self.pool.session_hashes(self.ns, &name(*session)).unwrap();
            assert!(list.starts_with(&found), "session {session} has pages that it never had");
            list.truncate(found.len().max(present_of(&mut self.pool, self.ns, list, self.now)));
            assert_eq!(&found, list, "session {session}");
            let detail = self.pool.describe_session(self.ns, &name(*session), self.now).unwrap();
            assert_eq!((detail.info.pages as usize, detail.bytes), (list.len(), list.len() as u64 * PAGE));
            assert!(detail.shared_pages as usize <= list.len());
        }
    }
}

fn present_of(pool: &mut Pool, ns: NamespaceIndex, list: &[BlockHash], now: Now) -> usize {
    if list.is_empty() { 0 } else { pool.lookup(ns, list, now).unwrap().present as usize }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn lists_that_share_are_like_lists_of_their_own(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new(if ops.len() % 2 == 0 { PolicyKind::Lru } else { PolicyKind::Session });
        for op in &ops {
            world.apply(op);
            world.verify();
        }
        for session in 0..6 {
            world.apply(&Op::Close { session });
        }
        world.verify();
        let stats = world.pool.stats();
        prop_assert_eq!((stats.sessions, stats.protections, stats.protected_bytes), (0, 0, 0));
    }
}

/// A fork costs the same whatever it shares: what grows with sessions does not grow with their pages.
#[test]
fn memory_grows_by_sessions_not_by_their_pages() {
    let cost = |pages: u32| {
        let (mut pool, ns) = one_slab(20_000, 0, PolicyKind::Lru);
        let list = hashes(0..pages);
        store(&mut pool, ns, None, 0..pages);
        pool.begin_turn(ns, &session("trunk"), 0).unwrap();
        pool.end_turn(ns, &session("trunk"), EndTurn { priority: 1, ..end_turn(0, &list) }, 0).unwrap();
        let before = pool.stats().session_bytes;
        for fork in 0..2_000 {
            let id = session(&format!("fork-{fork}"));
            assert_eq!(pool.fork(ns, &session("trunk"), &id, 0, 0), Ok(pages));
            // Each protects what all of them share.
            pool.begin_turn(ns, &id, 0).unwrap();
            pool.end_turn(ns, &id, EndTurn { priority: 1, ..end_turn(pages, &[]) }, 0).unwrap();
        }
        pool.check().unwrap();
        assert_eq!(pool.stats().protections, 2_001);
        (pool.stats().session_bytes - before) / 2_000
    };
    let (short, long) = (cost(100), cost(4_000));
    assert!(long <= 1_024 && long <= short + 64, "{short} bytes a fork of 100 pages, {long} of 4,000");
}

/// The end of a long turn takes many steps, each over a bounded number of pages; what happens in between is seen.
#[test]
fn a_long_turn_ends_in_steps_whatever_comes_between() {
    const PAGES: u32 = 6_000;
    let list = hashes(0..PAGES);
    for (after, what) in
        [(usize::MAX, "nothing"), (2, "loss"), (8, "loss"), (2, "close"), (8, "close"), (8, "turn")]
    {
        let (mut pool, ns) = one_slab(20_000, 1 << 20, PolicyKind::Session);
        let id = session("s");
        store(&mut pool, ns, None, 0..PAGES);
        pool.begin_turn(ns, &id, 0).unwrap();
        let end = EndTurn { priority: 1, expected_return_ms: 1_000, ..end_turn(0, &list) };
        let mut turn = TurnEnd::new(ns, &id, end);
        let mut steps = 0;
        loop {
            let step = pool.end_turn_step(&mut turn, 0);
            pool.check().unwrap();
            if step != Ok(true) {
                assert!(step == Ok(false) || what == "close", "{what}: {step:?}");
                break;
            }
            steps += 1;
            if steps == after {
                match what {
                    "loss" => {
                        let read = pool.begin_reload(read(ns, &[hash(500)]), 0).unwrap();
                        pool.end_reload(read.lease.unwrap(), CLIENT, &[0], 0).unwrap();
                    }
                    "close" => pool.close(ns, &id, 0).unwrap(),
                    _ => assert_eq!(pool.begin_turn(ns, &id, 0).unwrap().turn, 2),
                }
            }
        }
        while !pool.expire(0) {} // what hangs on a corrupt page goes in slices
        assert_eq!(pool.stats().condemned_pages, 0);
        let left = if what == "loss" { 500 } else { PAGES };
        match what {
            "close" => assert_eq!(pool.stats().sessions, 0),
            _ => assert!(pool.session_hashes(ns, &id).unwrap() == list[..left as usize], "{what}"),
        }
        if what == "nothing" {
            assert!(steps >= 3 * PAGES as usize / limits::TURN_PAGES_PER_STEP, "{steps} steps");
            let detail = pool.describe_session(ns, &id, 0).unwrap();
            assert_eq!((detail.protected_pages, detail.info.pages), (PAGES.min(5_000), PAGES));
        }
        while !pool.expire(1 << 40) {}
        pool.check().unwrap();
        assert_eq!(pool.stats().protected_bytes, 0, "{what}");
    }
}

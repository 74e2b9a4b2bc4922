//! Rails that are closed, peers that die, memory that is taken back. Owns: that everything still completes,
//! once, and that nothing is touched afterwards.

use std::sync::Arc;
use std::time::Duration;

use super::{Bench, Ends, Rail, Stretch, assert_content, completions, fill, pattern, until};
use crate::fabric::{Cause, Outcome, Quarantined, WhyUnposted};
use crate::region::Region;

const PIECE: usize = 1 << 20;
const PIECES: usize = 48;

/// How long is watched whether something is still written that must not be.
const WATCH: Duration = Duration::from_millis(100);

/// As many pieces as the queue holds are under way; half of them reads where both ways are wanted.
fn busy<E: Ends>(ends: &E, ways: Ways) -> Bench<E> {
    let bench = Bench::new(ends, PIECE * PIECES, PIECES);
    fill(&bench.memory, 0, &pattern(1, PIECE * PIECES));
    fill(&bench.slab, 0, &pattern(2, PIECE * PIECES));
    for index in 0..PIECES {
        let place = Stretch { remote: index * PIECE, local: index * PIECE, bytes: PIECE };
        let reads = match ways {
            Ways::Reads => true,
            Ways::Writes => false,
            Ways::Both => index % 2 == 0,
        };
        let op = index as u64;
        bench.post(if reads { bench.read(place, op) } else { bench.write(place, op) });
    }
    bench
}

#[derive(Clone, Copy)]
enum Ways {
    Reads,
    Writes,
    Both,
}

/// Nobody writes the memory while it is watched.
fn assert_still(region: &Arc<Region>, what: &str) {
    let bytes = pattern(77, region.len());
    fill(region, 0, &bytes);
    std::thread::sleep(WATCH);
    assert_content(region, 0, &bytes, what);
}

/// All complete, once; then nothing touches the slab any more.
fn assert_completed<E: Ends>(bench: &Bench<E>) {
    let outcomes = completions(&bench.completions, PIECES);
    assert_eq!(bench.rail.initiator.queued_bytes(), 0);
    assert!(outcomes.values().all(|outcome| *outcome != Outcome::Failed(Cause::Refused)), "{outcomes:?}");
    assert_still(&bench.slab, "the slab after all completions");
}

/// The rail says that it is dead, and takes no more.
fn assert_dead<E: Ends>(bench: &Bench<E>) {
    let death = until(|| bench.rail.initiator.death());
    assert!(death.is_some(), "the rail says that it is dead");
    let place = Stretch { remote: 0, local: 0, bytes: 1 };
    let unposted = bench.rail.initiator.post(bench.read(place, 0)).expect_err("the rail is dead");
    assert_eq!(unposted.why, WhyUnposted::Dead);
    assert_eq!(bench.completions.admitted(), 0);
}

/// The rail learns that its peer is gone and dies of it. One at rest need not learn by itself: then it does
/// from an operation that is posted after the peer went.
fn assert_notices_peer<E: Ends>(bench: &Bench<E>) {
    let place = Stretch { remote: 0, local: 0, bytes: 8 };
    let failed = until(|| match bench.rail.initiator.post(bench.read(place, u64::MAX)) {
        // What was asked before the peer had ended may be done.
        Ok(()) => completions(&bench.completions, 1)
            .remove(&u64::MAX)
            .filter(|outcome| *outcome != Outcome::Done)
            .map(|_| ()),
        Err(unposted) => {
            assert_eq!(unposted.why, WhyUnposted::Dead);
            Some(())
        }
    });
    assert!(failed.is_some(), "operations with a peer that is gone fail");
    assert_dead(bench);
    assert_ne!(bench.rail.initiator.death(), Some(Cause::Cancelled), "the peer ended it, not we");
}

/// Closing ends what is under way; twice is once.
pub(crate) fn a_closed_rail_completes_everything<E: Ends>(ends: &E) {
    let bench = busy(ends, Ways::Both);
    bench.rail.initiator.close();
    bench.rail.initiator.close();
    assert_completed(&bench);
    assert_dead(&bench);
}

/// As closing.
pub(crate) fn a_dropped_rail_completes_everything<E: Ends>(ends: &E) {
    let bench = busy(ends, Ways::Both);
    let Bench { rail, completions: queue, slab, client, .. } = bench;
    drop(rail.initiator);
    assert_eq!(completions(&queue, PIECES).len(), PIECES);
    assert_still(&slab, "the slab after all completions");
    drop((rail.target, client));
}

/// A peer that dies in the middle of it.
pub(crate) fn a_dead_target_completes_everything<E: Ends>(ends: &E) {
    for ways in [Ways::Reads, Ways::Writes, Ways::Both] {
        let bench = busy(ends, ways);
        bench.rail.target.close();
        // On a busy machine all may be done before the peer has ended.
        assert_completed(&bench);
        assert_notices_peer(&bench);
    }
}

/// A peer that dies while nothing is under way.
pub(crate) fn a_dead_target_is_noticed_by_a_rail_at_rest<E: Ends>(ends: &E) {
    let bench = busy(ends, Ways::Both);
    assert_completed(&bench);
    assert_eq!(bench.rail.initiator.death(), None);
    bench.rail.target.close();
    assert_notices_peer(&bench);
}

/// The client's end notices, and its memory is its own again.
pub(crate) fn a_target_learns_that_its_server_is_gone<E: Ends>(ends: &E) {
    let bench = busy(ends, Ways::Both);
    let Bench { rail, client, memory, key, completions: queue, .. } = bench;
    let Rail { initiator, target } = rail;
    initiator.close();
    drop(initiator);
    assert_eq!(completions(&queue, PIECES).len(), PIECES);
    if E::SEES_SERVER {
        assert!(until(|| target.death()).is_some(), "the target notices");
    }
    drop(target);
    let taken_back = until(|| E::domain(&client).deregister(key).ok());
    assert!(taken_back.is_some(), "nothing is under way");
    let free = until(|| (Arc::strong_count(&memory) == 1).then_some(()));
    assert!(free.is_some(), "a dead rail holds nothing");
    assert_still(&memory, "the memory of a dead rail");
}

/// One of several rails dies: its operations end, the others' go on.
pub(crate) fn a_dead_rail_leaves_the_others<E: Ends>(ends: &E) {
    let bench = busy(ends, Ways::Both);
    let queue = crate::fabric::CompletionQueue::new(1);
    let second = ends.rail(&bench.client, &queue);
    bench.rail.initiator.close();
    assert_completed(&bench);
    assert_dead(&bench);
    for op in 0..3 {
        let place = Stretch { remote: 0, local: 0, bytes: PIECE };
        second.initiator.post(bench.write(place, op)).expect("this one lives");
        assert_eq!(completions(&queue, 1).remove(&op), Some(Outcome::Done));
    }
}

/// After `Ok` the engine has let the owner go, also when it was just used.
pub(crate) fn a_deregistered_owner_is_let_go<E: Ends>(ends: &E) {
    let bench = Bench::new(ends, PIECE, 1);
    assert_eq!(Arc::strong_count(&bench.memory), 2, "the engine shares the memory");
    let place = Stretch { remote: 0, local: 0, bytes: PIECE };
    assert_eq!(bench.run(bench.write(place, 1)), Outcome::Done);
    bench.take_back(bench.key);
    assert_eq!(bench.domain().registrations(), 0);
    if E::TAKES_BACK_AT_ONCE {
        assert_eq!(Arc::strong_count(&bench.memory), 1);
        return;
    }
    assert_eq!(Arc::strong_count(&bench.memory), 2, "the engine keeps its share");
    bench.rail.target.close();
    let free = until(|| (Arc::strong_count(&bench.memory) == 1).then_some(()));
    assert!(free.is_some(), "a dead rail holds nothing");
}

/// Memory taken back while it is written: whatever the engine answers, it is never written afterwards
/// without the engine having said so.
pub(crate) fn memory_taken_back_is_not_written_again<E: Ends>(ends: &E) {
    taken_back(ends, Ways::Writes);
}

/// Memory taken back while it is read: no operation is done with bytes of afterwards.
pub(crate) fn memory_taken_back_is_not_sent_again<E: Ends>(ends: &E) {
    taken_back(ends, Ways::Reads);
}

fn taken_back<E: Ends>(ends: &E, ways: Ways) {
    for before in [0, 1, 5] {
        let bench = busy(ends, ways);
        let mut done = Vec::new();
        while done.len() < before {
            assert!(bench.completions.poll(&mut done, super::PATIENCE) > 0);
        }
        let answer = bench.domain().deregister(bench.key);
        let others = pattern(9, PIECE * PIECES);
        match answer {
            Ok(()) => {
                assert_eq!(Arc::strong_count(&bench.memory), 1, "the engine let it go");
                fill(&bench.memory, 0, &others);
            }
            // What the engine holds for a rail it holds until that is dead, as it soon is: its operations are refused.
            Err(Quarantined) => {
                let shares = Arc::strong_count(&bench.memory);
                let is_dead = || until(|| bench.rail.target.death()).is_some();
                assert!(shares == 2 || (shares == 1 && is_dead()), "the engine keeps its share: {shares}");
            }
        }
        let left = PIECES - done.len();
        let outcomes = completions(&bench.completions, left);
        let (there, here) = (pattern(1, PIECE * PIECES), pattern(2, PIECE * PIECES));
        for (op, outcome) in outcomes {
            let part = op as usize * PIECE..(op as usize + 1) * PIECE;
            if outcome == Outcome::Done && matches!(ways, Ways::Reads) {
                assert_content(&bench.slab, part.start, &there[part.clone()], "a read that is done");
            }
        }
        assert!(matches!(ways, Ways::Reads) || content_is(&bench.slab, &here), "writing changes no slot");
        if answer.is_ok() {
            std::thread::sleep(WATCH);
            assert_content(&bench.memory, 0, &others, "memory that was taken back");
        }
        bench.rail.initiator.close();
        bench.rail.target.close();
        let Bench { client, memory, rail, .. } = bench;
        drop((rail, client));
        let free = until(|| (Arc::strong_count(&memory) == 1).then_some(()));
        assert!(free.is_some(), "a dead rail holds nothing");
    }
}

fn content_is(region: &Arc<Region>, wanted: &[u8]) -> bool {
    super::content(region, 0, wanted.len()) == wanted
}

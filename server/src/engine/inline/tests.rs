//! Pages in streams: whatever a sender leaves out, doubles, exchanges or damages, what is kept is whole and right, and what
//! ends early leaves nothing leased.

use super::*;
use crate::config;
use crate::engine::offload::Outcomes;
use crate::engine::testing::{offer, open, want};
use tempfile::TempDir;
use turnkv_mutate::Random;
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_transfer::checksum;

/// Bytes of a page: two chunks of a reload and a part of a third.
const PAGE: usize = 2 * INLINE_CHUNK_BYTES + 4096;
const CALLER: InlineCaller = InlineCaller::User(7, 7);

struct Rig {
    _dir: TempDir,
    engine: Arc<Engine>,
    namespace: NamespaceId,
}

impl Rig {
    /// An engine without its threads.
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("turnkv.toml");
        let text = "[dram]\nbytes = \"32MiB\"\nlock = false\n";
        std::fs::write(&file, text).unwrap();
        let engine = Engine::start(config::load(Some(&file)).unwrap(), |_| None, None).unwrap();
        let namespace = open(&engine, "m", PAGE as u64);
        Rig { _dir: dir, engine, namespace }
    }

    /// Begins an offload of so many pages, all of which are granted.
    async fn offload(&self, pages: u8) -> InlineOffload {
        let ask = offer(self.namespace, hashes(pages));
        let (offload, begun) = InlineOffload::begin(&self.engine, CALLER, &ask).await.unwrap();
        assert_eq!((begun.outcomes.granted().count(), begun.slots.len()), (pages.into(), 0));
        offload
    }

    async fn reload(&self, pages: u8) -> InlineReload {
        InlineReload::begin(&self.engine, CALLER, &want(self.namespace, hashes(pages))).await.unwrap()
    }

    /// So many pages are here, by the bytes that a reload gives; nothing of it stays leased.
    async fn here(&self, pages: u8) -> usize {
        let mut run = self.reload(pages).await;
        let (mut whole, mut page) = (0, Vec::new());
        while let Some(ReloadPiece::Bytes { index, offset, payload, checksum: sum, .. }) = run.next().await {
            assert_eq!((index as usize, offset), (whole, page.len() as u64), "in order, without a gap");
            assert_eq!(sum != 0, offset == 0, "its checksum comes with its first bytes");
            page.extend_from_slice(&payload);
            if page.len() == PAGE {
                assert_eq!(page, bytes_of(index as u8), "page {index} has its own bytes");
                (whole, page) = (whole + 1, Vec::new());
            }
        }
        drop(run);
        self.is_idle();
        whole
    }

    fn is_idle(&self) {
        assert_eq!(self.engine.decide().pool.stats().leases, 0, "something is leased that nobody has");
    }
}

fn hashes(pages: u8) -> Vec<BlockHash> {
    (1..=pages).map(|at| BlockHash([at; 32])).collect()
}

/// What a position holds: no two stretches of it are alike.
fn bytes_of(position: u8) -> Vec<u8> {
    (0..PAGE / 256).flat_map(|at| [at as u8, (at >> 8) as u8, position, 1].repeat(64)).collect()
}

fn sums(pages: u8) -> Vec<u64> {
    (0..pages).map(|at| checksum(&bytes_of(at))).collect()
}

fn fill_whole(offload: &mut InlineOffload, position: u8) {
    offload.fill(position.into(), 0, &bytes_of(position)).unwrap();
}

fn says<T>(done: Result<T, Error>, word: &str) {
    let error = done.err().expect("it is refused");
    assert!(error.kind == ErrorKind::Invalid && error.message.contains(word), "{error}");
}

#[tokio::test]
async fn pieces_of_several_pages_may_be_mixed_and_come_back_byte_for_byte() {
    let rig = Rig::new();
    let (pages, mut random) = (5_u8, Random::new(5));
    let (mut offload, mut sent) = (rig.offload(pages).await, [0_usize; 5]);
    let all: Vec<Vec<u8>> = (0..pages).map(bytes_of).collect();
    while sent.iter().any(|sent| *sent < PAGE) {
        let position = random.below(5);
        let to = PAGE.min(sent[position] + random.below(PAGE / 3));
        offload.fill(position as u32, sent[position] as u64, &all[position][sent[position]..to]).unwrap();
        sent[position] = to;
    }
    let committed = offload.commit(&sums(pages), false).await.unwrap();
    assert!(committed.dropped.is_empty());
    assert_eq!(rig.here(pages).await, 5);
}

#[tokio::test]
async fn bytes_out_of_order_too_many_or_of_no_granted_page_are_refused_and_change_nothing() {
    let rig = Rig::new();
    let mut offload = rig.offload(2).await;
    let bytes = bytes_of(0);
    offload.fill(0, 0, &bytes[..100]).unwrap();
    for (index, offset, count, word) in [
        (2, 0, 1, "was not granted"),
        (u32::MAX, 0, 1, "was not granted"),
        (0, 99, 1, "100 of"),
        (0, 101, 1, "100 of"),
        (0, 0, 100, "100 of"),
        (1, 1, 1, "0 of"),
        (0, 100, PAGE - 99, "100 of"),
        (0, u64::MAX, 1, "100 of"),
        (1, 0, PAGE + 1, "0 of"),
    ] {
        says(offload.fill(index, offset, &vec![9; count]), word);
    }
    offload.fill(0, 100, &[]).unwrap();
    offload.fill(0, 100, &bytes[100..]).unwrap();
    says(offload.fill(0, PAGE as u64, &[9]), "bytes were received");
    fill_whole(&mut offload, 1);
    assert!(offload.commit(&sums(2), false).await.unwrap().dropped.is_empty());
    assert_eq!(rig.here(2).await, 2, "what was refused is nowhere");
}

#[tokio::test]
async fn a_commit_of_what_is_not_whole_or_not_as_it_left_keeps_nothing_at_all() {
    let rig = Rig::new();
    let mut short = rig.offload(2).await;
    fill_whole(&mut short, 0);
    short.fill(1, 0, &bytes_of(1)[..PAGE - 1]).unwrap();
    says(short.commit(&sums(2), false).await, "page 1 ended after");
    rig.is_idle();
    for count in [1, 3] {
        let mut offload = rig.offload(2).await;
        (0..2).for_each(|position| fill_whole(&mut offload, position));
        says(offload.commit(&vec![0; count], false).await, "checksums for 2 granted pages");
        rig.is_idle();
    }
    let mut changed = rig.offload(2).await;
    (0..2).for_each(|position| fill_whole(&mut changed, position));
    let mut wrong = sums(2);
    wrong[1] ^= 1;
    let error = changed.commit(&wrong, false).await.unwrap_err();
    assert!(
        error.kind == ErrorKind::Unavailable && error.message.contains("page 1 changed on its way"),
        "{error}"
    );
    rig.is_idle();
    drop(rig.offload(2).await);
    rig.is_idle();
    assert_eq!(rig.here(2).await, 0, "the whole first page neither: its call failed");
}

#[tokio::test]
async fn what_was_present_needs_no_bytes_and_only_the_rest_is_filled() {
    let rig = Rig::new();
    let mut offload = rig.offload(2).await;
    (0..2).for_each(|position| fill_whole(&mut offload, position));
    offload.commit(&sums(2), false).await.unwrap();
    let ask = offer(rig.namespace, hashes(4));
    let (mut offload, begun) = InlineOffload::begin(&rig.engine, CALLER, &ask).await.unwrap();
    assert_eq!(begun.outcomes.granted().collect::<Vec<_>>(), [2, 3]);
    says(offload.fill(0, 0, &[1]), "was not granted");
    (2..4).for_each(|position| fill_whole(&mut offload, position));
    offload.commit(&sums(4)[2..], false).await.unwrap();
    assert_eq!(rig.here(4).await, 4);
    let (offload, begun) = InlineOffload::begin(&rig.engine, CALLER, &ask).await.unwrap();
    assert!(matches!(&begun.outcomes, Outcomes::Each(each) if each.len() == 4) && begun.lease.is_none());
    assert!(offload.commit(&[], false).await.unwrap().dropped.is_empty(), "a commit of nothing is one");
    rig.is_idle();
}

#[tokio::test]
async fn of_slots_that_were_taken_only_those_that_are_whole_are_committed() {
    let rig = Rig::new();
    let mut offload = rig.offload(3).await;
    let slots = offload.take_slots();
    assert_eq!(slots.iter().map(|(position, _)| *position).collect::<Vec<_>>(), [0, 1, 2]);
    let mut filled = Vec::new();
    for (position, page) in slots.into_iter().take(2) {
        let (_, sum) = page.fill(&bytes_of(position as u8));
        filled.push((position, sum));
    }
    assert!(offload.commit_taken(filled).await.unwrap().dropped.is_empty());
    assert_eq!(rig.here(3).await, 2);
}

#[tokio::test]
async fn a_page_that_is_damaged_in_memory_is_a_miss_at_its_end_and_is_not_served_again() {
    let rig = Rig::new();
    let mut offload = rig.offload(3).await;
    let slot = offload.pages[1].page.slot().clone();
    (0..3).for_each(|position| fill_whole(&mut offload, position));
    offload.commit(&sums(3), false).await.unwrap();
    let mut bytes = bytes_of(1);
    *bytes.last_mut().unwrap() ^= 1;
    slot.claim().unwrap().fill(&bytes);
    let mut run = rig.reload(3).await;
    let (mut pieces, mut missed) = (0, None);
    while let Some(piece) = run.next().await {
        match piece {
            ReloadPiece::Bytes { .. } => pieces += 1,
            ReloadPiece::Miss { index, cause } => {
                missed = Some((index, cause));
                break;
            }
        }
    }
    assert_eq!((pieces, missed), (3 + 2, Some((1, MissCause::Checksum))), "all of it but the last piece");
    drop(run);
    rig.is_idle();
    assert_eq!(rig.here(3).await, 1, "it is gone, with what follows it");
}

#[tokio::test]
async fn a_reader_that_stalls_beyond_its_lease_gets_a_miss_and_no_byte_of_whoever_has_the_slot_then() {
    let rig = Rig::new();
    let mut offload = rig.offload(2).await;
    (0..2).for_each(|position| fill_whole(&mut offload, position));
    offload.commit(&sums(2), false).await.unwrap();
    let mut run = rig.reload(2).await;
    assert!(matches!(run.next().await, Some(ReloadPiece::Bytes { index: 0, offset: 0, .. })));
    run.run.lease_ends = rig.engine.clock.now();
    assert!(matches!(run.next().await, Some(ReloadPiece::Miss { index: 0, cause: MissCause::Busy })));
    drop(run);
    rig.is_idle();
    assert_eq!(rig.here(2).await, 2, "nothing was wrong with the pages");
}

#[tokio::test]
async fn an_offload_that_takes_longer_than_its_lease_is_told_so_and_keeps_nothing() {
    let rig = Rig::new();
    let mut offload = rig.offload(1).await;
    fill_whole(&mut offload, 0);
    let later = rig.engine.now() + 10 * rig.engine.settings.limits.lease_ms;
    while !rig.engine.decide().pool.expire(later) {}
    let late = offload.commit(&sums(1), false).await;
    assert_eq!(late.err().map(|error| error.kind), Some(ErrorKind::LeaseUnknown));
    assert_eq!(rig.engine.present_pages(&rig.namespace, &hashes(1)).unwrap(), 0);
}

//! Pages mapped into a span: what is where, whatever is asked of it and however the pool answers.

use crate::fake::{Fake, PAGE_BYTES, chain, eventually_async, open};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use turnkv_client::{
    BlockHash, Client, CommitOptions, DataPlane, Decline, ErrorKind, MissCause, Namespace, OffloadOptions,
    PageSource, PageSpan, PageTarget, ReloadOptions, Standing,
};

/// A span, and the fake that its pages are of.
pub struct Rig {
    pub span: PageSpan,
    pub namespace: Namespace,
    _client: Client,
    memory: File,
    pub fake: Fake,
}

impl Rig {
    pub async fn with(rows: usize, places: usize) -> Rig {
        let fake = Fake::start();
        fake.core.script.holds.store(true, Ordering::SeqCst);
        let (client, namespace) = open(&fake, DataPlane::Shm).await;
        let span = PageSpan::new(&namespace, rows, places, 1).unwrap();
        let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
        Rig { span, namespace, _client: client, memory, fake }
    }

    /// The bytes at a place of the first row, as its user sees them.
    pub fn read(&self, place: usize) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES];
        self.memory.read_exact_at(&mut bytes, self.span.memory().address(place) as u64).unwrap();
        bytes
    }

    pub fn write(&self, place: usize, bytes: &[u8]) {
        self.memory.write_all_at(bytes, self.span.memory().address(place) as u64).unwrap();
    }

    pub fn standings(&self, places: usize) -> Vec<Standing> {
        (0..places).map(|place| self.span.standing(0, place)).collect()
    }

    /// Slots under held leases at the fake.
    pub fn held(&self) -> usize {
        self.fake.core.pool.lock().unwrap().held.values().map(|held| held.slots.len()).sum()
    }

    pub async fn reserve(&mut self, place: usize, count: usize) -> usize {
        self.span.reserve(0, place, count, None).await.unwrap()
    }

    pub async fn offload(&self, hashes: &[BlockHash], pages: &[Vec<u8>]) {
        let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
        self.namespace.offload(&OffloadOptions::default(), hashes, &sources).await.unwrap();
    }

    /// What a reload brings of these pages.
    pub async fn reload(&self, hashes: &[BlockHash]) -> Vec<Vec<u8>> {
        let mut back = vec![vec![0; PAGE_BYTES]; hashes.len()];
        let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
        let report = self.namespace.reload(&ReloadOptions::default(), hashes, &mut targets).await.unwrap();
        back.truncate(report.pages);
        back
    }
}

pub fn kept() -> CommitOptions {
    CommitOptions { keep: true, ..CommitOptions::default() }
}

/// What is at a place by a plain model: what it may be used for, and the page whose bytes are there.
type Place = Option<(Standing, u32)>;

const PLACES: usize = 6;

fn next(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}

fn page(seed: u32) -> (Vec<BlockHash>, Vec<u8>) {
    let (hashes, mut pages) = chain(1, seed);
    (hashes, pages.remove(0))
}

async fn check(rig: &Rig, model: &[Place], spare: usize) {
    for (place, expected) in model.iter().enumerate() {
        let standing = expected.map_or(Standing::Empty, |(standing, _)| standing);
        assert_eq!(rig.span.standing(0, place), standing, "place {place} of {model:?}");
        if let Some((_, seed)) = expected {
            assert!(rig.read(place) == page(*seed).1, "the bytes at place {place} of {model:?}");
        }
    }
    let mapped = model.iter().flatten().count();
    assert_eq!(rig.span.mapped(), (mapped, spare), "{model:?}");
    eventually_async("the pool has under lease what the span has", || rig.held() == mapped + spare).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_span_shows_what_a_plain_model_of_it_does_and_leases_no_more() {
    for seed in 1..=3 {
        let mut rig = Rig::with(1, PLACES).await;
        let (mut state, mut model, mut spare, mut pages) = (seed, vec![None; PLACES], 0, Vec::<u32>::new());
        let mut written = 0;
        for _ in 0..80 {
            let (from, to) = (next(&mut state, PLACES), next(&mut state, PLACES));
            let count = next(&mut state, PLACES - from.max(to)) + 1;
            match (next(&mut state, 9), model[from]) {
                (0..=3, None) => {
                    if rig.reserve(from, 1).await == 1 {
                        written += 1;
                        spare -= usize::from(spare > 0);
                        rig.write(from, &page(written).1);
                        model[from] = Some((Standing::Writable, written));
                    }
                }
                (0..=3, Some((Standing::Writable, seed))) => {
                    let report = rig.span.commit(0, from, &kept(), &page(seed).0).await.unwrap();
                    if report.stored == 1 {
                        pages.push(seed);
                    }
                    model[from] = Some((Standing::ReadOnly, seed));
                }
                (4, Some((_, seed))) => {
                    let had_spare = spare > 0;
                    if rig.span.own(0, from, None).await.unwrap() {
                        spare -= usize::from(had_spare);
                        model[from] = Some((Standing::Writable, seed));
                    }
                }
                (5, before) if !pages.is_empty() => {
                    let seed = pages[next(&mut state, pages.len())];
                    let options = ReloadOptions::default();
                    let report = rig.span.hold(0, from, &options, &page(seed).0).await.unwrap();
                    assert_eq!((report.pages, report.miss), (1, None));
                    spare += usize::from(before.is_some_and(|(standing, _)| standing == Standing::Writable));
                    model[from] = Some((Standing::ReadOnly, seed));
                }
                (6, _) => {
                    rig.span.shift(0, from, to, count).unwrap();
                    let taken: Vec<Place> = (from..from + count).map(|at| model[at].take()).collect();
                    let vacated: Vec<Place> = (to..to + count).map(|at| model[at].take()).collect();
                    spare += vacated.iter().flatten().filter(|(is, _)| *is == Standing::Writable).count();
                    taken.into_iter().enumerate().for_each(|(at, place)| model[to + at] = place);
                }
                _ => {
                    rig.span.vacate(0, from, count).unwrap();
                    let vacated: Vec<Place> = (from..from + count).map(|at| model[at].take()).collect();
                    spare += vacated.iter().flatten().filter(|(is, _)| *is == Standing::Writable).count();
                }
            }
            check(&rig, &model, spare).await;
        }
        assert!(pages.len() > 2, "a test of nothing: {pages:?}");
        rig.span.release_all().unwrap();
        check(&rig, &[None; PLACES], 0).await;
        for seed in pages {
            assert!(rig.reload(&page(seed).0).await == [page(seed).1], "page {seed} is the pool's");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_finds_no_slot_of_its_own_stays_as_it_is() {
    let mut rig = Rig::with(1, 2).await;
    let (hashes, pages) = chain(1, 1);
    rig.offload(&hashes, &pages).await;
    rig.span.hold(0, 0, &ReloadOptions::default(), &hashes).await.unwrap();
    rig.fake.core.script.held.all_max.store(1, Ordering::SeqCst);
    assert!(!rig.span.own(0, 0, None).await.unwrap(), "the pool has no slot for it");
    assert_eq!((rig.span.standing(0, 0), rig.span.mapped()), (Standing::ReadOnly, (1, 0)));
    assert_eq!(rig.read(0), pages[0]);
    rig.fake.core.script.held.all_max.store(0, Ordering::SeqCst);
    assert!(rig.span.own(0, 0, None).await.unwrap());
    assert_eq!(rig.span.standing(0, 0), Standing::Writable);
    assert_eq!(rig.read(0), pages[0], "with the bytes that were there");
    rig.write(0, &[7; PAGE_BYTES]);
    assert_eq!(rig.reload(&hashes).await, pages, "what is written there is nobody else's");
    rig.span.release_all().unwrap();
    eventually_async("every slot is given back", || rig.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_that_are_not_there_are_refused_and_nothing_is_lost() {
    let mut rig = Rig::with(2, 4).await;
    assert_eq!(rig.reserve(0, 4).await, 4);
    rig.write(3, &[3; PAGE_BYTES]);
    let (hashes, _) = chain(3, 1);
    for refused in [
        rig.span.shift(0, 2, 0, 3),
        rig.span.shift(0, 0, 2, 3),
        rig.span.shift(2, 0, 1, 1),
        rig.span.vacate(0, 3, 2),
        rig.span.vacate(2, 0, 1),
        rig.span.reserve(1, 3, 2, None).await.map(drop),
        rig.span.reserve(1, 1, usize::MAX, None).await.map(drop),
        rig.span.reserve(1, usize::MAX, 2, None).await.map(drop),
        rig.span.hold(0, usize::MAX, &ReloadOptions::default(), &hashes).await.map(drop),
        rig.span.commit(0, usize::MAX, &kept(), &hashes).await.map(drop),
        rig.span.own(0, 4, None).await.map(drop),
        rig.span.hold(0, 2, &ReloadOptions::default(), &hashes).await.map(drop),
        rig.span.commit(0, 2, &kept(), &hashes).await.map(drop),
        rig.span.commit(1, 0, &kept(), &hashes).await.map(drop),
        rig.span.commit(0, 0, &kept(), &[]).await.map(drop),
    ] {
        let refused = refused.map_err(|error| error.kind);
        assert!(matches!(refused, Err(ErrorKind::Invalid) | Ok(())), "{refused:?}");
        assert_eq!((rig.standings(4), rig.span.mapped()), (vec![Standing::Writable; 4], (4, 0)));
    }
    assert_eq!((rig.read(3), rig.held()), (vec![3; PAGE_BYTES], 4));
    let taken = rig.span.reserve(0, 3, 1, None).await.unwrap_err();
    assert_eq!(taken.kind, ErrorKind::Invalid, "nothing is mapped over what is there");
    rig.span.release_all().unwrap();
    eventually_async("every slot is given back", || rig.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_slots_than_asked_for_are_the_leading_ones_and_the_rest_can_be_asked_for_later() {
    let mut rig = Rig::with(1, 8).await;
    rig.fake.core.script.held.all_max.store(3, Ordering::SeqCst);
    assert_eq!(rig.reserve(0, 5).await, 3);
    assert_eq!((rig.reserve(3, 1).await, rig.span.standing(0, 3)), (0, Standing::Empty));
    rig.fake.core.script.held.all_max.store(0, Ordering::SeqCst);
    assert_eq!(rig.reserve(3, 2).await, 2);
    let (hashes, pages) = chain(5, 1);
    for (place, page) in pages.iter().enumerate() {
        rig.write(place, page);
    }
    let report = rig.span.commit(0, 0, &kept(), &hashes).await.unwrap();
    assert_eq!((report.stored, report.declined, rig.span.counts().committed), (5, 0, 5));
    assert_eq!(rig.fake.core.pool.lock().unwrap().committed, 1, "under one lease, in one window");
    assert_eq!(rig.reload(&hashes).await, pages);
    rig.span.release_all().unwrap();
    eventually_async("every lease is released", || rig.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tail_is_committed_without_what_an_earlier_user_of_its_slot_left() {
    let mut rig = Rig::with(1, 2).await;
    assert_eq!(rig.reserve(0, 2).await, 2);
    rig.write(0, &[0xAA; PAGE_BYTES]);
    rig.write(1, &[0xBB; PAGE_BYTES]);
    let offload = OffloadOptions { tail_tokens: 5, ..OffloadOptions::default() };
    let (hashes, _) = chain(2, 1);
    let report = rig.span.commit(0, 0, &CommitOptions { offload, ..kept() }, &hashes).await.unwrap();
    assert_eq!(report.stored, 2);
    let mut tail = vec![0xBB; PAGE_BYTES / 16 * 5];
    tail.resize(PAGE_BYTES, 0);
    assert_eq!(rig.reload(&hashes).await, [vec![0xAA; PAGE_BYTES], tail]);
    let whole = OffloadOptions { tail_tokens: 16, ..OffloadOptions::default() };
    let error = rig.span.commit(0, 0, &CommitOptions { offload: whole, ..kept() }, &hashes).await;
    assert_eq!(error.unwrap_err().kind, ErrorKind::Invalid, "16 tokens are no tail of a page of 16");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_commit_does_not_keep_stays_writable_and_can_be_committed_later() {
    let mut rig = Rig::with(1, 4).await;
    let (hashes, pages) = chain(4, 1);
    assert_eq!(rig.reserve(0, 3).await, 3);
    for place in 0..3 {
        rig.write(place, &pages[place + 1]);
    }
    let offload = OffloadOptions { parent: Some(hashes[0]), ..OffloadOptions::default() };
    let options = CommitOptions { offload, ..kept() };
    let report = rig.span.commit(0, 0, &options, &hashes[1..]).await.unwrap();
    assert_eq!((report.stored, report.declined, report.first_decline), (0, 3, Some(Decline::NoParent)));
    assert_eq!(rig.standings(3), [Standing::Writable; 3]);
    rig.offload(&hashes[..2], &pages[..2]).await;
    let report = rig.span.commit(0, 0, &options, &hashes[1..]).await.unwrap();
    assert_eq!((report.stored, report.present, report.declined), (2, 1, 0), "one was there already");
    assert_eq!(rig.standings(3), [Standing::ReadOnly; 3]);
    let again = rig.span.commit(0, 0, &options, &hashes[1..]).await.unwrap_err();
    assert_eq!(again.kind, ErrorKind::Invalid, "what is read is not committed");
    assert_eq!(rig.reload(&hashes).await, pages);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn siblings_hang_on_the_parent_and_an_answer_for_fewer_pages_is_refused() {
    let mut rig = Rig::with(1, 4).await;
    assert_eq!(rig.reserve(0, 4).await, 4);
    let ours: Vec<BlockHash> = (0..4).map(|seed| page(seed).0[0]).collect();
    for (place, seed) in (0..4).enumerate() {
        rig.write(place, &page(seed).1);
    }
    rig.fake.core.script.held.says_less.store(true, Ordering::SeqCst);
    let error = rig.span.commit(0, 0, &kept(), &ours[..1]).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal, "{error}");
    rig.fake.core.script.held.says_less.store(false, Ordering::SeqCst);
    let offload = OffloadOptions { parent: Some(ours[0]), ..OffloadOptions::default() };
    let options = CommitOptions { offload, siblings: true, keep: false };
    let report = rig.span.commit(0, 1, &options, &ours[1..]).await.unwrap();
    assert_eq!((report.stored, report.first_decline), (3, None));
    rig.span.vacate(0, 0, 4).unwrap();
    assert_eq!(
        rig.span.mapped(),
        (0, 1),
        "stored pages are given back, the one that was not told of is kept"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_page_is_not_mapped_and_the_pool_is_told_which() {
    let mut rig = Rig::with(1, 4).await;
    let (hashes, pages) = chain(4, 1);
    rig.offload(&hashes, &pages).await;
    assert_eq!(rig.reserve(2, 1).await, 1);
    let slot = rig.fake.core.pool.lock().unwrap().pages[&hashes[2]].0;
    rig.fake.core.slot(slot).claim().unwrap().fill_at(9, b"damage");
    let report = rig.span.hold(0, 0, &ReloadOptions::default(), &hashes).await.unwrap();
    assert_eq!((report.pages, report.miss), (2, Some(MissCause::Checksum)));
    let standings = [Standing::ReadOnly, Standing::ReadOnly, Standing::Writable, Standing::Empty];
    assert_eq!(rig.standings(4), standings, "what was behind the good pages is as it was");
    assert_eq!([rig.read(0), rig.read(1)], pages[..2]);
    eventually_async("the pool hears of it", || rig.fake.core.pool.lock().unwrap().corrupt == [2]).await;
    eventually_async("the others are released", || rig.held() == 3).await;
    let none = rig.span.hold(0, 3, &ReloadOptions::default(), &hashes[2..3]).await;
    assert_eq!(none.unwrap().miss, Some(MissCause::Checksum));
    eventually_async("of a lease without a good page nothing stays", || rig.held() == 3).await;
    assert_eq!(rig.fake.leases(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_may_not_be_mapped_are_copied_and_their_lease_ends() {
    let mut rig = Rig::with(1, 4).await;
    let (hashes, pages) = chain(3, 1);
    rig.offload(&hashes, &pages).await;
    assert_eq!(rig.reserve(1, 1).await, 1);
    rig.fake.core.script.held.refuses.store(true, Ordering::SeqCst);
    let report = rig.span.hold(0, 0, &ReloadOptions::default(), &hashes).await.unwrap();
    assert_eq!((report.pages, report.miss, rig.span.counts().copied), (3, None, 3));
    assert_eq!(rig.standings(4), [Standing::Empty; 4]);
    assert_eq!([rig.read(0), rig.read(1), rig.read(2)], pages[..]);
    assert_eq!(rig.span.mapped(), (0, 1), "the slot that was in the way is kept");
    eventually_async("nothing stays leased", || rig.fake.leases() == 0).await;
    rig.fake.core.script.wrong_checksums.store(true, Ordering::SeqCst);
    let report = rig.span.hold(0, 0, &ReloadOptions::default(), &hashes).await.unwrap();
    assert_eq!((report.pages, report.miss), (0, Some(MissCause::Checksum)));
}

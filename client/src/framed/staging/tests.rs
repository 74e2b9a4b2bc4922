//! Lending memory by domains that know it at once, by one that takes its time, and by one that keeps what is taken back.

use super::super::memory::{Knows, Memory, Reach};
use super::super::tests::PlayedNic;
use super::{Staged, StagingRoom};
use crate::config::DeviceMemoryChoice;
use crate::deadline::Deadline;
use crate::error::ErrorKind;
use crate::limits::{
    QUARANTINED_BYTES_MAX, STAGING_BYTES_MAX, STAGING_BYTES_STEP, STAGING_KEPT_BYTES_MAX, STAGING_KEPT_MAX,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use turnkv_transfer::fabric::framed::FramedDomain;
use turnkv_transfer::fabric::{Domain, RailOffers};

const FRAMED: u32 = 7;
const NIC: u32 = 8;

fn framed() -> (Arc<FramedDomain>, Reach) {
    let domain = FramedDomain::new();
    let reach = Reach::framed(FRAMED, &domain);
    (domain, reach)
}

fn nic(takes_ms: u64, keeps: bool) -> (Arc<PlayedNic>, Reach) {
    let played = Arc::new(PlayedNic { takes_ms, keeps: keeps.into(), ..PlayedNic::default() });
    let domain: Arc<dyn RailOffers> = Arc::clone(&played) as Arc<dyn RailOffers>;
    (played, Reach::nic(NIC, &domain))
}

async fn lend(room: &Arc<StagingRoom>, reaches: &[Reach], bytes: usize) -> Staged {
    room.lend(None, reaches, bytes, Deadline::after(Duration::from_secs(5))).await.unwrap()
}

fn domains(staged: &Staged) -> Vec<u32> {
    staged.region().keys.iter().map(|key| key.domain).collect()
}

#[tokio::test]
async fn an_answered_call_leaves_memory_lent_and_a_dropped_one_takes_it_back() {
    let (room, (domain, reach)) = (StagingRoom::new(DeviceMemoryChoice::Auto), framed());
    let reaches = [reach];
    let first = lend(&room, &reaches, 100).await;
    let region = first.region();
    first.answered();
    assert_eq!(domain.registrations(), 1);
    let again = lend(&room, &reaches, STAGING_BYTES_STEP).await;
    assert_eq!(
        (again.region(), domain.registrations()),
        (region.clone(), 1),
        "the same memory, known as it was"
    );
    drop(again);
    assert_eq!(domain.registrations(), 0, "nobody may touch it any more");
    assert_ne!(lend(&room, &reaches, 1).await.region(), region);
}

#[tokio::test]
async fn another_server_knows_nothing_of_it_and_too_much_is_not_kept() {
    let room = StagingRoom::new(DeviceMemoryChoice::Auto);
    let (one, first) = framed();
    lend(&room, std::slice::from_ref(&first), 1).await.answered();
    let other = FramedDomain::new();
    lend(&room, &[Reach::framed(FRAMED + 1, &other)], 1).await.answered();
    assert_eq!((one.registrations(), other.registrations()), (1, 1), "what is at rest is known to both");
    let large = lend(&room, std::slice::from_ref(&first), STAGING_KEPT_BYTES_MAX + 1).await;
    let soon = Deadline::after(Duration::from_millis(20));
    assert!(room.lend(None, &[first], STAGING_BYTES_MAX, soon).await.is_err(), "no room beside it");
    large.answered();
    assert_eq!(one.registrations(), 1, "the large one is not kept");
    let small = lend(&room, &[Reach::framed(FRAMED, &one)], 1).await;
    assert_eq!(small.region().bytes, STAGING_BYTES_STEP as u64, "the small one is");
}

#[tokio::test]
async fn what_a_device_has_pinned_is_kept_and_what_it_still_fills_is_lent_to_nobody() {
    let (room, (domain, reach)) = (StagingRoom::new(DeviceMemoryChoice::Auto), framed());
    let reaches = [reach];
    let large = lend(&room, &reaches, STAGING_KEPT_BYTES_MAX + 1).await;
    let region = large.region();
    drop(large.begin_use());
    large.answered();
    let again = lend(&room, &reaches, STAGING_KEPT_BYTES_MAX + 1).await;
    assert_eq!((again.region(), domain.registrations()), (region.clone(), 1), "pinning it again takes long");
    let filling = again.begin_use();
    again.answered();
    let soon = || Deadline::after(Duration::from_millis(20));
    assert!(room.lend(None, &reaches, 1, soon()).await.is_err(), "its room is taken for as long");
    drop(filling);
    assert_ne!(lend(&room, &reaches, STAGING_KEPT_BYTES_MAX + 1).await.region(), region);
}

#[tokio::test]
async fn what_is_more_than_may_ever_be_lent_is_refused_at_once_and_says_what_to_do() {
    let (room, (domain, reach)) = (StagingRoom::new(DeviceMemoryChoice::Auto), framed());
    let reaches = [reach];
    // Though all of the room is lent, and nobody gives any back.
    let _all = lend(&room, &reaches, STAGING_BYTES_MAX).await;
    let late = Deadline::after(Duration::from_secs(60));
    let refused = room.lend(None, &reaches, STAGING_BYTES_MAX + 1, late).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
    assert!(refused.message.contains("move fewer shards of it in one call"), "{refused}");
    assert_eq!(domain.registrations(), 1);
}

#[tokio::test]
async fn a_call_goes_otherwise_while_a_nic_gets_to_know_the_memory() {
    let room = StagingRoom::new(DeviceMemoryChoice::Auto);
    let ((_domain, fast), (played, slow)) = (framed(), nic(50, false));
    let reaches = [slow, fast];
    let first = lend(&room, &reaches, 1).await;
    assert_eq!(domains(&first), [FRAMED], "it does not wait");
    first.answered();
    let began = Instant::now();
    while played.registrations() == 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "nobody registers it");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let began = Instant::now();
    loop {
        let next = lend(&room, &reaches, 1).await;
        let known = domains(&next);
        next.answered();
        if known == [NIC, FRAMED] {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{known:?}");
    }
    drop(lend(&room, &reaches, 1).await);
    assert_eq!(played.registrations(), 0, "a dropped call takes it back from both");
}

#[tokio::test]
async fn without_another_way_a_call_waits_for_the_nic() {
    let (room, (_played, slow)) = (StagingRoom::new(DeviceMemoryChoice::Auto), nic(20, false));
    let only = lend(&room, &[slow], 1).await;
    assert_eq!(domains(&only), [NIC]);
}

#[tokio::test]
async fn memory_that_a_nic_refused_or_does_not_know_yet_is_not_in_the_way_of_the_next_call() {
    let (room, (played, slow)) = (StagingRoom::new(DeviceMemoryChoice::Auto), nic(30, false));
    let reaches = [slow];
    played.refuses.store(true, Ordering::Relaxed);
    let soon = Deadline::after(Duration::from_secs(5));
    assert!(room.lend(None, &reaches, 1, soon).await.is_err(), "nobody knows the memory");
    played.refuses.store(false, Ordering::Relaxed);
    let too_soon = Deadline::after(Duration::from_millis(5));
    assert!(room.lend(None, &reaches, 1, too_soon).await.is_err(), "it takes longer");
    assert_eq!(domains(&lend(&room, &reaches, 1).await), [NIC]);
}

/// Large calls after many small ones at once: their memory is kept, or a NIC would never know it.
#[tokio::test]
async fn what_is_used_now_is_kept_in_place_of_what_was_used_once() {
    let (room, (domain, fast)) = (StagingRoom::new(DeviceMemoryChoice::Auto), framed());
    let reaches = [fast];
    let mut small = Vec::new();
    for _ in 0..STAGING_KEPT_MAX {
        small.push(lend(&room, &reaches, 1).await);
    }
    small.into_iter().for_each(Staged::answered);
    let large = lend(&room, &reaches, 8 * STAGING_BYTES_STEP).await;
    let region = large.region();
    large.answered();
    assert_eq!(domain.registrations(), STAGING_KEPT_MAX, "one of the small ones went");
    assert_eq!(lend(&room, &reaches, 8 * STAGING_BYTES_STEP).await.region(), region);
}

/// What an engine keeps counts as lent until it lets go, and a domain that keeps too much is named.
#[tokio::test]
async fn what_a_nic_keeps_takes_up_room_until_its_rails_end() {
    let (room, (played, slow)) = (StagingRoom::new(DeviceMemoryChoice::Auto), nic(0, true));
    let reaches = [slow];
    let half = QUARANTINED_BYTES_MAX / 2;
    drop(lend(&room, &reaches, half).await);
    assert_eq!((room.quarantined_bytes(), room.overfull().len()), (half, 0));
    drop(lend(&room, &reaches, half).await);
    assert_eq!(room.overfull().into_iter().collect::<Vec<_>>(), [NIC]);
    let soon = Deadline::after(Duration::from_millis(20));
    let all = STAGING_BYTES_MAX;
    assert!(room.lend(None, &reaches, all, soon).await.is_err(), "there is no room for as much beside it");
    played.kept.lock().clear();
    assert_eq!((room.quarantined_bytes(), room.overfull().len()), (0, 0));
    drop(lend(&room, &reaches, all).await);
}

/// What was at rest counts with all its bytes, however few of them a call needs.
#[tokio::test]
async fn no_more_is_lent_together_than_may_be_whatever_was_at_rest() {
    let (room, (domain, fast)) = (StagingRoom::new(DeviceMemoryChoice::Auto), framed());
    let (reaches, large) = ([fast], STAGING_KEPT_BYTES_MAX / 2);
    let both = [lend(&room, &reaches, large).await, lend(&room, &reaches, large).await];
    both.into_iter().for_each(Staged::answered);
    assert_eq!(domain.registrations(), 2);
    let mut lent = Vec::new();
    for _ in 0..3 {
        lent.push(lend(&room, &reaches, 1).await);
    }
    let soon = || Deadline::after(Duration::from_millis(5));
    while let Ok(staged) = room.lend(None, &reaches, large, soon()).await {
        lent.push(staged);
    }
    while let Ok(staged) = room.lend(None, &reaches, 1, soon()).await {
        lent.push(staged);
        assert!(lent.len() <= STAGING_BYTES_MAX / STAGING_BYTES_STEP, "there is no end of it");
    }
    let bytes: u64 = lent.iter().map(|staged| staged.region().bytes).sum();
    assert_eq!(bytes, STAGING_BYTES_MAX as u64, "as much as may be, and not a byte more");
    drop(lent);
    let all = lend(&room, &reaches, STAGING_BYTES_MAX).await;
    assert_eq!(all.region().bytes, STAGING_BYTES_MAX as u64, "all room came back");
}

#[tokio::test]
async fn sizes_are_few_and_a_page_outside_of_what_is_lent_is_refused() {
    let (room, (_domain, fast)) = (StagingRoom::new(DeviceMemoryChoice::Auto), framed());
    let reaches = [fast];
    let step = STAGING_BYTES_STEP;
    for (bytes, lent) in [(0, step), (1, step), (step, step), (step + 1, 2 * step), (5 * step, 8 * step)] {
        let room = StagingRoom::new(DeviceMemoryChoice::Auto);
        assert_eq!(lend(&room, &reaches, bytes).await.region().bytes, lent as u64, "for {bytes}");
    }
    let staged = lend(&room, &reaches, step).await;
    assert_eq!(staged.slot(step - 4096, 4096).unwrap().len(), 4096);
    for (offset, bytes) in [(step - 4096, 4097), (step, 1), (usize::MAX, 2), (0, step + 1)] {
        assert!(staged.slot(offset, bytes).is_err(), "{bytes} at {offset}");
    }
}

/// Memory may be taken back while a NIC is still being told of it: then the NIC must not keep it.
#[test]
fn memory_that_is_taken_back_while_it_is_registered_is_known_to_nobody() {
    let (played, slow) = nic(30, false);
    let memory = Arc::new(Memory::create(STAGING_BYTES_STEP).unwrap());
    assert_eq!(memory.knows(&slow), Knows::Nothing);
    let (told, reach) = (Arc::clone(&memory), slow.clone());
    let registering = std::thread::Builder::new().name("registers".to_owned());
    let registering = registering.spawn(move || told.register(&reach)).unwrap();
    while memory.knows(&slow) == Knows::Nothing {
        std::thread::yield_now();
    }
    assert_eq!(memory.register(&slow), Knows::NotNow, "it is told once");
    assert!(memory.take_back_all(), "nothing of it is there yet");
    assert_eq!(registering.join().unwrap(), Knows::NotNow);
    assert_eq!((played.registrations(), memory.knows(&slow)), (0, Knows::Nothing));
    assert!(matches!(memory.register(&slow), Knows::Key(_)), "a later call tells it again");
    assert!(memory.is_worth_keeping(|number| number == NIC) && !memory.is_worth_keeping(|_| false));
    drop(memory);
    assert_eq!(played.registrations(), 0, "dropped memory is taken back");
}

/// One domain that cannot be sure does not keep the others from letting go.
#[test]
fn memory_is_taken_back_from_all_that_know_it_whatever_one_of_them_says() {
    let ((played, slow), (domain, fast)) = (nic(0, true), framed());
    let memory = Memory::create(STAGING_BYTES_STEP).unwrap();
    let mut keys = Vec::new();
    for reach in [&slow, &fast] {
        let Knows::Key(key) = memory.register(reach) else { panic!("it is registered at once") };
        keys.push((reach.number, key));
    }
    assert!(!memory.take_back(&keys), "the NIC keeps it");
    assert_eq!((domain.registrations(), played.kept.lock().len()), (0, 1));
    assert_eq!((memory.knows(&slow), memory.knows(&fast)), (Knows::Nothing, Knows::Nothing));
    assert!(memory.take_back(&keys) && memory.take_back_all(), "it is asked once");
    let gone = FramedDomain::new();
    let reach = Reach::framed(9, &gone);
    assert!(matches!(memory.register(&reach), Knows::Key(_)));
    drop((gone, reach));
    assert!(memory.take_back_all(), "a domain that is gone touches nothing");
}

//! A span over the end of the server that its pages are of: what another process takes over, and what it does not.

use crate::fake::{chain, eventually_async, some_memory};
use crate::span::{Rig, kept};
use std::sync::atomic::Ordering;
use turnkv_client::{ErrorKind, ReloadOptions, Standing};

/// A span of a pool whose memory outlives its process.
async fn outliving(places: usize) -> Rig {
    let rig = Rig::with(1, places).await;
    rig.fake.core.script.held.memory.store(some_memory(), Ordering::SeqCst);
    rig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_process_takes_over_goes_on_as_if_nothing_had_been() {
    let mut rig = outliving(6).await;
    let (hashes, pages) = chain(4, 1);
    rig.offload(&hashes[..1], &pages[..1]).await;
    rig.span.hold(0, 0, &ReloadOptions::default(), &hashes[..1]).await.unwrap();
    assert_eq!(rig.reserve(1, 2).await, 2);
    rig.write(1, &pages[1]);
    rig.fake.restart(true);
    assert_eq!(rig.reserve(3, 1).await, 1, "at the new one");
    let standings = [Standing::ReadOnly, Standing::Writable, Standing::Writable, Standing::Writable];
    assert_eq!(rig.standings(4), standings);
    assert_eq!(rig.held(), 4);
    assert_eq!(rig.fake.core.pool.lock().unwrap().held.len(), 2, "added to the lease that was taken over");
    rig.write(2, &pages[2]);
    rig.write(3, &pages[3]);
    let mut options = kept();
    options.offload.parent = Some(hashes[0]);
    let report = rig.span.commit(0, 1, &options, &hashes[1..]).await.unwrap();
    assert_eq!(report.stored, 3, "what was written before and after is committed there");
    assert_eq!(rig.reload(&hashes).await, pages);
    let settled = || rig.fake.core.settled.lock().unwrap().contains(&(2, true));
    eventually_async("it is told that nothing else is mapped", settled).await;
    rig.span.release_all().unwrap();
    eventually_async("every slot is given back there", || rig.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_taken_over_can_be_copied_and_nothing_else() {
    let mut rig = outliving(4).await;
    // Slot by slot: the last one is the one that is not taken over.
    for place in 0..3 {
        assert_eq!(rig.reserve(place, 1).await, 1);
        rig.write(place, &[place as u8; 4096]);
    }
    rig.fake.core.script.held.taken_max.store(2, Ordering::SeqCst);
    rig.fake.restart(true);
    let (hashes, _) = chain(3, 1);
    assert_eq!(rig.namespace.lookup(&hashes).await.unwrap(), 0);
    assert_eq!(rig.standings(3), [Standing::Writable, Standing::Writable, Standing::Orphan]);
    let error = rig.span.commit(0, 0, &kept(), &hashes).await.unwrap_err();
    assert_eq!((error.kind, rig.read(2)), (ErrorKind::Invalid, vec![2; 4096]));
    assert!(rig.span.own(0, 2, None).await.unwrap());
    assert_eq!((rig.span.standing(0, 2), rig.read(2)), (Standing::Writable, vec![2; 4096]));
    let report = rig.span.commit(0, 0, &kept(), &hashes).await.unwrap();
    assert_eq!(report.stored, 3, "in a slot of its own it can be");
    let bytes: Vec<Vec<u8>> = (0..3).map(|byte| vec![byte; 4096]).collect();
    assert_eq!(rig.reload(&hashes).await, bytes);
    rig.span.release_all().unwrap();
    eventually_async("every slot is given back", || rig.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_has_no_room_for_is_said_again_until_it_has() {
    let mut rig = outliving(3).await;
    rig.fake.core.script.lease_ms.store(200, Ordering::SeqCst);
    let (hashes, pages) = chain(2, 1);
    assert_eq!(rig.reserve(0, 2).await, 2);
    rig.write(0, &pages[0]);
    rig.fake.core.script.held.no_room.store(true, Ordering::SeqCst);
    rig.fake.restart(true);
    assert_eq!(rig.namespace.lookup(&hashes).await.unwrap(), 0);
    assert_eq!(rig.standings(2), [Standing::Orphan, Standing::Orphan]);
    let settled = || rig.fake.core.settled.lock().unwrap().contains(&(2, true));
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!settled(), "it has slots mapped that are under no lease");
    assert_eq!(rig.read(0), pages[0]);
    // One that is given up meanwhile is not said any more.
    rig.span.vacate(0, 1, 1).unwrap();
    rig.fake.core.script.held.no_room.store(false, Ordering::SeqCst);
    eventually_async("it is taken over", || rig.held() == 1).await;
    eventually_async("nothing else is mapped", settled).await;
    assert_eq!(rig.standings(1), [Standing::Writable]);
    let report = rig.span.commit(0, 0, &kept(), &hashes[..1]).await.unwrap();
    assert_eq!((report.stored, rig.reload(&hashes[..1]).await), (1, pages[..1].to_vec()));
    rig.span.release_all().unwrap();
    eventually_async("every slot is given back", || rig.held() == 0).await;
}

/// Each process numbers its leases anew, so two of different ones may have one number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_one_number_of_two_processes_are_not_taken_for_one() {
    let mut rig = outliving(4).await;
    let (hashes, pages) = chain(3, 1);
    rig.offload(&hashes[..1], &pages[..1]).await;
    let lease = |rig: &Rig| *rig.fake.core.pool.lock().unwrap().held.keys().max().unwrap();
    while lease_number(&rig, &hashes[..1]).await < 5 {}
    for place in 0..3 {
        assert_eq!(rig.reserve(place, 1).await, 1);
    }
    let first = lease(&rig);
    rig.fake.core.script.held.taken_max.store(2, Ordering::SeqCst);
    rig.fake.restart(true);
    // As many leases before it as the first process had.
    while lease_number(&rig, &hashes[..1]).await + 1 < first {}
    assert_eq!(rig.reserve(3, 1).await, 1);
    assert_eq!(lease(&rig), first, "a test of nothing");
    assert_eq!(rig.span.standing(0, 2), Standing::Orphan);
    rig.span.shift(0, 3, 2, 1).unwrap();
    for (place, page) in pages.iter().enumerate() {
        rig.write(place, page);
    }
    let mut options = kept();
    options.offload.parent = Some(hashes[0]);
    let own = chain(4, 7).0;
    let report = rig.span.commit(0, 0, &options, &own[..3]).await.unwrap();
    assert_eq!((report.stored, report.declined), (3, 0));
    assert_eq!(rig.reload(&own[..3]).await, pages);
}

/// The number of the last lease that the fake gave, after one more of a page that is copied.
async fn lease_number(rig: &Rig, page: &[turnkv_client::BlockHash]) -> u64 {
    assert_eq!(rig.reload(page).await.len(), 1);
    rig.fake.core.pool.lock().unwrap().last_lease()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_server_whose_memory_ends_with_it_everything_is_an_orphan_and_nobody_elses() {
    let mut rig = Rig::with(1, 4).await;
    let (hashes, pages) = chain(2, 1);
    rig.offload(&hashes, &pages).await;
    rig.span.hold(0, 0, &ReloadOptions::default(), &hashes).await.unwrap();
    assert_eq!(rig.reserve(2, 1).await, 1);
    rig.write(2, &[2; 4096]);
    rig.fake.restart(true);
    assert_eq!(rig.reserve(3, 1).await, 1);
    let standings = [Standing::Orphan, Standing::Orphan, Standing::Orphan, Standing::Writable];
    assert_eq!(rig.standings(4), standings);
    assert_eq!(
        (rig.read(1), rig.read(2)),
        (pages[1].clone(), vec![2; 4096]),
        "what is mapped stays as it was"
    );
    let report = rig.span.hold(0, 0, &ReloadOptions::default(), &hashes).await.unwrap();
    assert_eq!(report.pages, 2);
    assert_eq!(rig.standings(2), [Standing::ReadOnly; 2]);
    rig.span.vacate(0, 2, 1).unwrap();
    assert_eq!(rig.span.mapped(), (3, 0), "an orphan is nothing to reserve");
    // Lease numbers begin anew: whoever was told of the old ones would end the new ones.
    assert_eq!((rig.namespace.lookup(&hashes).await.unwrap(), rig.held()), (2, 3));
    assert!(!rig.span.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_the_server_ends_is_lost_and_the_others_are_not() {
    let mut rig = Rig::with(1, 4).await;
    rig.fake.core.script.lease_ms.store(80, Ordering::SeqCst);
    assert_eq!(rig.reserve(0, 1).await, 1);
    assert!(!rig.span.is_lost());
    rig.fake.core.script.held.forgets.store(true, Ordering::SeqCst);
    eventually_async("the span hears of it", || rig.span.is_lost()).await;
    assert_eq!(rig.span.standing(0, 0), Standing::Orphan);
    rig.fake.core.script.held.forgets.store(false, Ordering::SeqCst);
    rig.span.vacate(0, 0, 1).unwrap();
    assert!(!rig.span.is_lost(), "nothing of it is mapped any more");
    assert_eq!(rig.reserve(1, 1).await, 1, "under a new lease");
    let renewals = rig.fake.core.renewals.lock().unwrap().len();
    let renewed = || rig.fake.core.renewals.lock().unwrap().len() > renewals + 2;
    eventually_async("it is renewed", renewed).await;
    assert_eq!((rig.span.standing(0, 1), rig.span.is_lost(), rig.held()), (Standing::Writable, false, 1));
}

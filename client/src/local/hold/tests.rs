//! Holding, renewing and releasing, with servers that refuse, forget, and are gone before their answer is read.

use super::super::held::tests::some_memory;
use super::super::tests::{PlayedServer, Said, eventually};
use super::*;
use parking_lot::Mutex;

fn long() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

type Renewal = Arc<Mutex<wire::RenewReply>>;

/// A server, and what it says to renewals.
fn server(lease_ms: u32) -> (PlayedServer, Renewal) {
    let renewal = Arc::new(Mutex::new(wire::RenewReply { lease_ms, ..Default::default() }));
    let said = Arc::clone(&renewal);
    let server = PlayedServer::start(move |verb| match verb {
        Verb::Renew => Some(vec![Said::of(verb, 0, &*said.lock())]),
        _ => Some(vec![Said::of(verb, 0, &wire::LookupReply::default())]),
    });
    (server, renewal)
}

fn slots(count: u32) -> HeldSlots {
    let slots = (0..count).map(|at| (at, wire::SlotRef { offset: at.into(), ..Default::default() }));
    HeldSlots { namespace: [1; 32], shard: 0, reserved: true, slots: slots.collect() }
}

async fn hold(pool: &Arc<LocalPool>, lease: u64, count: u32) -> Result<(Holding, Server)> {
    let mut lent = pool.acquire(long()).await.map_err(Error::from)?;
    let wish = WillMap::begin(&lent);
    let holding = pool.hold(&mut lent, lease, (slots(count), wish), long()).await?;
    Ok((holding, lent.server()))
}

fn releases(server: &PlayedServer) -> Vec<(u64, Vec<u32>)> {
    let releases = server.heard::<wire::ReleaseRequest>(Verb::Release);
    releases.into_iter().map(|release| (release.lease, release.positions)).collect()
}

fn renewals(server: &PlayedServer) -> Vec<Vec<u64>> {
    server.heard::<wire::RenewRequest>(Verb::Renew).into_iter().map(|renew| renew.leases).collect()
}

#[tokio::test]
async fn only_a_lease_that_the_server_let_be_held_is_held() {
    let (server, renewal) = server(60_000);
    let pool = server.pool();
    renewal.lock().gone = vec![7];
    assert_eq!(hold(&pool, 7, 2).await.unwrap_err().kind, ErrorKind::LeaseExpired);
    *renewal.lock() = wire::RenewReply { refused: vec![7], ..Default::default() };
    let (holding, one) = hold(&pool, 7, 2).await.unwrap();
    assert_eq!((holding, pool.lease_now(&one, 7), pool.is_held(&one, 7, 0)), (Holding::Refused, None, false));
    assert!(pool.held.lock().leases.is_empty());
    *renewal.lock() = wire::RenewReply::default();
    assert_eq!(hold(&pool, 7, 2).await.unwrap().0, Holding::Held);
    let held = [0, 1, 2].map(|position| pool.is_held(&one, 7, position));
    assert_eq!((held, pool.lease_now(&one, 7)), ([true, true, false], Some(7)));
    let more = BTreeMap::from([(2, wire::SlotRef::default())]);
    pool.hold_more((&one, 7), &one, more.clone()).unwrap();
    assert!(pool.is_held(&one, 7, 2));
    assert!(pool.hold_more((&one, 8), &one, more).is_err(), "a lease that is none");
}

#[tokio::test]
async fn what_a_server_said_before_another_one_answered_is_held_by_neither() {
    let (server, _) = server(60_000);
    let pool = server.pool();
    let mut lent = pool.acquire(long()).await.unwrap();
    let one = lent.server();
    let (_, wish) = (hold(&pool, 5, 1).await.unwrap(), WillMap::begin(&lent));
    server.greets(1, 2, 0);
    drop(pool.connect(long()).await.unwrap());
    let late = pool.hold(&mut lent, 7, (slots(1), wish), long()).await;
    assert_eq!(late.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!((pool.lease_now(&one, 7), pool.is_held(&one, 5, 0)), (None, false));
    let more = BTreeMap::from([(1, wire::SlotRef::default())]);
    assert!(pool.hold_more((&one, 5), &one, more).is_err(), "its slots are orphans now");
    pool.release(&one, 5, &[], Vec::new());
    assert!(pool.held.lock().leases.is_empty());
    drop(lent);
    assert_eq!(releases(&server), Vec::new(), "the new one has nothing of it");
}

#[tokio::test]
async fn a_release_that_finds_no_connection_is_sent_with_the_next_renewal() {
    let (server, _) = server(80);
    let pool = server.pool();
    let (_, one) = hold(&pool, 7, 3).await.unwrap();
    hold(&pool, 8, 1).await.unwrap();
    pool.release(&one, 7, &[0, 2], Vec::new());
    eventually("it is told", || releases(&server) == [(7, vec![0, 2])]).await;
    // Every connection is lent.
    let mut lent = Vec::new();
    while pool.server().1 > 0 {
        lent.push(pool.acquire(long()).await.unwrap());
    }
    pool.release(&one, 7, &[1], vec![1]);
    pool.release(&one, 7, &[1], vec![1]);
    eventually("it is told by another one", || releases(&server).len() == 2).await;
    assert_eq!(releases(&server)[1], (7, Vec::new()), "all that was left of it, once");
    drop(lent);
    pool.release(&one, 8, &[], Vec::new());
    eventually("nobody renews any more", || !pool.held.lock().kept).await;
    let last = renewals(&server).len();
    assert_eq!(hold(&pool, 9, 1).await.unwrap().0, Holding::Held);
    eventually("it is taken up again", || renewals(&server)[last + 1..].contains(&vec![9])).await;
}

#[tokio::test]
async fn what_a_client_gives_up_while_all_connections_are_lent_is_told_also_when_it_goes() {
    let (server, _) = server(60_000);
    let pool = server.pool();
    let (_, one) = hold(&pool, 7, 3).await.unwrap();
    let mut lent = Vec::new();
    while pool.server().1 > 0 {
        lent.push(pool.acquire(long()).await.unwrap());
    }
    pool.release(&one, 7, &[], Vec::new());
    drop(pool);
    eventually("it is told long before a renewal is due", || releases(&server) == [(7, Vec::new())]).await;
    drop(lent);
}

#[tokio::test]
async fn leases_are_renewed_in_as_many_calls_as_it_takes_and_one_that_is_gone_is_lost_alone() {
    let (server, renewal) = server(60_000);
    let (pool, account) = (server.pool(), Account::of(some_memory(), 1).unwrap());
    let count = RENEW_LEASES_MAX as u64 + 1;
    drop(pool.acquire(long()).await.unwrap());
    for lease in 1..=count {
        let (of, mapping) = (slots(1), vec![account.begin_mapping()]);
        let held = HeldLease { of, now: Some(lease), orphans: BTreeMap::new(), is_left: false, mapping };
        pool.held.lock().leases.insert((1, lease), held);
    }
    assert!(!pool.has_lost());
    *renewal.lock() = wire::RenewReply { lease_ms: 400, gone: vec![count, count + 7], ..Default::default() };
    assert_eq!(pool.renew_all().await.unwrap(), Duration::from_millis(100), "a quarter of it");
    let sizes: Vec<usize> = renewals(&server).iter().map(Vec::len).collect();
    assert_eq!(sizes, [RENEW_LEASES_MAX, 1]);
    let one = pool.server().0;
    assert!(pool.is_lost(&one, count) && !pool.is_lost(&one, 1) && !pool.is_lost(&one, count + 7));
    assert_eq!((pool.lease_now(&one, count), pool.lease_now(&one, 1)), (None, Some(1)));
    for (lease_ms, expected) in [(0, RENEW_PAUSE_MIN), (u32::MAX, RENEW_PAUSE_MAX)] {
        *renewal.lock() = wire::RenewReply { lease_ms, ..Default::default() };
        assert_eq!(pool.renew_all().await.unwrap(), expected);
    }
}

/// Numbers of leases begin anew with each process: what the one before says of a number is of another lease.
#[tokio::test]
async fn what_a_server_that_is_gone_says_of_a_lease_does_not_end_one_of_the_next() {
    let (server, renewal) = server(60_000);
    let memory = some_memory();
    server.greets(1, 1, memory);
    let pool = server.pool();
    let (_, one) = hold(&pool, 7, 1).await.unwrap();
    renewal.lock().gone = vec![7];
    server.stall(true);
    let renewing = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { pool.renew_all().await }
    });
    eventually("it is asked", || renewals(&server).len() == 2).await;
    pool.held.lock().move_to(2, memory);
    let reply = wire::TakeOverReply { lease: 7, lease_ms: 1, positions: vec![0], no_room: false };
    let mapping = Account::of(memory, 2).unwrap().begin_mapping();
    assert!(pool.held.lock().taken((1, 7), &reply, mapping).is_empty());
    server.stall(false);
    renewing.await.unwrap().unwrap();
    assert_eq!((pool.is_lost(&one, 7), pool.lease_now(&one, 7)), (false, Some(7)));
}

//! Connections at rest over servers that come and go, and what these are told, once each and not too early.

use super::super::held::tests::some_memory;
use super::super::hold::WillMap;
use super::super::lent::Lent;
use super::super::tests::{PlayedServer, Said, eventually};
use super::*;
use std::time::Duration;

fn long() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

fn server() -> PlayedServer {
    PlayedServer::start(|verb| Some(vec![Said::of(verb, 0, &wire::LookupReply::default())]))
}

fn hellos(server: &PlayedServer) -> Vec<u64> {
    server.heard::<wire::HelloRequest>(Verb::Hello).iter().map(|hello| hello.client).collect()
}

/// Of each that was told: whether it is of what is mapped too.
fn settled(server: &PlayedServer) -> Vec<bool> {
    server.heard::<wire::SettledRequest>(Verb::Settled).iter().map(|settled| settled.mapped).collect()
}

/// Everything that was sent before this on the same connection has been heard after it.
async fn flush(pool: &Arc<LocalPool>) {
    let mut lent = pool.acquire(long()).await.unwrap();
    let nothing = wire::LookupRequest::default();
    let _: wire::LookupReply = lent.call(Verb::Lookup, &nothing, long()).await.unwrap();
}

/// An operation that may write, from before it is granted anything.
async fn writing(pool: &Arc<LocalPool>) -> Lent {
    let mut lent = pool.acquire(long()).await.unwrap();
    let nothing = wire::LookupRequest::default();
    let _: wire::BeginOffloadReply = lent.call(Verb::BeginOffload, &nothing, long()).await.unwrap();
    lent
}

#[tokio::test]
async fn connections_join_the_number_that_the_first_was_given_until_another_process_answers() {
    let server = server();
    server.greets(40, 1, 0);
    let pool = server.pool();
    let (one, two) = (pool.acquire(long()).await.unwrap(), pool.acquire(long()).await.unwrap());
    assert_eq!((hellos(&server), one.client(), two.client()), (vec![0, 40], 40, 40));
    drop((one, two));
    assert_eq!(pool.server().1, 2, "both are at rest");
    server.greets(50, 2, 0);
    let other = pool.connect(long()).await.unwrap();
    assert_eq!((hellos(&server), pool.server().1), (vec![0, 40, 40], 0), "those of the old one are closed");
    assert_eq!((pool.server().0.client, pool.server().0.instance), (50, 2));
    pool.give_back(Connection { server: Server { instance: 1, ..other.server.clone() }, ..other });
    assert_eq!(pool.server().1, 0, "one of the old process is of no use");
}

#[tokio::test]
async fn a_hello_that_gives_no_number_is_no_connection_and_where_nobody_is_another_attempt_is_safe() {
    let server = server();
    server.greets(0, 1, 0);
    let pool = server.pool();
    let refused = pool.connect(long()).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Failed(error) if error.kind == ErrorKind::Internal));
    assert_eq!(pool.permits.available_permits(), CONNECTIONS_MAX);
    drop(server);
    let nobody = pool.connect(long()).await.unwrap_err();
    assert!(matches!(nobody, ConnectError::NobodyThere(_)), "{nobody:?}");
}

#[tokio::test]
async fn ends_of_leases_wait_for_a_connection_to_their_server_and_to_no_other() {
    let server = server();
    let pool = server.pool();
    let lent = pool.acquire(long()).await.unwrap();
    let first = lent.server();
    pool.end_reload(&first, 7, vec![1]);
    assert!(!pool.tell(&first, Verb::Release, &wire::ReleaseRequest::default()), "none is at rest");
    let ends = || -> Vec<u64> {
        server.heard::<wire::EndReloadRequest>(Verb::EndReload).iter().map(|end| end.lease).collect()
    };
    assert_eq!(ends(), Vec::<u64>::new());
    drop(lent);
    eventually("the lease is ended", || ends() == [7]).await;
    let lent = pool.acquire(long()).await.unwrap();
    pool.end_reload(&first, 8, Vec::new());
    server.greets(1, 2, 0);
    drop(pool.connect(long()).await.unwrap());
    pool.end_reload(&first, 9, Vec::new());
    drop(lent);
    flush(&pool).await;
    assert_eq!(ends(), [7], "the next server has leases of those numbers that are not ours to end");
    assert!(pool.tell(&pool.server().0, Verb::Release, &wire::ReleaseRequest::default()));
    assert!(!pool.tell(&first, Verb::Release, &wire::ReleaseRequest::default()));
}

#[tokio::test]
async fn a_server_is_told_that_nothing_is_under_way_once_that_is_so_and_once() {
    let (server, memory) = (server(), some_memory());
    server.greets(1, 1, memory);
    let pool = server.pool();
    let (one, two) = (writing(&pool).await, writing(&pool).await);
    assert_eq!(settled(&server), [true], "the first had nobody before it");
    server.greets(1, 2, memory);
    pool.give_back(pool.connect(long()).await.unwrap());
    flush(&pool).await;
    assert_eq!(settled(&server).len(), 1, "two still write where the second server may grant slots");
    drop(one);
    flush(&pool).await;
    assert_eq!(settled(&server).len(), 1);
    drop(two);
    eventually("it is told", || settled(&server) == [true, true]).await;
    drop(writing(&pool).await);
    flush(&pool).await;
    assert_eq!(settled(&server).len(), 2, "once");
}

#[tokio::test]
async fn what_is_mapped_is_told_by_itself_where_it_takes_longer_than_what_is_written() {
    let (server, memory) = (server(), some_memory());
    server.greets(1, 1, memory);
    let pool = server.pool();
    let lent = pool.acquire(long()).await.unwrap();
    let (wish, other) = (WillMap::begin(&lent), writing(&pool).await);
    server.greets(1, 2, memory);
    pool.give_back(pool.connect(long()).await.unwrap());
    drop(other);
    eventually("writes are over", || settled(&server) == [true, false]).await;
    flush(&pool).await;
    assert_eq!(settled(&server).len(), 2, "something is still to be mapped");
    drop(wish);
    pool.tell_settled();
    eventually("nothing is mapped", || settled(&server) == [true, false, true]).await;
    drop(lent);
    pool.tell_settled();
    flush(&pool).await;
    assert_eq!(settled(&server).len(), 3);
}

#[tokio::test]
async fn of_writes_that_nobody_can_say_the_end_of_none_is_ever_said_to_be_over() {
    let (server, memory) = (server(), some_memory());
    server.greets(1, 1, memory);
    let pool = server.pool();
    let mut lent = writing(&pool).await;
    lent.leave_writing();
    drop(lent);
    server.greets(1, 2, memory);
    pool.give_back(pool.connect(long()).await.unwrap());
    pool.tell_settled();
    flush(&pool).await;
    assert_eq!(settled(&server), [true], "the first server only");
    server.greets(1, 3, some_memory());
    pool.give_back(pool.connect(long()).await.unwrap());
    flush(&pool).await;
    assert_eq!(settled(&server), [true, true], "nobody writes to other memory");
}

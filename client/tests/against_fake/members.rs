//! Members that send a turn from one to the other.

use crate::fake::{Fake, chain, spec};
use std::sync::atomic::Ordering;
use std::time::Duration;
use turnkv_client::{Client, ClientConfig, DataPlane, EndTurn, ErrorKind, Namespace, PinFor};
use turnkv_proto::wire;

async fn open(list: &[String]) -> Namespace {
    let config = ClientConfig { data_plane: DataPlane::Inline, ..ClientConfig::at(list.join(",")) };
    Client::new(config).unwrap().open_namespace(spec()).await.unwrap()
}

fn says(fake: &Fake, home: &str) {
    *fake.core.script.home.lock().unwrap() = Some(home.to_owned());
}

/// Turns that each was asked to begin, and those that it began.
fn turns(fakes: &[Fake]) -> Vec<(u32, u32)> {
    let count = |fake: &Fake| {
        (fake.core.turns_asked.swap(0, Ordering::SeqCst), fake.core.turns_begun.swap(0, Ordering::SeqCst))
    };
    fakes.iter().map(count).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_is_followed_twice_and_begins_where_it_is_then() {
    let fakes = [Fake::start(), Fake::start(), Fake::start(), Fake::start()];
    let mut list = Vec::new();
    for fake in &fakes {
        list.push(fake.over_tcp().await);
    }
    let namespace = open(&list[..2]).await;
    for (at, fake) in fakes.iter().enumerate() {
        says(fake, &list[(at + 1) % 4]);
    }
    namespace.begin_turn("chain").await.unwrap();
    assert_eq!(turns(&fakes), [(1, 0), (1, 0), (1, 1), (0, 0)]);
    // It begins there again, as its place is known; whoever says NOT_HOME there is followed.
    namespace.begin_turn("chain").await.unwrap();
    assert_eq!(turns(&fakes), [(1, 1), (0, 0), (1, 0), (1, 0)]);
    says(&fakes[1], &list[0]);
    namespace.begin_turn("circle").await.unwrap();
    assert_eq!(turns(&fakes), [(2, 1), (1, 0), (0, 0), (0, 0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_goes_where_nothing_is_or_encryption_would_end() {
    let fakes = [Fake::start(), Fake::start()];
    let list = [fakes[0].over_tcp().await, fakes[1].over_tcp().await];
    let namespace = open(&list).await;
    for home in ["tls://127.0.0.1:1", "http://127.0.0.1:1", "unix:/nowhere", "", &list[0]] {
        says(&fakes[0], home);
        namespace.begin_turn("lost").await.unwrap();
        assert_eq!(turns(&fakes), [(2, 1), (0, 0)], "{home:?}");
    }
    // Nobody is there: whoever said so begins it.
    says(&fakes[0], "tcp://127.0.0.1:1");
    namespace.begin_turn("gone").await.unwrap();
    assert_eq!(turns(&fakes), [(2, 1), (0, 0)]);
}

/// Who tells late who the members are serves calls all the same: with a breaker that opens at once it was passed by.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_tells_late_who_the_members_are_is_not_passed_by() {
    let fakes = [Fake::start(), Fake::start()];
    let list = [fakes[0].over_tcp().await, fakes[1].over_tcp().await];
    fakes[0].core.script.tells_late_us.store(60_000_000, Ordering::SeqCst);
    let mut config = ClientConfig { data_plane: DataPlane::Inline, ..ClientConfig::at(list.join(",")) };
    config.breaker.failures = 1;
    let namespace = Client::new(config).unwrap().open_namespace(spec()).await.unwrap();
    namespace.begin_turn("s").await.unwrap();
    while fakes[0].core.watches.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    turns(&fakes);
    namespace.begin_turn("other").await.unwrap();
    assert_eq!(turns(&fakes), [(1, 1), (0, 0)]);
}

/// Lookups that each was asked.
fn lookups(fakes: &[Fake]) -> Vec<u32> {
    fakes.iter().map(|fake| fake.core.lookups.swap(0, Ordering::SeqCst)).collect()
}

async fn three() -> (Vec<Fake>, Vec<String>) {
    let fakes = vec![Fake::start(), Fake::start(), Fake::start()];
    let mut list = Vec::new();
    for fake in &fakes {
        list.push(fake.over_tcp().await);
    }
    (fakes, list)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_pass_by_members_that_are_being_emptied_for_one_that_the_list_does_not_name() {
    use wire::MemberState::{Draining, Serving};
    let (fakes, list) = three().await;
    let states = [Draining, Draining, Serving];
    *fakes[0].core.script.member.told.lock().unwrap() = states.into_iter().zip(list.clone()).collect();
    let config = ClientConfig { data_plane: DataPlane::Inline, ..ClientConfig::at(list[..2].join(",")) };
    let client = Client::new(config).unwrap();
    let namespace = client.open_namespace(spec()).await.unwrap();
    crate::fake::eventually_async("it is told who there is", || client.state().members == 3).await;
    let (hashes, _) = chain(2, 1);
    assert_eq!(namespace.lookup(&hashes).await.unwrap(), 0);
    let there = fakes[2].core.opens.load(Ordering::SeqCst);
    assert_eq!((lookups(&fakes)[2], there), (1, 1), "with the namespace opened there");
    namespace.begin_turn("new").await.unwrap();
    namespace.lookup_of("new", &hashes).await.unwrap();
    assert_eq!((turns(&fakes)[2], lookups(&fakes)), ((1, 1), vec![0, 0, 1]), "a turn as well");
    assert_eq!(client.state().address, list[2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_a_member_does_not_know_is_looked_for_once_and_found_from_then_on() {
    let (fakes, list) = three().await;
    let namespace = open(&list[..2]).await;
    let ends = || -> Vec<u32> {
        fakes.iter().map(|fake| fake.core.script.member.ends.swap(0, Ordering::SeqCst)).collect()
    };
    fakes[0].core.script.member.knows_none.store(true, Ordering::SeqCst);
    let found = |at: Option<&str>| {
        *fakes[0].core.script.member.found.lock().unwrap() = at.map(str::to_owned);
    };
    // Nobody says, nobody can go there, or it is the one that was asked.
    for nowhere in [None, Some("tls://127.0.0.1:1"), Some(list[0].as_str()), Some("")] {
        found(nowhere);
        let error = namespace.end_turn("lost", &EndTurn::default()).await.unwrap_err();
        assert_eq!((error.kind, ends()), (ErrorKind::SessionUnknown, vec![1, 0, 0]), "{nowhere:?}");
    }
    found(Some(&list[2]));
    namespace.end_turn("found", &EndTurn::default()).await.unwrap();
    assert_eq!(ends(), [1, 0, 1]);
    namespace.end_turn("found", &EndTurn::default()).await.unwrap();
    assert_eq!(ends(), [0, 0, 1], "its place is known");
    fakes[2].core.script.member.knows_none.store(true, Ordering::SeqCst);
    let error = namespace.end_turn("gone", &EndTurn::default()).await.unwrap_err();
    assert_eq!(
        (error.kind, ends()),
        (ErrorKind::SessionUnknown, vec![1, 0, 1]),
        "nobody is asked a third time"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_begins_with_what_the_pool_has_and_not_with_what_makes_no_sense() {
    let (fakes, list) = three().await;
    let namespace = open(&list[..1]).await;
    let lie = &fakes[0].core.script.lies.begin_turn;
    let begun = namespace.begin_turn("s").await.unwrap();
    assert_eq!(
        (begun.turn, begun.pages, begun.dram, begun.tail.map(|(_, tokens)| tokens)),
        (1, 5, 4, Some(3))
    );
    *lie.lock().unwrap() = Some(|reply| reply.tail_tokens = 0);
    assert_eq!(namespace.begin_turn("s").await.unwrap().tail, None, "a tail of no tokens is none");
    *lie.lock().unwrap() = Some(|reply| reply.tail = Vec::new().into());
    assert_eq!(namespace.begin_turn("s").await.unwrap().tail, None, "nor is one without a hash");
    *lie.lock().unwrap() = Some(|reply| reply.tail = vec![1; 31].into());
    assert_eq!(namespace.begin_turn("s").await.unwrap_err().kind, ErrorKind::Internal);
    *lie.lock().unwrap() = Some(|reply| reply.home = Some(wire::Member::default()));
    let error = namespace.begin_turn("s").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal, "it sends away a turn that may not go: {error}");
    assert_eq!(turns(&fakes[..1]), [(5, 5)]);
    let error = namespace.pin_session("s", Some(0), PinFor::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid, "no pages are not all pages");
    assert_eq!(namespace.fork("s", "t", Some(0)).await.unwrap_err().kind, ErrorKind::Invalid);
}

/// The home that was named is gone when the turn comes there: whoever named it begins the turn, and pulls its pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_whose_home_does_not_answer_begins_where_it_was_sent_from() {
    let (fakes, list) = three().await;
    let namespace = open(&list[..2]).await;
    let closed = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let gone = format!("tcp://{}", closed.local_addr().unwrap());
    drop(closed);
    says(&fakes[0], &gone);
    let begun = namespace.begin_turn("orphan").await.unwrap();
    assert_eq!((begun.turn, turns(&fakes)), (1, vec![(2, 1), (0, 0), (0, 0)]));
    assert_eq!(namespace.end_turn("orphan", &EndTurn::default()).await.unwrap(), 0);
    assert_eq!(fakes[0].core.script.member.ends.load(Ordering::SeqCst), 1, "it is there from then on");
}

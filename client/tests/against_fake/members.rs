//! Members that send a turn from one to the other.

use crate::fake::{Fake, spec};
use std::sync::atomic::Ordering;
use std::time::Duration;
use turnkv_client::{Client, ClientConfig, DataPlane, Namespace};

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

//! Which pages are on their way, as pulls begin and end.

use super::*;
use turnkv_cluster::{Incarnation, Member, MemberId, MemberState};

const NAMESPACE: NamespaceId = NamespaceId([1; 32]);

fn chain(seed: u32, pages: u32) -> Vec<BlockHash> {
    let mut chain: Vec<BlockHash> = Vec::new();
    for at in 0..pages {
        chain.push(BlockHash::chain(chain.last(), &[seed, at]));
    }
    chain
}

fn card() -> MemberCard {
    let (id, incarnation) = (MemberId(1), Incarnation(1));
    let member = Member { id, incarnation, weight: 1, state: MemberState::Serving };
    MemberCard { name: "a".to_owned(), endpoint: "tcp://a:1".to_owned(), zone: String::new(), member }
}

fn session(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

fn pull(name: &str, hashes: &[BlockHash], here: usize) -> Pull {
    let session = Some(session(name));
    Pull { session, here, ..Pull::new(NAMESPACE, hashes.to_vec(), Arc::new(card())) }
}

#[test]
fn pages_are_on_their_way_until_they_came_or_their_pull_ended() {
    let (afar, hashes) = (Afar::default(), chain(1, 10));
    assert!(afar.begin(pull("a", &hashes, 4)));
    assert_eq!((afar.coming(&NAMESPACE, &hashes), afar.coming(&NAMESPACE, &hashes[4..])), (0, 6));
    assert_eq!(afar.pages_of(&NAMESPACE, &session("a")), Some(10));
    let begun = afar.next().unwrap();
    assert_eq!(afar.pages_of(&NAMESPACE, &session("a")), Some(10), "it is under way");
    afar.pages_settled(&begun, &hashes[4..6]);
    assert!(!afar.is_coming(&NAMESPACE, &hashes[5]) && afar.is_coming(&NAMESPACE, &hashes[6]));
    afar.ended(&begun);
    assert_eq!((afar.coming(&NAMESPACE, &hashes[6..]), afar.pages_of(&NAMESPACE, &session("a"))), (0, None));
    assert_eq!(afar.counts(), (0, 0, 0));
}

#[test]
fn a_page_that_two_pulls_bring_comes_until_the_one_that_brings_it_ended() {
    let (afar, hashes) = (Afar::default(), chain(1, 10));
    assert!(afar.begin(pull("a", &hashes[..5], 0)) && afar.begin(pull("b", &hashes, 0)));
    let (one, other) = (afar.next().unwrap(), afar.next().unwrap());
    afar.ended(&other);
    assert_eq!(afar.coming(&NAMESPACE, &hashes), 5);
    afar.ended(&one);
    assert_eq!(afar.counts(), (0, 0, 0));
}

#[test]
fn a_prefix_that_one_pull_brings_is_not_brought_by_another_too() {
    let (afar, hashes) = (Afar::default(), chain(1, 10));
    let prefix = |pages: &[BlockHash]| Pull::new(NAMESPACE, pages.to_vec(), Arc::new(card()));
    assert!(afar.begin(prefix(&hashes)) && afar.begin(prefix(&hashes)) && afar.begin(prefix(&hashes[..5])));
    assert_eq!(afar.counts(), (1, 0, 10));
    // A session's own list grows with its own pull, and a longer prefix has pages that nobody brings.
    let longer = [hashes.clone(), chain(2, 1)].concat();
    assert!(afar.begin(pull("a", &hashes, 0)) && afar.begin(prefix(&longer)));
    assert_eq!(afar.counts(), (3, 0, 11));
}

#[test]
fn no_more_pulls_wait_or_go_on_than_may() {
    let afar = Afar::default();
    let begins = |at: u32| afar.begin(pull(&format!("s{at}"), &chain(at, 1), 0));
    assert!((0..PULLS_WAITING_MAX as u32).all(begins) && !begins(u32::MAX));
    assert_eq!(afar.refused.load(Ordering::Relaxed), 1);
    let under_way: Vec<Pull> = std::iter::from_fn(|| afar.next()).collect();
    assert_eq!(under_way.len(), PULLS_MAX);
    afar.ended(&under_way[0]);
    assert!(afar.next().is_some() && afar.next().is_none());
}

#[test]
fn no_more_pages_are_on_their_way_than_may() {
    let (afar, hashes) = (Afar::default(), chain(1, 3));
    let mut many: Vec<BlockHash> = Vec::with_capacity(PULL_PAGES_MAX);
    many.extend((0..PULL_PAGES_MAX as u32 - 2).map(|at| {
        let mut hash = BlockHash([7; 32]);
        hash.0[..4].copy_from_slice(&at.to_le_bytes());
        hash
    }));
    assert!(afar.begin(pull("a", &many, 0)));
    assert!(!afar.begin(pull("b", &hashes, 0)) && afar.begin(pull("c", &hashes, 1)));
}

#[test]
fn a_pull_of_which_nothing_comes_is_waited_for_by_nobody_until_more_of_it_does() {
    let (afar, hashes) = (Afar::default(), chain(1, 10));
    assert!(afar.begin(pull("a", &hashes, 0)));
    let begun = afar.next().unwrap();
    let counted = || (afar.coming(&NAMESPACE, &hashes[2..]), afar.pages_of(&NAMESPACE, &session("a")));
    afar.waited_in_vain(&NAMESPACE, &hashes[2]);
    assert_eq!(counted(), (8, Some(10)), "it began a moment ago");
    afar.state.lock().under_way[0].moved -= PULL_STILL_MIN;
    afar.waited_in_vain(&NAMESPACE, &hashes[2]);
    assert_eq!(counted(), (0, None));
    assert!(!afar.is_coming(&NAMESPACE, &hashes[2]));
    afar.pages_settled(&begun, &[]);
    assert_eq!(counted(), (0, None), "nothing came");
    afar.pages_settled(&begun, &hashes[..1]);
    assert_eq!(counted(), (8, Some(10)), "it goes on");
    // Another one that has the pages brings them.
    afar.state.lock().under_way[0].stands_still = true;
    assert!(afar.begin(pull("b", &hashes[..4], 0)));
    assert_eq!((afar.coming(&NAMESPACE, &hashes), counted()), (4, (2, None)));
    afar.ended(&begun);
    assert_eq!(afar.coming(&NAMESPACE, &hashes), 4);
}

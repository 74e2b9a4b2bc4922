//! What is read of the members as keys come and go, when the own key is put, and which life is wanted and given.

use super::*;
use crate::limits::ETCD_VALUE_BYTES_MAX;
use turnkv_cluster::{Member, MemberId, MemberState};

/// A member of a cluster whose etcd is not asked: nothing runs.
fn member() -> EtcdMembers {
    let endpoints = ["http://127.0.0.1:9".to_owned()];
    EtcdMembers::new(("t", "own"), &endpoints, &TlsConfig::default(), 7).unwrap()
}

fn card(name: &str, incarnation: u64) -> MemberCard {
    let (id, state) = (MemberId::of(name), MemberState::Serving);
    let member = Member { id, incarnation: Incarnation(incarnation), weight: 100, state };
    MemberCard { name: name.to_owned(), endpoint: format!("tcp://{name}:1"), zone: String::new(), member }
}

fn listed(keys: Vec<(String, Vec<u8>)>) -> StoredKeys {
    StoredKeys { keys, revision: 5 }
}

fn key(card: &MemberCard) -> (String, Vec<u8>) {
    (card.name.clone(), card_text(card))
}

fn change(name: &str, value: Option<Vec<u8>>) -> KeyChange {
    KeyChange { name: name.to_owned(), value }
}

fn names(etcd: &EtcdMembers) -> Vec<String> {
    etcd.look().cards.into_iter().map(|card| card.name).collect()
}

#[tokio::test]
async fn nothing_is_said_of_the_members_before_they_were_read_and_then_what_was_read() {
    let etcd = member();
    assert_eq!(etcd.look().observation, Observation::Unreachable);
    etcd.saw(vec![change("a", Some(card_text(&card("a", 1))))]);
    assert_eq!(
        etcd.look().observation,
        Observation::Unreachable,
        "a change of what is not known is not known"
    );
    etcd.saw_all(listed(vec![key(&card("a", 1)), key(&card("b", 2)), ("c".to_owned(), b"{".to_vec())]));
    assert_eq!(names(&etcd), ["a", "b"], "what does not parse is nobody");
    let Observation::Members(there) = etcd.look().observation else { panic!("they were read") };
    assert_eq!(there, [card("a", 1).member, card("b", 2).member]);
    etcd.saw_all(listed(Vec::new()));
    assert_eq!(etcd.look().observation, Observation::Members(Vec::new()), "an empty list is a list");
}

#[tokio::test]
async fn changes_are_taken_in_their_order_and_one_that_says_nothing_is_one_that_is_gone() {
    let etcd = member();
    etcd.saw_all(listed(vec![key(&card("a", 1)), key(&card("b", 1))]));
    let later = card("a", 2);
    etcd.saw(vec![
        change("a", None),
        change("a", Some(card_text(&later))),
        change("b", Some(card_text(&later))),
        change("c", Some(vec![b' '; ETCD_VALUE_BYTES_MAX + 1])),
        change("never", None),
    ]);
    assert_eq!(names(&etcd), ["a"], "under another member's name stands nobody");
    assert_eq!(etcd.look().cards, [later]);
    let cut = &card_text(&card("a", 3))[..20];
    etcd.saw(vec![change("a", Some(cut.to_vec()))]);
    assert!(names(&etcd).is_empty(), "what is damaged is not what was before");
}

#[tokio::test]
async fn no_more_members_are_known_than_may_be_and_those_that_are_change_all_the_same() {
    let etcd = member();
    let name = |at: usize| format!("m{at:05}");
    etcd.saw_all(listed((0..MEMBERS_MAX - 1).map(|at| key(&card(&name(at), 1))).collect()));
    let come = |at: usize| change(&name(at), Some(card_text(&card(&name(at), 2))));
    etcd.saw(vec![come(MEMBERS_MAX), come(MEMBERS_MAX + 1), come(0)]);
    let cards = etcd.look().cards;
    assert_eq!(cards.len(), MEMBERS_MAX, "one more, and not two");
    assert_eq!(cards[0], card(&name(0), 2));
    etcd.saw(vec![change(&name(1), None), come(MEMBERS_MAX + 1)]);
    assert!(names(&etcd).contains(&name(MEMBERS_MAX + 1)), "one that left made room");
}

#[tokio::test]
async fn the_own_key_is_put_where_it_does_not_stand_as_it_should_and_never_over_a_later_life() {
    let etcd = member();
    assert_eq!(etcd.to_put(true), None, "no life has begun");
    etcd.put(&card("own", 5));
    assert_eq!(etcd.to_put(true), None, "what stands there is not known");
    etcd.saw_all(listed(Vec::new()));
    assert_eq!(etcd.to_put(false), Some(card("own", 5)), "it does not stand");
    etcd.saw_all(listed(vec![key(&card("own", 5))]));
    assert_eq!((etcd.to_put(false), etcd.to_put(true)), (None, Some(card("own", 5))));
    let mut moved = card("own", 5);
    moved.member.state = MemberState::Draining;
    etcd.put(&moved);
    assert_eq!(etcd.to_put(false), Some(moved.clone()), "it is to say something else");
    etcd.saw_all(listed(vec![key(&card("own", 4))]));
    assert_eq!(etcd.to_put(false), Some(moved), "what an earlier life left is written over");
    etcd.saw_all(listed(vec![key(&card("own", 6))]));
    assert_eq!((etcd.to_put(false), etcd.to_put(true)), (None, None), "this life is over");
}

#[tokio::test]
async fn a_life_is_wanted_once_and_given_once() {
    let etcd = member();
    let wanted = |etcd: &EtcdMembers| etcd.state.lock().wanted;
    assert_eq!(etcd.next_life(None, Incarnation(0)), None);
    assert_eq!(wanted(&etcd), Some(Incarnation(0)), "the first one is");
    assert_eq!(etcd.next_life(None, Incarnation(9)), None, "it is on its way");
    assert_eq!(wanted(&etcd), Some(Incarnation(0)));
    let given = NewLife { incarnation: Incarnation(3), seed: 7 };
    etcd.state.lock().given = Some(given);
    assert_eq!(etcd.next_life(None, Incarnation(0)), Some(given));
    assert_eq!(
        (etcd.next_life(Some(Incarnation(3)), Incarnation(3)), wanted(&etcd)),
        (None, None),
        "it goes on"
    );
    assert_eq!(etcd.next_life(Some(Incarnation(3)), Incarnation(4)), None);
    assert_eq!(wanted(&etcd), Some(Incarnation(4)), "a later one was heard of");
}

#[tokio::test]
async fn etcd_that_does_not_answer_any_more_is_not_read_and_what_is_known_of_the_cluster_stays() {
    let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let etcd =
        EtcdMembers::new(("t", "own"), &[format!("http://{place}")], &TlsConfig::default(), 7).unwrap();
    etcd.saw_all(listed(vec![key(&card("a", 1))]));
    let unread = async {
        while etcd.look().observation != Observation::Unreachable {
            tokio::task::yield_now().await;
        }
    };
    let running = async {
        tokio::select! {
            () = etcd.run() => panic!("it goes on for ever"),
            () = unread => {}
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), running).await.expect("nobody is there to ask");
    assert!(etcd.forget("a").await.unwrap_err().message.contains("etcd does not"));
    assert_eq!(etcd.state.lock().founded, Founded { id: 7, seed: 7, protocol_floor: CLUSTER_PROTOCOL });
}

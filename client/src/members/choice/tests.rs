//! The order of members against a plain one, and where sessions are at home.

use super::*;
use proptest::prelude::*;

const NAMESPACE: NamespaceId = NamespaceId([7; 32]);

fn members(count: u16) -> Members {
    let list: Vec<String> = (1..=count).map(|port| format!("tcp://host:{port}")).collect();
    let mut config = ClientConfig::at(list.join(","));
    config.breaker.failures = 1;
    config.breaker.cooldown_ms = 600_000;
    Members::new(config).unwrap()
}

fn told(members: &Members, told: &[(u16, wire::MemberState)]) {
    let member = |(port, state): &(u16, wire::MemberState)| wire::Member {
        endpoint: format!("tcp://host:{port}"),
        state: *state as i32,
        ..Default::default()
    };
    members.learn(&wire::MembersReply { members: told.iter().map(member).collect(), ..Default::default() });
}

fn port(link: &Link) -> u16 {
    match &link.address {
        Address::Tcp(_, port) => *port,
        other => panic!("{other}"),
    }
}

/// Everybody that is asked, one after the other.
fn order(members: &Members) -> Vec<u16> {
    let mut asked: Vec<Arc<Link>> = Vec::new();
    while let Some(link) = members.next(&NAMESPACE, &asked) {
        assert!(!is_among(&link, &asked), "nobody is asked twice");
        asked.push(link);
    }
    asked.iter().map(|link| port(link)).collect()
}

/// Ports 1 to 3 are of the list; ports 4 to 6 are known by what one of them tells.
fn states() -> impl Strategy<Value = Vec<(bool, bool, bool)>> {
    prop::collection::vec(any::<(bool, bool, bool)>(), 6)
}

proptest! {
    #[test]
    fn members_are_asked_in_the_order_that_is_promised(states in states()) {
        let members = members(3);
        // Of each: whether one of them tells of it, that it takes pages, and that it is sick.
        let state = |serves| match serves {
            true => wire::MemberState::Serving,
            false => wire::MemberState::Draining,
        };
        let all = || (1..=6u16).zip(&states);
        let named: Vec<_> = all().filter(|(_, state)| state.0).map(|(at, is)| (at, state(is.1))).collect();
        told(&members, &named);
        let mut sick = Vec::new();
        for (at, (_, _, is_sick)) in all() {
            let link = members.named(&wire::Member { endpoint: format!("tcp://host:{at}"), ..Default::default() });
            if *is_sick {
                link.unwrap().sicken();
                sick.push(at);
            }
        }
        let serves = |at: u16| named.iter().all(|(port, state)| *port != at || *state == wire::MemberState::Serving);
        let is_well = |at: &u16| !sick.contains(at);
        let beyond = |takes: bool| {
            let ranked = members.learned.lock().ranked(&NAMESPACE, takes);
            ranked.into_iter().filter_map(|address| match address {
                Address::Tcp(_, port) => Some(port),
                _ => None,
            }).filter(is_well)
        };
        let mut expected: Vec<u16> = (1..=3).filter(|at| serves(*at)).filter(is_well).collect();
        expected.extend(beyond(true));
        expected.extend((1..=3).filter(is_well));
        expected.extend(beyond(false));
        expected.extend(1..=3);
        let mut seen = std::collections::BTreeSet::new();
        expected.retain(|at| seen.insert(*at));
        let order = order(&members);
        prop_assert_eq!(&order, &expected);
        prop_assert_eq!(port(&members.usual()), members.next(&NamespaceId([0; 32]), &[]).map(|link| port(&link)).unwrap());
        prop_assert_eq!(members.sick().len(), sick.len());
    }
}

#[test]
fn one_address_is_asked_whatever_its_health_and_follows_no_homes() {
    let members = members(1);
    let link = members.first();
    link.sicken();
    assert_eq!(order(&members), [1]);
    told(&members, &[(1, wire::MemberState::Draining), (2, wire::MemberState::Serving)]);
    assert_eq!(order(&members), [1], "nobody else was asked for");
    members.note_place(&NAMESPACE, "session", &link);
    assert!(members.place_of(&NAMESPACE, "session").is_none() && !members.follows_homes());
}

#[test]
fn nobody_is_led_to_where_members_are_not() {
    let members = members(2);
    let named = |endpoint: &str| {
        let member = wire::Member { endpoint: endpoint.to_owned(), ..Default::default() };
        members.named(&member).map(|link| link.address.to_string())
    };
    for endpoint in ["", "host:3", "unix:/run/turnkv.sock", "http://host:3", "tls://host:3", "tcp://host:0"] {
        assert_eq!(named(endpoint), None, "{endpoint:?}");
    }
    assert_eq!(named("tcp://host:3").as_deref(), Some("tcp://host:3"));
    let member = wire::Member { endpoint: "tcp://host:1".to_owned(), ..Default::default() };
    assert!(Arc::ptr_eq(&members.named(&member).unwrap(), &members.first()), "a listed one is itself");
    members.first().sicken();
    assert_eq!(named("tcp://host:1"), None, "whoever is sick is not gone to");
}

#[test]
fn a_session_is_where_its_last_turn_began_until_that_member_has_left() {
    let members = members(2);
    told(&members, &[(1, wire::MemberState::Serving), (5, wire::MemberState::Serving)]);
    let member = wire::Member { endpoint: "tcp://host:5".to_owned(), ..Default::default() };
    members.note_place(&NAMESPACE, "a", &members.first());
    members.note_place(&NAMESPACE, "a", &members.named(&member).unwrap());
    assert_eq!(members.place_of(&NAMESPACE, "a").map(|link| port(&link)), Some(5), "the later one counts");
    assert!(members.place_of(&NamespaceId([8; 32]), "a").is_none(), "of another namespace");
    told(&members, &[(1, wire::MemberState::Serving)]);
    assert!(members.place_of(&NAMESPACE, "a").is_none());
    assert_eq!(members.known(), 1);
}

#[test]
fn members_that_cannot_be_reached_as_these_are_are_not_remembered() {
    let members = members(2);
    let reply = |endpoints: &[&str]| {
        let member = |endpoint: &&str| wire::Member {
            endpoint: (*endpoint).to_owned(),
            state: wire::MemberState::Serving.into(),
            ..Default::default()
        };
        wire::MembersReply { members: endpoints.iter().map(member).collect(), ..Default::default() }
    };
    members.learn(&reply(&["tls://host:4", "nonsense", "tcp://host:4", "tcp://host:4"]));
    assert_eq!((members.known(), order(&members)), (1, vec![1, 2, 4]));
    members.learn(&reply(&["tls://host:9", ""]));
    assert_eq!(members.known(), 1, "that nobody is left is not believed");
}

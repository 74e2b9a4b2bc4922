//! Inline streams: one peer has its share of them, all have the rest, and each that ends makes room.

use super::*;
use crate::access::Caller;
use crate::config::parse;
use crate::connections::caps::Caps;
use crate::connections::{ConnectionPlace, Connections, Door, Peer};
use std::path::Path;

fn connections() -> Arc<Connections> {
    let settings = parse(Path::new("test"), "").unwrap();
    Connections::new(Caps::of_settings(&settings, 40).unwrap())
}

fn connection(connections: &Arc<Connections>, user: u32) -> ConnectionPlace {
    connections.admit(Door::Unix, Peer::User(user), |_| {}).unwrap()
}

#[test]
fn one_peer_leaves_some_to_others_and_all_together_have_a_bound() {
    let (connections, streams) = (connections(), InlineStreams::new());
    let places: Vec<ConnectionPlace> = (1..=2).map(|user| connection(&connections, user)).collect();
    let open = |user: usize| streams.open(OFFLOAD_PATH, &places[user].asking(&Caller::nobody()));
    let share = peers::share_of(INLINE_STREAMS_MAX as u64) as usize;
    let mut held: Vec<InlineStream> = (0..share).map(|_| open(0).unwrap().unwrap()).collect();
    let refused = open(0).map(drop).unwrap_err();
    assert!(refused.kind == ErrorKind::Limit && refused.to_string().contains("one peer"), "{refused}");
    let rest: Vec<InlineStream> = std::iter::from_fn(|| open(1).ok().flatten()).collect();
    assert_eq!(rest.len(), (INLINE_STREAMS_MAX - share).min(share), "another peer has what is left");
    held.pop();
    assert!(open(0).is_ok(), "one that ends makes room for one");
}

#[test]
fn a_refusal_takes_nothing_and_other_calls_are_not_counted() {
    let (connections, streams) = (connections(), InlineStreams::new());
    let places: Vec<ConnectionPlace> = (0..4).map(|user| connection(&connections, user)).collect();
    assert!(streams.open("/turnkv.v1.Pool/Lookup", &places[0].asking(&Caller::nobody())).unwrap().is_none());
    let mut held = Vec::new();
    for place in places.iter().cycle() {
        match streams.open(RELOAD_PATH, &place.asking(&Caller::nobody())) {
            Ok(stream) => held.extend(stream),
            Err(_) => break,
        }
    }
    assert_eq!(held.len(), INLINE_STREAMS_MAX, "all together");
    for place in &places {
        assert!(streams.open(RELOAD_PATH, &place.asking(&Caller::nobody())).is_err());
    }
    drop(held);
    for place in &places {
        assert_eq!(
            place.watch().of_peer.inline_streams.load(Ordering::Relaxed),
            0,
            "nothing is left of refusals"
        );
    }
    assert_eq!(streams.room.available_permits(), INLINE_STREAMS_MAX);
}

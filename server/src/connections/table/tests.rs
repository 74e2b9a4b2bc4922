//! The table: shares, room, deadlines, and that every place comes back.

use super::*;
use crate::access::Caller;
use crate::config::parse;
use crate::limits::GRPC_IDLE_MS_MAX;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

fn connections(max: usize) -> Arc<Connections> {
    let settings = parse(Path::new("test"), &format!("[limits]\nconnections_max = {max}\n")).unwrap();
    Connections::new(Caps::of_settings(&settings, 40).unwrap())
}

fn open(
    connections: &Arc<Connections>,
    peer: u32,
    ended: &Arc<AtomicUsize>,
) -> Result<ConnectionPlace, Refused> {
    let ended = Arc::clone(ended);
    connections.admit(Door::Unix, Peer::User(peer), move |_| {
        ended.fetch_add(1, Ordering::Relaxed);
    })
}

#[test]
fn one_peer_cannot_take_all_and_places_come_back() {
    let connections = connections(64);
    let ended = Arc::new(AtomicUsize::new(0));
    let (cap, share) = (connections.caps.of(Door::Unix), connections.caps.of_peer(Door::Unix));
    let of_one: Vec<ConnectionPlace> = (0..share).map(|_| open(&connections, 1, &ended).unwrap()).collect();
    assert!(open(&connections, 1, &ended).is_err(), "its share is used up, and all are young");
    let of_others: Vec<ConnectionPlace> =
        (share..cap).map(|at| open(&connections, at as u32, &ended).unwrap()).collect();
    let refused = open(&connections, 2, &ended).map(drop).unwrap_err().to_string();
    assert!(refused.contains("limits.connections_max"), "{refused}");
    assert_eq!(connections.full_doors(), [(Door::Unix, cap)]);
    drop((of_one, of_others));
    let table = connections.table.lock();
    assert!(
        table.open.is_empty()
            && table.by_peer.is_empty()
            && table.by_door == [0; Door::ALL.len()]
            && table.leaving == 0
    );
    assert_eq!(ended.load(Ordering::Relaxed), 0);
}

#[test]
fn the_fullest_peer_loses_what_is_of_least_use() {
    let connections = connections(64);
    let ended = Arc::new(AtomicUsize::new(0));
    let share = connections.caps.of_peer(Door::Unix);
    let places: Vec<ConnectionPlace> = (0..share).map(|_| open(&connections, 1, &ended).unwrap()).collect();
    let busy = places[0].asking(&Caller::nobody()).begin();
    drop(places[1].asking(&Caller::nobody()).begin()); // idle
    let later = connections.now() + crate::limits::ROOM_SILENT_MS_MIN;
    let mut table = connections.table.lock();
    let first = table.make_room(Door::Unix, Peer::User(1), later).unwrap();
    assert!(!first.has_asked(), "one that never asked goes first");
    assert!(table.make_room(Door::Unix, Peer::User(1), later).is_none(), "no look so soon");
    let much_later = later + crate::limits::ROOM_IDLE_MS_MIN;
    let gone = (0..share).filter_map(|at| {
        let now = much_later + at as u64 * ROOM_PAUSE_MS;
        table.make_room(Door::Unix, Peer::User(1), now)
    });
    assert_eq!(gone.count(), share - 2, "all but the one that went and the busy one");
    drop(table);
    drop(busy);
    drop(places);
    assert_eq!(connections.table.lock().leaving, 0);
}

#[test]
fn the_silent_the_idle_and_the_stalled_are_late() {
    let connections = connections(64);
    let place = open(&connections, 1, &Arc::default()).unwrap();
    let watch = Arc::clone(place.watch());
    let cause = |after: u64| Connections::late(&watch, connections.now() + after);
    assert_eq!(cause(0), None);
    assert_eq!(cause(FIRST_REQUEST_MS_MAX), Some(Cause::Silent));
    let request = place.asking(&Caller::nobody()).begin();
    assert_eq!(cause(GRPC_IDLE_MS_MAX), None, "a request is in service");
    drop(request);
    assert_eq!(cause(FIRST_REQUEST_MS_MAX), None);
    assert_eq!(cause(GRPC_IDLE_MS_MAX), Some(Cause::Idle));
    watch.received(true, false, || connections.now());
    assert_eq!(cause(FRAME_MS_MAX), Some(Cause::Stalled));
    watch.received(true, true, || connections.now() + FRAME_MS_MAX);
    assert_eq!(cause(FRAME_MS_MAX), None, "another frame");
    watch.received(false, true, || connections.now());
    assert_eq!(cause(FRAME_MS_MAX), None);
}

//! Connections whose answers come late, say too much, or never come: no lease stays behind, and none is out of step.

use super::super::tests::{PlayedServer, Said, eventually};
use super::*;
use crate::limits::WINDOW_PAGES_MAX;
use std::time::Duration;
use turnkv_proto::wire::LookupReply;

fn long() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

fn slots(count: u64) -> Vec<wire::SlotRef> {
    (0..count).map(|offset| wire::SlotRef { offset, ..Default::default() }).collect()
}

fn failure(verb: Verb, text: &str) -> Said {
    let error = turnkv_proto::Error::new(turnkv_proto::ErrorKind::Limit, text);
    Said::of(verb, FLAG_FAILURE, &error.to_failure())
}

/// What is answered to each verb that may give a lease: lease 7, all of it.
fn leases(verb: Verb) -> Option<Vec<Said>> {
    Some(match verb {
        Verb::BeginOffload => {
            vec![Said::of(verb, 0, &wire::BeginOffloadReply { lease: 7, ..Default::default() })]
        }
        Verb::BeginReload => {
            let first = wire::BeginReloadReply { lease: 7, ..Default::default() };
            // Later messages name no lease.
            let next = wire::BeginReloadReply { lease: 9, ..Default::default() };
            vec![Said::of(verb, FLAG_MORE, &first), Said::of(verb, 0, &next)]
        }
        Verb::Reserve => {
            let reply = wire::ReserveReply { lease: 7, first: 5, slots: slots(3), ..Default::default() };
            vec![Said::of(verb, 0, &reply)]
        }
        _ => vec![Said::of(verb, 0, &LookupReply { present: 3, ..Default::default() })],
    })
}

fn ended(server: &PlayedServer) -> Vec<(Verb, u64, Vec<u32>)> {
    let aborts = server.heard::<wire::AbortOffloadRequest>(Verb::AbortOffload);
    let ends = server.heard::<wire::EndReloadRequest>(Verb::EndReload);
    let releases = server.heard::<wire::ReleaseRequest>(Verb::Release);
    let mut ended: Vec<_> = aborts.iter().map(|end| (Verb::AbortOffload, end.lease, Vec::new())).collect();
    ended.extend(ends.iter().map(|end| (Verb::EndReload, end.lease, end.corrupt.clone())));
    ended.extend(releases.iter().map(|end| (Verb::Release, end.lease, end.positions.clone())));
    ended
}

/// The operation goes away before its answer comes: the lease that comes with it is ended all the same.
#[tokio::test]
async fn a_lease_that_comes_after_its_operation_is_gone_is_ended() {
    let table = [
        (Verb::BeginOffload, vec![(Verb::AbortOffload, 7, Vec::new())]),
        (Verb::BeginReload, vec![(Verb::EndReload, 7, Vec::new())]),
        (Verb::Reserve, vec![(Verb::Release, 7, vec![5, 6, 7])]),
        (Verb::Lookup, Vec::new()),
    ];
    for (verb, expected) in table {
        let server = PlayedServer::start(leases);
        let pool = server.pool();
        let mut lent = pool.acquire(long()).await.unwrap();
        server.stall(true);
        lent.request(verb, &wire::LookupRequest::default(), long()).unwrap();
        let late = Deadline::after(Duration::from_millis(2));
        let error = lent.reply::<LookupReply>(late).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Deadline);
        assert!(lent.is_waiting(), "{verb:?}: the server may still do it");
        drop(lent);
        assert_eq!(pool.permits.available_permits(), CONNECTIONS_MAX - 1, "{verb:?}: it counts as running");
        server.stall(false);
        eventually("it is settled", || pool.permits.available_permits() == CONNECTIONS_MAX).await;
        eventually("the lease is ended", || ended(&server) == expected).await;
        assert_eq!(pool.server().1, 1, "{verb:?}: the connection is in step");
        let found: LookupReply = pool
            .acquire(long())
            .await
            .unwrap()
            .call(Verb::Lookup, &LookupReply::default(), long())
            .await
            .unwrap();
        assert_eq!((found.present, server.heard::<wire::HelloRequest>(Verb::Hello).len()), (3, 1));
    }
}

#[tokio::test]
async fn a_lease_is_ended_once_and_not_where_its_commit_or_its_new_owner_does_it() {
    let server = PlayedServer::start(|verb| match verb {
        Verb::CommitOffload => Some(vec![failure(verb, "no")]),
        other => leases(other),
    });
    let pool = server.pool();
    let nothing = wire::LookupRequest::default();
    let mut lent = pool.acquire(long()).await.unwrap();
    let begun: wire::BeginOffloadReply = lent.call(Verb::BeginOffload, &nothing, long()).await.unwrap();
    assert_eq!(begun.lease, 7);
    let refused = lent.call::<wire::CommitOffloadReply>(Verb::CommitOffload, &nothing, long()).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Limit);
    drop(lent);
    let mut lent = pool.acquire(long()).await.unwrap();
    lent.request(Verb::BeginReload, &nothing, long()).unwrap();
    while lent.reply::<wire::BeginReloadReply>(long()).await.unwrap().1 {}
    lent.report_corrupt(2);
    assert_eq!((lent.read_lease(), lent.take_read_lease(), lent.take_read_lease()), (Some(7), Some(7), None));
    drop(lent);
    let mut lent = pool.acquire(long()).await.unwrap();
    let _: wire::ReserveReply = lent.call(Verb::Reserve, &nothing, long()).await.unwrap();
    assert_eq!(lent.take_read_lease(), None, "it is another kind of lease");
    lent.keep_lease();
    drop(lent);
    let mut lent = pool.acquire(long()).await.unwrap();
    lent.request(Verb::BeginReload, &nothing, long()).unwrap();
    while lent.reply::<wire::BeginReloadReply>(long()).await.unwrap().1 {}
    lent.report_corrupt(2);
    drop(lent);
    eventually("the last one is ended", || ended(&server) == [(Verb::EndReload, 7, vec![2])]).await;
    assert_eq!(server.heard::<wire::HelloRequest>(Verb::Hello).len(), 1, "all on one connection");
}

#[tokio::test]
async fn an_answer_that_is_none_closes_its_connection_and_a_refusal_does_not() {
    // What is answered, what comes of it, and whether the connection can be used again.
    type Answer = fn(Verb) -> Option<Vec<Said>>;
    let table: [(&str, Answer, ErrorKind, bool); 6] = [
        ("a refusal", |verb| Some(vec![failure(verb, "no room")]), ErrorKind::Limit, true),
        (
            "words of parting",
            |_| Some(vec![failure(Verb::Unspecified, "it is leaving")]),
            ErrorKind::Limit,
            false,
        ),
        ("another verb", |_| Some(vec![failure(Verb::Renew, "what?")]), ErrorKind::Internal, false),
        (
            "a message that is none",
            |verb| Some(vec![Said { verb: verb as u8, flags: 0, body: vec![0xff; 9] }]),
            ErrorKind::Internal,
            false,
        ),
        (
            "more than one message",
            |verb| Some(vec![Said::of(verb, FLAG_MORE, &LookupReply::default())]),
            ErrorKind::Internal,
            false,
        ),
        ("an end", |_| None, ErrorKind::Unavailable, false),
    ];
    for (what, answer, kind, goes_on) in table {
        let server = PlayedServer::start(answer);
        let pool = server.pool();
        let mut lent = pool.acquire(long()).await.unwrap();
        let asked = lent.call::<LookupReply>(Verb::Lookup, &LookupReply::default(), long()).await;
        assert_eq!(asked.unwrap_err().kind, kind, "{what}");
        drop(lent);
        assert_eq!(pool.server().1, usize::from(goes_on), "{what}");
        assert_eq!(pool.permits.available_permits(), CONNECTIONS_MAX, "{what}");
        assert_eq!(pool.take_idle().is_some(), goes_on, "{what}");
    }
}

/// A page may have a frame of its own: an abandoned window is read to its end, however many these are.
#[tokio::test]
async fn an_abandoned_answer_of_as_many_frames_as_may_be_is_read_to_its_end() {
    let server = PlayedServer::start(|verb| {
        let message = wire::BeginReloadReply { lease: 7, ..Default::default() };
        let mut said: Vec<Said> =
            (0..WINDOW_PAGES_MAX).map(|_| Said::of(verb, FLAG_MORE, &message)).collect();
        said.push(Said::of(verb, 0, &message));
        Some(said)
    });
    let pool = server.pool();
    let mut lent = pool.acquire(long()).await.unwrap();
    lent.request(Verb::BeginReload, &wire::LookupRequest::default(), long()).unwrap();
    assert!(lent.reply::<wire::BeginReloadReply>(long()).await.unwrap().1);
    drop(lent);
    eventually("its lease is ended", || ended(&server) == [(Verb::EndReload, 7, Vec::new())]).await;
    assert_eq!(pool.server().1, 1);
}

#[tokio::test]
async fn nothing_is_asked_of_a_connection_that_is_closed_and_no_answer_is_read_that_was_not_asked_for() {
    let server = PlayedServer::start(leases);
    let mut lent = server.pool().acquire(long()).await.unwrap();
    let unasked = lent.reply::<LookupReply>(long()).await.unwrap_err();
    assert_eq!((unasked.kind, lent.is_waiting()), (ErrorKind::Internal, false));
    lent.close();
    assert!(lent.is_waiting(), "a connection that broke tells nothing");
    let closed = lent.request(Verb::Lookup, &LookupReply::default(), long()).unwrap_err();
    assert_eq!(closed.kind, ErrorKind::Unavailable);
    assert_eq!(lent.reply::<LookupReply>(long()).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!((lent.client(), lent.read_lease()), (0, None));
}

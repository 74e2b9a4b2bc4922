//! Who is which client, and since when nobody is connected.

use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A connection of this process, and its other end.
fn connection() -> (LocalSocket, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (LocalSocket::new(ours).unwrap(), theirs)
}

#[test]
fn connections_of_one_process_are_one_client_and_the_last_to_close_leaves_nobody() {
    let clients = Clients::new();
    assert!(clients.idle_since().is_some(), "nobody has come yet");
    let (one, other) = (connection(), connection());
    let (client, user) = clients.hello(&one.0, 0).unwrap();
    assert_eq!(clients.hello(&other.0, 0).unwrap(), (client, user));
    assert_eq!((clients.connections(), clients.idle_since()), (2, None));
    assert_eq!(clients.check(client.0).unwrap(), client);
    assert!(clients.check(client.0 + 1).is_err());
    clients.goodbye(client);
    assert_eq!(clients.idle_since(), None);
    clients.goodbye(client);
    assert!(clients.idle_since().is_some());
    assert_eq!(clients.check(client.0).unwrap(), client, "it lives, and may still be copying");
    assert_eq!(clients.take_gone(), []);
}

#[test]
fn a_client_is_used_by_its_own_process_only() {
    let clients = Clients::new();
    let (client, _) = clients.hello(&connection().0, 0).unwrap();
    let (pid, user) = clients.process_of(client).unwrap();
    assert_eq!(clients.own(client.0, InlineCaller::User(user, pid)).unwrap(), client);
    let host = InlineCaller::Host([10, 0, 0, 1].into());
    let owner = RemoteOwner { from: host, caller: Caller::nobody() };
    let (remote, _) = clients.hello_remote(&owner, 0).unwrap();
    let others = [
        (client, InlineCaller::User(user, pid + 1)),
        (client, InlineCaller::User(user + 1, pid)),
        (client, host),
        (client, InlineCaller::Unknown),
        (remote, host),
        (remote, InlineCaller::User(0, 0)),
        (ClientId(client.0 + 1), InlineCaller::User(user, pid)),
    ];
    for (named, caller) in others {
        assert_eq!(clients.own(named.0, caller).unwrap_err().kind, ErrorKind::LeaseUnknown, "{caller:?}");
    }
}

#[test]
fn a_hello_that_is_refused_leaves_nobody_connected() {
    let (clients, alive) = (Clients::new(), Arc::new(AtomicBool::new(true)));
    for client in 0..CLIENTS_MAX as u64 {
        clients.join(client, Arc::clone(&alive));
        clients.goodbye(ClientId(client));
    }
    let since = clients.idle_since();
    assert!(since.is_some());
    assert_eq!(clients.hello(&connection().0, 0).unwrap_err().kind, ErrorKind::Limit);
    let owner = RemoteOwner { from: InlineCaller::Host([10, 0, 0, 1].into()), caller: Caller::nobody() };
    assert_eq!(clients.hello_remote(&owner, 0).unwrap_err().kind, ErrorKind::Limit);
    assert_eq!((clients.connections(), clients.idle_since()), (0, since), "a private server may leave");
    alive.store(false, Ordering::Relaxed);
    assert_eq!(clients.take_gone().len(), CLIENTS_MAX);
    clients.hello(&connection().0, 0).unwrap();
}

#[test]
fn calls_of_one_caller_are_one_client_until_the_last_is_over() {
    let clients = Clients::new();
    let caller = InlineCaller::User(1, 7);
    let (client, first) = clients.begin_call(caller).unwrap();
    assert!(first && clients.check(client.0).is_err(), "it said no Hello");
    assert_eq!(clients.begin_call(caller).unwrap(), (client, false));
    assert_ne!(clients.begin_call(InlineCaller::User(1, 8)).unwrap().0, client);
    assert!(!clients.end_call(caller) && clients.end_call(caller), "the last one is over");
    assert!(!clients.end_call(caller), "nobody calls any more");
    assert_ne!(clients.begin_call(caller).unwrap(), (client, true), "what it had is another's to end");
}

#[test]
fn more_callers_than_may_call_are_refused_and_those_who_call_go_on() {
    let clients = Clients::new();
    let caller = |at: usize| InlineCaller::User(at as u32, 1);
    for at in 0..CALLERS_MAX {
        clients.begin_call(caller(at)).unwrap();
    }
    assert_eq!(clients.begin_call(caller(CALLERS_MAX)).unwrap_err().kind, ErrorKind::Limit);
    assert!(!clients.begin_call(caller(0)).unwrap().1);
    assert!(!clients.end_call(caller(0)) && clients.end_call(caller(0)));
    assert!(clients.begin_call(caller(CALLERS_MAX)).unwrap().1);
}

#[test]
fn users_and_hosts_share_with_their_own_kind_only() {
    let host = |text: &str| InlineCaller::Host(text.parse().unwrap()).user();
    let v4 = |bits: u32| InlineCaller::Host(Ipv4Addr::from_bits(bits).into()).user();
    let v6 = |bits: u128| InlineCaller::Host(Ipv6Addr::from_bits(bits).into()).user();
    assert_eq!(host("2001:db8:1:2::3"), host("2001:db8:1:2:ffff::"));
    assert_ne!(host("2001:db8:1:2::3"), host("2001:db8:1:3::3"));
    let all = [
        InlineCaller::Unknown.user(),
        user_of(0),
        user_of(u32::MAX),
        v4(0),
        v4(1),
        v4(u32::MAX),
        v6(0),
        v6(u128::MAX),
        host("::1"),
        host("2001:db8::1"),
    ];
    let distinct: std::collections::BTreeSet<UserId> = all.into_iter().collect();
    assert_eq!(distinct.len(), all.len() - 1, "of these only ::1 and :: are in one network");
}

//! Shares of what is counted: leases by client and by user, sessions by tenant. Owns: promises to whoever comes next. Must not
//! know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::*;
use turnkv_pool::limits::{LATE_SESSIONS_PER_PICK_MAX, SILENT_TURN_MS};
use turnkv_pool::*;

const LEASES_MAX: u32 = 64;

/// A pool of 256 slots, with the usual shares of a few leases.
fn few_leases() -> (Pool, NamespaceIndex) {
    let limits = Limits { lease_ms: 100, lease_grace_ms: 50, leases_max: LEASES_MAX, ..Limits::default() };
    let (mut pool, ns) = pool_with(PoolConfig { slab_bytes: 1 << 20, limits, ..config(0) });
    store(&mut pool, ns, None, 0..1);
    (pool, ns)
}

/// A client of a user.
fn client(pool: &mut Pool, at: u64, user: u64) -> ClientId {
    pool.introduce_client(ClientId(at), UserId(user));
    ClientId(at)
}

/// Reads one page again and again, as often as the pool lets it.
fn read_all(pool: &mut Pool, ns: NamespaceIndex, client: ClientId, now: Now) -> Vec<LeaseId> {
    let list = [hash(0)];
    let ask = ReloadAsk { client, ..read(ns, &list) };
    let leases = std::iter::from_fn(|| pool.begin_reload(ask, now).ok()?.lease).collect();
    pool.check().unwrap();
    leases
}

/// Offloads pages one by one, as many as the pool lets it.
fn write_one_by_one(pool: &mut Pool, ns: NamespaceIndex, client: ClientId, from: u32, now: Now) -> usize {
    let one =
        |at: u32| pool.begin_offload(OffloadAsk { client, ..ask(ns, None, &[hash(at)]) }, now).ok()?.lease;
    let leases = (from..).map_while(one).count();
    pool.check().unwrap();
    leases
}

#[test]
fn one_reader_leaves_leases_to_others() {
    let (mut pool, ns) = few_leases();
    let (greedy, other) = (client(&mut pool, 1, 1), client(&mut pool, 2, 2));
    let own = read_all(&mut pool, ns, greedy, 0);
    assert_eq!(own.len() as u32, LEASES_MAX / 2, "its share, and no more");
    let list = [hash(0)];
    let refused = pool.begin_reload(ReloadAsk { client: greedy, ..read(ns, &list) }, 0).unwrap_err();
    assert_eq!(refused, PoolError::LeaseShare(LeaseShare::Client));
    assert!(refused.to_string().contains("one client") && refused.to_string().contains("leases_max"));
    let stats = pool.stats();
    assert_eq!((stats.leases, stats.fullest_client_leases, stats.fullest_user_leases), (32, 32, 32));
    assert_eq!((stats.leases_max, stats.refused_leases), (u64::from(LEASES_MAX), 2));
    assert_eq!(pool.fullest_client(), Some(greedy), "whoever holds no lasting byte is found as well");
    assert!(pool.begin_reload(ReloadAsk { client: other, ..read(ns, &list) }, 0).unwrap().lease.is_some());
    own[..2].iter().for_each(|lease| assert!(pool.end_reload(*lease, greedy, &[], 0).is_ok()));
    assert!(
        pool.begin_reload(ReloadAsk { client: greedy, ..read(ns, &list) }, 0).is_ok(),
        "it was worth the wait"
    );
    pool.check().unwrap();
}

#[test]
fn one_writer_that_stands_still_leaves_leases_to_others() {
    let (mut pool, ns) = few_leases();
    let (wedged, other) = (client(&mut pool, 1, 1), client(&mut pool, 2, 2));
    assert_eq!(write_one_by_one(&mut pool, ns, wedged, 10, 0) as u32, LEASES_MAX / 2);
    for now in [0, 101, 10_000] {
        while !pool.expire(now) {}
        assert_eq!(write_one_by_one(&mut pool, ns, wedged, 500, now), 0, "its quarantine counts");
        let own = read_all(&mut pool, ns, other, now);
        assert!(own.len() > 8, "{} leases are no share", own.len());
        own.iter().for_each(|lease| assert!(pool.end_reload(*lease, other, &[], now).is_ok()));
    }
    assert_eq!(pool.stats().leases_quarantined, u64::from(LEASES_MAX / 2));
}

#[test]
fn however_many_stand_still_whoever_comes_next_gets_a_lease() {
    let (mut pool, ns) = few_leases();
    let mut next = 1_000;
    for at in 0..40 {
        let wedged = client(&mut pool, 100 + at, 1);
        next += write_one_by_one(&mut pool, ns, wedged, next, 0) as u32;
    }
    let of_one_user = pool.stats().leases;
    assert_eq!(of_one_user, pool.stats().fullest_user_leases);
    assert!(of_one_user <= 55, "{of_one_user} leases of one user");
    for user in 2..6 {
        let late = client(&mut pool, 200 + user, user);
        assert!(!read_all(&mut pool, ns, late, 0).is_empty(), "user {user} has no lease");
    }
    let same = client(&mut pool, 300, 1);
    let list = [hash(0)];
    let refused = pool.begin_reload(ReloadAsk { client: same, ..read(ns, &list) }, 0);
    assert_eq!(refused, Err(PoolError::LeaseShare(LeaseShare::User)));
}

#[test]
fn running_turns_of_one_tenant_leave_sessions_to_others() {
    let mut small = config(0);
    small.limits.sessions_max = 100;
    let (mut pool, hostile) = pool_with(small);
    let ns = pool.open_namespace(desc(2, "b", 8 << 10, 1)).unwrap();
    let old = session("old");
    pool.begin_turn(ns, &old, 0).unwrap();
    pool.end_turn(ns, &old, end_turn(0, &[]), 0).unwrap();
    let mut refused = 0;
    for at in 0..200 {
        refused += u32::from(pool.begin_turn(hostile, &session(&format!("h{at}")), 1).is_err());
    }
    assert_eq!(refused, 101, "its own turns are all in service");
    assert!(pool.take_forgotten().is_empty(), "nobody else's session made way");
    for at in 0..49 {
        pool.begin_turn(ns, &session(&format!("n{at}")), 2).unwrap();
        pool.check().unwrap();
    }
    let gone = pool.take_forgotten();
    let first = (0..49).map(|at| (hostile, session(&format!("h{at}"))));
    assert!(gone.iter().cloned().eq(first), "those not heard of for longest: {gone:?}");
    // Now each has its half.
    pool.begin_turn(ns, &session("one-more"), 3).unwrap();
    assert_eq!(pool.take_forgotten(), [(ns, old)], "over its share it loses its own");
    assert_eq!(pool.begin_turn(ns, &session("none"), 4), Err(PoolError::Limit("sessions_max")));
    assert!(pool.begin_turn(ns, &session("none"), 2 + SILENT_TURN_MS).is_ok());
    pool.check().unwrap();
}

#[test]
fn an_offload_that_names_a_session_finds_its_place_too() {
    let mut small = config(0);
    small.limits.sessions_max = 4;
    let (mut pool, hostile) = pool_with(small);
    let ns = pool.open_namespace(desc(2, "b", 8 << 10, 1)).unwrap();
    for at in 0..4 {
        pool.begin_turn(hostile, &session(&format!("h{at}")), 0).unwrap();
    }
    let (list, id) = ([hash(0)], session("s"));
    let plan = pool.begin_offload(OffloadAsk { session: Some(&id), ..ask(ns, None, &list) }, 1).unwrap();
    assert!(plan.lease.is_some());
    pool.check().unwrap();
}

#[test]
fn a_place_is_found_in_few_steps_however_many_were_used_since() {
    const SESSIONS: u32 = 5_000;
    let mut many = config(0);
    many.limits.sessions_max = SESSIONS;
    let (mut pool, ns) = pool_with(many);
    for at in 0..SESSIONS {
        let id = session(&format!("s{at}"));
        pool.begin_turn(ns, &id, 0).unwrap();
        pool.end_turn(ns, &id, end_turn(0, &[]), 0).unwrap();
    }
    for at in 0..SESSIONS {
        let id = session(&format!("s{at}"));
        let list = [hash(9)];
        pool.begin_reload(ReloadAsk { session: Some(&id), ..read(ns, &list) }, 1 + u64::from(at)).unwrap();
    }
    let before = pool.steps();
    pool.begin_turn(ns, &session("new"), 10_000).unwrap();
    let took = pool.steps() - before;
    assert!(took <= LATE_SESSIONS_PER_PICK_MAX + 64, "{took} steps");
    let gone = pool.take_forgotten();
    assert_eq!(gone, [(ns, session("s0"))], "of those looked at the one used longest ago");
    pool.check().unwrap();
}

/// Opens a namespace, retiring another at the limit; whether it found a place.
fn open(pool: &mut Pool, at: u8, tenant: &str, now: Now) -> bool {
    let new = desc(at, tenant, 8 << 10, 1);
    if pool.open_namespace(new.clone()).is_ok() {
        return true;
    }
    let found = pool.retire_oldest(tenant, now).is_some();
    while pool.retire_step() {}
    pool.check().unwrap();
    found && pool.open_namespace(new).is_ok()
}

#[test]
fn namespaces_of_one_tenant_leave_places_to_others() {
    let mut small = config(1 << 30);
    small.limits.namespaces_max = 4;
    let mut pool = Pool::new(small).unwrap();
    assert!(open(&mut pool, 100, "b", 0));
    for at in 0..3 {
        assert!(open(&mut pool, at, "a", 0));
    }
    for at in [100, 0, 1, 2] {
        let ns = pool.namespace(&desc(at, "", 1, 1).id).unwrap();
        store(&mut pool, ns, None, 0..1);
        write_all(&mut pool);
    }
    assert!(!open(&mut pool, 3, "a", 1), "all it has are in use, and it has more than its share");
    assert!(open(&mut pool, 101, "b", 1), "a newcomer below its share has a place");
    assert!(pool.namespace(&desc(0, "", 1, 1).id).is_none(), "the fullest tenant's oldest made way");
    assert!(pool.namespace(&desc(100, "", 1, 1).id).is_some());
    assert!(open(&mut pool, 102, "c", 2), "and so has the next one");
    assert!(
        open(&mut pool, 3, "a", limits::NAMESPACE_SPARED_MS + 1),
        "its own, when nobody uses it any more"
    );
}

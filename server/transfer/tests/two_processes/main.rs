//! Whole sessions between two processes, over the engines whose rails are opened by an exchange of addresses.
//! Shows: every byte of many pages, both ways; and what becomes of slots and memory when a key is forged, a
//! queue pair fails, a client closes its end, or is killed in the middle.
//!
//! Over libfabric both processes are on this host (`TURNKV_LIBFABRIC`, or `.tools/libfabric`). Over verbs they
//! are where an RDMA device is (`TURNKV_RDMA`): on one host, or with `TURNKV_CLIENTS=ADDRESS:PORT` on two, where
//! the server's process waits there for clients that others start. Without either, a test says on stderr that
//! it was left out.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expected by failing")]

mod client;
mod control;
#[path = "../../src/fabric/libfabric/tests/folder.rs"]
mod folder;
mod server;

use turnkv_transfer::fabric::{Cause, Outcome};

use self::control::{Wanted, wanted};
use self::server::{MIB, Session, patterned};

macro_rules! over_each_engine {
    ($($name:ident),+ $(,)?) => {
        mod libfabric {
            $(#[test] fn $name() { super::over(super::Wanted::Libfabric, stringify!($name), super::$name); })+
        }
        mod verbs {
            $(#[test] fn $name() { super::over(super::Wanted::Verbs, stringify!($name), super::$name); })+
        }
    };
}

over_each_engine!(
    pages_of_a_session_go_and_come_back,
    a_forged_key_reaches_nothing,
    a_client_that_closes_its_end_is_survived,
    a_client_killed_in_the_middle_holds_nothing,
    a_server_that_gives_up_leaves_the_client_well,
);

fn over(engine: Wanted, name: &str, test: fn(&Wanted)) {
    if wanted(&engine, name) {
        test(&engine);
    }
}

/// The other process: only when a server's test starts it.
#[test]
#[ignore = "the client's process of the other tests, which start it"]
fn client_process() {
    client::serve();
}

fn pages_of_a_session_go_and_come_back(engine: &Wanted) {
    let mut session = Session::open(engine);
    // Pages of different sizes, as namespaces have them.
    for (seed, page_bytes, pages) in [(1, 128 << 10, 96), (2, MIB + 4096, 12), (3, 2 * MIB, 6)] {
        let bytes = page_bytes * pages;
        let memory = session.lend(seed, bytes);
        let slab = session.slab(bytes);
        let outcomes = session.run_all(&memory, &slab, page_bytes, true);
        assert!(outcomes.values().all(|outcome| *outcome == Outcome::Done), "{outcomes:?}");
        assert!(patterned(&slab, seed), "offloaded pages of {page_bytes} bytes");

        let empty = session.lend(seed + 100, bytes);
        let outcomes = session.run_all(&empty, &slab, page_bytes, false);
        assert!(outcomes.values().all(|outcome| *outcome == Outcome::Done), "{outcomes:?}");
        assert!(session.client_has(&empty, seed), "reloaded pages of {page_bytes} bytes");
        assert!(session.client_has(&memory, seed), "what was read is as it was");
        session.let_go(slab);
    }
    session.end();
}

fn a_forged_key_reaches_nothing(engine: &Wanted) {
    let mut session = Session::open(engine);
    let (memory, slab) = (session.lend(7, MIB), session.slab(MIB));
    for reads in [true, false] {
        let forged = memory.forged();
        let outcomes = session.run_all(&forged, &slab, MIB, reads);
        match engine {
            Wanted::Verbs => assert_eq!(outcomes[&0], Outcome::Failed(Cause::Refused)),
            // Over TCP the connection just ends.
            Wanted::Libfabric => assert!(matches!(outcomes[&0], Outcome::Failed(_)), "{outcomes:?}"),
        }
        assert!(session.client_has(&memory, 7), "the client's memory is as it was");
        session.assert_rail_ends();
        // The rail is gone, the client is well: the next rail works.
        session.reopen();
        let outcomes = session.run_all(&memory, &slab, MIB, true);
        assert_eq!(outcomes[&0], Outcome::Done);
        assert!(patterned(&slab, 7));
    }
    session.let_go(slab);
    session.end();
}

fn a_client_that_closes_its_end_is_survived(engine: &Wanted) {
    let mut session = Session::open(engine);
    let (memory, slab) = (session.lend(9, 48 * MIB), session.slab(48 * MIB));
    session.begin_all(&memory, &slab, MIB, true);
    session.first_completion();
    session.client_closes();
    session.assert_all_end(48);
    session.assert_peer_s_end_is_noticed(&memory, &slab);
    session.assert_rail_ends();
    session.reopen();
    let (again, page) = (session.lend(10, MIB), session.slab(MIB));
    let outcomes = session.run_all(&again, &page, MIB, true);
    assert_eq!(outcomes[&0], Outcome::Done);
    assert!(patterned(&page, 10));
    session.let_go(page);
    session.let_go(slab);
    session.end();
}

fn a_client_killed_in_the_middle_holds_nothing(engine: &Wanted) {
    for reads in [true, false] {
        let mut session = Session::open(engine);
        let (memory, slab) = (session.lend(11, 48 * MIB), session.slab(48 * MIB));
        session.begin_all(&memory, &slab, MIB, reads);
        session.first_completion();
        session.client_dies();
        session.assert_all_end(48);
        session.assert_peer_s_end_is_noticed(&memory, &slab);
        session.assert_rail_ends();
        session.assert_untouched(&slab);
        session.let_go(slab);
        session.assert_nothing_left();
    }
}

fn a_server_that_gives_up_leaves_the_client_well(engine: &Wanted) {
    let mut session = Session::open(engine);
    let (memory, slab) = (session.lend(13, 48 * MIB), session.slab(48 * MIB));
    session.begin_all(&memory, &slab, MIB, false);
    session.first_completion();
    session.close_rail();
    session.assert_all_end(48);
    session.assert_rail_ends();
    session.let_go(slab);
    // The client takes its memory back and writes to it: nothing comes in between.
    session.client_closes();
    assert!(session.client_keeps(&memory, 99), "nobody writes what was taken back");
    session.end();
}

//! Which rail is opened next, with rails that are there, end, or are lost by the server.

use super::*;
use crate::config::FabricChoice;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use turnkv_transfer::fabric::framed::{FramedStream, FramedTarget};
use turnkv_transfer::limits::FRAMED_STALL;

fn rails(choice: FabricChoice) -> Rails {
    let config = FabricConfig { choice, ..FabricConfig::default() };
    Rails::new(Server::default(), config, ("host".to_owned(), 1), &Arc::default())
}

/// What is to be done before a call of so many bytes.
fn next(rails: &Rails, bytes: usize) -> &'static str {
    match rails.next_step(bytes) {
        Some(Step::Nics(_)) => "nics",
        Some(Step::Framed) => "framed",
        Some(Step::Look) => "look",
        None => "nothing",
    }
}

/// A framed rail is open; dropping the other end ends it.
fn open(rails: &Rails) -> TcpStream {
    open_as(rails, None)
}

fn open_as(rails: &Rails, number: Option<u64>) -> TcpStream {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    let stream = FramedStream::plain(stream).unwrap();
    let target = FramedTarget::open(stream, &rails.domain, FRAMED_STALL).unwrap();
    rails.state.lock().framed.push(FramedRail { number, target });
    peer
}

fn ends(rails: &Rails, peer: TcpStream, left: usize) {
    drop(peer);
    let end = Instant::now() + Duration::from_secs(10);
    while rails.count() > left {
        assert!(Instant::now() < end, "a rail goes on without its other end");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn as_many_framed_rails_are_opened_as_the_bytes_of_a_call_have_use_for() {
    let rails = rails(FabricChoice::Framed);
    assert_eq!((next(&rails, 0), rails.count(), rails.fastest()), ("framed", 0, None));
    let mut peers = vec![open(&rails)];
    assert_eq!((rails.count(), rails.fastest()), (1, Some(Engine::Framed)));
    assert_eq!((rails.reaches().len(), rails.reaches()[0].number), (1, rails.number));
    for (bytes, step) in [
        (0, "nothing"),
        (STRIPED_BYTES_MIN, "nothing"),
        (2 * STRIPED_BYTES_MIN - 1, "nothing"),
        (2 * STRIPED_BYTES_MIN, "framed"),
    ] {
        assert_eq!(next(&rails, bytes), step, "for {bytes} bytes");
    }
    while peers.len() < RAILS_MAX {
        assert_eq!(next(&rails, usize::MAX), "framed");
        peers.push(open(&rails));
    }
    assert_eq!(next(&rails, usize::MAX), "nothing", "no more than may be");
}

#[tokio::test]
async fn a_rail_that_ended_is_replaced_at_once_where_it_was_the_last_and_else_after_a_pause() {
    let rails = rails(FabricChoice::Framed);
    let (first, second) = (open(&rails), open(&rails));
    ends(&rails, first, 1);
    assert_eq!(next(&rails, 2 * STRIPED_BYTES_MIN), "look", "one is left, the other one has to wait");
    rails.note_compared(&[]);
    assert_eq!(next(&rails, 2 * STRIPED_BYTES_MIN), "nothing");
    assert!(rails.state.lock().pause.goes_on());
    ends(&rails, second, 0);
    assert_eq!((next(&rails, 1), rails.reaches().len()), ("framed", 0), "without any a call cannot go");
}

#[tokio::test]
async fn framed_rails_are_named_to_the_server_and_those_that_it_lost_are_let_go() {
    let rails = rails(FabricChoice::Framed);
    rails.doubt();
    assert_eq!(next(&rails, 1), "framed", "there is nothing to compare");
    let (first, _second) = (open_as(&rails, Some(3)), open_as(&rails, Some(4)));
    let _of_an_earlier_build = open(&rails);
    assert_eq!((rails.held(), next(&rails, 1)), (vec![3, 4], "look"));
    rails.note_compared(&[4, 5]);
    assert_eq!((rails.held(), rails.count(), next(&rails, 1)), (vec![3], 2, "nothing"));
    rails.state.lock().looked = Instant::now().checked_sub(RAIL_LOOK_PAUSE).unwrap();
    assert_eq!(next(&rails, 1), "nothing", "their ends see one another leave");
    ends(&rails, first, 1);
    assert_eq!((rails.held(), next(&rails, 1)), (vec![], "look"), "but not always soon");
}

#[test]
fn a_fabric_that_may_not_be_used_is_not_opened_and_nics_come_first() {
    let only_verbs = rails(FabricChoice::Verbs);
    assert_eq!(next(&only_verbs, usize::MAX), "nothing", "there is no NIC");
    let nic = only_verbs.nics.play(0);
    assert_eq!(next(&only_verbs, 1), "nics");
    nic.play(3);
    assert_eq!((next(&only_verbs, usize::MAX), only_verbs.count()), ("nothing", 1));
    assert_eq!(only_verbs.fastest(), Some(Engine::Verbs));
    let auto = rails(FabricChoice::Auto);
    let nic = auto.nics.play(0);
    assert_eq!(next(&auto, 1), "nics");
    nic.lose();
    assert_eq!(next(&auto, 1), "framed", "while the NIC fails");
    nic.play(3);
    assert_eq!(next(&auto, usize::MAX), "framed", "one beside it, for when it fails");
    auto.state.lock().pause.begin();
    assert_eq!(next(&auto, usize::MAX), "nothing", "which is not worth a wait");
    assert_eq!(auto.reaches().iter().map(|reach| reach.is_slow).collect::<Vec<_>>(), [true]);
}

#[test]
fn what_each_end_has_is_compared_in_doubt_and_from_time_to_time_and_lost_rails_are_let_go() {
    let rails = rails(FabricChoice::Verbs);
    rails.doubt();
    assert_eq!(next(&rails, 1), "nothing", "there is nothing to compare");
    let nic = rails.nics.play(0);
    nic.play(3);
    assert_eq!(next(&rails, 1), "look");
    rails.note_compared(&[2, 4]);
    assert_eq!((next(&rails, 1), nic.held()), ("nothing", Some(3)), "the server has it");
    rails.state.lock().looked = Instant::now().checked_sub(RAIL_LOOK_PAUSE).unwrap();
    assert_eq!(next(&rails, 1), "look");
    rails.note_compared(&[3]);
    assert_eq!((nic.held(), rails.count()), (None, 0), "the server lost it");
    assert_eq!(next(&rails, 1), "nothing", "its NIC is not tried again at once");
    nic.play(5);
    rails.renew(nic.number + 1);
    assert_eq!(nic.held(), Some(5), "that was another domain");
    rails.renew(nic.number);
    assert_eq!((nic.held(), next(&rails, 1)), (None, "nothing"));
}

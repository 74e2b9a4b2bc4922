//! The exchange for a rail, with servers that answer something else, too late, or for what was not offered.

use super::super::nics::Nics;
use super::super::tests::PlayedNic;
use super::*;
use crate::config::{FabricChoice, FabricConfig};
use crate::local::tests::{PlayedServer, Said};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

fn long() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// A server that answers every wish for a rail so.
fn answers(reply: wire::OpenRailReply) -> PlayedServer {
    PlayedServer::start(move |verb| Some(vec![Said::of(verb, 0, &reply)]))
}

/// What the server's port does with a connection that wants to join.
#[derive(Debug, Clone, Copy)]
enum Joining {
    Answers([u8; HEADER_BYTES]),
    Says(&'static [u8]),
    Stays,
}

/// A port for one connection, and the join that came there.
fn port(joining: Joining) -> (Port, std::thread::JoinHandle<Option<Join>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let number = listener.local_addr().unwrap().port();
    let work = move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut join = [0; HEADER_BYTES];
        stream.read_exact(&mut join).ok()?;
        let join = Join::decode(&join).ok();
        match joining {
            Joining::Answers(answer) => stream.write_all(&answer).ok()?,
            Joining::Says(bytes) => stream.write_all(bytes).ok()?,
            // Until the other end gives up.
            Joining::Stays => drop(stream.read(&mut [0; 1])),
        }
        join
    };
    let connect = Duration::from_millis(50);
    (
        Port { host: "127.0.0.1".to_owned(), number, tls: None, connect },
        std::thread::Builder::new().name("port".to_owned()).spawn(work).unwrap(),
    )
}

async fn framed(reply: wire::OpenRailReply, port: &Port) -> Result<(FramedRail, Vec<u64>)> {
    let server = answers(reply);
    let mut lent = server.pool().acquire(long()).await.map_err(Error::from)?;
    let asking = Asking { lent: &mut lent, deadline: long(), held: vec![4, 5] };
    let opened = asking.framed(port, 3, &FramedDomain::new()).await;
    let asked = server.heard::<wire::OpenRailRequest>(Verb::OpenRail).remove(0);
    let offer = wire::RailOffer { fabric: Fabric::Framed.into(), domain: 3, ..Default::default() };
    assert_eq!((asked.offers, asked.held, asked.names_framed), (vec![offer], vec![4, 5], true));
    opened
}

#[tokio::test]
async fn a_framed_rail_is_joined_by_the_secret_that_the_server_gave_for_it() {
    let secret = [7; 16];
    let (port, joined) = port(Joining::Answers(JoinAnswer::Joined.encode()));
    let reply =
        wire::OpenRailReply { secret: secret.to_vec().into(), rail: 6, lost: vec![5], ..Default::default() };
    let (rail, lost) = framed(reply, &port).await.unwrap();
    assert_eq!((rail.number, &lost[..]), (Some(6), &[5][..]));
    let expected = Join { version: VERSION, secret: RailSecret::new(secret) };
    assert_eq!(joined.join().unwrap().unwrap().encode(), expected.encode());
}

#[tokio::test]
async fn a_rail_that_is_not_joined_is_an_error_that_says_what_to_expect() {
    let secret = || wire::OpenRailReply { secret: vec![7; 16].into(), ..Default::default() };
    let table = [
        (Joining::Answers(JoinAnswer::NoRoom.encode()), ErrorKind::Limit),
        (Joining::Answers(JoinAnswer::Unknown.encode()), ErrorKind::Limit),
        (Joining::Answers(JoinAnswer::Version.encode()), ErrorKind::Limit),
        (Joining::Answers([0; HEADER_BYTES]), ErrorKind::Internal),
        (Joining::Says(b"short"), ErrorKind::Unavailable),
        (Joining::Says(b""), ErrorKind::Unavailable),
        (Joining::Stays, ErrorKind::Deadline),
    ];
    for (joining, kind) in table {
        let (port, joined) = port(joining);
        let error = framed(secret(), &port).await.unwrap_err();
        assert_eq!(error.kind, kind, "{joining:?}: {error}");
        assert!(joined.join().unwrap().is_some() || matches!(joining, Joining::Stays));
    }
    let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let gone =
        Port { host: "127.0.0.1".to_owned(), number: nobody, tls: None, connect: Duration::from_secs(1) };
    for bytes in [0, 15, 17] {
        let reply = wire::OpenRailReply { secret: vec![7; bytes].into(), ..Default::default() };
        let error = framed(reply, &gone).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal, "a secret of {bytes} bytes is none");
    }
    assert_eq!(framed(secret(), &gone).await.unwrap_err().kind, ErrorKind::Unavailable);
}

/// NICs of a client, the first `offering` of which can offer a rail.
fn nics(count: usize, offering: usize) -> (Arc<Nics>, Vec<Arc<Nic>>) {
    let names = (0..count).map(|at| at.to_string()).collect();
    let config = FabricConfig { choice: FabricChoice::Verbs, nics: names, ..FabricConfig::default() };
    let nics = Nics::new(&config, ("host".to_owned(), 1), &Arc::default());
    let played = (0..count).map(|at| {
        let nic = PlayedNic { offers: (at < offering).into(), ..PlayedNic::default() };
        nics.play_as(at, nic)
    });
    let all = played.collect();
    (nics, all)
}

async fn over(
    reply: wire::OpenRailReply,
    nics: Vec<Arc<Nic>>,
    unfit: &mut Vec<NotOffered>,
) -> (Result<NicOpened>, usize) {
    let server = answers(reply);
    let mut lent = server.pool().acquire(long()).await.unwrap();
    let asking = Asking { lent: &mut lent, deadline: long(), held: Vec::new() };
    let opened = asking.over_nics(nics, unfit).await;
    (opened, server.heard::<wire::OpenRailRequest>(Verb::OpenRail).iter().map(|ask| ask.offers.len()).sum())
}

#[tokio::test]
async fn the_server_takes_one_of_the_nics_that_are_offered_and_passes_over_those_before_it() {
    let (_all, nics) = nics(4, 3);
    for taken in 1..=3 {
        let mut unfit = Vec::new();
        let reply = wire::OpenRailReply { taken, rail: 40, lost: vec![9], ..Default::default() };
        let (opened, offered) = over(reply, nics.clone(), &mut unfit).await;
        let opened = opened.unwrap();
        assert!(Arc::ptr_eq(&opened.nic, &nics[taken as usize - 1]), "the one that was taken");
        assert_eq!((opened.rail.number, opened.lost, offered), (40, vec![9], 3));
        assert!(opened.rail.target.death().is_none());
        let passed: Vec<u32> = opened.passed.iter().map(|nic| nic.number).collect();
        let before: Vec<u32> = nics[..taken as usize - 1].iter().map(|nic| nic.number).collect();
        assert_eq!(passed, before);
        assert_eq!(
            (unfit.len(), unfit[0].nic.number),
            (1, nics[3].number),
            "by the last none can be offered"
        );
    }
}

#[tokio::test]
async fn a_nic_that_was_not_offered_or_does_not_connect_is_no_rail() {
    let (_all, two) = nics(2, 2);
    for taken in [0, 3, u32::MAX] {
        let reply = wire::OpenRailReply { taken, rail: 40, ..Default::default() };
        let (opened, _) = over(reply, two.clone(), &mut Vec::new()).await;
        assert_eq!(opened.err().unwrap().kind, ErrorKind::Internal, "the {taken}th of two");
    }
    let long_address = wire::OpenRailReply { taken: 1, address: vec![0; 4096].into(), ..Default::default() };
    assert_eq!(
        over(long_address, two.clone(), &mut Vec::new()).await.0.err().unwrap().kind,
        ErrorKind::Internal
    );
    // The played NICs connect to whoever has no address.
    let elsewhere = wire::OpenRailReply { taken: 2, address: vec![1].into(), ..Default::default() };
    assert_eq!(over(elsewhere, two, &mut Vec::new()).await.0.err().unwrap().kind, ErrorKind::Unavailable);
    let (_all, none) = nics(2, 0);
    let mut unfit = Vec::new();
    let (opened, asked) = over(wire::OpenRailReply::default(), none, &mut unfit).await;
    assert_eq!((opened.err().unwrap().kind, asked, unfit.len()), (ErrorKind::Unavailable, 0, 2));
}

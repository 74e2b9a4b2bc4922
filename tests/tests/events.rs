//! The door of KV events takes as many subscribers as it says, ends those beyond, and takes others once some have left. Who says nothing
//! leaves after a while. What they are told is tested with ZeroMQ's own library (`engine-plugins/tests/vllm`).

use anyhow::{Result, ensure};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::server::{Server, Setup};

/// As many connections as there may be, by `docs/reference/limits.md`.
const SUBSCRIBERS_MAX: usize = 64;
const SOON: Duration = Duration::from_secs(30);

fn start() -> Result<(Server, SocketAddr, SocketAddr)> {
    let (events, metrics) = (free_address()?, free_address()?);
    let sections = format!("[events]\npublish = \"{events}\"\n");
    let setup = Setup { nvme_mib: 0, metrics: Some(metrics.to_string()), sections, ..Setup::default() };
    Ok((Server::start(setup)?, events, metrics))
}

fn until(metrics: SocketAddr, what: &str, wanted: impl Fn(f64) -> bool) -> Result<()> {
    let deadline = Instant::now() + SOON;
    loop {
        let is = value(&get(metrics, "/metrics")?.1, what)?;
        if wanted(is) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{what} is {is}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The first byte of the greeting.
fn is_greeted(mut stream: &TcpStream) -> Result<bool> {
    stream.set_read_timeout(Some(SOON))?;
    let mut first = [0];
    Ok(stream.read(&mut first).is_ok_and(|bytes| bytes == 1) && first == [0xff])
}

#[test]
fn the_door_of_events_has_room_for_so_many_and_no_more() -> Result<()> {
    let (_server, events, metrics) = start()?;
    let mut refused = 0.0;
    // Those who say nothing are sent away after some seconds, so a slow machine fills the door more than once.
    let deadline = Instant::now() + SOON;
    while refused == 0.0 {
        let all: Vec<TcpStream> =
            (0..SUBSCRIBERS_MAX + 6).map(|_| TcpStream::connect(events)).collect::<std::io::Result<_>>()?;
        let greeted = all.iter().map(is_greeted).collect::<Result<Vec<bool>>>()?;
        let there = value(&get(metrics, "/metrics")?.1, "turnkv_events_connections")?;
        ensure!(there <= SUBSCRIBERS_MAX as f64, "{there} connections");
        ensure!(greeted.iter().any(|greeted| *greeted));
        refused = value(&get(metrics, "/metrics")?.1, "turnkv_events_refused_total")?;
        ensure!(Instant::now() < deadline, "nobody was refused");
    }
    until(metrics, "turnkv_events_connections", |count| count == 0.0)?;
    ensure!(is_greeted(&TcpStream::connect(events)?)?, "there is room again");
    Ok(())
}

#[test]
fn who_says_nothing_at_the_door_of_events_is_sent_away() -> Result<()> {
    let (_server, events, metrics) = start()?;
    let mut silent = TcpStream::connect(events)?;
    until(metrics, "turnkv_events_connections", |count| count == 1.0)?;
    silent.set_read_timeout(Some(SOON))?;
    ensure!(silent.read_to_end(&mut Vec::new()).is_ok(), "it is still there");
    until(metrics, "turnkv_events_connections", |count| count == 0.0)
}

/// Whether the system asks, now and then, if the other end of the server's side of a connection is still there (`/proc/net/tcp`: its
/// timer is that of keep-alive).
fn is_watched(stream: &TcpStream) -> Result<bool> {
    let named = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => format!("{:08X}:{:04X}", u32::from_le_bytes(v4.ip().octets()), v4.port()),
        SocketAddr::V6(v6) => v6.to_string(),
    };
    let (server, client) = (named(stream.peer_addr()?), named(stream.local_addr()?));
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    Ok(rows.any(|row| row.len() > 5 && row[1] == server && row[2] == client && row[5].starts_with("02:")))
}

/// A host that dies says nothing: its connection would keep its place for ever.
#[test]
fn who_subscribes_is_watched() -> Result<()> {
    let (_server, events, _) = start()?;
    let stream = TcpStream::connect(events)?;
    ensure!(is_greeted(&stream)?);
    let deadline = Instant::now() + SOON;
    while !is_watched(&stream)? {
        ensure!(Instant::now() < deadline, "nobody asks whether its host is there");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

//! Whose unread slabs count where, and that they are of no account once they are read.

use super::*;
use std::time::{Duration, Instant};

fn pair() -> (Arc<LocalSocket>, LocalSocket) {
    let (one, other) = LocalSocket::pair().unwrap();
    (Arc::new(one), other)
}

/// Sends what stands for a slab.
fn send(slabs: &SentSlabs, socket: &Arc<LocalSocket>, user: u32, client: u64) -> Result<(), String> {
    let sending =
        slabs.begin(socket, Peer::User(user), ClientId(client)).map_err(|error| error.to_string())?;
    slabs.sweep();
    socket.send(2, 0, b"slab", &[]).unwrap();
    drop(sending);
    Ok(())
}

#[test]
fn each_share_has_its_bound_and_reading_gives_it_back() {
    let slabs = SentSlabs::new(4 * UNREAD_SLABS_PER_CLIENT_MAX);
    let (own, reader) = pair();
    send(&slabs, &own, 1, 1).unwrap();
    assert!(send(&slabs, &own, 1, 1).unwrap_err().contains("this connection"));
    reader.recv(Some(Instant::now() + Duration::from_secs(5))).unwrap();
    send(&slabs, &own, 1, 1).unwrap();

    let mut others: Vec<_> = (1..UNREAD_SLABS_PER_CLIENT_MAX).map(|_| pair()).collect();
    for (socket, _) in &others {
        send(&slabs, socket, 1, 1).unwrap();
    }
    let (late, late_reader) = pair();
    assert!(send(&slabs, &late, 1, 1).unwrap_err().contains("this process"));
    others.extend((0..UNREAD_SLABS_PER_CLIENT_MAX).map(|_| pair()));
    for (socket, _) in &others[UNREAD_SLABS_PER_CLIENT_MAX - 1..] {
        send(&slabs, socket, 1, 2).unwrap();
    }
    assert!(send(&slabs, &late, 1, 3).unwrap_err().contains("this user"));
    let of_others: Vec<_> = (0..2 * UNREAD_SLABS_PER_CLIENT_MAX).map(|_| pair()).collect();
    for (at, (socket, _)) in of_others.iter().enumerate() {
        send(&slabs, socket, 2 + at as u32, 10 + at as u64).unwrap();
    }
    assert!(send(&slabs, &late, 99, 99).unwrap_err().contains("that clients were sent"));
    // A reader that is gone has read all.
    drop(others);
    send(&slabs, &late, 99, 99).unwrap();
    drop((of_others, reader, late_reader));
    slabs.sweep();
    assert!(slabs.sent.lock().is_empty());
}

#[test]
fn what_ended_stays_of_account_until_it_is_read() {
    let slabs = SentSlabs::new(1);
    let (socket, reader) = pair();
    send(&slabs, &socket, 1, 1).unwrap();
    socket.shutdown();
    drop(socket);
    let (next, _next_reader) = pair();
    assert!(send(&slabs, &next, 2, 2).is_err());
    reader.recv(Some(Instant::now() + Duration::from_secs(5))).unwrap();
    send(&slabs, &next, 2, 2).unwrap();
}

#[test]
fn the_kernels_own_limit_is_a_refusal_for_now() {
    let slabs = SentSlabs::new(1);
    let limit = io::Error::from(rustix::io::Errno::TOOMANYREFS);
    let refused = slabs.refused_by_system(&limit).unwrap();
    assert!(matches!(refused.kind, ErrorKind::Busy { retry_after_ms: 1.. }));
    assert!(slabs.refused_by_system(&io::ErrorKind::BrokenPipe.into()).is_none());
}

//! Records of TLS, however they are made, cut and read: what is read is what was written.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use rustls::ClientConnection;
use rustls::crypto::CryptoProvider;

use super::pair::{PATIENCE, tcp};
use super::tls::Configs;
use crate::fabric::framed::FramedStream;
use crate::tls::{land, provider};

/// One suite of the pool's provider.
fn of_one_suite(suite: usize) -> Arc<CryptoProvider> {
    let pool = provider();
    assert_eq!(pool.cipher_suites.len(), 3, "each suite of TLS 1.3 looks for offers");
    Arc::new(CryptoProvider { cipher_suites: vec![pool.cipher_suites[suite]], ..(*pool).clone() })
}

/// Bytes that are not alike at any two near places.
fn plaintext(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ ((at >> 8) * 31)) as u8).collect()
}

/// What a connection has to send.
fn sealed(connection: &mut ClientConnection) -> Vec<u8> {
    let mut ciphertext = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut ciphertext).unwrap();
    }
    ciphertext
}

/// What was read until the stream ended, and how it ended.
fn read_to_end(stream: &mut FramedStream, reads: &[(usize, usize)]) -> (Vec<u8>, ErrorKind) {
    let (mut all, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    for (first, second) in reads.iter().cycle() {
        let (mut first, mut second) = (vec![0; *first], vec![0; 1 + *second]);
        match stream.read(&mut first, &mut second) {
            Ok(count) => {
                first.append(&mut second);
                all.extend_from_slice(&first[..count]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(Instant::now() < deadline, "nothing comes after {} bytes", all.len());
                std::thread::sleep(Duration::from_micros(50));
                stream.ask_again();
            }
            Err(error) => return (all, error.kind()),
        }
    }
    unreachable!("there are reads")
}

#[derive(Clone, Debug)]
struct Written {
    bytes: usize,
    /// The keys change before.
    refreshed: bool,
}

fn written() -> impl Strategy<Value = Written> {
    (1..50_000_usize, any::<bool>()).prop_map(|(bytes, refreshed)| Written { bytes, refreshed })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// A flipped bit ends it, and all before it is right.
    #[test]
    fn records_are_read_as_they_were_written(
        suite in 0..3_usize,
        record_bytes in prop_oneof![Just(None), (64..16_000_usize).prop_map(Some)],
        writes in vec(written(), 1..8),
        cuts in vec(1..60_000_usize, 1..12),
        reads in vec((0..50_000_usize, 0..100_usize), 1..8),
        flipped in prop::option::of(any::<Index>()),
    ) {
        let (mut here, mut there) = tcp();
        let (server, mut client) = Configs::new(of_one_suite(suite), record_bytes).shake(&mut here, &mut there);
        client.set_buffer_limit(None);
        let plaintext = plaintext(writes.iter().map(|written| written.bytes).sum());
        let (mut ciphertext, mut rest) = (Vec::new(), &plaintext[..]);
        for Written { bytes, refreshed } in writes {
            if refreshed {
                client.refresh_traffic_keys().unwrap();
            }
            let (now, later) = rest.split_at(bytes);
            client.writer().write_all(now).unwrap();
            (rest, ciphertext) = (later, [ciphertext, sealed(&mut client)].concat());
        }
        if let Some(at) = flipped {
            let at = at.index(ciphertext.len());
            ciphertext[at] ^= 1 << (at % 8);
        }
        client.send_close_notify();
        ciphertext.append(&mut sealed(&mut client));
        let mut stream = FramedStream::tls(here, server).unwrap();
        let sending = std::thread::Builder::new().spawn(move || {
            let mut left = &ciphertext[..];
            for cut in cuts.into_iter().cycle() {
                let (now, later) = left.split_at(cut.min(left.len()));
                // Who found a flipped bit hangs up.
                if now.is_empty() || there.write_all(now).is_err() {
                    break;
                }
                left = later;
                std::thread::yield_now();
            }
            there.shutdown(Shutdown::Write).unwrap_or_default();
            there
        });
        let sending = sending.unwrap();
        let (read, end) = read_to_end(&mut stream, &reads);
        drop(stream);
        sending.join().unwrap();
        prop_assert!(plaintext.starts_with(&read), "{} of {} bytes", read.len(), plaintext.len());
        if flipped.is_none() {
            prop_assert_eq!((read.len(), end), (plaintext.len(), ErrorKind::UnexpectedEof));
        } else {
            // The version in a record's header is nobody's: a bit of it may change nothing.
            prop_assert!(matches!(end, ErrorKind::InvalidData | ErrorKind::UnexpectedEof), "{:?}", end);
        }
    }
}

/// What is read into memory with room for it lands there, all but a byte; what has less room waits in rustls.
#[test]
fn a_record_lands_where_there_is_room() {
    for suite in 0..3 {
        let (mut here, mut there) = tcp();
        let (mut server, mut client) = Configs::new(of_one_suite(suite), None).shake(&mut here, &mut there);
        let wanted = plaintext(16_384);
        for room in [0, 16_384, 16_385, 40_000] {
            client.writer().write_all(&wanted).unwrap();
            let ciphertext = sealed(&mut client);
            let mut left = &ciphertext[..];
            let mut memory = vec![0; room];
            let mut landed = 0;
            while !left.is_empty() {
                server.read_tls(&mut left).unwrap();
                let (now, processed) = land(&mut memory[landed..], || server.process_new_packets());
                processed.unwrap();
                landed += now;
            }
            assert_eq!(landed, if room > wanted.len() { wanted.len() - 1 } else { 0 }, "{room}");
            let mut rest = vec![0; wanted.len() - landed];
            std::io::Read::read_exact(&mut server.reader(), &mut rest).unwrap();
            assert_eq!([&memory[..landed], &rest].concat(), wanted, "{room}");
            assert!(
                memory[wanted.len().min(room)..].iter().skip(1).all(|&byte| byte == 0),
                "nothing behind it"
            );
        }
    }
}

/// An offer ends with the call, also one that panics: what comes later is not written to memory that is gone.
#[test]
fn an_offer_ends_with_its_call() {
    let (mut here, mut there) = tcp();
    let (mut server, mut client) = Configs::new(provider(), None).shake(&mut here, &mut there);
    let mut memory = vec![0; 100];
    let panics = std::panic::AssertUnwindSafe(|| land(&mut memory, || panic!("while decrypting")));
    std::panic::catch_unwind(panics).map(|_: (usize, ())| ()).unwrap_err();
    client.writer().write_all(&[7; 20]).unwrap();
    let ciphertext = sealed(&mut client);
    server.read_tls(&mut &ciphertext[..]).unwrap();
    assert_eq!(server.process_new_packets().unwrap().plaintext_bytes_to_read(), 20);
    assert!(memory.iter().all(|&byte| byte == 0));
}

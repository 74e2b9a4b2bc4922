//! What comes to a TCP port under TLS and is none, or not quite: it is refused there, leaves nothing behind, and others are
//! served on. `TURNKV_HANDSHAKES` broken handshakes; `make simulate-network` sends 10,000.

use anyhow::{Context, Result, bail, ensure};
use prost::Message;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use turnkv_client::{Client, ClientConfig, DataPlane, ErrorKind, NamespaceSpec, OffloadOptions, TlsConfig};
use turnkv_proto::wire::{self, Verb};
use turnkv_tests::certs::{Certs, SERVER_NAME, Valid};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::proxy::{Fault, Proxy};
use turnkv_tests::secured::{PAGE, Place, SEEN_MAX, calling, is_gone, setup, user};
use turnkv_tests::server::{Server, Setup};
use turnkv_transfer::LocalSocket;
use turnkv_transfer::fabric::framed::FramedStream;
use turnkv_transfer::tls::{client_config, client_words, tls_cause};

/// Sends bytes on a connection of their own, and reads what is said to them.
fn send(address: SocketAddr, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    let (mut answer, mut piece) = (Vec::new(), [0; 512]);
    // A server that has heard enough may hang up before all is said.
    if stream.write_all(bytes).is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
        while let Ok(read @ 1..) = stream.read(&mut piece) {
            answer.extend(&piece[..read]);
        }
    }
    Ok(answer)
}

/// The first message of a client that speaks TLS 1.3.
fn client_hello(certs: &Certs) -> Result<Vec<u8>> {
    let config = client_config(&certs.stranger(), &[b"h2"])?;
    let mut hello = Vec::new();
    rustls::ClientConnection::new(config, SERVER_NAME.try_into()?)?.write_tls(&mut hello)?;
    Ok(hello)
}

/// The same of one that knows TLS 1.2 only: what says 1.3 has another number.
fn old_hello(certs: &Certs) -> Result<Vec<u8>> {
    let mut hello = client_hello(certs)?;
    let versions = [0, 43, 0, 3, 2, 3, 4]; // supported_versions: TLS 1.3
    let at =
        hello.windows(versions.len()).position(|bytes| bytes == versions).context("it names its version")?;
    hello[at + 6] = 3;
    Ok(hello)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_spoken_at_a_port_is_refused_there() -> Result<()> {
    let place = Place::start()?;
    let answer = send(place.tcp, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")?;
    ensure!(String::from_utf8_lossy(&answer).contains("use tls://"), "{answer:?}");
    let plain = user(&format!("http://{}", place.tcp), TlsConfig::default(), "acme").await;
    let plain = plain.err().context("plain to TLS")?;
    ensure!(is_gone(&plain) && plain.message.contains("use tls://"), "{plain:?}");
    let frames =
        ClientConfig { data_plane: DataPlane::Framed, ..ClientConfig::at(format!("tcp://{}", place.tcp)) };
    let namespace = Client::new(frames)?.open_namespace(namespace("test-model", PAGE)).await;
    ensure!(is_gone(&namespace.err().context("plain frames to TLS")?));
    let told = LocalSocket::over_network(FramedStream::plain(TcpStream::connect(place.tcp)?)?)?;
    told.send(Verb::Hello as u8, 0, &[], &[])?;
    let told = wire::Failure::decode(&told.recv(Some(Instant::now() + SEEN_MAX))?.body[..])?;
    ensure!(told.message.contains("use tls://"), "{told:?}");
    place.counts("not_tls", 4.0).await?;
    ensure!(place.server.log().contains("its client must use tls://"), "{}", place.server.log());
    let answer = send(place.tcp, &old_hello(&place.certs)?)?;
    ensure!(answer.starts_with(&[21, 3]) && answer.last() == Some(&70), "protocol_version: {answer:?}");
    place.counts("version", 1.0).await?;

    let (tcp, metrics) = (free_address()?, free_address()?);
    let open = Server::start(setup(tcp, metrics, String::new()))?;
    let error =
        user(&format!("tls://{tcp}"), place.certs.stranger(), "acme").await.err().context("TLS to plain")?;
    ensure!(error.kind == ErrorKind::Unavailable && error.message.contains("TLS"), "{error:?}");
    let refused = value(&get(metrics, "/metrics")?.1, "turnkv_tls_refused_total{reason=\"not_plain\"}")?;
    ensure!(refused >= 1.0 && open.log().contains("TLS came to the plain port"), "{}", open.log());
    user(&format!("http://{tcp}"), TlsConfig::default(), "acme").await?;
    Ok(())
}

/// What a server says to a client that shows this certificate, whatever that client itself would say of it.
fn told(place: &Place, (cert, key): &(String, String)) -> Result<String> {
    let mut config = Arc::unwrap_or_clone(client_config(&place.certs.stranger(), &[b"h2"])?);
    let chain = CertificateDer::pem_slice_iter(cert.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    let shown = CertifiedKey::from_der(chain, key, config.crypto_provider())?;
    config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(shown));
    let mut connection = rustls::ClientConnection::new(Arc::new(config), SERVER_NAME.try_into()?)?;
    let mut stream = TcpStream::connect(place.tcp)?;
    stream.set_read_timeout(Some(SEEN_MAX))?;
    let read = rustls::Stream::new(&mut connection, &mut stream).read_exact(&mut [0; 64]);
    let error = read.err().context("it was let in")?;
    Ok(tls_cause(&error).map_or_else(|| error.to_string(), client_words))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_not_read_whole_or_is_no_clients_is_refused_at_both_ends() -> Result<()> {
    let place = Place::start()?;
    let many: Vec<String> = (0..257).map(|at| format!("turnkv://engine/{at}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = format!("spiffe://pool/{}", "x".repeat(512));
    let issued = |names: &[&str], uris: &[&str]| place.certs.authority.issue(names, uris, Valid::Now);
    let cases = [
        (issued(&[], &many)?, "more than 256 URI names"),
        (issued(&[], &["turnkv://engine/acme", &long])?, "more than 256 URI names"),
        (issued(&["x"], &["turnkv://engine/acme"])?, "lacks clientAuth"),
    ];
    for (pair, words) in cases {
        let before = place.refused("certificate")?;
        let said = told(&place, &pair)?;
        ensure!(said.contains("refuses this client's certificate"), "{words}: {said}");
        place.counts("certificate", before + 1.0).await?;
        let own = place.user(place.certs.with(&pair)?, "acme").await.err().context("it was shown")?;
        ensure!(own.kind == ErrorKind::Unavailable && own.message.contains(words), "{own:?}");
        ensure!(place.refused("certificate")? == before + 1.0, "its owner finds out by himself");
    }
    ensure!(place.server.log().contains("more than 256 URI names"), "{}", place.server.log());
    place.engine().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_for_whom_there_is_no_room_is_told_so_under_tls() -> Result<()> {
    let (certs, tcp, metrics) = (Certs::new()?, free_address()?, free_address()?);
    let limits = "connections_max = 16\n".to_owned();
    let _server = Server::start(Setup { limits, ..setup(tcp, metrics, certs.section()) })?;
    let (client, until) = (certs.client(&["turnkv://engine/acme"])?, Instant::now() + SEEN_MAX);
    let mut silent = Vec::new();
    let error = loop {
        // All are young, so none of them makes room; who was here before they came leaves some, for another try.
        for _ in 0..8 {
            silent.push(TcpStream::connect(tcp)?);
        }
        match user(&format!("tls://{tcp}"), client.clone(), "acme").await {
            Ok(_) => ensure!(Instant::now() < until, "there is room"),
            Err(error) => break error,
        }
    };
    ensure!(is_gone(&error) && error.message.contains("no room for another connection"), "{error:?}");
    Ok(())
}

/// A port that takes connections and says nothing: a call gives it up when connecting has taken what it may, long before its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_nobody_answers_is_given_up() -> Result<()> {
    let place = Place::start()?;
    let proxy = Proxy::to(place.tcp, |_| (Fault::None, Fault::None))?;
    let config = ClientConfig {
        data_plane: DataPlane::Framed,
        tls: place.certs.client(&["turnkv://engine/acme"])?,
        connect_ms: 2_000,
        call_ms: 60_000,
        ..ClientConfig::at(format!("tls://{}", proxy.address()))
    };
    let spec = NamespaceSpec { tenant: "acme".to_owned(), ..namespace("test-model", PAGE) };
    let namespace = Client::new(config)?.open_namespace(spec).await?;
    proxy.partition(true);
    let began = Instant::now();
    let error = namespace.lookup(&chain(1, 1)).await.err().context("nothing passes")?;
    ensure!(
        error.kind == ErrorKind::Unavailable && error.message.contains("no connection within"),
        "{error:?}"
    );
    ensure!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
    Ok(())
}

/// Numbers that look random, the same each time.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A handshake's beginning that is not quite one: bits flipped, cut, grown, or nothing of it.
fn mutated(hello: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = hello.to_vec();
    for _ in 0..=next(&mut state) % 8 {
        let at = next(&mut state) as usize % bytes.len();
        match next(&mut state) % 4 {
            0 => bytes[at] ^= 1 << (next(&mut state) % 8),
            1 => bytes.truncate(at + 1),
            2 => drop(bytes.splice(at..at, std::iter::repeat_n(next(&mut state) as u8, 100))),
            _ => bytes.iter_mut().skip(at).take(40).for_each(|byte| *byte = next(&mut state) as u8),
        }
    }
    if seed.is_multiple_of(5) {
        bytes.iter_mut().skip((seed % 2) as usize).for_each(|byte| *byte = next(&mut state) as u8);
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_broken_handshakes_leave_nothing_behind() -> Result<()> {
    const SENDERS: u64 = 8;
    let all: u64 = std::env::var("TURNKV_HANDSHAKES").map_or(Ok(2_000), |all| all.parse())?;
    let place = Arc::new(Place::start()?);
    let hello = client_hello(&place.certs)?;
    let stop = Arc::new(AtomicBool::new(false));
    let (answered, calls) = calling(place.engine().await?, &stop);
    let flood = |from: u64, to: u64| {
        let senders = (0..SENDERS).map(|sender| {
            let (hello, tcp) = (hello.clone(), place.tcp);
            let mut seeds = (from..to).filter(move |seed| seed % SENDERS == sender);
            let sending = move || seeds.try_for_each(|seed| send(tcp, &mutated(&hello, seed)).map(drop));
            std::thread::Builder::new().name("sender".to_owned()).spawn(sending)
        });
        senders.collect::<Vec<_>>().into_iter().try_for_each(|sender| match sender?.join() {
            Ok(sent) => sent,
            Err(_) => bail!("a sender panicked"),
        })
    };
    flood(0, all / 5)?; // the server's pools and heaps are as large as they will be
    let before = place.server.rss_anon_bytes()?;
    flood(all / 5, all)?;
    let grown = place.server.rss_anon_bytes()?.saturating_sub(before);
    ensure!(grown < 8 << 20, "{} KiB stay", grown >> 10);
    stop.store(true, Ordering::Relaxed);
    ensure!(calls.await?.is_none() && answered.load(Ordering::Relaxed) > 20, "others were served on");
    place.engine().await?.offload(&OffloadOptions::default(), &chain(5, 2)).await?;
    let until = Instant::now() + SEEN_MAX;
    while place.series("turnkv_tls_handshaking_connections")? > 0.0 {
        ensure!(Instant::now() < until, "handshakes stay under way");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

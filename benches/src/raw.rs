//! Bare streams to compare a pool on a network with: a process that keeps pages and sends them back, plain or under TLS. Owns:
//! what is spoken with it. Must not know: pools.
//!
//! A request is 25 bytes: what (`p`ut or `g`et), from which byte of the memory, how many bytes, of pages of how many bytes. Pages that
//! are put follow it and are answered with one byte; pages that are got are the answer. In capitals each page is followed by its
//! checksum, which whoever receives it compares: the least that a page which is never wrong costs.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use turnkv_transfer::checksum;
use turnkv_transfer::tls::{ServerFiles, client_config};

use crate::memory::Buffer;
use crate::network::{Network, client_files};

/// What is spoken, as ALPN names it.
const SPOKEN: &[u8] = b"raw";
/// The first word on the command line of a process that is the other end.
pub const RAW_END: &str = "raw-end";
/// Bytes of a request.
const HEAD_BYTES: usize = 25;

trait Wire: Read + Write + Send {}

impl<T: Read + Write + Send> Wire for T {}

/// The other end, as a process where the pool's server runs; it is killed when this is dropped.
#[derive(Debug)]
pub struct RawEnd {
    child: Child,
    address: SocketAddr,
}

impl RawEnd {
    /// Starts this program again; every connection to it gets memory of so many bytes.
    pub fn start(network: &Network, bytes: usize) -> Result<RawEnd> {
        let mut command = network.command(&std::env::current_exe()?);
        command.args([RAW_END, &network.host, &bytes.to_string()]);
        command.args(network.certs.as_ref().map(|certs| certs.path()));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("it has an output")?).read_line(&mut line)?;
        Ok(RawEnd { child, address: line.trim().parse().context("the other end did not say where it is")? })
    }

    /// A stream to it.
    pub fn connect(&self, network: &Network) -> Result<RawStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        let Some(certs) = &network.certs else { return Ok(RawStream(Box::new(stream))) };
        let config = client_config(&client_files(certs.path()), &[SPOKEN])?;
        let name = ServerName::try_from(network.host.clone())?;
        Ok(RawStream(Box::new(StreamOwned::new(ClientConnection::new(config, name)?, stream))))
    }
}

impl Drop for RawEnd {
    fn drop(&mut self) {
        // It is this program's own child: nothing else can have ended it.
        self.child.kill().and_then(|()| self.child.wait()).map(drop).unwrap_or_default();
    }
}

/// A bare stream to the other end.
pub struct RawStream(Box<dyn Wire>);

impl std::fmt::Debug for RawStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RawStream")
    }
}

impl RawStream {
    /// Sends pages, to be kept from this byte on; checked: with their checksums.
    pub fn put(&mut self, from: usize, pages: &[&[u8]], checked: bool) -> Result<()> {
        self.ask(if checked { b'P' } else { b'p' }, from, pages.len(), pages[0].len())?;
        for page in pages {
            self.0.write_all(page)?;
            if checked {
                self.0.write_all(&checksum(page).to_le_bytes())?;
            }
        }
        self.0.flush()?;
        let mut answer = [0u8; 1];
        self.0.read_exact(&mut answer)?;
        ensure!(answer == *b"k", "a page arrived otherwise than it was sent");
        Ok(())
    }

    /// Receives pages that are kept from this byte on; checked: they have the checksums that they were put with.
    pub fn get(&mut self, from: usize, pages: &mut [&mut [u8]], checked: bool) -> Result<()> {
        self.ask(if checked { b'G' } else { b'g' }, from, pages.len(), pages[0].len())?;
        self.0.flush()?;
        for page in pages {
            self.0.read_exact(page)?;
            ensure!(!checked || read_number(&mut self.0)? == checksum(page), "a page is not what was put");
        }
        Ok(())
    }

    fn ask(&mut self, what: u8, from: usize, pages: usize, page_bytes: usize) -> io::Result<()> {
        let mut head = [what; HEAD_BYTES];
        for (at, number) in [from, pages * page_bytes, page_bytes].into_iter().enumerate() {
            head[1 + 8 * at..9 + 8 * at].copy_from_slice(&(number as u64).to_le_bytes());
        }
        self.0.write_all(&head)
    }
}

fn read_number(wire: &mut Box<dyn Wire>) -> io::Result<u64> {
    let mut number = [0u8; 8];
    wire.read_exact(&mut number)?;
    Ok(u64::from_le_bytes(number))
}

/// Is the other end until it is killed: `host`, bytes of memory for each connection, and the folder of certificates, if any.
pub fn serve(arguments: &[String]) -> Result<()> {
    let (host, bytes) = arguments.first().zip(arguments.get(1)).context("a host and bytes")?;
    let bytes: usize = bytes.parse()?;
    let tls = arguments.get(2).map(|folder| {
        let file = |name: &str| std::path::Path::new(folder).join(name);
        let (cert, key, client_ca) = (file("server.pem"), file("server-key.pem"), file("ca.pem"));
        let files = ServerFiles { cert, key, client_ca };
        files.load(&files.read()?, &[SPOKEN], UnixTime::now())
    });
    let tls = tls.transpose()?;
    let listener = TcpListener::bind((host.as_str(), 0))?;
    say(listener.local_addr()?)?;
    for stream in listener.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        let wire: Box<dyn Wire> = match &tls {
            Some(tls) => Box::new(StreamOwned::new(ServerConnection::new(Arc::clone(&tls.config))?, stream)),
            None => Box::new(stream),
        };
        std::thread::Builder::new().name("raw".to_owned()).spawn(move || answer(wire, bytes))?;
    }
    Ok(())
}

fn say(address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{address}")?;
    out.flush()
}

/// Does what is asked for until the peer leaves.
fn answer(mut wire: Box<dyn Wire>, bytes: usize) -> io::Result<()> {
    let (mut arena, mut sums) = (Buffer::new(bytes), HashMap::new());
    let mut what = [0u8; 1];
    loop {
        wire.read_exact(&mut what)?;
        let [from, bytes, page_bytes] =
            [read_number(&mut wire)?, read_number(&mut wire)?, read_number(&mut wire)?].map(|it| it as usize);
        let (is_put, checked) = (what[0].eq_ignore_ascii_case(&b'p'), what[0].is_ascii_uppercase());
        let mut all_good = true;
        for (at, page) in arena.bytes_mut()[from..from + bytes].chunks_mut(page_bytes).enumerate() {
            let place = from + at * page_bytes;
            if is_put {
                wire.read_exact(page)?;
                if checked {
                    let sum = read_number(&mut wire)?;
                    all_good &= sum == checksum(page);
                    sums.insert(place, sum);
                }
            } else {
                wire.write_all(page)?;
                if checked {
                    wire.write_all(&sums.get(&place).copied().unwrap_or_default().to_le_bytes())?;
                }
            }
        }
        if is_put {
            wire.write_all(if all_good { b"k" } else { b"b" })?;
        }
        wire.flush()?;
    }
}

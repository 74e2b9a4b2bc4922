//! Many connections that want nothing good: idle ones, and ones that stop half way. Owns: opening and holding them. Must not
//! know: what a server does about them.

use anyhow::{Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What HTTP/2 begins with.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Where to knock.
#[derive(Debug, Clone)]
pub enum Target {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// One connection of a flood.
#[derive(Debug)]
pub enum Knock {
    /// On a Unix socket.
    Unix(UnixStream),
    /// On TCP.
    Tcp(TcpStream),
}

impl Target {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens, or nobody accepts within a few seconds.
    pub fn knock(&self) -> std::io::Result<Knock> {
        match self {
            Target::Unix(path) => UnixStream::connect(path).map(Knock::Unix),
            Target::Tcp(address) => {
                TcpStream::connect_timeout(address, Duration::from_secs(5)).map(Knock::Tcp)
            }
        }
    }
}

impl Knock {
    /// Sends as much as goes at once; a server may have hung up.
    ///
    /// # Errors
    /// The server hung up.
    pub fn say(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Knock::Unix(stream) => stream.write_all(bytes),
            Knock::Tcp(stream) => stream.write_all(bytes),
        }
    }

    /// Reads until the server hangs up, or for at most `wait`; whether it hung up, and what it said.
    ///
    /// # Errors
    /// The socket cannot be set up.
    pub fn listen(&mut self, wait: Duration) -> Result<(bool, Vec<u8>)> {
        self.listen_for(wait, |_| false)
    }

    /// The same, until what it said is enough.
    ///
    /// # Errors
    /// See [`Self::listen`].
    pub fn listen_for(&mut self, wait: Duration, enough: impl Fn(&[u8]) -> bool) -> Result<(bool, Vec<u8>)> {
        let (end, mut said, mut buffer) = (Instant::now() + wait, Vec::new(), [0u8; 4096]);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || enough(&said) {
                return Ok((false, said));
            }
            let read = match self {
                Knock::Unix(stream) => {
                    stream.set_read_timeout(Some(left))?;
                    stream.read(&mut buffer)
                }
                Knock::Tcp(stream) => {
                    stream.set_read_timeout(Some(left))?;
                    stream.read(&mut buffer)
                }
            };
            match read {
                Ok(0) => return Ok((true, said)),
                Ok(count) => said.extend(&buffer[..count]),
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock) => {}
                Err(_) => return Ok((true, said)), // reset
            }
        }
    }
}

/// Opens `count` connections and says a part of something on each, one part after another. Those that the server hangs up on
/// stay among them.
///
/// # Errors
/// The server stopped accepting.
pub fn flood(target: &Target, count: usize, parts: &[&[u8]]) -> Result<Vec<Knock>> {
    let mut knocks = Vec::with_capacity(count);
    for at in 0..count {
        let mut knock = target.knock()?;
        let part = parts.get(at % parts.len().max(1)).copied().unwrap_or_default();
        // A refused one has been closed: that is what the server is for.
        knock.say(part).unwrap_or_default();
        knocks.push(knock);
    }
    Ok(knocks)
}

/// Raises this process' limit of open files as far as it may, and returns it.
///
/// # Errors
/// The system refuses.
pub fn raise_open_files() -> Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    ensure!(most >= 1_000, "{most} open files are too few for this test");
    Ok(usize::try_from(most).unwrap_or(usize::MAX))
}

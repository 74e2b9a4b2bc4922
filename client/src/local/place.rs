//! Where a server listens for frames. Owns: connecting there. Must not know: Hello, what is asked.

use super::connection::ConnectError;
use super::talk::prepare;
use crate::deadline::Deadline;
use crate::error::{Error, nobody_there};
use crate::limits::{CONNECT_BLOCK, CONNECT_PAUSE_MAX, CONNECT_PAUSE_MIN};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use turnkv_transfer::LocalSocket;
use turnkv_transfer::fabric::framed::FramedStream;
use turnkv_transfer::tls::{ALPN_FRAMES, Dial, speaks_others};

/// Where a server listens for frames.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Its local socket.
    Unix(PathBuf),
    /// Its TCP port.
    Port(Port),
}

/// A server's TCP port.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// A host's name, or its address.
    pub(crate) host: String,
    /// Its number.
    pub(crate) number: u16,
    /// How TLS is made there; none: it is not.
    pub(crate) tls: Option<Dial>,
    /// How long connecting may take, TLS with it.
    pub(crate) connect: Duration,
}

impl Place {
    /// After how long without a word a connection there may have died with nobody told; none: of one to a process of this host
    /// the system tells.
    pub(super) fn silence(&self) -> Option<Duration> {
        match self {
            Place::Unix(_) => None,
            Place::Port(port) => Some(port.connect),
        }
    }

    /// Connects, ready for a reactor.
    pub(super) async fn open(&self, deadline: Deadline) -> Result<LocalSocket, ConnectError> {
        let (socket, name) = match self {
            Place::Unix(path) => (open_unix(path, deadline).await?, "the local socket"),
            Place::Port(port) => {
                let stream = port.open(deadline).await?;
                (LocalSocket::over_network(stream).map_err(|error| failed(&error))?, "the server's port")
            }
        };
        prepare(&socket).map_err(|error| Error::from_io(name, &error))?;
        Ok(socket)
    }
}

impl Port {
    /// Connects: for verbs, or to join a data rail.
    pub(crate) async fn open(&self, deadline: Deadline) -> Result<FramedStream, ConnectError> {
        let by = deadline.within(self.connect);
        let connecting = async {
            match &self.tls {
                None => self.connect_plain().await,
                Some(dial) => connect_tls(dial).await,
            }
        };
        match by.bound(connecting).await {
            Ok(connected) => connected,
            Err(_) if by < deadline => {
                let text = format!("the server's port took no connection within {:?}", self.connect);
                Err(Error::unavailable(text).into())
            }
            Err(late) => Err(late.into()),
        }
    }

    /// A stream that is not encrypted.
    async fn connect_plain(&self) -> Result<FramedStream, ConnectError> {
        let connected = TcpStream::connect((self.host.as_str(), self.number)).await;
        let stream = connected.and_then(|stream| FramedStream::plain(stream.into_std()?));
        stream.map_err(unreached)
    }
}

async fn open_unix(path: &Path, deadline: Deadline) -> Result<LocalSocket, ConnectError> {
    let mut pause = CONNECT_PAUSE_MIN;
    loop {
        match LocalSocket::connect(path, Instant::now() + CONNECT_BLOCK) {
            Ok(socket) => return Ok(socket),
            Err(error) if nobody_there(&error) => return Err(ConnectError::NobodyThere(error)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(Error::from_io("connecting to the local socket", &error).into()),
        }
        // The backlog is full: the server is stopped, or drowning.
        deadline.check()?;
        tokio::time::sleep(pause.min(deadline.left())).await;
        pause = (pause * 2).min(CONNECT_PAUSE_MAX);
    }
}

/// A stream under TLS, with the files as they are now.
async fn connect_tls(dial: &Dial) -> Result<FramedStream, ConnectError> {
    let dialed = match dial.connect(&[ALPN_FRAMES]).await {
        Ok(dialed) => dialed,
        Err(error) => {
            let refusal = dial.take_refusal().map(Error::unavailable);
            return Err(match refusal {
                Some(why) if speaks_others(&error) => ConnectError::NoFrames(why),
                Some(why) => why.into(),
                None => unreached(error),
            });
        }
    };
    let (stream, connection) = dialed.into_parts();
    if connection.alpn_protocol() != Some(ALPN_FRAMES) {
        let text = "the server's port speaks TLS, but agreed on no frames over it";
        return Err(ConnectError::NoFrames(Error::unavailable(text)));
    }
    let stream = stream.into_std().and_then(|stream| FramedStream::tls(stream, connection));
    Ok(stream.map_err(|error| failed(&error))?)
}

fn unreached(error: io::Error) -> ConnectError {
    if nobody_there(&error) { ConnectError::NobodyThere(error) } else { failed(&error).into() }
}

fn failed(error: &io::Error) -> Error {
    Error::from_io("connecting to the server's port", error)
}

//! Taking connections from a listener of the async runtime. Owns: the pause when the system has none to give, and how a
//! refusal is said. Must not know: what is served.

use super::cause::Refusal;
use super::door::{Door, Peer};
use super::stream::{DoorStream, Ended, Seat};
use super::table::Connections;
use crate::access::{Callers, HostUser};
use crate::limits::{ACCEPT_PAUSE_MAX, ACCEPT_PAUSE_MIN};
use crate::tls::first::NO_ROOM_UNDER_TLS;
use futures_util::{Stream, stream::unfold};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::UCred;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use turnkv_transfer::peer_groups;

/// A listener that can say whose connection it took.
pub(crate) trait Accept: Send + Sync + 'static {
    /// Its connections.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next connection.
    fn take(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;

    /// Who is at its other end.
    fn peer(io: &Self::Io) -> io::Result<Peer>;

    /// Its process, where the kernel says; else 0.
    fn process(_io: &Self::Io) -> i32 {
        0
    }

    /// Its user and groups, where it is of this host and the kernel says.
    fn host_user(_io: &Self::Io) -> Option<HostUser> {
        None
    }

    /// Sends as much as goes without waiting: a refusal is a courtesy.
    fn offer(io: &Self::Io, bytes: &[u8]) -> io::Result<usize>;
}

impl Accept for UnixListener {
    type Io = UnixStream;

    async fn take(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }

    fn peer(io: &UnixStream) -> io::Result<Peer> {
        Ok(Peer::User(io.peer_cred()?.uid()))
    }

    fn process(io: &UnixStream) -> i32 {
        io.peer_cred().ok().and_then(|peer| peer.pid()).unwrap_or(0)
    }

    fn host_user(io: &UnixStream) -> Option<HostUser> {
        let known = |peer: UCred| HostUser::new(peer.uid(), peer.gid(), peer_groups(io.as_fd()));
        Some(io.peer_cred().map_or_else(|_| HostUser::nobody(), known))
    }

    fn offer(io: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
        io.try_write(bytes)
    }
}

impl Accept for TcpListener {
    type Io = TcpStream;

    async fn take(&self) -> io::Result<TcpStream> {
        let (io, _) = self.accept().await?;
        io.set_nodelay(true)?;
        Ok(io)
    }

    fn peer(io: &TcpStream) -> io::Result<Peer> {
        Ok(Peer::at(io.peer_addr()?.ip()))
    }

    fn offer(io: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        io.try_write(bytes)
    }
}

/// The pause after an accept that failed: the system is out of descriptors or memory, and asking at once gets the same answer.
pub(crate) struct Backoff {
    pause: Duration,
}

impl Backoff {
    /// Nothing failed yet.
    pub(crate) fn new() -> Backoff {
        Backoff { pause: ACCEPT_PAUSE_MIN }
    }

    /// An accept worked.
    pub(crate) fn reset(&mut self) {
        self.pause = ACCEPT_PAUSE_MIN;
    }

    /// An accept failed: how long to wait. Said once for a row of failures.
    pub(crate) fn failed(&mut self, door: Door, error: &io::Error) -> Duration {
        let pause = self.pause;
        if pause == ACCEPT_PAUSE_MIN {
            tracing::warn!(door = door.name(), %error, "cannot accept a connection; trying again");
        }
        self.pause = (pause * 2).min(ACCEPT_PAUSE_MAX);
        pause
    }
}

/// The admitted connections of a listener, one after another, for as long as it is polled.
pub(crate) struct Admitting<L> {
    listener: L,
    door: Door,
    connections: Arc<Connections>,
    callers: Arc<Callers>,
    backoff: Backoff,
    /// Its peers speak TLS: of another refusal they would say that the server does not.
    is_tls: bool,
}

impl<L: Accept> Admitting<L> {
    /// Of `listener`, which is this door.
    pub(crate) fn new(
        listener: L,
        door: Door,
        connections: &Arc<Connections>,
        callers: &Arc<Callers>,
    ) -> Admitting<L> {
        let (connections, callers) = (Arc::clone(connections), Arc::clone(callers));
        Admitting { listener, door, connections, callers, backoff: Backoff::new(), is_tls: false }
    }

    /// The same, of a listener whose peers speak TLS if `is_tls`.
    pub(crate) fn under_tls(self, is_tls: bool) -> Admitting<L> {
        Admitting { is_tls, ..self }
    }

    /// The next one that there is room for.
    pub(crate) async fn next(&mut self) -> DoorStream<L::Io> {
        loop {
            match self.listener.take().await {
                Ok(io) => {
                    self.backoff.reset();
                    if let Some(stream) = self.admit(io) {
                        return stream;
                    }
                }
                // The peer left before it was accepted.
                Err(error) if gone(&error) => {}
                Err(error) => tokio::time::sleep(self.backoff.failed(self.door, &error)).await,
            }
        }
    }

    /// As a stream that never ends, as tonic wants it.
    pub(crate) fn into_stream(self) -> impl Stream<Item = io::Result<DoorStream<L::Io>>> + Send {
        unfold(self, |mut admitting| async move {
            let stream = admitting.next().await;
            Some((Ok(stream), admitting))
        })
    }

    /// The listener.
    pub(crate) fn listener(&self) -> &L {
        &self.listener
    }

    fn admit(&self, io: L::Io) -> Option<DoorStream<L::Io>> {
        let peer = match L::peer(&io) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::debug!(%error, "a connection of nobody: closed");
                self.connections.refused(self.door, Refusal::Nobody);
                return None;
            }
        };
        let ended = Arc::new(Ended::default());
        let end = Arc::clone(&ended);
        match self.connections.admit(self.door, peer, move |_| end.end()) {
            Ok(place) => {
                let caller = self.callers.of(L::host_user(&io).as_ref());
                let seat = Seat::new(L::process(&io), place, ended, caller);
                Some(DoorStream::new(io, seat))
            }
            Err(refused) => {
                if let Err(error) = L::offer(&io, &self.refusal(&refused.to_string())) {
                    tracing::debug!(%error, "a refused peer had left");
                }
                None
            }
        }
    }

    fn refusal(&self, why: &str) -> Vec<u8> {
        if self.is_tls { NO_ROOM_UNDER_TLS.to_vec() } else { refusal(self.door, why) }
    }
}

fn gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}

/// The bytes of a refusal: an HTTP answer, or an HTTP/2 GOAWAY that says why.
fn refusal(door: Door, why: &str) -> Vec<u8> {
    if door == Door::Http {
        let length = why.len() + 1;
        return format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{why}\n"
        )
        .into_bytes();
    }
    http2_refusal(why)
}

/// The bytes of an HTTP/2 GOAWAY that says why.
pub(super) fn http2_refusal(why: &str) -> Vec<u8> {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let length = (8 + why.len()) as u32;
    let mut bytes = settings.to_vec();
    bytes.extend(length.to_be_bytes().into_iter().skip(1));
    bytes.extend([7, 0, 0, 0, 0, 0]); // GOAWAY on the connection
    bytes.extend([0, 0, 0, 0]); // no request was taken
    bytes.extend(11u32.to_be_bytes()); // ENHANCE_YOUR_CALM
    bytes.extend(why.as_bytes());
    bytes
}

#[cfg(test)]
mod tests;

//! What happens to a TCP connection between its place and its door: TLS where it is spoken here, and a look at its first bytes where
//! not. Owns: a task for each, the bound on handshakes, where each goes then. Must not know: requests.
//!
//! ```text
//! admitted --first bytes--> handshake --> delivered to what is spoken on it
//!     |            |             |
//!     |            |             +-- refused: certificate, version, late, no room
//!     |            +-- plain to TLS, or TLS to plain: told so
//!     +-- silent: the table ends it
//! ```

use super::accept::{Admitting, http2_refusal};
use super::cause::Cause;
use super::door::Peer;
use super::peers;
use super::stream::{DoorStream, Seat};
use crate::access::Caller;
use crate::limits::{HANDSHAKEN_QUEUE_MAX, HANDSHAKES_MAX};
use crate::tls::first::{First, NO_ROOM_UNDER_TLS, NO_TLS_HERE, begins, part};
use crate::tls::{Certified, Credentials, Protocol, Shaken, TcpWire, TlsCounters, TlsRefusal, handshake};
use futures_util::{Stream, StreamExt};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use turnkv_transfer::fabric::framed::FramedStream;
use turnkv_transfer::tls::Fault;

/// What whoever does not speak TLS is told.
const TLS_HERE: &str = "this port speaks TLS: use tls://";

/// A connection of TCP, ready to be served.
pub(crate) type TcpDoorStream = DoorStream<TcpWire>;

/// The door of those on which frames are spoken.
pub(crate) trait TakesFrames: Send + Sync {
    /// Serves one; the certificate that its peer showed is looked after for as long.
    fn take(self: Arc<Self>, stream: FramedStream, peer: Peer, caller: Arc<Caller>, shown: Option<Certified>);

    /// Says why one is not served.
    fn turn_away(&self, stream: FramedStream, why: &str);
}

/// How TCP connections are opened.
pub(crate) struct Opening {
    /// Where TLS is spoken.
    credentials: Option<Arc<Credentials>>,
    counters: Arc<TlsCounters>,
    /// Handshakes under way.
    under_way: AtomicU64,
}

impl Opening {
    /// By TLS with these credentials; without, plain.
    pub(crate) fn new(credentials: Option<Arc<Credentials>>, counters: Arc<TlsCounters>) -> Arc<Opening> {
        Arc::new(Opening { credentials, counters, under_way: AtomicU64::new(0) })
    }

    /// The connections of a listener on which HTTP/2 is spoken, in the order in which they are ready; the others go to the door of
    /// frames. Accepting waits for nobody's handshake.
    pub(crate) fn http2_of(
        self: Arc<Self>,
        mut admitting: Admitting<TcpListener>,
        frames: Arc<dyn TakesFrames>,
    ) -> impl Stream<Item = io::Result<TcpDoorStream>> + Send {
        let (http2, ready) = mpsc::channel(HANDSHAKEN_QUEUE_MAX);
        admitting = admitting.under_tls(self.credentials.is_some());
        tokio::spawn(async move {
            loop {
                let admitted = tokio::select! {
                    biased;
                    () = http2.closed() => return, // the door is closed
                    admitted = admitting.next() => admitted,
                };
                let (opening, http2, frames) = (Arc::clone(&self), http2.clone(), Arc::clone(&frames));
                tokio::spawn(async move {
                    if let Some(opened) = opening.open(admitted, &*frames).await {
                        deliver(opened, &http2, frames).await;
                    }
                });
            }
        });
        ReceiverStream::new(ready).map(Ok)
    }

    /// Opens one; none: it was refused, or told to end, or its peer left.
    async fn open(
        &self,
        admitted: DoorStream<TcpStream>,
        frames: &dyn TakesFrames,
    ) -> Option<(Shaken, Seat)> {
        let (io, seat) = admitted.part();
        let opened = tokio::select! {
            biased;
            () = seat.told_to_end() => None,
            opened = self.secure(io, &seat, frames) => opened,
        };
        opened.map(|shaken| (shaken, seat))
    }

    async fn secure(&self, io: TcpStream, seat: &Seat, frames: &dyn TakesFrames) -> Option<Shaken> {
        let peer = seat.peer();
        let refused = |refusal, why: &str| self.counters.refused(refusal, &peer, why);
        let first = match begins(&io).await {
            Ok(first) => first?,
            Err(error) => {
                tracing::debug!(%error, "a connection ends before its first bytes");
                return None;
            }
        };
        let plain = |io, protocol| Shaken { io: TcpWire::Plain(io), caller: seat.caller(), protocol };
        match (&self.credentials, first) {
            (None, First::Http2) => Some(plain(io, Protocol::Http2)),
            (None, First::Frames) => Some(plain(io, Protocol::Frames)),
            (None, First::Tls) => {
                refused(TlsRefusal::NotPlain, "");
                part(io, &NO_TLS_HERE).await;
                None
            }
            (Some(_), First::Http2) => {
                refused(TlsRefusal::Fault(Fault::NotTls), "");
                part(io, &http2_refusal(TLS_HERE)).await;
                None
            }
            (Some(_), First::Frames) => {
                refused(TlsRefusal::Fault(Fault::NotTls), "");
                if let Ok(stream) = io.into_std().and_then(FramedStream::plain) {
                    frames.turn_away(stream, TLS_HERE);
                }
                None
            }
            (Some(credentials), First::Tls) => {
                let Some(_room) = HandshakeRoom::take(self, seat) else {
                    refused(TlsRefusal::Room, "");
                    part(io, &NO_ROOM_UNDER_TLS).await;
                    return None;
                };
                let asking = seat.asking();
                let end = move || asking.end(Cause::Certificate);
                handshake(credentials, io, end).await.map_err(|(refusal, why)| refused(refusal, &why)).ok()
            }
        }
    }
}

/// Where a connection goes once it is known whose it is and what is spoken on it.
async fn deliver(
    (shaken, seat): (Shaken, Seat),
    http2: &mpsc::Sender<TcpDoorStream>,
    frames: Arc<dyn TakesFrames>,
) {
    let Shaken { io, caller, protocol } = shaken;
    match protocol {
        Protocol::Http2 => {
            if http2.send(DoorStream::new(io, seat.of(caller))).await.is_err() {
                tracing::debug!("a connection was ready when its door was closed");
            }
        }
        Protocol::Frames => match io.into_framed() {
            // It has a place of its own at that door.
            Ok((stream, shown)) => frames.take(stream, seat.peer(), caller, shown),
            Err(error) => tracing::debug!(%error, "a connection left before it was served"),
        },
    }
}

/// A handshake that may be made.
struct HandshakeRoom<'a> {
    opening: &'a Opening,
    seat: &'a Seat,
}

impl<'a> HandshakeRoom<'a> {
    /// None: too many are under way, of this peer or of all.
    fn take(opening: &'a Opening, seat: &'a Seat) -> Option<HandshakeRoom<'a>> {
        if !peers::take(&seat.of_peer().handshakes, 1, HANDSHAKES_MAX) {
            return None;
        }
        let all = opening.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        opening.counters.under_way.increment(1.0);
        let room = HandshakeRoom { opening, seat }; // gives back what was counted
        (all <= HANDSHAKES_MAX).then_some(room)
    }
}

impl Drop for HandshakeRoom<'_> {
    fn drop(&mut self) {
        self.opening.under_way.fetch_sub(1, Ordering::Relaxed);
        self.opening.counters.under_way.decrement(1.0);
        self.seat.of_peer().handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;

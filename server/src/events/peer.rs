//! One connection that speaks ZeroMQ's wire. Owns: its first words, and how long anything may take. Must not know: events.

use super::zmtp::{self, Frame, GREETING_BYTES, WireError};
use crate::limits::{EVENTS_GREETING_WAIT, EVENTS_SEND_WAIT};
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use turnkv_transfer::limits::{KEEPALIVE_IDLE, KEEPALIVE_PROBE_PAUSE, KEEPALIVE_PROBES};

/// What comes.
pub(super) struct Hears(OwnedReadHalf);

/// What goes.
pub(super) struct Says(OwnedWriteHalf);

/// Greets: this end is a socket of one type, the other one has to be of one of these.
pub(super) async fn greet(stream: TcpStream, own: &str, others: &[&str]) -> Result<(Hears, Says), WireError> {
    stream.set_nodelay(true)?;
    // One that has nothing to say may stay, but not one whose host is gone.
    sockopt::set_socket_keepalive(&stream, true).map_err(std::io::Error::from)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE).map_err(std::io::Error::from)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_PROBE_PAUSE).map_err(std::io::Error::from)?;
    sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES).map_err(std::io::Error::from)?;
    let (mut hears, mut says) = stream.into_split();
    let greeted = async {
        says.write_all(&zmtp::greeting()).await?;
        let mut theirs = [0; GREETING_BYTES];
        hears.read_exact(&mut theirs).await?;
        zmtp::check_greeting(&theirs)?;
        says.write_all(&zmtp::ready(own)).await?;
        let ready = zmtp::read_frame(&mut hears).await?;
        match zmtp::socket_of(&ready).is_some_and(|socket| others.contains(&socket.as_str())) {
            true => Ok(()),
            false => Err(WireError::Foreign("its type of socket does not go with this one")),
        }
    };
    timeout(EVENTS_GREETING_WAIT, greeted).await.map_err(|_| WireError::Late)??;
    Ok((Hears(hears), Says(says)))
}

impl Hears {
    /// The next frame. To be kept until it has ended: half a frame that was read is lost with it.
    pub(super) async fn frame(&mut self) -> Result<Frame, WireError> {
        zmtp::read_frame(&mut self.0).await
    }
}

impl Says {
    /// Sends bytes; who does not take them in time is no listener.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        Ok(timeout(EVENTS_SEND_WAIT, self.0.write_all(bytes)).await.map_err(|_| WireError::Late)??)
    }
}

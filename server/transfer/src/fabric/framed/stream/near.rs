//! How near the other end of a connection is. Owns: asking the system, and what a socket may hold for a near one. Must
//! not know: what the bytes are.
//!
//! Bytes that a socket has taken and the other end has not read lie in memory. The system lets them grow to megabytes for
//! each connection, which only a far end needs: where both ends are near, few of them are still in a processor's cache
//! when they are read.

use std::io;
use std::mem::size_of;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::limits::{NEAR_ROUND_TRIP, NEAR_UNREAD_BYTES};
use crate::socket_option::socket_option;

/// The head of the kernel's `tcp_info` (linux/tcp.h), in words of 32 bits, up to the shortest round trip.
type TcpInfo = [u32; 38];
/// Its word `tcpi_min_rtt`, in microseconds, since Linux 4.6; all ones before the first measurement.
const MIN_RTT_AT: usize = 37;

/// Has a socket hold little for a near end.
pub(super) fn hold_little_if_near(stream: &TcpStream) -> io::Result<()> {
    if round_trip(stream).is_some_and(is_near) {
        // The kernel doubles what it is told, for what it keeps beside the bytes; it may allow less.
        sockopt::set_socket_send_buffer_size(stream, NEAR_UNREAD_BYTES / 2)?;
    }
    Ok(())
}

fn is_near(trip: Duration) -> bool {
    trip <= NEAR_ROUND_TRIP
}

/// The shortest round trip that the system has measured on a connection: its handshake's, at first.
fn round_trip(stream: &TcpStream) -> Option<Duration> {
    let mut info: TcpInfo = [u32::MAX; _];
    // SAFETY: words of integers, so any bytes that the kernel writes into them are valid.
    let bytes = unsafe { socket_option(stream.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut info) };
    let told = bytes.is_ok_and(|bytes| bytes >= size_of::<TcpInfo>()) && info[MIN_RTT_AT] != u32::MAX;
    told.then(|| Duration::from_micros(info[MIN_RTT_AT].into()))
}

#[cfg(test)]
mod tests;

//! The local socket: frames and descriptors over a Unix stream socket.
//!
//! Owns: sending and receiving whole frames, waiting, noticing that the peer hung up. Must not know: what a
//! verb means.
//!
//! - `socket`: [`LocalSocket`]; `receive`, `send`: its verbs; `receiving`, `outbound`: what only their
//!   callers in turn touch
//!
//! The same type serves a server's thread ([`LocalSocket::recv`], [`LocalSocket::recv_spin`]) and an
//! asynchronous client: [`LocalSocket::try_recv_spin`] waits a moment on the calling thread, because an
//! answer is usually microseconds away, then says `WouldBlock`; the caller goes on with its reactor on
//! [`std::os::fd::AsFd`] and calls [`LocalSocket::try_recv`] when the socket is readable. The socket itself
//! is in blocking mode; calls that must not block say so one by one.
//!
//! Waiting awake is what makes small pages fast. Measured between two threads of a virtual machine, round
//! trip p50: both sides sleep 43 us (the cores go idle and must be woken), one side spins 17 us, both spin 5
//! us. The spin yields the core at every turn, so whoever else has work there is served first.
//!
//! Two sides that agree on it ([`LocalSocket::send_with_rings`]) pass frames through shared memory from then
//! on: while both are awake no system call is made, and a round trip costs less than a microsecond. The
//! socket then brings what does not fit a ring (large frames, descriptors), wakes who sleeps, and tells who
//! is gone.
//!
//! Errors: `UnexpectedEof` the peer is gone; `TimedOut` the deadline passed; `WouldBlock` nothing there yet;
//! `InvalidData` the peer does not speak this protocol; `OutOfMemory` there was no room for a large frame by
//! the deadline; else what the system says. After any error but `WouldBlock`, and `TimedOut` of a receive,
//! the connection is of no further use.

mod outbound;
mod receive;
mod receiving;
mod send;
mod socket;

pub use socket::LocalSocket;

#[cfg(test)]
mod tests;

//! Where a connection enters and whose it is. Owns: the doors' names and idle times, and what counts as one peer. Must not
//! know: who is connected.

use crate::limits::{FRAMED_IDLE_MS_MAX, GRPC_IDLE_MS_MAX, HTTP_IDLE_MS_MAX};
use std::net::IpAddr;

/// Where a connection entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Door {
    /// Frames on the Unix socket.
    Local,
    /// gRPC on the Unix socket.
    Unix,
    /// gRPC on TCP.
    Tcp,
    /// Frames on TCP: control connections and data rails.
    Framed,
    /// /metrics and /healthz.
    Http,
}

/// Whose connection it is, as far as a share is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// A user of this host.
    User(u32),
    /// A host; of IPv6 the network of 64 bits, because one host has all of it.
    Host(IpAddr),
}

impl Door {
    /// Every door.
    pub(crate) const ALL: [Door; 5] = [Door::Local, Door::Unix, Door::Tcp, Door::Framed, Door::Http];

    /// Its name in metrics and messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Door::Local => "local",
            Door::Unix => "grpc_unix",
            Door::Tcp => "grpc_tcp",
            Door::Framed => "framed",
            Door::Http => "http",
        }
    }

    /// Whether clients of other hosts come by it.
    pub(crate) fn is_network(self) -> bool {
        match self {
            Door::Local | Door::Unix => false,
            Door::Tcp | Door::Framed | Door::Http => true,
        }
    }

    /// Its position among all.
    pub(super) fn at(self) -> usize {
        self as usize
    }

    /// How long a connection may be open and ask nothing, once it has asked something. A local one belongs to a process whose
    /// end the kernel tells, and a private pool lives as long as one is open: only the need for room ends it.
    pub(super) fn idle_ms_max(self) -> Option<u64> {
        match self {
            Door::Local => None,
            Door::Unix | Door::Tcp => Some(GRPC_IDLE_MS_MAX),
            Door::Framed => Some(FRAMED_IDLE_MS_MAX),
            Door::Http => Some(HTTP_IDLE_MS_MAX),
        }
    }
}

impl Peer {
    /// The peer at an address.
    pub(crate) fn at(address: IpAddr) -> Peer {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Peer::Host(IpAddr::from([a, b, c, d, 0, 0, 0, 0]))
            }
            address => Peer::Host(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Peer;

    #[test]
    fn a_host_has_one_network_of_addresses() {
        let peer = |text: &str| Peer::at(text.parse().unwrap());
        assert_eq!(peer("2001:db8:1:2:3::4"), peer("2001:db8:1:2:ffff::1"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
    }
}

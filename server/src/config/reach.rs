//! Where members are, as their endpoints say. Owns: which places others can use, and what may stand before one. Must not know: who is
//! there.

use super::bounds::bad;
use super::error::ConfigError;
use std::net::{IpAddr, SocketAddr};
use turnkv_transfer::tls::Dial;

/// Where a member is, as its endpoint says.
pub(super) struct MemberPlace {
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
}

impl MemberPlace {
    /// By an endpoint, if it is one.
    pub(super) fn of(endpoint: &str) -> Option<MemberPlace> {
        let plain = endpoint.strip_prefix("tcp://").map(|place| (false, place));
        let (is_tls, place) = plain.or_else(|| endpoint.strip_prefix("tls://").map(|place| (true, place)))?;
        let (host, port) = Dial::place(place)?;
        Some(MemberPlace { is_tls, host: host.to_ascii_lowercase(), port })
    }

    fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok().map(|address: IpAddr| address.to_canonical())
    }

    /// What may stand between this place and the door at `tcp`, which is then not the one that others knock at; none: nothing.
    pub(super) fn between(&self, tcp: SocketAddr) -> Option<String> {
        if self.port != tcp.port() {
            return Some(format!("the port {} where others reach it is not that of tcp ({tcp})", self.port));
        }
        let is_here = self.host == "localhost" || self.address().is_some_and(|address| address.is_loopback());
        let listens_here = tcp.ip().to_canonical().is_loopback();
        (listens_here && !is_here)
            .then(|| format!("others reach it at {}, and tcp ({tcp}) is the loopback", self.host))
    }
}

/// An endpoint that others can use: `tcp://host:port` or `tls://host:port` of one host.
pub(super) fn reached(key: &'static str, endpoint: String) -> Result<String, ConfigError> {
    let Some(place) = MemberPlace::of(&endpoint) else {
        return Err(bad(key, format!("`{endpoint}` must be tcp://host:port or tls://host:port")));
    };
    if place.address().is_some_and(|address| address.is_unspecified()) {
        let why = format!("`{endpoint}` is every address and no place: name the host or address that others");
        return Err(bad(key, format!("{why} reach this member at")));
    }
    Ok(endpoint)
}

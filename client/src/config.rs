//! What the owner of a client decides. Owns: settings as written, and the address as checked. Must not know: connections.

mod fabric;
mod list;

use crate::limits::{BREAKER_FAILURES_MAX, EMBEDDED_DRAM_BYTES_MIN, NICS_MAX, SOCKET_PATH_BYTES_MAX};
pub use fabric::{DeviceMemoryChoice, FabricChoice, FabricConfig, UnknownWord};
use std::fmt;
use std::path::PathBuf;
use turnkv_transfer::tls::{Dial, TlsConfig};

/// Settings of a [`crate::Client`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// `unix:/path/turnkv.sock`, `tls://host:port`, and without encryption `tcp://host:port` or `http://host:port` (gRPC only); or
    /// `None`: a private pool of this user, started when needed. For a host without a pool several members of a cluster, up to 16,
    /// all `tls://` or all `tcp://`, with commas between: the first of them that is well is used, and those that they tell of after it.
    pub address: Option<String>,
    /// With several members: whether a turn goes to the one that its session is at home at, and what names the session follows it.
    /// False: it stays where this client's other calls go, which pulls the session's pages: for engines of several processes, of
    /// which only one begins turns while all look for pages by their hashes. Default true.
    pub follow_homes: bool,
    /// How pages travel. Default: [`DataPlane::Auto`].
    pub data_plane: DataPlane,
    /// By what pages travel over a network, and which NICs are used. Default: whatever both ends have.
    pub fabric: FabricConfig,
    /// How long one call may try to connect, in milliseconds, 1 to 60000. Default 250.
    pub connect_ms: u64,
    /// Deadline of a call that is given none, in milliseconds, 1 to 600000. Default 5000.
    pub call_ms: u64,
    /// When to stop calling a sick pool.
    pub breaker: BreakerConfig,
    /// Certificates, if `address` is `tls://`; what is not said here is taken from the environment ([`TlsConfig::or_environment`]).
    /// Beside a `tcp://` or `http://` address some that are said here are refused, and the environment's not used.
    pub tls: TlsConfig,
    /// The private pool, if `address` is `None`.
    pub embedded: EmbeddedConfig,
    /// Whether reloaded pages are checked against their checksums as they are copied (it costs nothing). Default true.
    pub verify: bool,
}

/// How pages travel between the caller's memory and the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataPlane {
    /// Shared memory where the server is on this host and has a local socket; framed where the address is `tls://` or `tcp://`
    /// and the server speaks frames there; else inline.
    #[default]
    Auto,
    /// Shared memory only.
    Shm,
    /// Over data rails to a `tls://` or `tcp://` address only.
    Framed,
    /// In gRPC streams only.
    Inline,
}

/// How pages travelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plane {
    /// In shared memory.
    Shm,
    /// Over data rails.
    Framed,
    /// In gRPC streams.
    Inline,
}

impl Plane {
    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Plane::Shm => "shm",
            Plane::Framed => "framed",
            Plane::Inline => "inline",
        }
    }
}

/// When to stop calling a sick pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failures in a row (nobody there, or no answer by the deadline) that stop all calls, 1 to 1000. Default 3.
    pub failures: u32,
    /// How long calls fail at once before one is let through to see, in milliseconds, 1 to 600000. Default 1000.
    pub cooldown_ms: u64,
}

/// The private pool that is started when no address is given. The first client of a user decides for all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// Its DRAM, at least 16 MiB. Default 256 MiB.
    pub dram_bytes: u64,
    /// Its part of the disk, 0 for none. Default 2 GiB.
    pub nvme_bytes: u64,
    /// Where everything of it lies. Default: the socket in `$XDG_RUNTIME_DIR/turnkv`, the pages in `~/.cache/turnkv`.
    pub dir: Option<PathBuf>,
    /// The `turnkv` binary. Default: `$TURNKV_SERVER`, `bundled`, beside this executable, on `$PATH`.
    pub server: Option<PathBuf>,
    /// The binary that came in one package with this client, if there is one. Default: none.
    pub bundled: Option<PathBuf>,
}

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// None of the forms that an address has.
    #[error(
        "address {0:?} must be unix:/absolute/path, tls://host:port, tcp://host:port or http://host:port"
    )]
    BadAddress(String),
    /// Members of a list that are not reached in the same way over a network.
    #[error("a list of members is all tls://host:port or all tcp://host:port, got {0:?}")]
    MixedList(String),
    /// A Unix socket's path has a small bound in every system.
    #[error("the socket path {path:?} is longer than {max} bytes: use a shorter directory")]
    LongPath {
        /// The path.
        path: PathBuf,
        /// The longest possible.
        max: usize,
    },
    /// Shared memory with a server that is not on this host.
    #[error("the shm data plane needs a unix: address, got {0:?}")]
    ShmNeedsUnix(String),
    /// Data rails need a port where frames are spoken.
    #[error("the framed data plane needs a tls:// or tcp:// address, got {0:?}")]
    FramedNeedsTcp(String),
    /// A list ends, begins or goes on with nothing.
    #[error(
        "{0:?} has a comma with no address beside it: an address may be missing, or the comma is too much"
    )]
    LooseComma(String),
    /// Whoever gives certificates means them to be used: what was to be secret would travel in the open.
    #[error("certificates are given and {0:?} is not encrypted: use tls://host:port, or give none")]
    NotEncrypted(String),
    /// The environment names a fabric, or a device's memory, that there is not.
    #[error(transparent)]
    UnknownWord(#[from] UnknownWord),
    /// A number outside its bounds.
    #[error("{what} must be {min} to {max}, got {got}")]
    OutOfRange {
        /// Which setting.
        what: &'static str,
        /// What was given.
        got: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// Whoever named this file meant it: no other server is taken in its place.
    #[error("{named_by} names {path:?} as the server of the private pool, which is no executable file")]
    NoServer {
        /// Where it was named.
        named_by: &'static str,
        /// What was named.
        path: PathBuf,
    },
    /// Nowhere to put the private pool.
    #[error("no directory for the embedded pool: set HOME, XDG_CACHE_HOME or EmbeddedConfig.dir")]
    NoHome,
}

/// Where the server is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Address {
    /// The gRPC socket; the local socket is beside it.
    Unix(PathBuf),
    /// Frames and gRPC on one port, by host and port, not encrypted.
    Tcp(String, u16),
    /// gRPC only, not encrypted.
    Http(String),
    /// Frames and gRPC on one port, under TLS.
    Tls(String, u16),
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            address: None,
            follow_homes: true,
            data_plane: DataPlane::Auto,
            fabric: FabricConfig::default(),
            connect_ms: 250,
            call_ms: 5000,
            breaker: BreakerConfig::default(),
            tls: TlsConfig::default(),
            embedded: EmbeddedConfig::default(),
            verify: true,
        }
    }
}

impl ClientConfig {
    /// The defaults with an address.
    pub fn at(address: impl Into<String>) -> ClientConfig {
        ClientConfig { address: Some(address.into()), ..ClientConfig::default() }
    }

    /// By what pages travel, with what `environment` says of it, checked.
    pub(crate) fn checked_fabric(
        &self,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<FabricConfig, ConfigError> {
        let fabric = self.fabric.or_environment(environment)?;
        in_range("fabric.nics", fabric.nics.len() as u64, 0, NICS_MAX as u64)?;
        Ok(fabric)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        in_range("connect_ms", self.connect_ms, 1, 60_000)?;
        in_range("call_ms", self.call_ms, 1, 600_000)?;
        in_range("breaker.failures", self.breaker.failures.into(), 1, BREAKER_FAILURES_MAX.into())?;
        in_range("breaker.cooldown_ms", self.breaker.cooldown_ms, 1, 600_000)?;
        in_range("embedded.dram_bytes", self.embedded.dram_bytes, EMBEDDED_DRAM_BYTES_MIN, 1 << 50)?;
        in_range("embedded.nvme_bytes", self.embedded.nvme_bytes, 0, 1 << 50)
    }
}

impl Default for BreakerConfig {
    fn default() -> BreakerConfig {
        BreakerConfig { failures: 3, cooldown_ms: 1000 }
    }
}

impl Default for EmbeddedConfig {
    fn default() -> EmbeddedConfig {
        EmbeddedConfig { dram_bytes: 256 << 20, nvme_bytes: 2 << 30, dir: None, server: None, bundled: None }
    }
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Address, ConfigError> {
        if let Some(rest) = text.strip_prefix("unix:") {
            let path = PathBuf::from(rest.strip_prefix("//").unwrap_or(rest));
            return if path.is_absolute() {
                Address::unix(path)
            } else {
                Err(ConfigError::BadAddress(text.to_owned()))
            };
        }
        if let Some((is_tls, place)) = network(text) {
            let (host, port) = Dial::place(place).ok_or_else(|| ConfigError::BadAddress(text.to_owned()))?;
            return Ok(if is_tls { Address::Tls(host, port) } else { Address::Tcp(host, port) });
        }
        match text.strip_prefix("http://") {
            Some(rest) if !rest.is_empty() => Ok(Address::Http(text.to_owned())),
            _ => Err(ConfigError::BadAddress(text.to_owned())),
        }
    }

    /// Checks that pages can travel so to this address.
    pub(crate) fn check_plane(&self, plane: DataPlane) -> Result<(), ConfigError> {
        match (plane, self) {
            (DataPlane::Shm, Address::Tcp(..) | Address::Tls(..) | Address::Http(_)) => {
                Err(ConfigError::ShmNeedsUnix(self.to_string()))
            }
            (DataPlane::Framed, Address::Unix(_) | Address::Http(_)) => {
                Err(ConfigError::FramedNeedsTcp(self.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Checks that certificates, if there are some, are used.
    pub(crate) fn check_tls(&self, tls: &TlsConfig) -> Result<(), ConfigError> {
        match self {
            Address::Tcp(..) | Address::Http(_) if *tls != TlsConfig::default() => {
                Err(ConfigError::NotEncrypted(self.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// A socket's path, checked with the longer name of the local socket beside it.
    pub(crate) fn unix(path: PathBuf) -> Result<Address, ConfigError> {
        let max = SOCKET_PATH_BYTES_MAX - turnkv_proto::limits::LOCAL_SOCKET_SUFFIX.len();
        if path.as_os_str().len() > max {
            Err(ConfigError::LongPath { path, max })
        } else {
            Ok(Address::Unix(path))
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(text, "unix:{}", path.display()),
            Address::Http(address) => text.write_str(address),
            Address::Tcp(host, port) => write!(text, "tcp://{}:{port}", bracketed(host)),
            Address::Tls(host, port) => write!(text, "tls://{}:{port}", bracketed(host)),
        }
    }
}

/// What follows the scheme of an address whose port speaks frames, and whether that is TLS.
fn network(text: &str) -> Option<(bool, &str)> {
    let tls = text.strip_prefix("tls://").map(|place| (true, place));
    tls.or_else(|| text.strip_prefix("tcp://").map(|place| (false, place)))
}

/// A host as it stands before a port.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn in_range(what: &'static str, got: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&got) { Ok(()) } else { Err(ConfigError::OutOfRange { what, got, min, max }) }
}

#[cfg(test)]
mod tests;

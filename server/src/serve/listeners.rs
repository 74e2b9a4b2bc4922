//! The sockets at which doors listen: those of the server before, where they were kept and are still of the place that is
//! configured, else new ones. Owns: that, and that they are kept for the next server. Must not know: what is served at them.

use super::places::local_path;
use crate::config::Settings;
use crate::keep::custody::Custody;
use crate::limits::TCP_BACKLOG;
use crate::report::failed;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use tokio::net::{TcpListener, TcpSocket};
use turnkv_transfer::{LocalListener, ServingLock, SocketFile, bind_unix, listen_by, remove_abandoned};

/// Makes listening sockets.
pub(super) struct Listeners<'a> {
    /// None: nobody keeps them.
    pub(super) custody: Option<&'a Custody>,
    /// No other server is here; none: one is that nobody finds.
    pub(super) place: Option<&'a ServingLock>,
}

/// Every socket that doors listen at.
pub(super) struct Sockets {
    pub(super) local: LocalListener,
    pub(super) grpc: (UnixListener, SocketFile),
    pub(super) tcp: Option<TcpListener>,
    pub(super) metrics: Option<TcpListener>,
}

impl Listeners<'_> {
    /// Listens everywhere.
    ///
    /// # Errors
    /// It cannot be listened at one of the places: no door is to open then.
    pub(super) fn all(&self, settings: &Settings) -> anyhow::Result<Sockets> {
        let path = local_path(&settings.socket);
        let (listener, file) = self.unix("local", &path, settings.socket_mode)?;
        let local = LocalListener::of(listener, file);
        let local = local.map_err(|error| cannot_listen(error, &path.display(), "listen"))?;
        let grpc = self.unix("grpc", &settings.socket, settings.socket_mode)?;
        let tcp = settings.tcp.map(|address| self.tcp("tcp", address)).transpose()?;
        let metrics = settings.metrics.map(|address| self.tcp("metrics", address)).transpose()?;
        Ok(Sockets { local, grpc, tcp, metrics })
    }

    /// Listens at a path. `kind` names the door.
    fn unix(&self, kind: &str, path: &Path, mode: u32) -> anyhow::Result<(UnixListener, SocketFile)> {
        let listening = match self.unix_of_before(kind, path, mode) {
            Some(listening) => Ok(listening),
            None => {
                let cleared = self.place.map_or(Ok(()), |place| remove_abandoned(path, place));
                cleared.and_then(|()| bind_unix(path, mode))
            }
        };
        let (listener, file) = listening.map_err(|error| cannot_listen(error, &path.display(), "listen"))?;
        let (device, inode) = file.id();
        self.keep(&format!("{kind}-{device}-{inode}"), listener.as_fd());
        Ok((listener, file))
    }

    /// Listens at an address.
    fn tcp(&self, kind: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
        let listening = match self.tcp_of_before(kind, address) {
            Some(listener) => TcpListener::from_std(listener),
            None => listen_tcp(address),
        };
        let listener = listening.map_err(|error| cannot_listen(error, &address, kind))?;
        self.keep(kind, listener.as_fd());
        Ok(listener)
    }

    /// What a socket's name says is which file leads to it: whoever connects there waits in it.
    fn unix_of_before(&self, kind: &str, path: &Path, mode: u32) -> Option<(UnixListener, SocketFile)> {
        let (name, fd) = self.custody?.take_found(&format!("{kind}-"))?;
        let serves = || -> io::Result<Option<(UnixListener, SocketFile)>> {
            let file = SocketFile::at(path)?;
            let (device, inode) = file.id();
            if name != format!("{kind}-{device}-{inode}") {
                file.leave();
                return Ok(None);
            }
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
            listen_by(&fd)?;
            Ok(Some((UnixListener::from(fd), file)))
        };
        let serves = serves().unwrap_or_else(|error| {
            tracing::warn!(%error, path = %path.display(), "the listening socket of the server before is not taken over");
            None
        });
        self.or_let_go(&name, serves)
    }

    fn tcp_of_before(&self, kind: &str, address: SocketAddr) -> Option<std::net::TcpListener> {
        let (name, fd) = self.custody?.take_found(kind)?;
        let listener = std::net::TcpListener::from(fd);
        let serves = listener.local_addr().is_ok_and(|bound| bound == address)
            && listener.set_nonblocking(true).is_ok();
        self.or_let_go(&name, serves.then_some(listener))
    }

    fn or_let_go<T>(&self, name: &str, serves: Option<T>) -> Option<T> {
        if let (None, Some(custody)) = (&serves, self.custody) {
            custody.stop_listening(name).unwrap_or_else(|error| say(&error));
        }
        serves
    }

    fn keep(&self, name: &str, fd: BorrowedFd<'_>) {
        if let Some(custody) = self.custody {
            custody.keep_listening(name, fd).unwrap_or_else(|error| say(&error));
        }
    }
}

fn say(error: &io::Error) {
    tracing::warn!(%error, "a listening socket is not kept: who connects while no server runs is refused");
}

/// What to do depends on why: only where somebody is there already is it for another place.
pub(super) fn cannot_listen(
    error: std::io::Error,
    place: &dyn std::fmt::Display,
    key: &str,
) -> anyhow::Error {
    let todo = match error.kind() {
        ErrorKind::AddrInUse => format!("stop the server that is there, or choose another place ({key})"),
        ErrorKind::AddrNotAvailable => format!("choose an address that this host has ({key})"),
        ErrorKind::PermissionDenied => format!("choose a place that this user may listen at ({key})"),
        _ => format!("choose a place that exists and can be listened at ({key})"),
    };
    failed(error, format!("cannot listen at {place}"), todo)
}

/// As `TcpListener::bind`, with a longer backlog: what does not fit it waits a second before it is tried again.
fn listen_tcp(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(TCP_BACKLOG)
}

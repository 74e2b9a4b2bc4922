//! Listening on a Unix socket path. Owns: taking over the path of a server that died, and nobody else's; the file's mode; its
//! removal. Must not know: what is spoken on the connections.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::limits::{BIND_RETRY, BIND_WAIT, LISTEN_BACKLOG};
use crate::local::LocalSocket;
use crate::process::Process;

/// A listening local socket; its file goes with it.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    /// Wakes whoever waits for a connection.
    bell: OwnedFd,
    file: SocketFile,
}

/// The file of a bound socket, removed with this; one that somebody else put at its path since is not ours to remove.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
    /// It stays for the next process, which listens at it already.
    left: AtomicBool,
}

impl LocalListener {
    /// Listens at `path`; see [`bind_unix`].
    ///
    /// # Errors
    /// As [`bind_unix`].
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        let (listener, file) = bind_unix(path, mode)?;
        Self::of(listener, file)
    }

    /// Listens by a socket that is bound already.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn of(listener: UnixListener, file: SocketFile) -> io::Result<Self> {
        listener.set_nonblocking(false)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { listener, bell, file })
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// What the system says; `Interrupted` after [`LocalListener::stop`]. At its limit of open files a server should wait a moment
    /// and go on.
    pub fn accept(&self) -> io::Result<LocalSocket> {
        loop {
            let mut ends =
                [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
            match rustix::event::poll(&mut ends, None) {
                Err(Errno::INTR) => continue,
                polled => drop(polled?),
            }
            if !ends[1].revents().is_empty() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "nobody accepts here any more"));
            }
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(fd) => return Ok(LocalSocket::from_fd(fd)),
                // CONNABORTED: the peer left before it was accepted.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Wakes every thread in [`LocalListener::accept`] with an error, and leaves who connects from now on to whoever else has the
    /// socket: they wait in it.
    pub fn stop(&self) {
        // AGAIN: it has been rung four thousand million times already.
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).map(drop).unwrap_or_default();
        self.file.leave();
    }

    /// Wakes every thread in [`LocalListener::accept`] with an error; no connection is accepted any more, by no process.
    pub fn shutdown(&self) {
        // NOTCONN: it has been shut down already.
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).unwrap_or_default();
    }
}

impl AsFd for LocalListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl SocketFile {
    /// The file at a path, of a socket that is bound there.
    ///
    /// # Errors
    /// There is none.
    pub fn at(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        let file = (metadata.dev(), metadata.ino());
        Ok(Self { path: path.to_owned(), file, left: AtomicBool::new(false) })
    }

    /// Which file it is: device and inode.
    #[must_use]
    pub fn id(&self) -> (u64, u64) {
        self.file
    }

    /// It is not removed with this.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.left.load(Ordering::Acquire) {
            return;
        }
        // A server that takes the path over holds the same lock from its look to its bind: it is never removed in between.
        let Ok(_turn) = lock_directory_of(&self.path) else { return };
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file);
        if ours {
            // A file that cannot be removed is stale, and the next server removes it.
            fs::remove_file(&self.path).unwrap_or_default();
        }
    }
}

/// Who would answer at a path.
#[derive(Debug, PartialEq, Eq)]
pub enum Listens {
    /// No process listens there.
    Nobody,
    /// A process that is gone did, or this one: another process may have the socket, but accepts nobody.
    Gone,
    /// A process that lives, or one that cannot be seen from here.
    Somebody,
    /// Nobody can connect now, so nobody can be asked: the process is stopped or flooded, or another one has its socket.
    Unasked,
}

/// Who listens at a path: the process that called `listen` last, as the system says. Waits for at most [`BIND_WAIT`].
///
/// # Errors
/// What the system says.
pub fn who_listens(path: &Path) -> io::Result<Listens> {
    let socket = match LocalSocket::connect(path, Instant::now() + BIND_WAIT) {
        Ok(socket) => socket,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(Listens::Unasked),
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            return Ok(Listens::Nobody);
        }
        Err(error) => return Err(error),
    };
    let pid = socket.peer()?.pid;
    if pid == std::process::id().cast_signed() {
        return Ok(Listens::Gone);
    }
    match Process::of_peer(&socket) {
        Ok(process) if process.is_gone()? => Ok(Listens::Gone),
        // Without a number it is of another PID namespace, and may live.
        Err(error) if error.kind() == io::ErrorKind::NotFound && pid > 0 => Ok(Listens::Gone),
        Ok(_) => Ok(Listens::Somebody),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Listens::Somebody),
        Err(error) => Err(error),
    }
}

/// Removes the file of a socket at `path` whose listening process is gone, or is this one, whatever process holds the socket. `place` is
/// what the caller has of it: a server of which nothing can be heard is gone, because it would have that.
///
/// # Errors
/// What the system says.
pub fn remove_abandoned(path: &Path, _place: &ServingLock) -> io::Result<()> {
    let _turn = lock_directory_of(path)?;
    match who_listens(path)? {
        Listens::Gone | Listens::Unasked => fs::remove_file(path),
        Listens::Nobody | Listens::Somebody => Ok(()),
    }
}

/// A place that one server has at a time, for as long as it lives. The lock goes with the descriptor.
#[derive(Debug)]
pub struct ServingLock {
    _lock: OwnedFd,
}

impl ServingLock {
    /// Takes a place, by the lock of a file at `path`. Waits a moment for a process that is ending.
    ///
    /// # Errors
    /// `WouldBlock` if another server has it; else what the system says.
    pub fn take(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?;
        lock(&fd, Instant::now() + BIND_WAIT)?;
        Ok(Self { _lock: fd })
    }
}

/// This process listens by a socket that another one was listening by: [`who_listens`] knows.
///
/// # Errors
/// It is no socket that was bound.
pub fn listen_by(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::listen(socket, LISTEN_BACKLOG)?)
}

/// Binds a Unix stream socket at `path` with the file mode `mode` (0o600: this user only), and listens. The socket file of a
/// server that died is replaced; anything else at `path` is left alone. The file is the caller's to keep as long as it listens.
///
/// # Errors
/// `AddrInUse` if somebody answers there; `AlreadyExists` if `path` is not a socket; else what the system says.
pub fn bind_unix(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    // Two servers that find the same stale file must not remove one another's: the directory is locked from look to bind.
    // The lock goes with the descriptor.
    let _turn = lock_directory_of(path)?;
    let listener = match bind_fresh(path, mode) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            bind_fresh(path, mode)?
        }
        bound => bound?,
    };
    Ok((listener, SocketFile::at(path)?))
}

fn bind_fresh(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // On Linux the file gets the mode that the socket has at `bind` less the umask: at no instant is it more open than asked.
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&fd, &address)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    rustix::net::listen(&fd, LISTEN_BACKLOG)?;
    Ok(UnixListener::from(fd))
}

/// Removes the socket at `path` if nobody answers on it.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        let message = format!("{} exists and is not a socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    match LocalSocket::connect(path, Instant::now() + BIND_WAIT) {
        Ok(_) => Err(in_use(path)),
        // A live server that accepts nobody now: stopped, or flooded. Its socket is not stale.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(in_use(path)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // NotFound: its server removed it between our two looks.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// That a path is a living server's.
#[must_use]
pub fn in_use(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, format!("another server answers at {}", path.display()))
}

fn lock_directory_of(path: &Path) -> io::Result<OwnedFd> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let fd =
        rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Somebody else binds in this directory right now, which takes a moment, and BIND_WAIT at most.
    match lock(&fd, Instant::now() + BIND_WAIT + BIND_WAIT) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let message = format!("{} stays locked by another process", directory.display());
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        }
        locked => locked.map(|()| fd),
    }
}

/// Locks a file for this process alone; `WouldBlock`: another one had it until the deadline.
fn lock(fd: &OwnedFd, deadline: Instant) -> io::Result<()> {
    loop {
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(BIND_RETRY),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests;

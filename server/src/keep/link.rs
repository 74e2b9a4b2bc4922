//! The server's end of its keeper: what it keeps for us, and what it kept for the server before. Owns: finding or starting a keeper,
//! the calls to it, and noticing that it is gone. Must not know: what the descriptors are of, but that listening sockets are no
//! memory.
//!
//! - [`unfit`]: a keeper of no use, whose place another takes

pub(crate) mod unfit;

use super::frames::{DONE, DROP, HELLO, KEEP, KEPT, hello, wrong};
use crate::limits::{KEEP_CALL_WAIT, KEEP_SERVER_WAIT, KEEP_START_PAUSE, KEEP_START_WAIT};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use turnkv_transfer::{FLAG_FAILURE, LocalSocket};

/// A keeper, and what it keeps for this server.
pub(crate) struct Keeper {
    path: PathBuf,
    without_server: Duration,
    link: Mutex<Link>,
    /// The keeper that this server started last: reaped here when it ends.
    started: Mutex<Option<Child>>,
    /// Listening sockets of the server before that nobody has taken over yet, by name.
    found: Mutex<BTreeMap<String, OwnedFd>>,
    /// Those of this server: kept again by the next keeper when this one is lost.
    listening: Mutex<BTreeMap<String, OwnedFd>>,
}

/// What is said of a keeper that says nothing.
const NO_ANSWER: &str = "the keeper does not answer: another server has it, or it is stopped";
/// How names of listening sockets begin.
const LISTENING: &str = "listen-";

/// What a keeper kept for the server before.
pub(crate) struct Kept {
    /// It keeps for us from now on.
    pub(crate) keeper: Keeper,
    /// By name.
    pub(crate) descriptors: BTreeMap<String, OwnedFd>,
}

#[derive(Default)]
struct Link {
    /// None: the keeper is gone.
    socket: Option<LocalSocket>,
    /// Names of what it keeps.
    names: BTreeSet<String>,
    /// Device and inode of the socket's file by which it was found last; none: it was not, or the file was gone by then.
    file: Option<(u64, u64)>,
}

impl Keeper {
    /// The keeper at a socket, which is not found yet: nothing is kept.
    pub(crate) fn new(path: PathBuf, without_server: Duration) -> Keeper {
        let (link, started) = (Mutex::default(), Mutex::default());
        let (found, listening) = (Mutex::default(), Mutex::default());
        Keeper { path, without_server, link, started, found, listening }
    }

    /// Finds the keeper, or starts one. Returns the memory that it kept for the server before; listening sockets wait here until they
    /// are taken over. Blocking.
    ///
    /// # Errors
    /// None can be started, it is another user's, it does not answer, or another server has it.
    pub(crate) fn find(&self) -> io::Result<BTreeMap<String, OwnedFd>> {
        let mut descriptors = self.connect(KEEP_SERVER_WAIT)?;
        *self.found.lock() = descriptors.extract_if(.., |name, _| name.starts_with(LISTENING)).collect();
        Ok(descriptors)
    }

    /// The same after the keeper was lost, or was not found. What the one that is there now keeps is of no use: it is let go of. Blocking.
    ///
    /// # Errors
    /// As [`Keeper::find`].
    pub(crate) fn find_again(&self) -> io::Result<()> {
        self.connect(KEEP_CALL_WAIT)?.keys().try_for_each(|name| self.drop_kept(name))
    }

    /// Has a keeper, where there is one, let go of all that it keeps. Blocking.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) fn empty(path: PathBuf, without_server: Duration) -> io::Result<()> {
        match LocalSocket::connect(&path, Instant::now() + KEEP_CALL_WAIT) {
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(error),
            Ok(socket) => {
                let keeper = Keeper::new(path, without_server);
                let kept = keeper.take(socket, KEEP_CALL_WAIT)?;
                kept.keys().try_for_each(|name| keeper.drop_kept(name))
            }
        }
    }

    fn connect(&self, answer_max: Duration) -> io::Result<BTreeMap<String, OwnedFd>> {
        let deadline = Instant::now() + KEEP_START_WAIT;
        let socket = loop {
            match LocalSocket::connect(&self.path, deadline) {
                Ok(socket) => break socket,
                Err(error) if !is_absent(&error) || Instant::now() >= deadline => return Err(error),
                Err(_) => {}
            }
            if !self.is_starting()? {
                *self.started.lock() = Some(start(&self.path, self.without_server)?);
            }
            std::thread::sleep(KEEP_START_PAUSE);
        };
        self.take(socket, answer_max)
    }

    /// What the process at a socket keeps; from now on it keeps for this server. Nobody waits for the link meanwhile.
    fn take(&self, socket: LocalSocket, answer_max: Duration) -> io::Result<BTreeMap<String, OwnedFd>> {
        if socket.peer()?.uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "another user's process listens there",
            ));
        }
        let kept = take_over(&socket, self.without_server, answer_max)?;
        let names = kept.keys().cloned().collect();
        *self.link.lock() = Link { socket: Some(socket), names, file: file_at(&self.path).unwrap_or(None) };
        Ok(kept)
    }

    /// Whether a keeper that this server started is under way.
    fn is_starting(&self) -> io::Result<bool> {
        let mut started = self.started.lock();
        let Some(child) = &mut *started else { return Ok(false) };
        let ended = match child.try_wait() {
            // It was reaped when its connection was lost.
            Err(error) if error.raw_os_error() == Some(Errno::CHILD.raw_os_error()) => {
                *started = None;
                return Ok(false);
            }
            ended => ended?,
        };
        if ended.is_some() {
            *started = None;
        }
        match ended {
            Some(status) if !status.success() => {
                Err(io::Error::other("`turnkv keep` ended at once: run it by hand to see why"))
            }
            ended => Ok(ended.is_none()),
        }
    }

    /// Has a descriptor kept under a name.
    ///
    /// # Errors
    /// It is not kept: the keeper is gone, or keeps too many already.
    pub(crate) fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut link = self.link.lock();
        link.call(KEEP, name, &[fd])?;
        link.names.insert(name.to_owned());
        Ok(())
    }

    /// Lets go of what is kept under a name.
    ///
    /// # Errors
    /// The keeper is gone, and all that it kept with it.
    pub(crate) fn drop_kept(&self, name: &str) -> io::Result<()> {
        let mut link = self.link.lock();
        if !link.names.remove(name) {
            return Ok(());
        }
        link.call(DROP, name, &[])
    }

    /// Names of the memory that is kept.
    pub(crate) fn names(&self) -> Vec<String> {
        let link = self.link.lock();
        link.names.iter().filter(|name| !name.starts_with(LISTENING)).cloned().collect()
    }

    /// A listening socket of the server before, with its name behind what they all begin with: it is this server's now, or nobody's.
    pub(crate) fn take_found(&self, kind: &str) -> Option<(String, OwnedFd)> {
        let begins = format!("{LISTENING}{kind}");
        let mut found = self.found.lock();
        let name = found.keys().find(|name| name.starts_with(&begins))?.clone();
        let fd = found.remove(&name)?;
        Some((name[LISTENING.len()..].to_owned(), fd))
    }

    /// Has a listening socket kept: who connects while no server runs waits in it for the next one.
    pub(crate) fn keep_listening(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let name = format!("{LISTENING}{name}");
        self.listening.lock().insert(name.clone(), fd.try_clone_to_owned()?);
        self.keep(&name, fd)
    }

    /// The same for those that this server has, by a keeper that took the place of another.
    pub(crate) fn keep_listening_again(&self) -> io::Result<()> {
        self.listening.lock().iter().try_for_each(|(name, fd)| self.keep(name, fd.as_fd()))
    }

    /// Lets go of a listening socket.
    pub(crate) fn stop_listening(&self, name: &str) -> io::Result<()> {
        let name = format!("{LISTENING}{name}");
        self.listening.lock().remove(&name);
        self.drop_kept(&name)
    }

    /// Lets go of all listening sockets: from now on nobody waits for the next server.
    pub(crate) fn stop_listening_at_all(&self) -> io::Result<()> {
        let found = std::mem::take(&mut *self.found.lock());
        let names: Vec<String> = self.listening.lock().keys().chain(found.keys()).cloned().collect();
        names.iter().try_for_each(|name| self.drop_kept(name))
    }

    /// The same for keepers that do not hear it, once no door of this server accepts anybody any more: whatever process has the sockets,
    /// who connects is refused, and addresses are free.
    pub(crate) fn shut_listening(&self) {
        for socket in std::mem::take(&mut *self.listening.lock()).values() {
            // NOTCONN: it has been shut down already.
            rustix::net::shutdown(socket, rustix::net::Shutdown::Both).unwrap_or_default();
        }
    }

    /// Whether the next server gets every listening socket of this one.
    pub(crate) fn keeps_listening(&self) -> bool {
        self.listening.lock().keys().all(|name| self.keeps(name))
    }

    /// Whether something is kept under a name.
    pub(crate) fn keeps(&self, name: &str) -> bool {
        self.link.lock().names.contains(name)
    }

    /// Whether nothing is kept any more, because the keeper is gone.
    pub(crate) fn is_gone(&self) -> bool {
        let mut link = self.link.lock();
        let gone = link.socket.as_ref().is_none_or(|socket| socket.peer_is_gone().unwrap_or(false));
        if gone {
            link.lose();
        }
        gone
    }

    /// How many descriptors are kept.
    pub(crate) fn count(&self) -> usize {
        self.link.lock().names.len()
    }

    /// The process that keeps, and for how long without a server; none: it is gone.
    pub(crate) fn describe(&self) -> Option<String> {
        if self.is_gone() {
            return None;
        }
        let link = self.link.lock();
        let peer = link.socket.as_ref()?.peer().ok()?;
        let seconds = self.without_server.as_secs();
        Some(format!("process {} keeps DRAM for up to {seconds} s without a server", peer.pid))
    }

    /// Where it listens.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Link {
    fn call(&mut self, verb: u8, name: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let called = match &self.socket {
            None => Err(io::Error::new(io::ErrorKind::NotConnected, "the keeper is gone")),
            Some(socket) => call(socket, verb, name, fds, KEEP_CALL_WAIT),
        };
        match called {
            Ok(answer) => answer,
            Err(error) => {
                self.lose();
                Err(error)
            }
        }
    }

    fn lose(&mut self) {
        // One that a program before this one started, in this very process, is its child as well.
        let pid = self
            .socket
            .as_ref()
            .and_then(|socket| socket.peer().ok())
            .and_then(|peer| Pid::from_raw(peer.pid));
        if let Some(pid) = pid {
            // CHILD: it is somebody else's, or lives.
            rustix::process::waitpid(Some(pid), WaitOptions::NOHANG).map(drop).unwrap_or_default();
        }
        (self.socket, self.names) = (None, BTreeSet::new());
    }
}

/// The outer error: the keeper is of no use any more. The inner one: it said no.
fn call(
    socket: &LocalSocket,
    verb: u8,
    name: &str,
    fds: &[BorrowedFd<'_>],
    answer_max: Duration,
) -> io::Result<io::Result<()>> {
    let deadline = Instant::now() + answer_max;
    socket.send_by(verb, 0, name.as_bytes(), fds, deadline)?;
    let answer = socket.recv(Some(deadline))?;
    if answer.verb != DONE {
        return Err(wrong("the keeper answered something else"));
    }
    if answer.flags & FLAG_FAILURE == 0 {
        return Ok(Ok(()));
    }
    let why = String::from_utf8_lossy(&answer.body).into_owned();
    Ok(Err(io::Error::new(io::ErrorKind::QuotaExceeded, why)))
}

/// Says hello and takes what is kept. The server before us may take a moment to end.
fn take_over(
    socket: &LocalSocket,
    without_server: Duration,
    answer_max: Duration,
) -> io::Result<BTreeMap<String, OwnedFd>> {
    socket.send_by(HELLO, 0, &hello(without_server), &[], Instant::now() + KEEP_CALL_WAIT)?;
    let deadline = Instant::now() + answer_max;
    let mut kept = BTreeMap::new();
    loop {
        let frame = socket.recv(Some(deadline)).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => io::Error::new(error.kind(), NO_ANSWER),
            _ => error,
        })?;
        match (frame.verb, frame.fd) {
            (KEPT, Some(fd)) => {
                let name = String::from_utf8(frame.body).map_err(|_| wrong("a name is no text"))?;
                kept.insert(name, fd);
            }
            (DONE, _) => return Ok(kept),
            _ => return Err(wrong("the keeper answered something else")),
        }
    }
}

/// Starts a keeper: this very program, in a process group of its own, so that what ends the server from a terminal does not end it.
fn start(path: &Path, without_server: Duration) -> io::Result<Child> {
    // Not by its path: another program may be there by now.
    Command::new("/proc/self/exe")
        .arg0("turnkv")
        .arg("keep")
        .arg("--socket")
        .arg(path)
        .arg("--without-server-ms")
        .arg(without_server.as_millis().to_string())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

/// Device and inode of a file; none: there is no file. The inode of a socket that is bound is no other file's, whether the file is still
/// there or not.
fn file_at(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some((metadata.dev(), metadata.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether nobody listens.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

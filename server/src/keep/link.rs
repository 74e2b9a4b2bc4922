//! The server's end of its keeper: what it keeps for us, and what it kept for the server before. Owns: finding or starting a keeper,
//! the calls to it, and noticing that it is gone. Must not know: what the descriptors are of.
//!
//! - [`unfit`]: a keeper of no use, whose place another takes

pub(crate) mod unfit;

use super::custody::Keeps;
use super::frames::{DONE, DROP, HELLO, KEEP, KEPT, hello, wrong};
use crate::limits::{KEEP_CALL_WAIT, KEEP_SERVER_WAIT, KEEP_START_PAUSE, KEEP_START_WAIT};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
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
}

/// What is said of a keeper that says nothing.
const NO_ANSWER: &str = "the keeper does not answer: another server has it, or it is stopped";
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
        Keeper { path, without_server, link: Mutex::default(), started: Mutex::default() }
    }

    /// The keeper after it was lost, or was not found. What the one that is there now keeps is of no use: it is let go of. Blocking.
    ///
    /// # Errors
    /// As [`Keeps::find`].
    fn find_again(&self) -> io::Result<()> {
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
}

impl Keeps for Keeper {
    /// Finds the keeper, or starts one.
    ///
    /// # Errors
    /// None can be started, it is another user's, it does not answer, or another server has it.
    fn find(&self) -> io::Result<BTreeMap<String, OwnedFd>> {
        self.connect(KEEP_SERVER_WAIT)
    }

    fn keep(&self, kept: &[(String, BorrowedFd<'_>)]) -> io::Result<()> {
        for (name, fd) in kept {
            let mut link = self.link.lock();
            link.call(KEEP, name, &[*fd])?;
            link.names.insert(name.clone());
        }
        Ok(())
    }

    fn drop_kept(&self, name: &str) -> io::Result<()> {
        let mut link = self.link.lock();
        if !link.names.remove(name) {
            return Ok(());
        }
        link.call(DROP, name, &[])
    }

    fn names(&self) -> BTreeSet<String> {
        self.link.lock().names.clone()
    }

    fn is_gone(&self) -> bool {
        let mut link = self.link.lock();
        let gone = link.socket.as_ref().is_none_or(|socket| socket.peer_is_gone().unwrap_or(false));
        if gone {
            link.lose();
        }
        gone
    }

    fn replace(&self, asks: bool, keep_all: &dyn Fn() -> io::Result<()>) -> Option<io::Result<String>> {
        let parted = self.part(asks)?;
        Some(self.keep_by_another(parted, keep_all))
    }

    fn hands_down(&self) -> bool {
        false
    }

    fn describe(&self) -> Option<String> {
        if self.is_gone() {
            return None;
        }
        let link = self.link.lock();
        let peer = link.socket.as_ref()?.peer().ok()?;
        let seconds = self.without_server.as_secs();
        Some(format!("process {} keeps DRAM for up to {seconds} s without a server", peer.pid))
    }

    fn trouble(&self) -> String {
        format!("see that `turnkv keep` can run and listen at {}", self.path.display())
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

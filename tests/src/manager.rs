//! A play systemd: it hears what a server says (`sd_notify`), keeps what it is given, and starts the next one with that. Owns: a socket,
//! the store behind it, and what a test does to either. Must not know: what is kept.
//!
//! As systemd does it: a descriptor that is there already is not taken twice, one that the store has no room for is closed, a barrier is
//! closed once it is heard.

use anyhow::{Context, Result, ensure};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use turnkv_transfer::LocalSocket;

/// The play systemd.
pub struct Manager {
    /// What starts a program with descriptors: the binary `managed` of these tests.
    starter: PathBuf,
    place: String,
    store: Arc<Mutex<Store>>,
    ends: Arc<AtomicBool>,
    hears: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Store {
    /// `FileDescriptorStoreMax`.
    room: usize,
    kept: Vec<(String, OwnedFd)>,
    said: Vec<String>,
    /// Takes messages and does nothing about them.
    is_deaf: bool,
}

impl Manager {
    /// Listens at a path, or at an abstract name (`@name`), with a store of so many places.
    ///
    /// # Errors
    /// It cannot listen there.
    pub fn new(starter: &str, place: &str, room: usize) -> Result<Arc<Manager>> {
        let store = Arc::new(Mutex::new(Store { room, ..Store::default() }));
        let ends = Arc::new(AtomicBool::new(false));
        let (starter, place) = (PathBuf::from(starter), place.to_owned());
        let manager = Manager { starter, place, store, ends, hears: Mutex::default() };
        manager.listen()?;
        Ok(Arc::new(manager))
    }

    /// Listens, again after [`Manager::go`].
    ///
    /// # Errors
    /// It cannot.
    pub fn listen(&self) -> Result<()> {
        let socket = match self.place.strip_prefix('@') {
            Some(name) => UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?,
            None => UnixDatagram::bind(&self.place)?,
        };
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        self.ends.store(false, Ordering::Relaxed);
        let (store, ends) = (Arc::clone(&self.store), Arc::clone(&self.ends));
        let hears = move || {
            while !ends.load(Ordering::Relaxed) {
                if let Some((text, fds)) = hear(&socket) {
                    lock(&store).obey(text, fds);
                }
            }
        };
        let thread = std::thread::Builder::new().name("play-systemd".to_owned()).spawn(hears)?;
        *self.hears.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Is gone, with all that it keeps.
    pub fn go(&self) {
        self.ends.store(true, Ordering::Relaxed);
        let thread = self.hears.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            // What it panicked of has been printed.
        }
        if !self.place.starts_with('@') && std::fs::remove_file(&self.place).is_err() {
            // The test removed it, or its folder.
        }
        lock(&self.store).kept.clear();
    }

    /// What a program is told of where to say something.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Starts a program with all that is kept.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(&self, program: &Path, more: impl FnOnce(&mut Command)) -> Result<std::process::Child> {
        let (ours, theirs) = UnixStream::pair()?;
        let kept: Vec<(String, OwnedFd)> = self
            .lock()
            .kept
            .iter()
            .map(|(name, fd)| Ok((name.clone(), fd.try_clone()?)))
            .collect::<Result<_>>()?;
        let mut command = Command::new(&self.starter);
        command.arg(kept.len().to_string()).arg(program).env("NOTIFY_SOCKET", &self.place);
        more(&mut command);
        let child = command.stdin(OwnedFd::from(theirs)).spawn()?;
        let socket = LocalSocket::new(ours)?;
        for (name, fd) in &kept {
            socket.send_by(1, 0, name.as_bytes(), &[fd.as_fd()], Instant::now() + Duration::from_secs(30))?;
        }
        Ok(child)
    }

    /// Names of what is kept.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        self.lock().kept.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Loses what these names are of. Returns how many there were.
    pub fn lose(&self, is_lost: impl Fn(&str) -> bool) -> usize {
        let mut store = self.lock();
        let before = store.kept.len();
        store.kept.retain(|(name, _)| !is_lost(name));
        before - store.kept.len()
    }

    /// What is kept under a name, once more.
    ///
    /// # Errors
    /// Nothing is.
    pub fn kept(&self, name: &str) -> Result<OwnedFd> {
        let store = self.lock();
        let (_, fd) = store.kept.iter().find(|(other, _)| other == name).context("it is kept")?;
        Ok(fd.try_clone()?)
    }

    /// Keeps something else, as if the server before had given it.
    pub fn add(&self, name: &str, fd: OwnedFd) {
        self.lock().kept.push((name.to_owned(), fd));
    }

    /// Has so many places from now on.
    pub fn set_room(&self, room: usize) {
        self.lock().room = room;
    }

    /// Does nothing about what it is told from now on, or does again.
    pub fn be_deaf(&self, is_deaf: bool) {
        self.lock().is_deaf = is_deaf;
    }

    /// What it was told, without what is of the store.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        self.lock().said.clone()
    }

    /// Waits until it was told something.
    ///
    /// # Errors
    /// It is not, within a generous time.
    pub fn is_told(&self, what: impl Fn(&[String]) -> bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !what(&self.said()) {
            ensure!(Instant::now() < deadline, "it was told {:?}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.go();
    }
}

impl Store {
    fn obey(&mut self, text: String, fds: Vec<OwnedFd>) {
        if self.is_deaf {
            // A barrier that is closed would be heard.
            self.kept
                .extend(fds.into_iter().filter(|_| text == "BARRIER=1").map(|fd| ("deaf".to_owned(), fd)));
            return;
        }
        self.lose_hung_up();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored").to_owned();
        if text.lines().any(|line| line == "FDSTORE=1") {
            for fd in fds {
                let is_there = self.kept.iter().any(|(_, other)| is_same(other, &fd));
                if !is_there && self.kept.len() < self.room {
                    self.kept.push((name.clone(), fd));
                }
            }
        } else if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
            self.kept.retain(|(other, _)| *other != name);
        } else if text != "BARRIER=1" {
            self.said.push(text);
        }
    }

    /// A pipe whose other end nobody has any more goes by itself.
    fn lose_hung_up(&mut self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        self.kept.retain(|(_, fd)| {
            let mut looked = [PollFd::new(fd, PollFlags::empty())];
            poll(&mut looked, Some(&Timespec::default())).is_err()
                || !looked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
        });
    }
}

fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same file, whoever opened it.
fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let id = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    id(one).is_some() && id(one) == id(other)
}

fn hear(socket: &UnixDatagram) -> Option<(String, Vec<OwnedFd>)> {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let message = rustix::net::recvmsg(socket, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    Some((String::from_utf8_lossy(&bytes[..message.bytes]).into_owned(), fds))
}

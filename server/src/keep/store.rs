//! The descriptor store of systemd: it keeps what a unit's main process gives it by `FDSTORE=1`, and starts the next one with all of it.
//! Owns: giving, taking back, and telling whether it was taken. Must not know: what the descriptors are of.
//!
//! ```text
//!   server                                      systemd
//!   FDSTORE=1 FDNAME=name + descriptor       ->  (one for each)
//!   FDSTORE=1 FDNAME=room + end of a pipe    ->
//!   BARRIER=1 + end of another pipe          ->
//!                                            <-  closes the second pipe: it has heard all before
//!   FDSTOREREMOVE=1 FDNAME=room              ->
//! ```
//! It answers nothing. A store without room closes what it is given, so what became of the last one, the first pipe, says what became
//! of all: whoever finds nobody at its other end was refused. What it has already, it does not take twice.
//!
//! All of it is held here too: the next program in this process has it from here, and not from systemd.

use super::custody::Keeps;
use super::held::{HeldDescriptors, is_name};
use crate::limits::{KEPT_MAX, STORE_NAMES_BYTES_MAX};
use crate::manager::{Saying, ServiceManager, is_hung_up};
use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// The store of this process's unit.
pub(crate) struct DescriptorStore {
    manager: ServiceManager,
    held: HeldDescriptors,
    standing: Mutex<StoreStanding>,
    /// Taken while something is given: the question behind it has one name.
    turn: Mutex<()>,
}

#[derive(Default)]
struct StoreStanding {
    /// Names of what it has.
    kept: BTreeSet<String>,
    /// Names of what it may have and is not to.
    stale: BTreeSet<String>,
    /// It was not heard of when it was asked last.
    is_lost: bool,
    /// Device and inode of its socket's file by which it was found last.
    file: Option<(u64, u64)>,
    /// Why it has not all.
    trouble: Option<String>,
}

/// The name of what only asks whether there is room.
const ROOM: &str = "room";

impl DescriptorStore {
    /// The store at a service manager. What came from it is held.
    pub(crate) fn new(manager: ServiceManager, held: HeldDescriptors) -> DescriptorStore {
        let stale = held.doubtful();
        let standing = StoreStanding { stale, file: file_of(&manager), ..StoreStanding::default() };
        DescriptorStore { manager, held, standing: Mutex::new(standing), turn: Mutex::default() }
    }

    /// Has it let go of all that came, which nobody wants. Without a service manager what came is closed.
    ///
    /// # Errors
    /// It is not there.
    pub(crate) fn empty(manager: Option<ServiceManager>, held: HeldDescriptors) -> io::Result<()> {
        let names: Vec<String> = held.look(|kept| kept.keys().cloned().collect());
        names.iter().for_each(|name| held.let_go(name));
        let names: BTreeSet<String> = names.into_iter().chain(held.doubtful()).collect();
        match manager {
            Some(manager) if !names.is_empty() => remove(&mut manager.begin()?, &names),
            _ => Ok(()),
        }
    }

    /// Gives it some. Says whether there was room.
    fn give(&self, kept: &[(String, BorrowedFd<'_>)]) -> io::Result<bool> {
        let mut saying = self.manager.begin()?;
        for (name, fd) in kept {
            saying.say(&format!("FDSTORE=1\nFDNAME={name}"), &[*fd])?;
        }
        let (here, there) = pipe_with(PipeFlags::CLOEXEC)?;
        saying.say(&format!("FDSTORE=1\nFDNAME={ROOM}"), &[there.as_fd()])?;
        drop(there);
        saying.is_heard()?;
        let has_room = !is_hung_up(&here)?;
        remove(&mut saying, &BTreeSet::from([ROOM.to_owned()]))?;
        if !has_room {
            let standing = self.standing.lock();
            let given = kept.iter().map(|(name, _)| name).filter(|name| !standing.kept.contains(*name));
            let given = given.cloned().collect();
            drop(standing);
            remove(&mut saying, &given)?;
        }
        Ok(has_room)
    }

    fn refuse(&self, why: String) -> io::Error {
        self.standing.lock().trouble = Some(why.clone());
        io::Error::new(io::ErrorKind::QuotaExceeded, why)
    }

    /// All that it had is lost with it, or is to be let go of if it is not.
    fn lose(&self, why: &io::Error) {
        let mut standing = self.standing.lock();
        let kept = std::mem::take(&mut standing.kept);
        standing.stale.extend(kept);
        standing.is_lost = true;
        standing.trouble = Some(format!(
            "systemd does not hear this server ({why}): see NOTIFY_SOCKET and NotifyAccess= of the unit"
        ));
    }

    /// Finds it again, and has it let go of what it may have of before.
    fn find_again(&self) -> io::Result<()> {
        let mut saying = self.manager.begin()?;
        let stale = self.standing.lock().stale.clone();
        remove(&mut saying, &stale)?;
        saying.is_heard()?;
        let mut standing = self.standing.lock();
        standing.stale.retain(|name| !stale.contains(name));
        (standing.is_lost, standing.file, standing.trouble) = (false, file_of(&self.manager), None);
        Ok(())
    }
}

impl Keeps for DescriptorStore {
    fn find(&self) -> io::Result<BTreeMap<String, OwnedFd>> {
        let found = self.held.all()?;
        match self.find_again() {
            Ok(()) => self.standing.lock().kept = found.keys().cloned().collect(),
            // What it had is here nevertheless.
            Err(error) => {
                self.lose(&error);
                self.standing.lock().stale.extend(found.keys().cloned());
            }
        }
        Ok(found)
    }

    fn keep(&self, kept: &[(String, BorrowedFd<'_>)]) -> io::Result<()> {
        let _turn = self.turn.lock();
        for (name, fd) in kept {
            if !is_name(name) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "no descriptor can have this name"));
            }
            self.held.hold(name, *fd)?;
        }
        let (bytes, count) = {
            let standing = self.standing.lock();
            let names: BTreeSet<&String> =
                standing.kept.iter().chain(kept.iter().map(|(name, _)| name)).collect();
            (names.iter().map(|name| name.len() + 1).sum::<usize>(), names.len())
        };
        if bytes > STORE_NAMES_BYTES_MAX || count > KEPT_MAX {
            return Err(self.refuse(format!(
                "systemd can keep no more than {STORE_NAMES_BYTES_MAX} bytes of names: have fewer slabs (dram.slab_bytes)"
            )));
        }
        if self.standing.lock().is_lost {
            // It is waited for by whoever looks for it again, and by nobody else.
            return Err(io::Error::new(io::ErrorKind::NotConnected, "systemd does not hear this server"));
        }
        match self.give(kept) {
            Ok(true) => {
                let mut standing = self.standing.lock();
                standing.kept.extend(kept.iter().map(|(name, _)| name.clone()));
                standing.trouble = None;
                Ok(())
            }
            Ok(false) => {
                let needed = self.held.look(|held| held.len()) + 1;
                Err(self.refuse(format!(
                    "systemd has no room for all of it: set FileDescriptorStoreMax={needed} or more in the unit, and systemctl daemon-reload"
                )))
            }
            Err(error) => {
                self.lose(&error);
                self.standing.lock().stale.extend(kept.iter().map(|(name, _)| name.clone()));
                Err(error)
            }
        }
    }

    fn drop_kept(&self, name: &str) -> io::Result<()> {
        self.held.let_go(name);
        let names = BTreeSet::from([name.to_owned()]);
        {
            let mut standing = self.standing.lock();
            standing.kept.remove(name);
            if standing.is_lost {
                // It is told when it is found again.
                standing.stale.extend(names);
                return Ok(());
            }
        }
        if let Err(error) = self.manager.begin().and_then(|mut saying| remove(&mut saying, &names)) {
            self.lose(&error);
            self.standing.lock().stale.extend(names);
        }
        Ok(())
    }

    fn names(&self) -> BTreeSet<String> {
        self.standing.lock().kept.clone()
    }

    fn is_gone(&self) -> bool {
        if self.standing.lock().is_lost {
            return true;
        }
        let there = self.manager.begin().map(|_| file_of(&self.manager));
        let why = match there {
            Ok(file) if file == self.standing.lock().file => return false,
            Ok(_) => io::Error::new(io::ErrorKind::NotFound, "another one listens there"),
            Err(error) => error,
        };
        self.lose(&why);
        true
    }

    fn replace(&self, _asks: bool, keep_all: &dyn Fn() -> io::Result<()>) -> Option<io::Result<String>> {
        if !self.is_gone() {
            return None;
        }
        let found = self.find_again().and_then(|()| keep_all());
        Some(found.map(|()| "systemd hears this server again".to_owned()))
    }

    fn hands_down(&self) -> bool {
        true
    }

    fn describe(&self) -> Option<String> {
        let standing = self.standing.lock();
        let count = standing.kept.len();
        (count > 0).then(|| format!("systemd keeps DRAM ({count} descriptors) until the unit is stopped"))
    }

    fn trouble(&self) -> String {
        let why = self.standing.lock().trouble.clone();
        why.unwrap_or_else(|| "systemd was not given it yet".to_owned())
    }
}

/// Has it let go of what is kept under some names.
fn remove(saying: &mut Saying, names: &BTreeSet<String>) -> io::Result<()> {
    let mut names = names.iter().filter(|name| is_name(name));
    names.try_for_each(|name| saying.say(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[]))
}

/// Device and inode of the file at which it listens; none: it has none, or it cannot be looked at.
fn file_of(manager: &ServiceManager) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(manager.path()?).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

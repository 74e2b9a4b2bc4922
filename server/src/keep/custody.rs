//! What is kept for the next process, whoever keeps it. Owns: memory and listening sockets by name, what was found of the process before,
//! and what was refused. Must not know: how it is kept, what the descriptors are of, but that listening sockets are no memory.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Who keeps descriptors for the next process.
pub(crate) trait Keeps: Send + Sync {
    /// Takes what was kept for this process; from now on it keeps for the next one. Blocking.
    ///
    /// # Errors
    /// Nobody keeps anything.
    fn find(&self) -> io::Result<BTreeMap<String, OwnedFd>>;

    /// Keeps some more, by their names. Where there is no room for all of them, the last one is not kept, or was before.
    ///
    /// # Errors
    /// `QuotaExceeded`: there is no room; any other: nothing is kept any more.
    fn keep(&self, kept: &[(String, BorrowedFd<'_>)]) -> io::Result<()>;

    /// Lets go of what is kept under a name.
    ///
    /// # Errors
    /// Nothing is kept any more.
    fn drop_kept(&self, name: &str) -> io::Result<()>;

    /// Names of what is kept.
    fn names(&self) -> BTreeSet<String>;

    /// Whether nothing is kept any more.
    fn is_gone(&self) -> bool;

    /// Where this one is of no use, looks for another and has it keep all. Returns what an operator should know; none: it is as it should
    /// be. `asks`: it is asked too. Blocking.
    fn replace(&self, asks: bool, keep_all: &dyn Fn() -> io::Result<()>) -> Option<io::Result<String>>;

    /// Whether the next program in this process has all of it from this one, whoever keeps it.
    fn hands_down(&self) -> bool;

    /// Who keeps, and for how long; none: nobody.
    fn describe(&self) -> Option<String>;

    /// What an operator should do where it is not kept.
    fn trouble(&self) -> String;
}

/// What is kept for the next process.
pub(crate) struct Custody {
    by: Box<dyn Keeps>,
    /// Names of what there is no room for.
    refused: Mutex<BTreeSet<String>>,
    /// Listening sockets of the server before that nobody has taken over yet, by name.
    found: Mutex<BTreeMap<String, OwnedFd>>,
    /// Those of this server: kept again when who kept them is lost.
    listening: Mutex<BTreeMap<String, OwnedFd>>,
}

/// What was kept for this process.
pub(crate) struct Kept {
    /// It is kept on from now.
    pub(crate) custody: Custody,
    /// Memory, by name.
    pub(crate) descriptors: BTreeMap<String, OwnedFd>,
}

/// How names of listening sockets begin.
const LISTENING: &str = "listen-";

impl Custody {
    /// Nothing is kept yet.
    pub(crate) fn new(by: Box<dyn Keeps>) -> Custody {
        let (found, listening) = (Mutex::default(), Mutex::default());
        Custody { by, refused: Mutex::default(), found, listening }
    }

    /// Takes the memory that was kept for this process; listening sockets wait here until they are taken over. Blocking.
    ///
    /// # Errors
    /// Nobody keeps anything.
    pub(crate) fn find(&self) -> io::Result<BTreeMap<String, OwnedFd>> {
        let mut descriptors = self.by.find()?;
        *self.found.lock() = descriptors.extract_if(.., |name, _| name.starts_with(LISTENING)).collect();
        Ok(descriptors)
    }

    /// Has descriptors kept under their names.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn keep(&self, kept: &[(String, BorrowedFd<'_>)]) -> io::Result<()> {
        let done = self.by.keep(kept);
        let no_room = matches!(&done, Err(error) if error.kind() == io::ErrorKind::QuotaExceeded);
        let has = if no_room { self.by.names() } else { BTreeSet::new() };
        let mut refused = self.refused.lock();
        for (name, _) in kept {
            if no_room && !has.contains(name) {
                refused.insert(name.clone());
            } else if done.is_ok() {
                refused.remove(name);
            }
        }
        done
    }

    /// Lets go of what is kept under a name.
    ///
    /// # Errors
    /// Nothing is kept any more.
    pub(crate) fn drop_kept(&self, name: &str) -> io::Result<()> {
        self.refused.lock().remove(name);
        self.by.drop_kept(name)
    }

    /// Names of the memory that is kept.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let mut names = self.by.names();
        names.retain(|name| !name.starts_with(LISTENING));
        names
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
        self.keep(&[(name, fd)])
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
        let names = self.by.names();
        self.listening.lock().keys().all(|name| names.contains(name))
    }

    /// Whether something is kept under a name.
    pub(crate) fn keeps(&self, name: &str) -> bool {
        self.by.names().contains(name)
    }

    /// Whether nothing is kept any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.by.is_gone()
    }

    /// Has everything kept where it is not: by another one, where who kept it is of no use, or again where there was no room. Returns what
    /// an operator should know; none: all is as it should be. Blocking.
    pub(crate) fn mend(
        &self,
        asks: bool,
        keep_memory: &dyn Fn() -> io::Result<()>,
    ) -> Option<io::Result<String>> {
        let keep_all = || {
            keep_memory()?;
            let listening = self.listening.lock();
            listening.iter().try_for_each(|(name, fd)| self.keep(&[(name.clone(), fd.as_fd())]))
        };
        let replaced = self.by.replace(asks, &keep_all);
        if replaced.is_some() || self.refused() == 0 {
            return replaced;
        }
        Some(keep_all().map(|()| "there is room for all that is to be kept".to_owned()))
    }

    /// Whether the next program in this process has all of it from this one, whoever keeps it.
    pub(crate) fn hands_down(&self) -> bool {
        self.by.hands_down()
    }

    /// How many descriptors are kept.
    pub(crate) fn count(&self) -> usize {
        self.by.names().len()
    }

    /// How many there is no room for.
    pub(crate) fn refused(&self) -> usize {
        self.refused.lock().len()
    }

    /// Who keeps, and for how long; none: nobody.
    pub(crate) fn describe(&self) -> Option<String> {
        self.by.describe()
    }

    /// What an operator should do where not all is kept.
    pub(crate) fn trouble(&self) -> String {
        self.by.trouble()
    }
}

#[cfg(test)]
mod tests;

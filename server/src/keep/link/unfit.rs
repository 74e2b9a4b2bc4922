//! A keeper that is of no use to the next server: it is gone, it does not answer, or no server finds it. Owns: telling so, and what
//! becomes of it once another one has its place. Must not know: what is kept.

use super::{Keeper, Link, call, file_at};
use crate::keep::custody::Keeps;
use crate::keep::frames::{DROP, HELLO, hello};
use crate::limits::{KEEP_ASK_WAIT, KEEP_START_PAUSE};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fmt;
use std::io;
use std::process::Child;
use std::time::{Duration, Instant};
use turnkv_transfer::LocalSocket;

/// Why a keeper is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unfit {
    /// It has ended, or was never found.
    Gone,
    /// The file of its socket was removed, or another is there.
    Unfindable,
    /// It does not answer within [`KEEP_ASK_WAIT`].
    Silent,
}

/// A keeper that this server has parted from. It has what it had until it is dismissed.
pub(super) struct Parted {
    /// Why.
    why: Unfit,
    /// None: it has ended.
    socket: Option<LocalSocket>,
    /// Where this server started it itself.
    started: Option<Child>,
}

/// A name under which nothing is kept: to let go of it is a question that keepers of every version answer.
const NOTHING: &str = "nothing";

impl Keeper {
    /// Parts from a keeper that is of no use: from now on nobody keeps anything. None: it is as it should be. It is asked only where
    /// `asks` says so. Blocking, for [`KEEP_ASK_WAIT`] at most.
    pub(super) fn part(&self, asks: bool) -> Option<Parted> {
        if self.is_gone() {
            return Some(Parted { why: Unfit::Gone, socket: None, started: None });
        }
        let mut link = self.link.lock();
        let why = self.unfit(&link, asks)?;
        let socket = link.socket.take();
        link.names.clear();
        Some(Parted { why, socket, started: self.started.lock().take() })
    }

    fn unfit(&self, link: &Link, asks: bool) -> Option<Unfit> {
        let Some(socket) = &link.socket else { return Some(Unfit::Gone) };
        // A place that cannot be looked at now says nothing.
        if file_at(&self.path).is_ok_and(|file| file.is_none() || file != link.file) {
            return Some(Unfit::Unfindable);
        }
        if !asks {
            return None;
        }
        match call(socket, DROP, NOTHING, &[], KEEP_ASK_WAIT) {
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Some(Unfit::Silent),
            Err(_) => Some(Unfit::Gone),
        }
    }

    /// Finds or starts another keeper in the place of one that this server has parted from. Blocking.
    ///
    /// # Errors
    /// As [`Keeps::find`].
    fn find_another(&self, parted: &Parted) -> io::Result<()> {
        if parted.why == Unfit::Silent {
            self.clear_place()?;
        }
        match self.find_again() {
            // One that this server had before, and lost because it did not answer then either: nobody else has it.
            Err(error) if error.kind() == io::ErrorKind::TimedOut && self.clear_place()? => self.find_again(),
            found => found,
        }
    }

    /// Has everything kept by another keeper than one that this server has parted from. Returns what an operator should know.
    pub(super) fn keep_by_another(
        &self,
        parted: Parted,
        keep_all: &dyn Fn() -> io::Result<()>,
    ) -> io::Result<String> {
        self.find_another(&parted)?;
        keep_all()?;
        let said = format!("{}: another one keeps now", parted.why);
        Ok(match parted.dismiss() {
            None => said,
            Some(pid) => {
                format!("{said}, and process {pid} has memory and sockets until it goes on or is ended")
            }
        })
    }

    /// Removes the file of the socket by which this server found its keeper last. Returns whether it was there.
    fn clear_place(&self) -> io::Result<bool> {
        let file = self.link.lock().file;
        if file.is_none() || file_at(&self.path)? != file {
            return Ok(false);
        }
        std::fs::remove_file(&self.path)?;
        // Not taken for one that is under way.
        *self.started.lock() = None;
        Ok(true)
    }
}

impl Parted {
    /// Has it end, because another one has all that it had. Returns the number of a process that goes on to have it: it does not answer,
    /// and it is not this process's own to end. Blocking, for [`KEEP_ASK_WAIT`] twice at most.
    fn dismiss(self) -> Option<i32> {
        let socket = self.socket?;
        let pid = socket.peer().ok().and_then(|peer| Pid::from_raw(peer.pid));
        // Without a server it keeps for no time from now on. One that is stopped reads this when it goes on.
        let told = socket.send_by(HELLO, 0, &hello(Duration::ZERO), &[], Instant::now() + KEEP_ASK_WAIT);
        // One that cannot be told has as much time as it was told before.
        told.unwrap_or_default();
        drop(socket);
        let pid = pid?;
        if self.why == Unfit::Silent {
            // Also one that a program before started in this very process.
            if !lives_as_child(pid) {
                return Some(pid.as_raw_pid());
            }
            // SRCH: it has ended meanwhile.
            kill_process(pid, Signal::KILL).unwrap_or_default();
        }
        let until = Instant::now() + KEEP_ASK_WAIT;
        while lives_as_child(pid) && Instant::now() < until {
            std::thread::sleep(KEEP_START_PAUSE);
        }
        drop(self.started);
        None
    }
}

/// Whether a process is this one's child and has not ended; if it has, it is reaped.
fn lives_as_child(pid: Pid) -> bool {
    matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None))
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unfit::Gone => "the keeper is gone",
            Unfit::Unfindable => "the file of the keeper's socket was removed",
            Unfit::Silent => "the keeper does not answer",
        })
    }
}

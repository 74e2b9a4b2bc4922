//! One program takes the place of another in this process: its number, its arguments, its standard streams and its place at the
//! service manager stay. Owns: `exec`, and the way back of a program that cannot start. Must not know: what either serves.

use super::program::Program;
use crate::report;
use parking_lot::Mutex;
use rustix::process::Signal;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use turnkv_transfer::inherited::{ignore_signal, stays_open};

/// By which the program before tells this one its descriptor: there it is again if this one cannot start.
pub(crate) const BEFORE: &str = "TURNKV_UPGRADE_BEFORE";
/// By which a program that is back is told why.
const FAILED: &str = "TURNKV_UPGRADE_FAILED";

/// The program that had this process before, until this one serves.
#[derive(Clone, Default)]
pub(crate) struct Before(Arc<Mutex<Option<OwnedFd>>>);

impl Before {
    /// It has this descriptor.
    pub(crate) fn new(program: Option<OwnedFd>) -> Before {
        Before(Arc::new(Mutex::new(program)))
    }

    /// This program serves: there is no way back.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }

    /// This program cannot start: the one before, if there is one, takes its place again. Returns where there is none.
    pub(crate) fn comes_back(&self, error: anyhow::Error) -> anyhow::Error {
        let Some(program) = self.0.lock().take() else { return error };
        let (what, todo) = report::lines(&error);
        tracing::error!(todo, "the new program cannot start: {what}: the one before serves on");
        let path = PathBuf::from(format!("/proc/self/fd/{}", program.as_raw_fd()));
        let failed = become_program(&path, |command| {
            command.env(FAILED, format!("{what}; {todo}"));
        });
        error.context(format!("nor can the program before ({failed})"))
    }
}

/// Why the program that was to take this one's place did not.
pub(crate) fn failed_before() -> Option<String> {
    std::env::var(FAILED).ok()
}

/// Has a program take this one's place. Returns only if neither it nor this one can be started.
pub(crate) fn replace(program: &Program) -> anyhow::Error {
    let own = Path::new("/proc/self/exe");
    let failed = match File::open(own).and_then(|file| stays_open(&file).map(|()| file)) {
        Err(error) => error,
        Ok(file) => become_program(&program.path, |command| {
            command.env(BEFORE, file.as_raw_fd().to_string());
        }),
    };
    let why = format!("{} does not run: {failed}", program.path.display());
    tracing::error!("{why}: this program starts again");
    let failed = become_program(own, |command| {
        command.env(FAILED, &why);
    });
    anyhow::Error::new(failed).context(why)
}

/// `exec`, with this program's arguments.
fn become_program(path: &Path, tell: impl FnOnce(&mut Command)) -> std::io::Error {
    // Asked again before the next program listens, these would end the process.
    [Signal::USR2, Signal::HUP].into_iter().for_each(ignore_signal);
    let mut arguments = std::env::args_os();
    let mut command = Command::new(path);
    command.env_remove(BEFORE).env_remove(FAILED);
    tell(&mut command);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).exec()
}

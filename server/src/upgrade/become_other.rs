//! `exec`, and the words by which one program tells the next what it leaves. Owns: these. Must not know: why one follows the other.

use rustix::process::Signal;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use turnkv_transfer::inherited::ignore_signal;

/// By which the program before tells this one its descriptor: there it is again if this one cannot start.
pub(super) const BEFORE: &str = "TURNKV_UPGRADE_BEFORE";
/// The descriptor of the settings that it had.
pub(super) const SETTINGS: &str = "TURNKV_UPGRADE_SETTINGS";
/// How long this program may take until it serves.
pub(super) const START_MS: &str = "TURNKV_UPGRADE_START_MS";
/// By which a program that is back is told why.
pub(super) const FAILED: &str = "TURNKV_UPGRADE_FAILED";

/// The program is told where settings are.
pub(super) fn leave_settings(command: &mut Command, settings: Option<&File>) {
    if let Some(settings) = settings {
        command.env(SETTINGS, settings.as_raw_fd().to_string());
    }
}

/// `exec`, with this program's arguments.
pub(super) fn become_program(path: &Path, tell: impl FnOnce(&mut Command)) -> io::Error {
    // Asked again before the next program listens, these would end the process.
    [Signal::USR2, Signal::HUP].into_iter().for_each(ignore_signal);
    let mut arguments = std::env::args_os();
    let mut command = Command::new(path);
    for name in [BEFORE, SETTINGS, FAILED, START_MS] {
        command.env_remove(name);
    }
    tell(&mut command);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).exec()
}

//! `exec`, and the words by which one program tells the next what it leaves. Owns: these. Must not know: why one follows the other.

use crate::keep::held::{HeldDescriptors, LISTEN_FDNAMES, LISTEN_FDS, LISTEN_PID};
use crate::limits::HANDED_LIST_BYTES_MAX;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use turnkv_transfer::inherited::{ignore_signal, stays_open};

/// By which the program before tells this one its descriptor: there it is again if this one cannot start.
pub(super) const BEFORE: &str = "TURNKV_UPGRADE_BEFORE";
/// The descriptor of the settings that it had.
pub(super) const SETTINGS: &str = "TURNKV_UPGRADE_SETTINGS";
/// How long this program may take until it serves.
pub(super) const START_MS: &str = "TURNKV_UPGRADE_START_MS";
/// By which a program that is back is told why.
pub(super) const FAILED: &str = "TURNKV_UPGRADE_FAILED";

/// The descriptor of a list of those that were left open, by name.
pub(super) const KEPT: &str = "TURNKV_UPGRADE_KEPT";

/// Leaves descriptors open for the program, and tells it what each is. What cannot be left it has to do without.
fn leave_kept(command: &mut Command, kept: &BTreeMap<String, OwnedFd>) -> Option<File> {
    if kept.is_empty() {
        return None;
    }
    let listed = || -> io::Result<File> {
        let mut list = File::from(memfd_create("turnkv-kept", MemfdFlags::CLOEXEC)?);
        let mut text = String::new();
        for (name, fd) in kept {
            stays_open(fd)?;
            text.push_str(&format!("{} {name}\n", fd.as_raw_fd()));
        }
        list.write_all(text.as_bytes())?;
        stays_open(&list)?;
        Ok(list)
    };
    let list = listed().inspect_err(|error| {
        tracing::warn!(%error, "DRAM cannot be left to the next program: it begins cold");
    });
    let list = list.ok()?;
    command.env(KEPT, list.as_raw_fd().to_string());
    Some(list)
}

/// Which descriptors such a list names, and what each is.
pub(super) fn read_kept(list: RawFd) -> io::Result<Vec<(RawFd, String)>> {
    // Opened once more: the descriptor itself is taken with all that it names.
    let list = File::open(format!("/proc/self/fd/{list}"))?;
    let mut text = String::new();
    list.take(HANDED_LIST_BYTES_MAX).read_to_string(&mut text)?;
    let line = |line: &str| {
        let (fd, name) = line.split_once(' ')?;
        Some((fd.parse().ok()?, name.to_owned()))
    };
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a list of descriptors is no such list");
    text.lines().map(line).collect::<Option<Vec<_>>>().ok_or_else(wrong)
}

/// The program is told where settings are.
pub(super) fn leave_settings(command: &mut Command, settings: Option<&File>) {
    if let Some(settings) = settings {
        command.env(SETTINGS, settings.as_raw_fd().to_string());
    }
}

/// `exec`, with this program's arguments, and with what is held: nobody changes any of that meanwhile.
pub(super) fn become_program(
    path: &Path,
    held: &HeldDescriptors,
    tell: impl FnOnce(&mut Command),
) -> io::Error {
    // Asked again before the next program listens, these would end the process.
    [Signal::USR2, Signal::HUP].into_iter().for_each(ignore_signal);
    let mut arguments = std::env::args_os();
    let mut command = Command::new(path);
    // What came with this process is not to be taken for what is left to the next program.
    for name in [BEFORE, SETTINGS, FAILED, START_MS, KEPT, LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES] {
        command.env_remove(name);
    }
    tell(&mut command);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments);
    held.look(|kept| {
        // Open until then.
        let _list = leave_kept(&mut command, kept);
        command.exec()
    })
}

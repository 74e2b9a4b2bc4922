//! One program takes the place of another in this process: its number, its arguments, its standard streams and its place at the
//! service manager stay. Owns: what is left to it, and the way back where it does not run. Must not know: what either serves.

use super::become_other::{BEFORE, FAILED, START_MS, become_program, leave_settings};
use super::program::{Program, cut};
use crate::keep::held::HeldDescriptors;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;
use turnkv_transfer::inherited::stays_open;

/// What a program leaves to the one that takes its place.
pub(crate) struct Succession {
    /// Which one it is.
    pub(crate) program: Program,
    /// The text of a configuration file with what is in force: what this one has again if the other cannot start.
    pub(crate) settings: String,
    /// How long the other may take until it serves.
    pub(crate) start: Duration,
    /// What it is to find open.
    pub(crate) held: HeldDescriptors,
}

/// Has a program take this one's place. Returns only if neither it nor this one can be started.
pub(crate) fn replace(next: &Succession) -> anyhow::Error {
    let own = Path::new("/proc/self/exe");
    let settings = hand_down(&next.settings);
    let path = &next.program.path;
    let failed = File::open(own).and_then(|file| stays_open(&file).map(|()| file)).map_or_else(
        |error| error,
        |file| {
            become_program(path, &next.held, |command| {
                command.env(BEFORE, file.as_raw_fd().to_string());
                command.env(START_MS, next.start.as_millis().to_string());
                leave_settings(command, settings.as_ref().ok());
            })
        },
    );
    let why = cut(&format!("{} does not run: {failed}", path.display()));
    tracing::error!("{why}: this program starts again");
    let failed = become_program(own, &next.held, |command| {
        command.env(FAILED, &why);
        leave_settings(command, settings.as_ref().ok());
    });
    anyhow::Error::new(failed).context(why)
}

/// Settings in memory, open over `exec`.
fn hand_down(settings: &str) -> io::Result<File> {
    let written = || -> io::Result<File> {
        let mut file = File::from(memfd_create("turnkv-settings", MemfdFlags::CLOEXEC)?);
        file.write_all(settings.as_bytes())?;
        stays_open(&file)?;
        Ok(file)
    };
    written().inspect_err(|error| {
        tracing::warn!(%error, "this program has the configuration file's settings if it has to start again");
    })
}

//! What the program before left to this one: itself, the settings that it had, and how long this one may take. Owns: taking these,
//! and the way back, when this program cannot start or does not in time. Must not know: what either serves.

use super::become_other::{
    BEFORE, FAILED, KEPT, SETTINGS, START_MS, become_program, leave_settings, read_kept,
};
use super::program::cut;
use crate::keep::held::{HeldDescriptors, listed};
use crate::limits::CONFIG_BYTES_MAX;
use crate::report::{self, Advise, misused};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_transfer::inherited::{stays_open, take_inherited};

/// What this program was left.
pub(crate) struct Inherited {
    /// Whose place it takes.
    pub(crate) before: Before,
    /// With which settings it is to run, where it is the one that is back: the text of a configuration file.
    pub(crate) settings: Option<String>,
    /// What was left open for it, or given to it by whoever started it.
    pub(crate) held: HeldDescriptors,
}

/// The program that had this process before, until this one serves.
#[derive(Clone, Default)]
pub(crate) struct Before(Arc<Waiting>);

#[derive(Default)]
struct Waiting {
    program: Mutex<Option<Leaver>>,
    forgotten: Condvar,
    /// What the one before finds open again.
    held: HeldDescriptors,
}

struct Leaver {
    program: File,
    /// What it had; none: it left none.
    settings: Option<File>,
    /// How long this program may take.
    start: Option<Duration>,
}

/// Takes what the program before left, and what came from whoever started this process. To be called once, before anything is opened.
///
/// # Errors
/// What the environment names is not there.
pub(crate) fn take() -> anyhow::Result<Inherited> {
    let todo = format!("do not set {BEFORE}, {SETTINGS} or {KEPT}: `turnkv upgrade` does");
    let missing = || "there is no descriptor that another program left".to_owned();
    let (before, settings, list) = (number(BEFORE), number(SETTINGS), number(KEPT));
    let kept = match list {
        Some(list) => read_kept(list).advise(missing, &todo)?,
        None => listed(|name| std::env::var(name).ok(), std::process::id()),
    };
    let left: Vec<RawFd> = [before, settings, list].into_iter().flatten().collect();
    let numbers: Vec<RawFd> = left.iter().copied().chain(kept.iter().map(|(fd, _)| *fd)).collect();
    let mut taken = take_inherited(&numbers).advise(missing, &todo)?.into_iter();
    let left: Option<Vec<OwnedFd>> = taken.by_ref().take(left.len()).collect();
    let mut left = left.ok_or(Errno::BADF).advise(missing, &todo)?.into_iter().map(File::from);
    // Memory that is not there is only cold.
    let kept = kept.into_iter().zip(taken).filter_map(|((_, name), fd)| Some((name, fd?)));
    let held = HeldDescriptors::of(kept);
    let program = before.and_then(|_| left.next());
    let settings = settings.and_then(|_| left.next());
    match program {
        // This one is back, or whoever starts programs has started it.
        None => {
            let text = settings.map(read).transpose();
            let text = text.advise(|| "settings that were left cannot be read".to_owned(), &todo)?;
            Ok(Inherited { before: Before::default(), settings: text, held })
        }
        Some(program) => {
            let start = number(START_MS).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
            let leaver = Leaver { program, settings, start };
            let waiting =
                Waiting { program: Mutex::new(Some(leaver)), forgotten: Condvar::new(), held: held.clone() };
            Ok(Inherited { before: Before(Arc::new(waiting)), settings: None, held })
        }
    }
}

/// Why the program that was to take this one's place did not.
pub(crate) fn failed_before() -> Option<String> {
    std::env::var(FAILED).ok().map(|why| cut(&why))
}

fn number(name: &str) -> Option<i32> {
    std::env::var(name).ok()?.parse().ok()
}

/// The settings; whoever had them before this may have read them.
fn read(mut file: File) -> io::Result<String> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(CONFIG_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

impl Before {
    /// Whether this program takes another one's place.
    pub(crate) fn is_some(&self) -> bool {
        self.0.program.lock().is_some()
    }

    /// From now on this program has its time to start: when that is over and it does not serve, it gives way again.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn bound(&self) -> io::Result<()> {
        let Some(start) = self.0.program.lock().as_ref().and_then(|leaver| leaver.start) else {
            return Ok(());
        };
        let (before, until) = (self.clone(), Instant::now() + start);
        let watch = move || {
            let mut program = before.0.program.lock();
            while program.is_some() && !before.0.forgotten.wait_until(&mut program, until).timed_out() {}
            drop(program);
            let what = format!("it did not serve within {} ms (keep.start_ms)", start.as_millis());
            // Of no use where this program serves by now.
            drop(before.comes_back(misused(what, "see what its start waits for, or give it more time")));
        };
        std::thread::Builder::new().name("turnkv-upgrade-bound".to_owned()).spawn(watch).map(drop)
    }

    /// This program serves: there is no way back.
    pub(crate) fn forget(&self) {
        *self.0.program.lock() = None;
        self.0.forgotten.notify_all();
    }

    /// This program cannot start: the one before, if there is one, takes its place again. Returns where there is none.
    pub(crate) fn comes_back(&self, error: anyhow::Error) -> anyhow::Error {
        // HeldDescriptors until the other one is there: whoever else gives up meanwhile must not end the process.
        let mut leaver = self.0.program.lock();
        let Some(Leaver { program, settings, .. }) = leaver.take() else { return error };
        let (what, todo) = report::lines(&error);
        tracing::error!(todo, "the new program cannot start: {what}: the one before serves on");
        let settings = settings.as_ref().filter(|settings| stays_open(settings).is_ok());
        let path = PathBuf::from(format!("/proc/self/fd/{}", program.as_raw_fd()));
        let failed = become_program(&path, &self.0.held, |command| {
            command.env(FAILED, cut(&format!("{what}; {todo}")));
            leave_settings(command, settings);
        });
        error.context(format!("nor can the program before ({failed})"))
    }
}

//! Another program, checked before it may take this one's place. Owns: whose file it may be, what it is asked, how long it may take.
//! Must not know: when it takes the place.

use crate::limits::{
    SPOKEN_PROTOCOL, UPGRADE_CHECK_MAX, UPGRADE_CHECK_PAUSE, UPGRADE_FAILED_BYTES_MAX, UPGRADE_SAID_BYTES_MAX,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, geteuid, kill_process_group, waitid};
use std::fs::FileType;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Instant;
use turnkv_proto::{Error, ErrorKind};
use turnkv_tier::dram::table::SLOT_TABLE_VERSION;

/// What `turnkv --version` says: the version, and which protocol and table it speaks. A program before asks for it.
pub(crate) static VERSIONS: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    format!("{version}\n{PROTOCOL}{SPOKEN_PROTOCOL}\n{TABLE}{SLOT_TABLE_VERSION}")
});

const PROTOCOL: &str = "local protocol ";
const TABLE: &str = "slot table ";

/// A program that may take this one's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// Its file.
    pub(crate) path: PathBuf,
    /// Its version, for people.
    pub(crate) version: String,
    /// What an operator should know before; empty: nothing.
    pub(crate) note: String,
    /// It makes nothing of DRAM as it is: what is dirty is to be written before.
    pub(crate) begins_cold: bool,
}

impl Program {
    /// A program that somebody names: nobody but root and this user may have had a hand in it, because it will be this user.
    ///
    /// # Errors
    /// It is no such file, or does not pass the check.
    pub(crate) fn named(path: &Path, config: Option<&Path>) -> Result<Program, Error> {
        let place = path.display();
        if !path.is_absolute() {
            return Err(Error::invalid(format!("{place} is no absolute path: name the program by one")));
        }
        let file = std::fs::metadata(path).map_err(|error| {
            Error::invalid(format!("{place} cannot be looked at ({error}): name a program"))
        })?;
        if let Some(other) = other_than_file(file.file_type()) {
            return Err(Error::invalid(format!("{place} is {other}: name a program, which is a file")));
        }
        let is_ours = file.uid() == 0 || file.uid() == geteuid().as_raw();
        if !is_ours || file.mode() & 0o022 != 0 {
            let text = format!(
                "{place} must be a file of root or of the server's user that nobody else may write to (chmod go-w)"
            );
            return Err(Error::invalid(text));
        }
        Program::check(path, config)
    }

    /// A program, once it has said what it is and that it can make use of the configuration. Blocking.
    ///
    /// # Errors
    /// It does not run, is no server that can take over, or refuses the configuration.
    pub(crate) fn check(path: &Path, config: Option<&Path>) -> Result<Program, Error> {
        let said = ask(Command::new(path).arg("--version"), path)?;
        let (version, protocol, table) = read(&said).ok_or_else(|| {
            let text = "is no turnkv that takes over from another: stop the server and start it instead";
            Error::invalid(format!("{} {text}", path.display()))
        })?;
        let mut configured = Command::new(path);
        configured.arg("config");
        if let Some(config) = config {
            configured.arg("--config").arg(config);
        }
        ask(&mut configured, path)?;
        let begins_cold = table != SLOT_TABLE_VERSION;
        let version = cut(&version);
        Ok(Program { path: path.to_owned(), version, note: note(protocol, table), begins_cold })
    }

    /// Something else that an operator should know.
    pub(super) fn add_note(&mut self, more: &str) {
        if !self.note.is_empty() {
            self.note.push_str("; ");
        }
        self.note.push_str(more);
    }
}

/// What is at a place where there is no file.
fn other_than_file(what: FileType) -> Option<&'static str> {
    match what {
        file if file.is_file() => None,
        directory if directory.is_dir() => Some("a directory"),
        fifo if fifo.is_fifo() => Some("a FIFO"),
        socket if socket.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

/// What changes with a program of other versions.
fn note(protocol: u32, table: u32) -> String {
    let mut notes = Vec::new();
    if table != SLOT_TABLE_VERSION {
        notes.push(format!("its slot table is version {table}, not {SLOT_TABLE_VERSION}: DRAM begins cold"));
    }
    if protocol != SPOKEN_PROTOCOL {
        let text = format!("its local protocol is version {protocol}, not {SPOKEN_PROTOCOL}");
        notes.push(format!("{text}: local clients of this version must be upgraded, too"));
    }
    notes.join("; ")
}

/// The versions in what a program says.
fn read(said: &str) -> Option<(String, u32, u32)> {
    let version = said.lines().next()?.strip_prefix("turnkv ")?.to_owned();
    let number = |what: &str| said.lines().find_map(|line| line.strip_prefix(what))?.trim().parse().ok();
    Some((version, number(PROTOCOL)?, number(TABLE)?))
}

/// Runs a program until it has said all, within a bounded time.
fn ask(command: &mut Command, path: &Path) -> Result<String, Error> {
    let refuse = |why: String| Error::invalid(format!("{} {why}", path.display()));
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped
        .process_group(0)
        .spawn()
        .map_err(|error| refuse(format!("does not run ({error}): name a program")))?;
    let has_ended = ends_by(&child, Instant::now() + UPGRADE_CHECK_MAX);
    // What it started goes with it: nothing is left behind, and nobody else holds the pipes open that are read here.
    kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap_or_default();
    let status = child.wait();
    let Some(status) = status.ok().filter(|_| has_ended) else {
        return Err(refuse(format!(
            "does not answer within {} s: is it turnkv?",
            UPGRADE_CHECK_MAX.as_secs()
        )));
    };
    let read = |from: Option<&mut dyn Read>| {
        let mut bytes = Vec::new();
        from.map_or(Ok(0), |from| from.take(UPGRADE_SAID_BYTES_MAX).read_to_end(&mut bytes)).unwrap_or(0);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    if status.success() {
        return Ok(read(child.stdout.as_mut().map(|out| out as &mut dyn Read)));
    }
    let said = read(child.stderr.as_mut().map(|out| out as &mut dyn Read));
    let said = said.lines().map(|line| line.trim_start_matches("turnkv: ")).collect::<Vec<_>>().join("; ");
    let said = Some(cut(&said)).filter(|said| !said.is_empty());
    let said = said.unwrap_or_else(|| "it does not say why; run it by hand".to_owned());
    Err(refuse(format!("refuses ({status}): {said}")))
}

/// Whether a process ends in time. It is not reaped yet: until it is, its group is no other's.
fn ends_by(child: &Child, deadline: Instant) -> bool {
    let looks = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(Pid::from_child(child)), looks) {
            Ok(Some(_)) => return true,
            Ok(None) | Err(Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(UPGRADE_CHECK_PAUSE);
            }
            Ok(None) | Err(_) => return false,
        }
    }
}

/// A text from elsewhere as it may be shown: one line, no longer than [`UPGRADE_FAILED_BYTES_MAX`] bytes.
pub(super) fn cut(text: &str) -> String {
    let plain: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    plain[..plain.floor_char_boundary(UPGRADE_FAILED_BYTES_MAX)].trim().to_owned()
}

/// That an upgrade is not begun now.
pub(super) fn not_now(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, why)
}

#[cfg(test)]
mod tests {
    use super::{VERSIONS, cut, note, read};
    use crate::limits::UPGRADE_FAILED_BYTES_MAX;

    #[test]
    fn what_this_program_says_of_itself_is_understood_and_asks_for_no_care() {
        let (version, protocol, table) = read(&format!("turnkv {}\n", *VERSIONS)).unwrap();
        assert_eq!((version.as_str(), note(protocol, table)), (env!("CARGO_PKG_VERSION"), String::new()));
        assert!(note(protocol + 1, table + 1).contains("DRAM begins cold"));
        for said in ["", "turnkv 0.1.0\n", "busybox 1\nlocal protocol 1\nslot table 1\n"] {
            assert_eq!(read(said), None, "{said}");
        }
    }

    #[test]
    fn what_another_program_says_is_one_short_line_without_control_characters() {
        assert_eq!(cut("why\n\u{1b}[2Jnot\u{7}"), "why  [2Jnot");
        assert_eq!(cut(&"\u{e4}".repeat(UPGRADE_FAILED_BYTES_MAX)).len(), UPGRADE_FAILED_BYTES_MAX);
    }
}

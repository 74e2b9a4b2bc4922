//! A private pool of this user, when no address is given. Owns: finding it, starting it, its generated configuration.
//! Must not know: what it is used for.
//!
//! One user has one embedded pool: whoever finds nobody at its socket takes the lock file, looks again, and starts
//! `turnkv serve --embedded`. The server ends by itself when no local connection has been open for a while; each client keeps
//! one at rest.

use crate::config::{ConfigError, EmbeddedConfig};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{EMBEDDED_LOG_BYTES_MAX, EMBEDDED_POLL, EMBEDDED_START_WAIT};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use turnkv_transfer::LocalSocket;

#[cfg(test)]
mod tests;

const SOCKET: &str = "turnkv.sock";
const LOCAL_SOCKET: &str = "turnkv.sock.local";
const LOCK: &str = "start.lock";
const CONFIG: &str = "embedded.toml";
const LOG: &str = "embedded.log";

const VARIABLE: &str = "TURNKV_SERVER";

const HOW_TO_FIND: &str = "put `turnkv` on PATH, set TURNKV_SERVER to its file, or give the address of a running pool \
                           (unix:/path or http://host:port)";

#[derive(Debug)]
pub(crate) struct Embedded {
    /// Holds sockets, lock, configuration and log.
    run_dir: PathBuf,
    /// Holds pages.
    nvme_dir: PathBuf,
    socket: PathBuf,
    /// The server that somebody named.
    named: Option<PathBuf>,
    settings: EmbeddedConfig,
    /// Kept so that a server that ended is reaped. It outlives this client if others use it.
    child: Mutex<Option<Child>>,
}

impl Embedded {
    pub(crate) fn new(settings: &EmbeddedConfig) -> Result<Embedded, ConfigError> {
        let variable =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let (run_dir, nvme_dir) = match &settings.dir {
            Some(dir) => (std::path::absolute(dir).map_err(|_| ConfigError::NoHome)?, dir.join("nvme")),
            None => {
                let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
                let cache = cache.ok_or(ConfigError::NoHome)?.join("turnkv");
                let run = variable("XDG_RUNTIME_DIR").map(|dir| dir.join("turnkv"));
                (run.unwrap_or_else(|| cache.join("run")), cache.join("nvme"))
            }
        };
        let nvme_dir = std::path::absolute(nvme_dir).map_err(|_| ConfigError::NoHome)?;
        let socket = run_dir.join(SOCKET);
        let named = named_server(settings)?;
        Ok(Embedded { run_dir, nvme_dir, socket, named, settings: settings.clone(), child: Mutex::new(None) })
    }

    /// The gRPC socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sees to it that a server listens, by the deadline. Only one of all of a user's clients starts it.
    pub(crate) async fn ensure(&self, deadline: Deadline) -> Result<()> {
        let deadline = deadline.within(EMBEDDED_START_WAIT);
        self.make_dirs().map_err(|error| internal("the embedded pool's directories", &error))?;
        let lock = self.lock(deadline).await?;
        if self.listens() {
            return Ok(());
        }
        // A server that this client started but that does not listen yet needs time, not a twin.
        if !self.is_starting() {
            self.start()?;
        }
        while !self.listens() {
            if !self.is_starting() {
                // Perhaps it found another one at work: then that one listens.
                return if self.listens() { Ok(()) } else { Err(self.failed_start()) };
            }
            deadline.check()?;
            tokio::time::sleep(EMBEDDED_POLL).await;
        }
        drop(lock);
        Ok(())
    }

    /// Whether somebody answers at the local socket, which is bound last.
    fn listens(&self) -> bool {
        LocalSocket::connect(&self.run_dir.join(LOCAL_SOCKET), Instant::now() + EMBEDDED_POLL).is_ok()
    }

    /// Whether the server that this client started still runs.
    fn is_starting(&self) -> bool {
        let mut child = self.child.lock();
        let running = child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if !running {
            *child = None; // reaped
        }
        running
    }

    fn make_dirs(&self) -> io::Result<()> {
        for dir in [&self.run_dir, &self.nvme_dir] {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            let owner = std::fs::metadata(dir)?.uid();
            if owner != rustix::process::geteuid().as_raw() {
                let text = format!("{} belongs to user {owner}, not to this one", dir.display());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
        }
        Ok(())
    }

    /// Takes the lock file; it is free again when the file is closed, also by a crash.
    async fn lock(&self, deadline: Deadline) -> Result<File> {
        let path = self.run_dir.join(LOCK);
        let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
        let file = opened.map_err(|error| internal("the embedded pool's lock file", &error))?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(internal("locking the embedded pool's start", &errno.into())),
            }
            deadline.check()?;
            tokio::time::sleep(EMBEDDED_POLL).await;
        }
    }

    /// Starts the server as a child of its own process group: a Ctrl-C meant for this process leaves the others' pool alone.
    fn start(&self) -> Result<()> {
        let server = self.find_server()?;
        let config = self.run_dir.join(CONFIG);
        let written = private_file(&config).and_then(|mut file| file.write_all(self.toml().as_bytes()));
        written.map_err(|error| internal("writing the embedded server's configuration", &error))?;
        let log = private_file(&self.run_dir.join(LOG)).and_then(|log| Ok((log.try_clone()?, log)));
        let (stdout, stderr) = log.map_err(|error| internal("the embedded server's log", &error))?;
        let mut command = Command::new(&server);
        command.arg("serve").arg("--embedded").arg("--config").arg(&config).process_group(0);
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        tracing::info!(server = %server.display(), socket = %self.socket.display(), "starting an embedded pool");
        let child = command.spawn().map_err(|error| {
            let text = format!("starting the embedded server {}: {error}; {HOW_TO_FIND}", server.display());
            Error::unavailable(text)
        })?;
        *self.child.lock() = Some(child);
        Ok(())
    }

    /// The configuration of the server: see the server's sample for the meaning of the keys.
    fn toml(&self) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let mut text = format!("listen = {}\n\n", quoted(&format!("unix:{}", self.socket.display())));
        text += &format!("[dram]\nbytes = \"{}MiB\"\n", self.settings.dram_bytes >> 20);
        if self.settings.nvme_bytes >> 20 > 0 {
            let path = quoted(&self.nvme_dir.display().to_string());
            text += &format!("\n[nvme]\npath = {path}\nbytes = \"{}MiB\"\n", self.settings.nvme_bytes >> 20);
        }
        // It is found again by the client whose call met its end, or not at all.
        text + "\n[keep]\nwithout_server_ms = 5000\n"
    }

    fn find_server(&self) -> Result<PathBuf> {
        let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("turnkv")));
        let near = self.settings.bundled.clone().into_iter().chain(beside).find(|file| is_executable(file));
        self.named.clone().or(near).or_else(|| on_path(Path::new("turnkv"))).ok_or_else(|| {
            Error::unavailable(format!("no server was found to start a private pool with: {HOW_TO_FIND}"))
        })
    }

    fn failed_start(&self) -> Error {
        let log = self.run_dir.join(LOG);
        let tail = last_bytes(&log).unwrap_or_default();
        let text = format!("the embedded server ended at once; {} says: {}", log.display(), tail.trim());
        Error::unavailable(text)
    }
}

/// The server that the settings or `$TURNKV_SERVER` name, checked: a slip must not wait for the first page to show.
fn named_server(settings: &EmbeddedConfig) -> Result<Option<PathBuf>, ConfigError> {
    let variable = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    let (named_by, path) = match (&settings.server, variable) {
        (Some(server), _) => ("`server`", server.clone()),
        (None, Some(server)) => (VARIABLE, server),
        (None, None) => return Ok(None),
    };
    let bare = path.parent() == Some(Path::new(""));
    let file = if bare { on_path(&path) } else { std::path::absolute(&path).ok() };
    match file.filter(|file| is_executable(file)) {
        Some(file) => Ok(Some(file)),
        None => Err(ConfigError::NoServer { named_by, path }),
    }
}

/// The first executable file of this name in the directories of `$PATH`.
fn on_path(name: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)
}

fn last_bytes(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(EMBEDDED_LOG_BYTES_MAX as u64)))?;
    let mut bytes = Vec::new();
    file.take(EMBEDDED_LOG_BYTES_MAX as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn internal(doing: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("{doing}: {error}"))
}

//! A real server process under test. Owns: starting it with a configuration in a directory of its own, signals,
//! waiting until it answers, and its end. Must not know: the crates inside it.

use crate::manager::Manager;
use crate::workspace::server_binary;
use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What a test wants of its server.
#[derive(Clone)]
pub struct Setup {
    /// DRAM tier, MiB.
    pub dram_mib: u64,
    /// NVMe tier, MiB; 0 for none.
    pub nvme_mib: u64,
    /// Segment size, MiB.
    pub segment_mib: u64,
    /// `auto`, `ring` or `blocking`.
    pub engine: &'static str,
    /// More lines for the top of the configuration.
    pub top: String,
    /// More lines for its `[dram]`.
    pub dram: String,
    /// More lines for its `[nvme]`.
    pub nvme: String,
    /// More lines for the configuration's `[limits]`.
    pub limits: String,
    /// Whether a keeper holds DRAM over the server's end.
    pub keep: bool,
    /// More lines for the `[keep]` of such a server.
    pub keeping: String,
    /// More sections of the configuration.
    pub sections: String,
    /// TCP address for gRPC.
    pub tcp: Option<String>,
    /// HTTP address for /metrics and /healthz.
    pub metrics: Option<String>,
    /// Directory of the NVMe tier, when it is not the server's own.
    pub nvme_dir: Option<PathBuf>,
    /// Files that it may have open.
    pub files_max: Option<u64>,
    /// More of its environment.
    pub environment: Vec<(&'static str, String)>,
    /// Who starts it and keeps DRAM over its end, in the place of a keeper.
    pub manager: Option<Arc<Manager>>,
    /// The words of a command that runs it, as on another host; none: it is run as it is.
    pub prefix: Vec<String>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            dram_mib: 32,
            nvme_mib: 256,
            segment_mib: 8,
            engine: "auto",
            top: String::new(),
            dram: String::new(),
            nvme: String::new(),
            limits: String::new(),
            keep: false,
            keeping: String::new(),
            sections: String::new(),
            tcp: None,
            metrics: None,
            nvme_dir: None,
            files_max: None,
            environment: Vec::new(),
            manager: None,
            prefix: Vec::new(),
        }
    }
}

/// A running server. Dropping it kills the process and removes its directory.
pub struct Server {
    child: Child,
    dir: TempDir,
    setup: Setup,
}

impl Server {
    /// Starts a server and waits until its sockets answer.
    ///
    /// # Errors
    /// The binary is missing, or the server did not come up; its log is in the error.
    pub fn start(setup: Setup) -> anyhow::Result<Server> {
        let dir = tempfile::Builder::new().prefix("turnkv-test").tempdir_in(scratch()?)?;
        let child = launch(dir.path(), &setup)?;
        let mut server = Server { child, dir, setup };
        server.wait_ready(0)?;
        Ok(server)
    }

    /// Its gRPC address.
    #[must_use]
    pub fn address(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// Its gRPC socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("t.sock")
    }

    /// Its local socket.
    #[must_use]
    pub fn local_socket(&self) -> PathBuf {
        self.dir.path().join("t.sock.local")
    }

    /// Where its keeper listens.
    #[must_use]
    pub fn keep_socket(&self) -> PathBuf {
        self.dir.path().join("t.sock.keep")
    }

    /// Where its segments are.
    #[must_use]
    pub fn nvme_dir(&self) -> PathBuf {
        self.setup.nvme_dir.clone().unwrap_or_else(|| self.dir.path().join("nvme"))
    }

    /// What it logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory now, bytes, without the shared slabs (RssAnon).
    ///
    /// # Errors
    /// The process is gone.
    pub fn rss_anon_bytes(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).context("no RssAnon")?;
        let kib: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
        Ok(kib << 10)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The process is gone.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.pid().try_into()?).context("pid 0")?;
        kill_process(pid, signal)?;
        Ok(())
    }

    /// kill -9, and waits for the end.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// kill -9 of its keeper, and waits for the end.
    ///
    /// # Errors
    /// There is none, or it does not end.
    pub fn kill_keeper(&self) -> anyhow::Result<()> {
        let keeper = self.keeper()?;
        kill_process(keeper, Signal::KILL)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        // A connection would tell nothing: the server may have another keeper there already.
        while is_alive(keeper) {
            ensure!(Instant::now() < deadline, "the keeper does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// SIGTERM, and waits for a clean end.
    ///
    /// # Errors
    /// It does not end within 60 s, or not with success.
    pub fn terminate(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the server ended with {status}: {}", self.log());
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("the server did not leave: {}", self.log())
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("turnkv.toml")
    }

    /// How it ended, once it has.
    ///
    /// # Errors
    /// It does not within 30 s.
    pub fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the server did not end: {}", self.log())
    }

    /// The process that keeps its memory.
    ///
    /// # Errors
    /// There is none.
    pub fn keeper(&self) -> anyhow::Result<Pid> {
        let stream = UnixStream::connect(self.keep_socket())?;
        Ok(rustix::net::sockopt::socket_peercred(&stream)?.pid)
    }

    /// `turnkv upgrade` of it.
    ///
    /// # Errors
    /// The command does not run.
    pub fn upgrade(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(server_binary()?);
        Ok(command.args(["upgrade", "--address", &self.address()]).args(arguments).output()?)
    }

    /// Starts it again on the same directory; it must have ended.
    ///
    /// # Errors
    /// It did not come up.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        let before = self.starts();
        self.child = launch(self.dir.path(), &self.setup)?;
        self.wait_ready(before)
    }

    /// Starts it again on the same directory with another configuration; it must have ended.
    ///
    /// # Errors
    /// It did not come up.
    pub fn restart_with(&mut self, setup: Setup) -> anyhow::Result<()> {
        self.setup = setup;
        self.restart()
    }

    /// Starts a second process on the same tier directory, with sockets of its own; returns how it ended.
    ///
    /// # Errors
    /// It did not end.
    pub fn second_process(&self) -> anyhow::Result<(bool, String)> {
        let dir = tempfile::Builder::new().prefix("turnkv-test").tempdir_in(scratch()?)?;
        let setup = Setup { nvme_dir: Some(self.nvme_dir()), ..self.setup.clone() };
        let mut child = launch(dir.path(), &setup)?;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((status.success(), std::fs::read_to_string(dir.path().join("log"))?));
            }
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                bail!("the second process went on");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// How often it said that it serves.
    fn starts(&self) -> usize {
        self.log().matches(" ready socket=").count()
    }

    /// Sockets that a keeper has answer before the server does: it has to say so, too, once more than `before`.
    fn wait_ready(&mut self, before: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            let sockets = [self.socket(), self.local_socket()];
            let addresses = [&self.setup.tcp, &self.setup.metrics];
            // Asked only then: one that a keeper has would have its queue full soon.
            let answers = self.starts() > before
                && sockets.iter().all(|path| UnixStream::connect(path).is_ok())
                && addresses.iter().copied().flatten().all(|address| TcpStream::connect(address).is_ok());
            if answers {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended with {status}: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        bail!("the server does not answer: {}", self.log())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.kill().is_err() {
            // It had ended already.
        }
        if self.setup.keep && self.kill_keeper().is_err() {
            // It had ended already, too.
        }
    }
}

fn launch(dir: &Path, setup: &Setup) -> anyhow::Result<Child> {
    let config = dir.join("turnkv.toml");
    std::fs::write(&config, config_text(dir, setup))?;
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    let binary = server_binary()?;
    if let Some(manager) = &setup.manager {
        return manager.start(binary, |command| {
            command.args(["serve", "--config"]).arg(&config).envs(setup.environment.iter().cloned());
            command.stdout(Stdio::null()).stderr(log);
        });
    }
    let mut words: Vec<OsString> = setup.prefix.iter().map(OsString::from).collect();
    if let Some(files) = setup.files_max {
        words.extend(["bash".into(), "-c".into(), format!("ulimit -n {files}; exec \"$0\" \"$@\"").into()]);
    }
    words.push(binary.as_os_str().to_owned());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
        .args(["serve", "--config"])
        .arg(&config)
        .envs(setup.environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", binary.display()))
}

fn config_text(dir: &Path, setup: &Setup) -> String {
    let mut text = format!("listen = \"unix:{}\"\n{}", dir.join("t.sock").display(), setup.top);
    if let Some(tcp) = &setup.tcp {
        text += &format!("tcp = \"{tcp}\"\n");
    }
    if let Some(metrics) = &setup.metrics {
        text += &format!("metrics = \"{metrics}\"\n");
    }
    text += &format!("[dram]\nbytes = \"{}MiB\"\nlock = false\n{}", setup.dram_mib, setup.dram);
    if setup.nvme_mib > 0 {
        let path = setup.nvme_dir.clone().unwrap_or_else(|| dir.join("nvme"));
        text += &format!(
            "[nvme]\npath = \"{}\"\nbytes = \"{}MiB\"\nsegment_bytes = \"{}MiB\"\nengine = \"{}\"\n{}",
            path.display(),
            setup.nvme_mib,
            setup.segment_mib,
            setup.engine,
            setup.nvme
        );
    }
    // Only who tests that has memory outlive its server, though `auto` is the default: a keeper would hold it for a minute after each of
    // many servers, and a test of what a restart finds on NVMe would find it in DRAM.
    text += match setup.keep {
        _ if setup.manager.is_some() => "[keep]\ndram = \"systemd\"\n",
        true => "[keep]\ndram = \"auto\"\nwithout_server_ms = 30000\n",
        false => "[keep]\ndram = \"off\"\n",
    };
    if setup.keep {
        text += &setup.keeping;
    }
    text + "[limits]\n" + &setup.limits + "\n" + &setup.sections
}

/// A directory on a real disk (O_DIRECT), short enough for socket paths.
fn scratch() -> anyhow::Result<PathBuf> {
    let dir = std::env::temp_dir();
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Whether a process runs: one that has ended and is not reaped yet does not.
fn is_alive(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

//! A real etcd of a test's own. Owns: starting it, its faults, its keys as its own tool says them. Must not know: who uses it.

use crate::http::{free_address, free_address_of};
use crate::workspace::root;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An etcd of one member. Dropping it kills the process and removes what it kept.
pub struct Etcd {
    place: PathBuf,
    dir: TempDir,
    child: Child,
    client: SocketAddr,
    peer: SocketAddr,
}

impl Etcd {
    /// Starts one. None, said loudly: it is not on this machine (`TURNKV_ETCD`, or `tests/setup_etcd.sh`).
    ///
    /// # Errors
    /// It is there, and does not come up.
    pub fn start() -> Result<Option<Etcd>> {
        Etcd::start_at(Ipv4Addr::LOCALHOST.into())
    }

    /// The same, for clients that reach it at another address of this machine.
    ///
    /// # Errors
    /// As there.
    pub fn start_at(ip: IpAddr) -> Result<Option<Etcd>> {
        let place = std::env::var_os("TURNKV_ETCD").map_or_else(|| root().join(".tools/etcd"), PathBuf::from);
        let place = if place.is_absolute() { place } else { root().join(place) };
        if !place.join("etcd").is_file() {
            writeln!(std::io::stderr(), "LEFT OUT: there is no etcd here; tests/setup_etcd.sh gets one")?;
            return Ok(None);
        }
        let dir = tempfile::Builder::new().prefix("turnkv-etcd").tempdir()?;
        let (client, peer) = (free_address_of(ip)?, free_address()?);
        let child = launch(&place, &dir, client, peer)?;
        let mut etcd = Etcd { place, dir, child, client, peer };
        etcd.wait_ready()?;
        Ok(Some(etcd))
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> String {
        format!("http://{}", self.client)
    }

    /// kill -9, and waits for the end.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again with what it kept; it must have ended.
    ///
    /// # Errors
    /// It does not come up.
    pub fn restart(&mut self) -> Result<()> {
        self.child = launch(&self.place, &self.dir, self.client, self.peer)?;
        self.wait_ready()
    }

    /// Starts it again with nothing; it must have ended.
    ///
    /// # Errors
    /// It does not come up.
    pub fn restart_empty(&mut self) -> Result<()> {
        std::fs::remove_dir_all(self.dir.path().join("data"))?;
        self.restart()
    }

    /// What its own tool says.
    ///
    /// # Errors
    /// It does not run, or fails.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(self.place.join("etcdctl"));
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.address()]).args(arguments);
        let output = command.output().context("etcdctl runs")?;
        ensure!(
            output.status.success(),
            "etcdctl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(self.client).is_err() || self.ctl(&["get", "none"]).is_err() {
            let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            ensure!(self.child.try_wait()?.is_none() && Instant::now() < until, "no etcd: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if self.kill().is_err() {
            // It had ended already.
        }
    }
}

fn launch(place: &std::path::Path, dir: &TempDir, client: SocketAddr, peer: SocketAddr) -> Result<Child> {
    let log = File::options().create(true).append(true).open(dir.path().join("log"))?;
    let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
    let mut command = Command::new(place.join("etcd"));
    command
        .arg("--data-dir")
        .arg(dir.path().join("data"))
        .args(["--name", "one"])
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("one={peer}")])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    command.spawn().context("etcd starts")
}

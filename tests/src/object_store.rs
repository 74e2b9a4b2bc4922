//! A store that speaks S3, of a test's own, with its objects on disk. Owns: starting it, its end, what it has. Must not know: who
//! uses it.

use crate::child::Running;
use crate::http::free_address_of;
use crate::workspace::root;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BUCKET: &str = "archive";
/// Both halves of what the store wants to be told.
const KEY: &str = "turnkv-tests";

/// A store of one bucket. Dropping it kills the process and removes what it kept.
pub struct ObjectStore {
    program: PathBuf,
    dir: TempDir,
    process: Running,
    address: SocketAddr,
}

impl ObjectStore {
    /// Starts one at this address. None, said loudly: there is no such program on this machine (`tests/setup_s3.sh`).
    ///
    /// # Errors
    /// It is there, and does not come up.
    pub fn start_at(ip: IpAddr) -> Result<Option<ObjectStore>> {
        let program = root().join(".tools/s3s/bin/s3s-fs");
        if !program.is_file() {
            writeln!(
                std::io::stderr(),
                "LEFT OUT: there is no store of S3 here; tests/setup_s3.sh gets one"
            )?;
            return Ok(None);
        }
        let dir = tempfile::Builder::new().prefix("turnkv-store").tempdir()?;
        std::fs::create_dir_all(dir.path().join("objects").join(BUCKET))?;
        let address = free_address_of(ip)?;
        let process = launch(&program, dir.path(), address)?;
        let mut store = ObjectStore { program, dir, process, address };
        store.wait_ready()?;
        Ok(Some(store))
    }

    /// The `[archive]` of a server whose archive is in it.
    #[must_use]
    pub fn section(&self) -> String {
        format!("[archive]\nplace = \"s3://{BUCKET}/tests\"\nendpoint = \"http://{}\"\n", self.address)
    }

    /// What such a server needs to have in its environment.
    #[must_use]
    pub fn environment() -> Vec<(&'static str, String)> {
        [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", KEY), ("AWS_REGION", "us-east-1")]
            .map(|(name, value)| (name, value.to_owned()))
            .to_vec()
    }

    /// Where its objects are, each a file under its name. What is being written has a name that begins with `.tmp.`.
    #[must_use]
    pub fn objects(&self) -> PathBuf {
        self.dir.path().join("objects").join(BUCKET)
    }

    /// kill -9, and waits for the end.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Starts it again with what it kept; it must have ended.
    ///
    /// # Errors
    /// It does not come up.
    pub fn restart(&mut self) -> Result<()> {
        self.process = launch(&self.program, self.dir.path(), self.address)?;
        self.wait_ready()
    }

    fn wait_ready(&mut self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(self.address).is_err() {
            let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            ensure!(self.process.try_wait()?.is_none() && Instant::now() < until, "no store: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn launch(program: &Path, dir: &Path, address: SocketAddr) -> Result<Running> {
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    let mut command = Command::new(program);
    command
        .args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()])
        .args(["--access-key", KEY, "--secret-key", KEY])
        .arg(dir.join("objects"))
        .env("RUST_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    Running::start(&mut command).context("the store starts")
}

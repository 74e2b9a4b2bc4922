//! Snapshots by the server's own command, as an operator makes them. Must not know: what is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Asks one server.
#[derive(Debug)]
pub struct Keeper {
    binary: PathBuf,
    address: String,
}

impl Keeper {
    /// By this binary, of the server at this address, which has one namespace.
    pub fn new(binary: &Path, address: &str) -> Keeper {
        Keeper { binary: binary.to_owned(), address: address.to_owned() }
    }

    /// Captures a session of so many pages, and fails unless all are in the snapshot and `new` says whether nothing had them. The
    /// snapshot's name.
    pub fn create(&self, session: &str, pages: usize, new: bool) -> Result<String> {
        let made = self.run(&["create", "--session", session])?;
        ensure!(made["pages"] == pages, "LOST PAGES: of {pages} there are in the snapshot: {made}");
        let told = if new { &made["reused_blobs"] } else { &made["new_blobs"] };
        ensure!(told == 0, "its parts are {}: {made}", if new { "new" } else { "there already" });
        Ok(made["snapshot"].as_str().context("a snapshot has a name")?.to_owned())
    }

    /// A snapshot of all of another's pages, under another name.
    pub fn fork(&self, snapshot: &str, name: &str) -> Result<()> {
        self.run(&["fork", snapshot, "--name", name]).map(drop)
    }

    /// Reads all bytes of all snapshots, and fails if one is wrong.
    pub fn verify(&self) -> Result<()> {
        let report = self.run(&["verify"])?;
        ensure!(report["faults_found"] == 0, "WRONG BYTES: {report}");
        Ok(())
    }

    fn run(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(&self.binary);
        command.arg("snapshot").args(arguments).args(["--json", "--address", &self.address]);
        let done = command.output().context("running the server's command")?;
        let complaint = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "{arguments:?} failed: {complaint}");
        Ok(serde_json::from_slice(&done.stdout)?)
    }
}

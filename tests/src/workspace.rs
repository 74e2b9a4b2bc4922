//! The workspace around the tests: its root folder, and the `turnkv` binary built from it.
//! Must not know: what the binary does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// Name of the variable that points the tests at a binary built elsewhere.
pub const BINARY_VARIABLE: &str = "TURNKV_SERVER";

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_path_buf()
}

/// Path of the server's binary: `$TURNKV_SERVER`, else the one beside this test, brought up to date by cargo.
///
/// Cargo builds a package's binaries only for that package's own tests, so the binary may be missing or older
/// than the sources when a test of this crate runs; an up-to-date build costs a fraction of a second.
pub fn server_binary() -> Result<&'static Path> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match BINARY.get_or_init(|| locate().map_err(|error| format!("{error:#}"))) {
        Ok(path) => Ok(path),
        Err(why) => bail!("no turnkv binary: {why}"),
    }
}

fn locate() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE) {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "{BINARY_VARIABLE} names {}, which is no file", path.display());
        return Ok(path);
    }
    // This test runs as <target>/<profile>/deps/<name>-<hash>.
    let test = std::env::current_exe().context("the path of this test")?;
    let profile = test.ancestors().nth(2).context("a test lies two folders below its profile's")?;
    let target = profile.parent().context("a profile's folder lies in the target folder")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "turnkv", "--bin", "turnkv", "--target-dir"]).arg(target);
    if profile.file_name().is_some_and(|name| name == "release") {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(root()).status().context("cargo build")?;
    ensure!(status.success(), "`{cargo:?}` failed: {status}");
    let binary = profile.join("turnkv");
    ensure!(binary.is_file(), "{} was not built", binary.display());
    Ok(binary)
}

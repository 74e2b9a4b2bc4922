//! The workspace around the tests: its root folder, and the `turnkv` binary built from it.
//! Must not know: what the binary does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

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

/// Builds the program that differs from the server's by the version that a feature names (`next-protocol`, `next-table`), and puts it at a
/// path. Its dependencies are shared with the server's build; what is built once is there the next time.
///
/// # Errors
/// It cannot be built.
pub fn build_next(feature: &str, at: &Path) -> Result<()> {
    // Of every feature it is built at the same place.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let profile = profile()?;
    build(&profile, &["--bin", "turnkv-next", "--features", feature])?;
    std::fs::copy(profile.join("turnkv-next"), at)?;
    Ok(())
}

fn locate() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE) {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "{BINARY_VARIABLE} names {}, which is no file", path.display());
        return Ok(path);
    }
    let profile = profile()?;
    build(&profile, &["--bin", "turnkv"])?;
    let binary = profile.join("turnkv");
    ensure!(binary.is_file(), "{} was not built", binary.display());
    Ok(binary)
}

/// The folder of this test's profile: it runs as <target>/<profile>/deps/<name>-<hash>.
fn profile() -> Result<PathBuf> {
    let test = std::env::current_exe().context("the path of this test")?;
    let profile = test.ancestors().nth(2).context("a test lies two folders below its profile's")?;
    Ok(profile.to_path_buf())
}

fn build(profile: &Path, what: &[&str]) -> Result<()> {
    let target = profile.parent().context("a profile's folder lies in the target folder")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "turnkv", "--target-dir"]).arg(target).args(what);
    if profile.file_name().is_some_and(|name| name == "release") {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(root()).status().context("cargo build")?;
    ensure!(status.success(), "`{cargo:?}` failed: {status}");
    Ok(())
}

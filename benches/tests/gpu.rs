//! The GPU bench without a GPU: every part runs, tiny, on the host device, and compares every byte; without a device it says so
//! and ends well.
#![allow(clippy::expect_used, reason = "a test says what it expected by failing")]

use std::path::PathBuf;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu")).args(arguments).output().expect("the bench can be started")
}

/// The server's binary: as the other tests that start it find it.
fn server() -> PathBuf {
    let beside = || PathBuf::from(env!("CARGO_BIN_EXE_gpu")).with_file_name("turnkv");
    let path = std::env::var_os("TURNKV_SERVER").map_or_else(beside, PathBuf::from);
    assert!(path.is_file(), "no server at {}: cargo build -p turnkv first", path.display());
    path
}

#[test]
fn every_part_runs_on_the_host_device_and_every_byte_is_right() {
    let folder = tempfile::tempdir().expect("a directory can be made");
    let (server, dir) = (server(), folder.path().join("data"));
    let json = folder.path().join("results.json");
    let path = |path: &PathBuf| path.to_str().expect("paths are UTF-8 here").to_owned();
    let done = bench(&[
        "--device",
        "host",
        "--server",
        &path(&server),
        "--dir",
        &path(&dir),
        "--json",
        &path(&json),
    ]);
    let (said, complained) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}\n{complained}");
    assert!(said.ends_with("Every byte and every sum was compared with what it must be.\n"), "{said}");
    // Registration, five shapes both ways, two shapes at once, sums, interference, two shapes by four choices.
    assert_eq!(said.matches("\nright: ").count(), 1 + 10 + 2 + 1 + 1 + 8, "{said}");
    assert!(!said.contains("left out") && !said.contains("GB/s |"), "{said}");
    assert!(json.is_file());
}

#[test]
fn without_a_gpu_one_line_says_so() {
    let done = bench(&["--ordinal", "0", "--parts", "registration", "--rounds", "1"]);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}");
    let has_gpu = !said.contains("gpu: skipped: no CUDA device here");
    assert!(has_gpu || said.lines().count() == 1, "{said}");
}

//! The GPU bench without a GPU: every part runs, tiny, on the host device, and compares every byte; without a device it says so
//! and ends well. And the CUDA driver under the client, the pool and the bench: over a driver library that is this machine's
//! memory, so that every symbol, argument and launch is seen to fit, though no GPU runs any.
#![allow(clippy::expect_used, clippy::print_stderr, reason = "a test says what it expected by failing")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The server's binary: as the other tests that start it find it.
fn server() -> PathBuf {
    let beside = || PathBuf::from(env!("CARGO_BIN_EXE_gpu")).with_file_name("turnkv");
    let path = std::env::var_os("TURNKV_SERVER").map_or_else(beside, PathBuf::from);
    assert!(path.is_file(), "no server at {}: cargo build -p turnkv first", path.display());
    path
}

/// All parts, tiny, on a device; `library`: a folder where a driver library is found first.
fn run_all(device: &str, library: Option<&Path>) -> String {
    let folder = tempfile::tempdir().expect("a directory can be made");
    let json = folder.path().join("results.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu"));
    command.args(["--tiny", "--device", device, "--server"]).arg(server());
    command.arg("--dir").arg(folder.path().join("data")).arg("--json").arg(&json);
    if let Some(library) = library {
        command.env("LD_LIBRARY_PATH", library);
    }
    let done = command.output().expect("the bench can be started");
    let (said, complained) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}\n{complained}");
    assert!(said.ends_with("Every byte and every sum was compared with what it must be.\n"), "{said}");
    // Registration, five shapes both ways, two shapes at once, sums, interference, two shapes by four choices.
    assert_eq!(said.matches("\nright: ").count(), 1 + 10 + 2 + 1 + 1 + 8, "{said}");
    assert!(!said.contains("left out") && !said.contains("GB/s |"), "{said}");
    assert!(json.is_file());
    said.into_owned()
}

#[test]
fn every_part_runs_on_the_host_device_and_every_byte_is_right() {
    run_all("host", None);
}

#[test]
fn every_part_runs_through_the_cuda_driver_over_a_library_without_a_gpu() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let folder = tempfile::tempdir().expect("a directory can be made");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/transfer/tests/kernels/libcuda.cpp");
    let built = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wno-unknown-pragmas", "-U_FORTIFY_SOURCE"])
        .arg(source)
        .arg("-o")
        .arg(folder.path().join("libcuda.so.1"))
        .output();
    let Ok(built) = built else {
        eprintln!("SKIPPED: no C++ compiler ({compiler}): the CUDA driver is NOT run as a whole here");
        return;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = run_all("cuda", Some(folder.path()));
    assert!(said.starts_with("## no GPU at all (cuda 0, "), "the library of this test was used: {said}");
}

#[test]
fn without_a_gpu_one_line_says_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu"));
    let done =
        command.args(["--parts", "registration", "--tiny"]).output().expect("the bench can be started");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}");
    let has_gpu = !said.contains("gpu: skipped: no CUDA device here");
    assert!(has_gpu || said.lines().count() == 1, "{said}");
}

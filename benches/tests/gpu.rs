//! The GPU bench without a GPU: every part runs, tiny, on the host device, and compares every byte; without a device it says so
//! and ends well. And the CUDA driver under the client, the pool and the bench: over a driver library that is this machine's
//! memory, so that every symbol, argument and launch is seen to fit, though no GPU runs any.
#![allow(clippy::expect_used, clippy::print_stderr, reason = "a test says what it expected by failing")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The server's binary: as the other tests that start it find it.
fn server() -> PathBuf {
    let beside = || PathBuf::from(env!("CARGO_BIN_EXE_gpu")).with_file_name("turnkv");
    let path = std::env::var_os("TURNKV_SERVER").map_or_else(beside, PathBuf::from);
    assert!(path.is_file(), "no server at {}: cargo build -p turnkv first", path.display());
    path
}

/// A run of all parts, tiny, and what it left.
struct Run {
    done: Output,
    said: String,
    results: serde_json::Value,
}

/// All parts, tiny, on a device; `library`: a folder where a driver library is found first; `settings`: what it is told to do.
fn run(device: &str, library: Option<&Path>, settings: &[(&str, &str)]) -> Run {
    let folder = tempfile::tempdir().expect("a directory can be made");
    let json = folder.path().join("results.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu"));
    command.args(["--tiny", "--patience", "2", "--device", device, "--server"]).arg(server());
    command.arg("--dir").arg(folder.path().join("data")).arg("--json").arg(&json);
    command.envs(settings.iter().copied());
    if let Some(library) = library {
        command.env("LD_LIBRARY_PATH", library);
    }
    let done = command.output().expect("the bench can be started");
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let text = std::fs::read_to_string(&json);
    assert!(text.is_ok(), "no results: {said}");
    Run { done, said, results: serde_json::from_str(&text.expect("looked at")).expect("JSON") }
}

/// All parts run, and find what they should.
fn run_all(device: &str, library: Option<&Path>) -> String {
    let Run { done, said, .. } = run(device, library, &[]);
    assert!(done.status.success(), "{said}");
    assert!(said.ends_with("Every byte and every sum was compared with what it must be.\n"), "{said}");
    // Registration, five shapes both ways, two shapes at once, sums, interference, two shapes by four choices; by batches: five
    // shapes both ways, two at once, interference.
    assert_eq!(said.matches("\nright: ").count(), 1 + 10 + 2 + 1 + 1 + 8 + 10 + 2 + 1, "{said}");
    assert!(!said.contains("left out") && !said.contains("GB/s |"), "{said}");
    said
}

#[test]
fn every_part_runs_on_the_host_device_and_every_byte_is_right() {
    run_all("host", None);
}

/// A folder with a driver library that is this machine's memory; None: no compiler here.
fn library() -> Option<tempfile::TempDir> {
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
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(folder)
}

#[test]
fn every_part_runs_through_the_cuda_driver_over_a_library_without_a_gpu() {
    let Some(folder) = library() else { return };
    let said = run_all("cuda", Some(folder.path()));
    assert!(said.starts_with("## no GPU at all (cuda 0, "), "the library of this test was used: {said}");
}

/// Titles of the sections that have figures, and of those that failed.
fn titles(results: &serde_json::Value) -> (Vec<&str>, Vec<&str>) {
    let sections = results["sections"].as_array().expect("sections");
    let of = |kind: &str| {
        let of_kind = sections.iter().filter(|section| section.get(kind).is_some());
        of_kind.map(|section| section["title"].as_str().expect("a title")).collect()
    };
    (of("rows"), of("failed"))
}

/// A registration that the driver refuses, in whatever words: the rest is measured, on pinned memory or staged.
#[test]
fn a_refused_registration_costs_its_own_section_and_no_other() {
    let Some(folder) = library() else { return };
    for code in ["1", "304"] {
        let Run { said, results, .. } = run("cuda", Some(folder.path()), &[("TEST_CUDA_REGISTER", code)]);
        let (measured, _) = titles(&results);
        assert!(measured.iter().all(|title| !title.contains("registration")), "{said}");
        assert_eq!(measured.len(), 10 + 2 + 1 + 1 + 8 + 10 + 2 + 1, "{said}");
    }
}

/// A batch that never ends: the bench does, in time, and keeps what it has measured before.
#[test]
fn a_device_that_hangs_in_a_batch_costs_the_batches_alone() {
    let Some(folder) = library() else { return };
    let Run { done, said, results } = run("cuda", Some(folder.path()), &[("TEST_CUDA_HANG_AT", "1000")]);
    assert_eq!(done.status.code(), Some(1), "{said}");
    let (measured, failed) = titles(&results);
    for part in [
        "registration",
        "driver only",
        "checksums and digests",
        "decode-like",
        "both directions",
        "Engine",
        "Kernel",
    ] {
        assert!(measured.iter().any(|title| title.contains(part)), "{part} is missing: {said}");
    }
    assert!(failed.iter().any(|title| title.contains("batch")), "{said}");
    assert!(said.contains("did not end within 2s"), "{said}");
}

/// A model of a device moves no byte: what is told are times of calls.
#[test]
fn calls_are_timed_on_a_modelled_device() {
    let Run { done, said, results } = run("modelled", None, &[]);
    assert!(done.status.success(), "{said}");
    let (measured, failed) = titles(&results);
    assert!(measured.len() == 6 && failed.is_empty(), "{said}");
    assert!(measured.iter().all(|title| title.contains("on a modelled device")), "{said}");
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

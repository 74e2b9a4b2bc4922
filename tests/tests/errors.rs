//! What a person reads when something is wrong: one line what, one line what to do; no traces, no causes said twice, no colour
//! codes in files and pipes.

use anyhow::{Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use turnkv_tests::http::free_address;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::workspace::server_binary;

/// Runs the binary as an environment that debugs something else would: with traces and colours asked for.
fn run(arguments: &[&str]) -> Result<(bool, String)> {
    let output = Command::new(server_binary()?)
        .args(arguments)
        .env("RUST_BACKTRACE", "1")
        .env("CLICOLOR", "1")
        .env_remove("NO_COLOR")
        .output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// The lines that are not logs.
fn lines(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.starts_with("turnkv: ")).collect()
}

fn checked(arguments: &[&str], wanted: &[&str]) -> Result<()> {
    let (good, said) = run(arguments)?;
    ensure!(!good, "{arguments:?} succeeded");
    let lines = lines(&said);
    ensure!(lines.len() == 2, "{arguments:?}: not two lines:\n{said}");
    let logs = said.lines().filter(|line| !line.starts_with("turnkv: "));
    let mut logs = logs.filter(|line| !line.starts_with("20") && !line.trim().is_empty());
    ensure!(logs.next().is_none(), "{arguments:?}: more than that:\n{said}");
    for word in wanted {
        ensure!(lines[0].contains(word), "{arguments:?} does not say {word:?}: {}", lines[0]);
    }
    for cause in ["os error", "unknown field", "Connection refused", "No such file", "transport error"] {
        ensure!(lines[0].matches(cause).count() <= 1, "{arguments:?} repeats {cause:?}: {}", lines[0]);
    }
    ensure!(!lines[1].contains("report this") && lines[1].len() > 20, "{arguments:?}: {}", lines[1]);
    ensure!(!said.contains('\x1b'), "{arguments:?}: colour codes in a pipe: {said:?}");
    Ok(())
}

fn written(folder: &Path, name: &str, text: &str) -> Result<String> {
    let path = folder.join(name);
    std::fs::write(&path, text)?;
    Ok(path.display().to_string())
}

#[test]
fn commands_say_what_is_wrong_and_what_to_do() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nobody = format!("http://{}", free_address()?);
    let key = written(folder.path(), "key.toml", "[dram]\nbytes = \"1GiB\"\nbyts = 5\n")?;
    let toml = written(folder.path(), "broken.toml", "[dram\n")?;
    let value = written(folder.path(), "value.toml", "policy = \"best\"\n")?;
    let bound = written(folder.path(), "bound.toml", "[limits]\nlease_ms = 1\n")?;
    let size = written(folder.path(), "size.toml", "[dram]\nbytes = -5\n")?;
    let no_trace = written(folder.path(), "no.jsonl", "nonsense\n")?;
    for command in ["serve", "config"] {
        checked(&[command, "--config", "/nonexistent.toml"], &["/nonexistent.toml", "No such file"])?;
        checked(&[command, "--config", "/"], &["cannot read /"])?;
        checked(&[command, "--config", &key], &["key.toml:3", "byts"])?;
        checked(&[command, "--config", &toml], &["broken.toml:1"])?;
        checked(&[command, "--config", &value], &["value.toml:1", "best", "lru"])?;
        checked(&[command, "--config", &bound], &["limits.lease_ms"])?;
        checked(&[command, "--config", &size], &["size.toml:2", "`-5` is not a size"])?;
    }
    for command in ["status", "size", "drain"] {
        checked(&[command, "--address", &nobody], &["no server answers", "Connection refused"])?;
        checked(&[command, "--address", "unix:/nonexistent.sock"], &["/nonexistent.sock", "No such file"])?;
        checked(&[command, "--address", "no address at all"], &["no address at all"])?;
    }
    checked(&["snapshot", "list", "--address", &nobody], &["no server answers", "Connection refused"])?;
    let output = folder.path().join("x.jsonl.gz").display().to_string();
    checked(&["record", &output, "--address", &nobody], &["no server answers"])?;
    checked(&["simulate", "/nonexistent.jsonl"], &["/nonexistent.jsonl"])?;
    checked(&["simulate", &no_trace], &["no.jsonl"])?;
    checked(&["simulate"], &["no trace"])?;
    checked(&["size", "--trace", "/nonexistent.jsonl", "--bytes-per-token", "9"], &["/nonexistent.jsonl"])?;
    checked(&["size", "--gpu-price=-1"], &["price"])
}

#[test]
fn a_command_line_that_cannot_be_understood_is_said_like_any_other_error() -> Result<()> {
    checked(&[], &["the command line ends"])?;
    checked(&["snapshot"], &["the command line ends"])?;
    checked(&["sevre"], &["'sevre'", "'serve'"])?;
    checked(&["serve", "--confg", "x"], &["--confg", "--config"])?;
    checked(&["status", "--interval-ms", "soon"], &["'soon'", "--interval-ms"])?;
    checked(&["snapshot", "show"], &["<SNAPSHOT>"])?;
    checked(&["snapshot", "fork", "x", "--pages", "0"], &["--pages"])?;
    checked(&["snapshot", "verify", ""], &["SNAPSHOT"])?;
    checked(&["snapshot", "collect", "--stored-max", "0"], &["--stored-max"])?;
    for asked in [&["--help"][..], &["snapshot", "--help"], &["--version"], &["help", "serve"]] {
        let (good, said) = run(asked)?;
        ensure!(good && said.is_empty(), "{asked:?}: {said}");
    }
    let status = Command::new(server_binary()?).arg("--nonsense").stderr(Stdio::null()).status()?;
    ensure!(status.code() == Some(1), "{status}");
    Ok(())
}

#[test]
fn a_server_that_cannot_start_says_why() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    std::fs::write(path("file"), "no socket")?;
    let small = "[dram]\nbytes = \"16MiB\"\nlock = false\n";
    let at = |listen: &str, rest: &str| format!("listen = \"unix:{listen}\"\n{rest}{small}");
    let nvme = format!("[nvme]\npath = \"{}\"\nbytes = \"64MiB\"\n", path("file/below"));
    let tcp = "tcp = \"127.0.0.1:0\"\n";
    let cases = [
        (at(&path("file"), ""), "file"),
        (at(&path("file/t.sock"), ""), "file"),
        (at(&path("a.sock"), &format!("tcp = \"{}\"\n", taken.local_addr()?)), "cannot listen at 127.0.0.1"),
        (at(&path("b.sock"), "metrics = \"203.0.113.1:1\"\n"), "cannot listen at 203.0.113.1:1"),
        (at("/proc/no/t.sock", ""), "/proc/no"),
        (
            at(&path("e.sock"), &format!("{tcp}[remote]\nfabrics = [\"verbs\"]\nnics = [\"absent0\"]\n")),
            "absent0",
        ),
        (
            at(
                &path("f.sock"),
                &format!("{tcp}[remote]\nfabrics = [\"libfabric\"]\nlibfabric_provider = \"absent0\"\n"),
            ),
            "libfabric",
        ),
        (at(&path("c.sock"), "") + &nvme, "file/below"),
    ];
    for (text, wanted) in &cases {
        let config = written(folder.path(), "turnkv.toml", text)?;
        checked(&["serve", "--config", &config], &[wanted])?;
    }
    let running = Server::start(Setup { nvme_mib: 0, ..Setup::default() })?;
    let config = running.socket().with_file_name("turnkv.toml").display().to_string();
    checked(&["serve", "--config", &config], &["another server answers"])?;
    let state = format!("state_dir = \"{}\"\n", path("state"));
    let first = Server::start(Setup { nvme: state.clone(), ..Setup::default() })?;
    let nvme = format!("[nvme]\npath = \"{}\"\nbytes = \"64MiB\"\n{state}", path("other"));
    let second = written(folder.path(), "second.toml", &(at(&path("d.sock"), "") + &nvme))?;
    checked(&["serve", "--config", &second], &["catalog"])?;
    drop(first);
    ensure!(!running.log().contains('\x1b'), "colour codes in a file: {:?}", running.log());
    Ok(())
}

#[test]
fn too_few_open_files_are_said_at_the_start() -> Result<()> {
    for (nvme_mib, wanted) in [(0, "may open 90 files"), (256, "open files and the limit is 90")] {
        let refused = Server::start(Setup { files_max: Some(90), nvme_mib, ..Setup::default() });
        let said = refused.map(drop).err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(said.contains(wanted) && said.contains("ulimit -n"), "{said}");
        ensure!(!said.contains("report this"), "{said}");
    }
    Ok(())
}

/// Who stops reading has read enough: that is no fault of anybody.
#[test]
fn output_that_nobody_reads_is_no_error() -> Result<()> {
    let server = Server::start(Setup { nvme_mib: 0, ..Setup::default() })?;
    let address = server.address();
    let commands: [&[&str]; 4] = [
        &["config"],
        &["status", "--address", &address],
        &["status", "--address", &address, "--json"],
        &["simulate", "--generate", "agentic", "--requests", "50", "--policy", "lru"],
    ];
    for arguments in commands {
        let mut command = Command::new(server_binary()?);
        command.args(arguments).env("RUST_BACKTRACE", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        drop(child.stdout.take());
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{arguments:?}: {said}");
    }
    Ok(())
}

#[test]
fn the_configuration_in_force_names_every_key() -> Result<()> {
    let output = Command::new(server_binary()?).arg("config").output()?;
    let text = String::from_utf8(output.stdout)?;
    for key in ["connections_max = 4096", "lease_ms", "# not set: tcp, metrics, [nvme]"] {
        ensure!(text.contains(key), "{key:?} is not in\n{text}");
    }
    Ok(())
}

//! The programs of examples/rust, and the commands of "A first pool", run as they stand against a real server.
//! Must not know: what the programs do inside; what they print says whether they did it.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use turnkv_tests::child::Running;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::workspace::{root, server_binary};

const FIRST_POOL: &str = "docs/getting-started/first-pool.md";
/// Where that page puts everything.
const FOLDER: &str = "/tmp/turnkv-first";

/// The built example. Cargo builds examples with the tests of a workspace; where it has not, or the source is newer, it does now.
fn example(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("a test lies two folders below its profile's")?;
    let built = profile.join("examples").join(name);
    let source = root().join(format!("examples/rust/{name}.rs"));
    let changed = |path: &Path| std::fs::metadata(path).and_then(|about| about.modified());
    if changed(&built).is_ok_and(|then| changed(&source).is_ok_and(|now| now <= then)) {
        return Ok(built);
    }
    let target = profile.parent().context("a profile's folder lies in the target folder")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--locked", "--package", "turnkv-client", "--examples", "--target-dir"])
        .arg(target);
    if profile.file_name().is_some_and(|name| name == "release") {
        cargo.arg("--release");
    }
    ensure!(cargo.current_dir(root()).status()?.success(), "`{cargo:?}` failed");
    Ok(built)
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

#[test]
fn examples_do_what_they_say() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let cases: [(&str, &[&str]); 3] = [
        ("offload", &["stored 3, present 0, declined 0", "reloaded 3 of 4 pages, then a miss: Some(Absent)"]),
        (
            "sessions",
            &["turn 2: 4 pages are there", "the session has 6 pages", "superseded: 4 pages are left"],
        ),
        ("device", &["reloaded 2 pages into device memory", "the same bytes came back"]),
    ];
    for (name, wanted) in cases {
        let said = said(Command::new(example(name)?).arg(server.address()))?;
        for line in wanted {
            ensure!(said.contains(line), "{name} did not say {line:?}:\n{said}");
        }
    }
    Ok(())
}

#[test]
fn the_first_pool_works_as_pasted() -> Result<()> {
    let page = std::fs::read_to_string(root().join(FIRST_POOL))?;
    let folder = tempfile::Builder::new().prefix("turnkv-first").tempdir()?;
    // The page's own folder and port may be somebody's: the test takes others, and nothing else.
    let here = |text: String| text.replace(FOLDER, &folder.path().display().to_string());
    let config = here(block(&page, "config")?).replace("127.0.0.1:9464", "127.0.0.1:0");
    // What is kept of it is free soon after.
    let config = config + "\n[keep]\nwithout_server_ms = 1000\n";
    std::fs::write(folder.path().join("turnkv.toml"), config)?;
    let commands =
        |name| -> Result<Vec<String>> { Ok(here(block(&page, name)?).lines().map(str::to_owned).collect()) };
    let mut serve = words(commands("serve")?.first().context("a command")?)?;
    let mut running = Running::start(&mut serve)?;
    let tried = (|| -> Result<()> {
        let run = commands("run")?;
        ensure!(run.len() == 2, "{run:?}");
        ready(&folder.path().join("turnkv.sock"))?;
        for command in run {
            ensure!(!said(&mut words(&command)?)?.is_empty(), "{command} said nothing");
        }
        for name in ["offload", "sessions", "device"] {
            let command = block(&page, &format!("example {name}"))?;
            let wanted = format!("cargo run -p turnkv-client --example {name} -- unix:{FOLDER}/turnkv.sock");
            ensure!(command.trim() == wanted, "{command}");
        }
        Ok(())
    })();
    running.kill()?;
    running.wait()?;
    tried
}

/// The code block that follows `<!-- test: name -->`.
fn block(page: &str, name: &str) -> Result<String> {
    let mark = format!("<!-- test: {name} -->\n```");
    let (_, rest) = page.split_once(&mark).with_context(|| format!("{FIRST_POOL} has no {mark}"))?;
    let (_, rest) = rest.split_once('\n').context("a block")?;
    let (block, _) = rest.split_once("```").context("a block ends")?;
    Ok(block.to_owned())
}

/// A command of the page: `turnkv` is the binary under test.
fn words(command: &str) -> Result<Command> {
    let mut words = command.split_whitespace();
    ensure!(words.next() == Some("turnkv"), "{command}");
    let mut built = Command::new(server_binary()?);
    built.args(words);
    Ok(built)
}

fn ready(socket: &Path) -> Result<()> {
    for _ in 0..2_000 {
        if std::os::unix::net::UnixStream::connect(socket).is_ok() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    anyhow::bail!("the server does not answer at {}", socket.display())
}

//! The command line, as `--help` says it. Must not know: what the commands do.

use anyhow::{Context, Result, ensure};
use std::process::Command;
use turnkv_tests::workspace::server_binary;

fn help(arguments: &[&str]) -> Result<String> {
    let output = Command::new(server_binary()?)
        .args(arguments)
        .arg("--help")
        .env_remove("TURNKV_CONFIG")
        .env_remove("TURNKV_ADDRESS")
        .output()?;
    ensure!(output.status.success(), "{arguments:?} --help: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n"))
}

/// The help of the binary, then of each of its commands.
pub(crate) fn text() -> Result<String> {
    let whole = help(&[])?;
    let (_, commands) = whole.split_once("Commands:\n").context("the help lists commands")?;
    let names = commands.lines().take_while(|line| !line.is_empty());
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    let mut text = format!("```text\n{}\n```\n", whole.trim());
    for name in names.into_iter().filter(|name| *name != "help") {
        text += &format!("\n## turnkv {name}\n\n```text\n{}\n```\n", help(&[name])?.trim());
    }
    Ok(text)
}

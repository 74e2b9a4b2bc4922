//! The command line, as `--help` says it. Must not know: what the commands do.

use anyhow::{Result, ensure};
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
    let mut text = format!("```text\n{}\n```\n", whole.trim());
    for name in commands(&whole) {
        let whole = help(&[name])?;
        text += &format!("\n## turnkv {name}\n\n```text\n{}\n```\n", whole.trim());
        for inner in commands(&whole) {
            let whole = help(&[name, inner])?;
            text += &format!("\n### turnkv {name} {inner}\n\n```text\n{}\n```\n", whole.trim());
        }
    }
    ensure!(text.matches("\n## ").count() > 5, "the help lists commands");
    Ok(text)
}

/// The commands that a help lists, if any.
fn commands(help: &str) -> Vec<&str> {
    let listed = help.split_once("Commands:\n").map_or("", |(_, commands)| commands);
    let names = listed.lines().take_while(|line| !line.is_empty());
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

//! The table of settings, as the binary has them: it is asked for its defaults, and told what it must refuse. Must not know: how
//! it checks them.
//!
//! By hand is what a setting does, the default of one that is made of others, and bounds that are no plain numbers or words
//! (`server/src/config/tests.rs` tries those that are sizes).

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use turnkv_tests::workspace::server_binary;

/// Two configurations of other sizes and places. What differs between their defaults is made of these.
const SMALL: &str =
    "[nvme]\npath = \"/one\"\nbytes = \"8GiB\"\n[tls]\ncert = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"\n";
const LARGE: &str = "tcp = \"10.0.0.5:1\"\n[dram]\nbytes = \"64GiB\"\n[nvme]\npath = \"/two\"\nbytes = \"1TiB\"\n[tls]\ncert = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"\n";
/// Two members of a cluster that tell of their pages. What differs between them has no default of its own.
const ONE: &str = "tcp = \"127.0.0.1:1\"\n[cluster]\nid = \"one\"\nendpoint = \"tcp://one:1\"\netcd = [\"https://one:2379\"]\n[events]\npublish = \"127.0.0.1:2\"\n";
const TWO: &str = "tcp = \"127.0.0.1:1\"\n[cluster]\nid = \"two\"\nendpoint = \"tcp://two:1\"\netcd = [\"https://two:2379\"]\n[events]\npublish = \"127.0.0.1:3\"\n";
/// Keys that a `[nvme]`, a `[tls]`, a `[cluster]` or an `[events]` must have.
const REQUIRED: [&str; 7] =
    ["nvme.path", "nvme.bytes", "tls.cert", "tls.key", "tls.client_ca", "cluster.id", "events.publish"];
/// Numbers too large for some key; the first that its type takes is refused by its bounds.
const TOO_LARGE: [&str; 4] = ["9223372036854775807", "4294967295", "65535", "255"];

/// The table, with the cells by hand taken from what it was.
pub(crate) fn table(was: &str) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let small = with_member(folder.path(), SMALL, ONE, "/run/one")?;
    let large = with_member(folder.path(), LARGE, TWO, "/run/two")?;
    let mut by_hand = rows(was);
    let mut table = "| key | default | bounds | effect |\n|---|---|---|---|\n".to_owned();
    for (key, value) in &small {
        let old = by_hand.remove(key).unwrap_or_default();
        let derived = key != "dram.bytes" && !large.contains(&(key.clone(), value.clone()));
        let default = match value {
            _ if REQUIRED.contains(&key.as_str()) => "required".to_owned(),
            None => "none".to_owned(),
            Some(_) if derived => old.default,
            Some(value) => format!("`{}`", value.trim_matches('"')),
        };
        let bounds = bounds(folder.path(), key, value.as_deref())?.unwrap_or(old.bounds);
        let row = format!("| `{key}` | {default} | {bounds} |");
        ensure!(!old.effect.is_empty(), "say what {key} does, in a row of its own: {row} effect |");
        table += &format!("{row} {} |\n", old.effect);
    }
    ensure!(by_hand.is_empty(), "rows of keys that do not exist: {:?}", by_hand.keys());
    Ok(table)
}

/// Every key of a configuration, and those of a member of a cluster.
fn with_member(
    folder: &Path,
    text: &str,
    member: &str,
    runtime: &str,
) -> Result<Vec<(String, Option<String>)>> {
    let mut keys = printed(folder, text, runtime)?;
    keys.retain(|(key, _)| key != "[cluster]" && key != "[events]");
    let of_member = |key: &str| key.starts_with("cluster.") || key.starts_with("events.");
    keys.extend(printed(folder, member, runtime)?.into_iter().filter(|(key, _)| of_member(key)));
    Ok(keys)
}

#[derive(Default)]
struct Row {
    default: String,
    bounds: String,
    effect: String,
}

fn rows(table: &str) -> BTreeMap<String, Row> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(|cell| cell.trim().to_owned());
        let key = cells.next()?.trim_end_matches('`').to_owned();
        Some((key, Row { default: cells.next()?, bounds: cells.next()?, effect: cells.next()? }))
    };
    table.lines().filter_map(row).collect()
}

fn config(folder: &Path, text: &str, runtime: &str) -> Result<Output> {
    let file = folder.join("turnkv.toml");
    std::fs::write(&file, text)?;
    let mut command = Command::new(server_binary()?);
    command.env("XDG_RUNTIME_DIR", runtime).args(["config", "--config"]).arg(&file);
    Ok(command.output()?)
}

/// Every key, section by section as the binary prints them, and its value; none, at the section's end: it is not set.
fn printed(folder: &Path, text: &str, runtime: &str) -> Result<Vec<(String, Option<String>)>> {
    let output = config(folder, text, runtime)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let unset =
        text.lines().find_map(|line| line.strip_prefix("# not set: ")).context("some key is not set")?;
    let unset: Vec<&str> = unset.split(", ").collect();
    let of = |section: &str| {
        let within = |key: &&&str| key.strip_prefix(section).is_some_and(|name| !name.contains('.'));
        unset.iter().filter(within).map(|key| ((*key).to_owned(), None)).collect::<Vec<_>>()
    };
    let (mut section, mut keys) = (String::new(), Vec::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            keys.extend(of(&section));
            section = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((name, value)) = line.split_once(" = ") {
            keys.push((format!("{section}{name}"), Some(value.to_owned())));
        }
    }
    keys.extend(of(&section));
    ensure!(keys.len() > 30, "{} keys: the configuration was not read", keys.len());
    Ok(keys)
}

/// The bounds of a key that is a number or one of some words, as the server says them when it refuses; none: they are by hand.
fn bounds(folder: &Path, key: &str, value: Option<&str>) -> Result<Option<String>> {
    let Some(value) = value else { return Ok(None) };
    let tried: &[&str] = match value {
        "true" | "false" => return Ok(Some("`true`, `false`".to_owned())),
        text if text.starts_with('"') => &["\"?\""],
        _ => &TOO_LARGE,
    };
    for value in tried {
        let said = refusal(folder, key, value)?;
        if let Some((_, range)) = said.split_once(" is not within ") {
            let range = range.lines().next().unwrap_or(range);
            let (least, most) = range.split_once("..=").context("a range has two ends")?;
            return Ok(Some(range_of(least, most.parse()?)));
        }
        if let Some((_, words)) = said.split_once("unknown variant `?`, expected ") {
            let words = words.lines().next().unwrap_or(words);
            return Ok(Some(words.trim_start_matches("one of ").replace(" or ", ", ")));
        }
    }
    Ok(None)
}

/// A range as the table says it: one that nobody reaches has no end, a large power of two is named.
fn range_of(least: &str, most: u64) -> String {
    match most {
        most if most > 1 << 60 => format!(">= {least}"),
        most if most.is_power_of_two() && most >= 1 << 16 => format!("{least}..2^{}", most.trailing_zeros()),
        most => format!("{least}..{most}"),
    }
}

fn refusal(folder: &Path, key: &str, value: &str) -> Result<String> {
    let text = match key.split_once('.') {
        None => format!("{key} = {value}\n"),
        Some(("nvme", name)) if REQUIRED.contains(&key) => format!("[nvme]\n{name} = {value}\n"),
        Some(("nvme", name)) => format!("{SMALL}{name} = {value}\n"),
        Some(("cluster", name)) => format!("{ONE}{name} = {value}\n"),
        Some((section, name)) => format!("[{section}]\n{name} = {value}\n"),
    };
    let output = config(folder, &text, "/run/one")?;
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

//! The named bounds of every crate, from their limits.rs: name, value, what it bounds. Must not know: what keeps them.

use super::sums::{value, words};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use turnkv_tests::workspace::root;

/// Folders with crates, and with folders of crates.
const FOLDERS: [&str; 4] = ["client", "engine-plugins", "proto", "server"];
/// The doors' table, with the names of the server's constants where their values stand.
const DOORS: &str = include_str!("doors.md");

/// One constant.
struct Limit {
    name: String,
    expression: String,
    says: String,
}

/// All constants by the crate that has them: its folder from the root.
pub(crate) struct Limits(BTreeMap<String, Vec<Limit>>);

impl Limits {
    /// Expressions by name, as a crate would read them: under its own names, then those of the wire, then those of others; and all
    /// of them under their crates' names.
    fn known(&self, folder: &str) -> BTreeMap<String, String> {
        let mut known = BTreeMap::new();
        let nearer = ["proto", folder];
        let others = self.0.keys().map(String::as_str).filter(|other| !nearer.contains(other));
        for place in others.chain(nearer) {
            let own = format!("turnkv_{}", place.rsplit('/').next().unwrap_or(place));
            for limit in self.0.get(place).into_iter().flatten() {
                known.insert(limit.name.clone(), limit.expression.clone());
                known.insert(format!("{own}::{}", limit.name), limit.expression.clone());
            }
        }
        known
    }
}

/// Reads every limits.rs.
pub(crate) fn read() -> Result<Limits> {
    let mut crates = BTreeMap::new();
    for folder in FOLDERS.map(PathBuf::from) {
        let inner =
            std::fs::read_dir(root().join(&folder))?.filter_map(|entry| Some(entry.ok()?.file_name()));
        for folder in inner.map(|name| folder.join(name)).chain([folder.clone()]) {
            let file = root().join(&folder).join("src/limits.rs");
            if file.is_file() {
                let mut text = std::fs::read_to_string(&file)?;
                for part in parts(&file.with_extension(""))? {
                    text += &std::fs::read_to_string(part)?;
                }
                crates.insert(folder.display().to_string(), constants(&text));
            }
        }
    }
    ensure!(crates.len() >= 6, "limits.rs of {:?} only", crates.keys());
    Ok(Limits(crates))
}

/// The files of a folder, by name: limits.rs may have parts. None: there is no such folder.
fn parts(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut parts: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    parts.sort();
    Ok(parts)
}

fn constants(text: &str) -> Vec<Limit> {
    let mut limits: Vec<Limit> = Vec::new();
    let (mut says, mut statement) = (String::new(), String::new());
    for line in text.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            says.push_str(doc);
        } else if line.starts_with("pub") || !statement.is_empty() {
            statement.push_str(line);
            statement.push(' ');
            if line.ends_with(';') {
                limits.extend(constant(&statement, &says));
                (says, statement) = (String::new(), String::new());
            }
        } else {
            says.clear();
        }
    }
    limits
}

fn constant(statement: &str, says: &str) -> Option<Limit> {
    let (_, rest) = statement.split_once("const ")?;
    let (name, rest) = rest.split_once(':')?;
    let (_, expression) = rest.split_once(" = ")?;
    let expression = expression.trim().trim_end_matches(';').to_owned();
    let says = says.trim().replace("[`", "`").replace("`]", "`").replace('|', "\\|");
    Some(Limit { name: name.to_owned(), expression, says })
}

/// A table for each crate.
pub(crate) fn tables(limits: &Limits) -> String {
    let mut text = String::new();
    for (folder, own) in &limits.0 {
        let known = limits.known(folder);
        text += &format!("\n### {folder}\n\n| limit | value | bounds |\n|---|---|---|\n");
        for limit in own {
            let said = value(&limit.expression, &known).map(|value| words(&limit.name, value));
            let said = said.unwrap_or_else(|| format!("`{}`", limit.expression));
            text += &format!("| `{}` | {said} | {} |\n", limit.name, limit.says);
        }
    }
    text
}

/// The doors' table with values for names.
pub(crate) fn doors(limits: &Limits) -> Result<String> {
    let known = limits.known("server");
    let mut text = String::new();
    let mut rest = DOORS;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").context("a name ends")?;
        let expression = known.get(name).with_context(|| format!("there is no limit {name}"))?;
        let value = value(expression, &known).with_context(|| format!("{name} = {expression}"))?;
        text += before;
        text += &words(name, value);
        rest = after;
    }
    Ok(text + rest)
}

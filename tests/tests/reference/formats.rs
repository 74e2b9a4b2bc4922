//! Tables of bytes in the heads of sources. Must not know: what the bytes mean.

use anyhow::{Result, ensure};
use turnkv_tests::workspace::root;

/// The tables that begin with `| offset`, in the order in which the file's head has them.
pub(crate) fn tables(path: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root().join(path))?;
    let mut tables: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines().map_while(|line| line.strip_prefix("//!")) {
        let line = line.trim();
        inside = line.starts_with("| offset") || (inside && line.starts_with('|'));
        if line.starts_with("| offset") {
            tables.push(String::new());
        }
        if let (true, Some(table)) = (inside, tables.last_mut()) {
            *table += &format!("{}\n", line.replace("[`", "`").replace("`]", "`"));
        }
    }
    ensure!(!tables.is_empty(), "{path} has no table of offsets in its head");
    Ok(tables)
}

//! Pages with parts that are generated. Owns: their marks, comparing, writing. Must not know: what is generated.

use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use turnkv_tests::workspace::root;

/// Set to write pages instead of comparing them.
const WRITE: &str = "TURNKV_WRITE_DOCS";
const END: &str = "<!-- end -->";

/// A page, and what of it was not as it must be.
pub(crate) struct Page {
    path: PathBuf,
    text: String,
    stale: Vec<String>,
}

impl Page {
    /// Reads a page by its path from the root.
    pub(crate) fn open(path: &str) -> Result<Page> {
        let path = root().join(path);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(Page { path, text, stale: Vec::new() })
    }

    /// What stands between the marks of a block.
    pub(crate) fn block(&self, name: &str) -> Result<&str> {
        let begin = format!("<!-- generated: {name} -->\n");
        let (_, rest) = self.text.split_once(&begin).with_context(|| format!("no block {name:?}"))?;
        Ok(rest.split_once(END).with_context(|| format!("block {name:?} has no end"))?.0)
    }

    /// Compares a block with what it must be, and makes it so.
    pub(crate) fn compare(&mut self, name: &str, wanted: &str) -> Result<()> {
        let wanted = format!("{}\n", wanted.trim_end());
        let found = self.block(name)?.to_owned();
        if found != wanted {
            let difference = wanted.lines().find(|line| !found.contains(line)).unwrap_or("a line too many");
            self.stale.push(format!("{name}: {difference}"));
            let begin = format!("<!-- generated: {name} -->\n");
            let (old, new) = (format!("{begin}{found}{END}"), format!("{begin}{wanted}{END}"));
            self.text = self.text.replacen(&old, &new, 1);
        }
        Ok(())
    }

    /// Writes the page if that was asked for, else fails where a block is stale.
    pub(crate) fn close(self) -> Result<()> {
        if self.stale.is_empty() {
            return Ok(());
        }
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&self.path, &self.text)?;
            return Ok(());
        }
        let stale = self.stale.join("\n");
        ensure!(
            self.stale.is_empty(),
            "{} is not what the code says; run `make docs-reference` and look at what changed:\n{stale}",
            self.path.display()
        );
        Ok(())
    }
}

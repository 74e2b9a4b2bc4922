//! What was measured, as tables and as JSON. Must not know: how it was measured.

use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result};
use serde_json::{Value, json};
use turnkv_benches::stats::{Series, Table};

/// Why something is left out: [`Report::leave_out`].
pub(crate) const TIME_IS_UP: &str = "the time is up (--seconds)";
/// See [`TIME_IS_UP`].
pub(crate) const NO_KERNELS: &str = "this device cannot run our kernels";

/// All tables of a run; on disk as soon as each is complete, since what comes after may never end.
#[derive(Debug)]
pub(crate) struct Report {
    device: String,
    figures: bool,
    path: Option<PathBuf>,
    sections: Vec<Value>,
    failed: Vec<String>,
}

/// One table while it is filled.
#[derive(Debug)]
pub(crate) struct Section {
    title: String,
    table: Table,
    rows: Vec<Value>,
}

impl Report {
    /// Of that device. Without `figures` only titles are told: those of a device whose times mean nothing. `path`: where JSON
    /// goes.
    pub(crate) fn new(device: String, figures: bool, path: Option<PathBuf>) -> Report {
        Report { device, figures, path, sections: Vec::new(), failed: Vec::new() }
    }

    /// Prints a table that is complete and keeps it.
    pub(crate) fn add(&mut self, section: Section) -> Result<()> {
        if self.figures {
            println!("{}", section.table);
        } else {
            println!("right: {}", section.title);
        }
        let rows = if self.figures { section.rows } else { Vec::new() };
        self.keep(json!({ "title": section.title, "rows": rows }))
    }

    /// Says what is not measured, and why.
    pub(crate) fn leave_out(&mut self, what: &str, why: &str) -> Result<()> {
        println!("left out: {what}: {why}");
        self.keep(json!({ "title": what, "left_out": why }))
    }

    /// Takes note of something that failed: the rest goes on, and the run does not end well.
    pub(crate) fn fail(&mut self, what: &str, error: &Error) -> Result<()> {
        println!("FAILED: {what}: {error:#}");
        self.failed.push(what.to_owned());
        self.keep(json!({ "title": what, "failed": format!("{error:#}") }))
    }

    /// What failed so far.
    pub(crate) fn failed(&self) -> &[String] {
        &self.failed
    }

    fn keep(&mut self, section: Value) -> Result<()> {
        self.sections.push(section);
        self.path.as_deref().map_or(Ok(()), |path| self.write(path))
    }

    /// Writes all sections in the place of what was written before: whole, whenever the run ends.
    fn write(&self, path: &Path) -> Result<()> {
        let text =
            serde_json::to_string_pretty(&json!({ "device": self.device, "sections": self.sections }))?;
        let new = path.with_extension("part");
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, path))
            .with_context(|| format!("writing {}", path.display()))
    }
}

impl Section {
    /// An empty table.
    pub(crate) fn new(title: impl Into<String>) -> Section {
        let title = title.into();
        Section { table: Table::new(title.clone()), title, rows: Vec::new() }
    }

    /// A row: what, its unit, its samples, and the figure that was promised (empty: none).
    pub(crate) fn row(&mut self, what: &str, unit: &str, samples: &Series, promise: &str) {
        self.table.row(what, unit, samples, promise);
        self.rows.push(json!({
            "what": what,
            "unit": unit,
            "min": samples.min(),
            "median": samples.median(),
            "max": samples.max(),
            "wanted": promise,
        }));
    }
}

//! What was measured, as tables and as JSON. Must not know: how it was measured.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use turnkv_benches::stats::{Series, Table};

/// Why something is left out: [`Report::leave_out`].
pub(crate) const TIME_IS_UP: &str = "the time is up (--seconds)";
/// See [`TIME_IS_UP`].
pub(crate) const NO_KERNELS: &str = "this device cannot run our kernels";

/// All tables of a run.
#[derive(Debug)]
pub(crate) struct Report {
    device: String,
    figures: bool,
    sections: Vec<Value>,
}

/// One table while it is filled.
#[derive(Debug)]
pub(crate) struct Section {
    title: String,
    table: Table,
    rows: Vec<Value>,
}

impl Report {
    /// Of that device. Without `figures` only titles are told: those of a device whose times mean nothing.
    pub(crate) fn new(device: String, figures: bool) -> Report {
        Report { device, figures, sections: Vec::new() }
    }

    /// Prints a table that is complete and keeps it.
    pub(crate) fn add(&mut self, section: Section) {
        if !self.figures {
            println!("right: {}", section.title);
            return;
        }
        println!("{}", section.table);
        self.sections.push(json!({ "title": section.title, "rows": section.rows }));
    }

    /// Adds the table that `fill` fills.
    pub(crate) fn add_to(
        &mut self,
        title: String,
        fill: impl FnOnce(&mut Section, &mut Report) -> Result<()>,
    ) -> Result<()> {
        let mut section = Section::new(title);
        fill(&mut section, self)?;
        self.add(section);
        Ok(())
    }

    /// Says what is not measured, and why.
    pub(crate) fn leave_out(&mut self, what: &str, why: &str) {
        println!("left out: {what}: {why}");
        self.sections.push(json!({ "title": what, "left_out": why }));
    }

    /// Writes all tables.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text =
            serde_json::to_string_pretty(&json!({ "device": self.device, "sections": self.sections }))?;
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
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

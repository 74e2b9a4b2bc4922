//! The bar of an operation on a terminal. Owns: its looks. Must not know: what the operation does.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error; nothing where that is no terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(what: &'static str) -> anyhow::Result<Bar> {
        let bar = ProgressBar::new(0);
        let style = "{msg} {bar:40} {percent:>3} %  {pos}/{len} pages  {eta} left";
        bar.set_style(ProgressStyle::with_template(style)?);
        bar.set_message(what);
        Ok(Bar(bar))
    }

    /// A bar whose end nobody knows.
    pub(super) fn without_end(what: &'static str) -> anyhow::Result<Bar> {
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{spinner} {msg} {pos} pages, {elapsed}")?);
        bar.set_message(what);
        Ok(Bar(bar))
    }

    /// So far it is.
    pub(super) fn show(&self, done: u64, all: u64) {
        self.0.set_length(all);
        self.0.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

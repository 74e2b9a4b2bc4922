//! `turnkv config`: the configuration in force, in the form it can be read back. Owns: printing it.

use crate::config::Settings;
use std::io::Write;

/// Prints every key with its final value.
pub(crate) fn run(settings: &Settings) -> anyhow::Result<()> {
    let text = toml::to_string(&settings.as_file())?;
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

//! `turnkv config`: the configuration in force, in the form it can be read back. Owns: printing it.

use crate::config::Settings;

/// Prints every key with its final value.
pub(crate) fn run(settings: &Settings) -> anyhow::Result<()> {
    let mut text = toml::to_string(&settings.as_file())?;
    let unset = settings.unset();
    if !unset.is_empty() {
        text += &format!("\n# not set: {}\n", unset.join(", "));
    }
    super::print(&text)?;
    Ok(())
}

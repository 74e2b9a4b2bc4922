//! `turnkv config`: the configuration in force, in the form it can be read back. Owns: printing it, and what is known to be
//! otherwise at the places that it names.

use crate::config::{Bytes, Settings};
use turnkv_tier::nvme::NvmeTier;

/// Prints every key with its final value.
pub(crate) fn run(settings: &Settings) -> anyhow::Result<()> {
    let mut text = toml::to_string(&settings.as_file())?;
    let unset = settings.unset();
    if !unset.is_empty() {
        text += &format!("\n# not set: {}\n", unset.join(", "));
    }
    text += &settings.between().map(|note| format!("\n# {note}\n")).unwrap_or_default();
    text += &made(settings).unwrap_or_default();
    super::print(&text)?;
    Ok(())
}

/// Segments stay as long as they were made, whatever is asked for.
fn made(settings: &Settings) -> Option<String> {
    let nvme = settings.nvme.as_ref()?;
    let made = NvmeTier::peek(&nvme.path)?.segment_bytes;
    (made != nvme.segment_bytes).then(|| {
        format!(
            "\n# nvme.segment_bytes is for an empty place: the segments of {} stay {} long as they were made\n",
            nvme.path.display(),
            Bytes(made)
        )
    })
}

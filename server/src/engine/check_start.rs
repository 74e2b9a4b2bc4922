//! What an engine with other settings would be refused for, looked at by one that runs. Owns: that. Must not know: who asks.

use super::Engine;
use super::memory::dram_config;
use super::start::claim_nvme;
use crate::config::Settings;
use anyhow::Context;
use turnkv_tier::dram::DramTier;

impl Engine {
    /// Whether there is the place of NVMe and the memory for an engine that follows one with the settings in force. Takes nothing for
    /// good. Blocking.
    ///
    /// # Errors
    /// There is not.
    pub(crate) fn check_start(settings: &Settings, in_force: &Settings) -> anyhow::Result<()> {
        if let Some(nvme) = &settings.nvme {
            let before = in_force.nvme.as_ref();
            if before.is_none_or(|before| before.state_dir != nvme.state_dir) {
                std::fs::create_dir_all(&nvme.state_dir).with_context(|| {
                    format!("cannot create {} (nvme.state_dir)", nvme.state_dir.display())
                })?;
            }
            if before.is_none_or(|before| before.path != nvme.path) {
                claim_nvme(nvme)?;
            }
        }
        // What this engine has goes before the other one takes its own, where it is not the same.
        DramTier::check_room(&dram_config(settings), in_force.dram.bytes).context("page memory (dram.bytes)")
    }
}

//! `[keep]`: whether page memory outlives the server's process. Owns: the section's keys, defaults and bounds. Must not know: who
//! keeps it, and how.

use super::ConfigError;
use super::bounds::within;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `[keep]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct KeepFile {
    /// Who keeps DRAM while no server runs: `auto` (default): a process beside the server, `turnkv keep`; `systemd`: the descriptor
    /// store of the server's unit; `off`: nobody, so each start begins with empty DRAM.
    dram: Option<KeepDram>,
    /// How long DRAM is kept without a server, ms; default 60000, 1000 to 86400000. Then its memory is free.
    without_server_ms: Option<u64>,
    /// How long a program that takes this one's place (`turnkv upgrade`) may take until it serves, ms; default 300000, 1000 to
    /// 3600000. Then this one takes its place again.
    start_ms: Option<u64>,
}

/// Who keeps DRAM while no server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeepDram {
    /// A process beside the server.
    Auto,
    /// The service manager that starts it.
    Systemd,
    /// Nobody.
    Off,
}

/// Checked `[keep]`.
#[derive(Debug, Clone)]
pub(crate) struct Keep {
    /// Who keeps DRAM.
    pub(crate) dram: KeepDram,
    /// For how long without a server.
    pub(crate) without_server: Duration,
    /// How long the next program may take until it serves.
    pub(crate) start: Duration,
}

impl Keep {
    /// Checks the section.
    pub(super) fn check(file: &KeepFile) -> Result<Keep, ConfigError> {
        let ms = within("keep.without_server_ms", file.without_server_ms, 60_000, 1_000, 86_400_000)?;
        let without_server = Duration::from_millis(ms);
        let start = Duration::from_millis(within("keep.start_ms", file.start_ms, 300_000, 1_000, 3_600_000)?);
        Ok(Keep { dram: file.dram.unwrap_or(KeepDram::Auto), without_server, start })
    }

    /// Nothing is kept: what a simulated server has.
    #[cfg(feature = "simulation")]
    pub(crate) fn nobody() -> Keep {
        Keep { dram: KeepDram::Off, without_server: Duration::ZERO, start: Duration::ZERO }
    }

    /// The section that says what is in force.
    pub(super) fn as_file(&self) -> KeepFile {
        let without_server_ms = Some(self.without_server.as_millis() as u64);
        let start_ms = Some(self.start.as_millis() as u64);
        KeepFile { dram: Some(self.dram), without_server_ms, start_ms }
    }
}

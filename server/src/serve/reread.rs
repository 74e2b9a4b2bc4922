//! The configuration file while the server runs: read again when SIGHUP asks for it. Owns: which settings change at once, and what
//! is said of the others. Must not know: how any of them is carried out.
//!
//! A file that is wrong in any line changes nothing.

use crate::config::{Settings, load_again};
use crate::engine::Engine;
use crate::manager::ServiceManager;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::Signal;

const DRAM_BYTES: &str = "dram.bytes";

/// Settings that change without a restart.
const LIVE: [&str; 5] = [
    DRAM_BYTES,
    "limits.client_slots_percent",
    "limits.user_slots_percent",
    "limits.all_slots_percent",
    "limits.free_slots_percent",
];

/// Who reads the file again.
pub(super) struct Rereader {
    pub(super) path: PathBuf,
    pub(super) engine: Arc<Engine>,
    pub(super) hangup: Signal,
    /// What is in force.
    pub(super) settings: Arc<Mutex<Settings>>,
    /// Who wants to hear of it.
    pub(super) manager: Option<ServiceManager>,
}

impl Rereader {
    /// Reads it whenever it is asked to, for as long as the server runs.
    pub(super) async fn run(mut self) -> Result<(), Infallible> {
        while self.hangup.recv().await.is_some() {
            let reading = tokio::task::spawn_blocking(move || {
                if let Some(manager) = &self.manager {
                    manager.changes();
                }
                self.read();
                if let Some(manager) = &self.manager {
                    manager.serves();
                }
                self
            });
            match reading.await {
                Ok(same) => self = same,
                Err(error) => {
                    tracing::error!(%error, "reading the configuration again failed: it is not read any more");
                    return std::future::pending().await;
                }
            }
        }
        std::future::pending().await
    }

    /// Reads it once.
    fn read(&self) {
        let mut in_force = self.settings.lock();
        let mut wanted = match load_again(&self.path, &in_force) {
            Ok(wanted) => wanted,
            Err(error) => {
                tracing::error!(%error, "the configuration was read again and is wrong: nothing changes");
                return;
            }
        };
        let changed = in_force.differences(&wanted);
        let (mut live, mut kept): (Vec<String>, Vec<String>) =
            changed.into_iter().partition(|key| LIVE.contains(&key.as_str()));
        for key in &kept {
            tracing::warn!(key, "this setting has changed in the file: it takes a restart");
        }
        let resized = self.engine.resize_dram(wanted.dram.bytes);
        let refused = resized.is_err();
        if let Err(error) = resized {
            tracing::error!(%error, "dram.bytes stays as it is");
            // Told of again whenever the file is read, until it is possible or a restart has taken it over.
            wanted.dram.bytes = in_force.dram.bytes;
            live.retain(|key| key != DRAM_BYTES);
            kept.push(DRAM_BYTES.to_owned());
        }
        self.engine.settings_wait(kept);
        self.engine.set_shares(&wanted);
        in_force.take_over(&wanted);
        if !refused || !live.is_empty() {
            tracing::info!(changed = live.join(", "), "the configuration file is in force");
        }
    }
}

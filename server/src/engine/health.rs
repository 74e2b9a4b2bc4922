//! Health: is this pool serving, and what should a person know. Owns: the sentences. Must not know: HTTP.

use super::Engine;
use super::gauges::KeptDescriptors;

/// What a probe and a person are told.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    /// Why no traffic should be sent here; `None`: pages are taken and served.
    pub(crate) not_serving: Option<String>,
    /// What is wrong while it serves, each with what to do.
    pub(crate) notes: Vec<String>,
}

impl Engine {
    /// How this pool is now.
    pub(crate) fn health(&self) -> Health {
        let not_serving = self.is_draining().then(|| {
            "draining: offloads are declined, what is here is served; `turnkv drain --undo` takes it back"
                .to_owned()
        });
        let lost = self.nvme.as_ref().and_then(|nvme| nvme.poisoned());
        let lost = lost.map(|why| {
            format!("without NVMe: {why}; pages are served from DRAM only: look at the device, then restart")
        });
        let usage = self.nvme.as_ref().map(|nvme| nvme.usage()).unwrap_or_default();
        let retired = (usage.retired_segments > 0).then(|| {
            format!(
                "{} segments of NVMe could not be read and are not used any more: look at the device (smartctl, dmesg)",
                usage.retired_segments
            )
        });
        let damaged = (usage.damaged_segments > 0).then(|| {
            format!(
                "{} segments were not as they had been written when the tier was opened: see who writes to nvme.path",
                usage.damaged_segments
            )
        });
        let full = usage.disk_full.then(|| {
            "the file system under nvme.path is full: free some space, or lower nvme.bytes".to_owned()
        });
        let unsaved = self.catalog.as_ref().and_then(|catalog| catalog.trouble());
        let set_aside = self.catalog.as_ref().map_or(0, |catalog| catalog.set_aside());
        let forgotten = (set_aside > 0).then(|| {
            format!(
                "{set_aside} damaged catalogs were set aside since the start: sessions and pins of before are forgotten, pages \
                 are not; check the disk under nvme.state_dir"
            )
        });
        let cold = self.unkept();
        Health {
            not_serving,
            notes: [lost, full, retired, damaged, forgotten, cold]
                .into_iter()
                .flatten()
                .chain(unsaved)
                .collect(),
        }
    }

    /// What is kept for the next start.
    pub(super) fn kept(&self) -> KeptDescriptors {
        let Some(outliving) = &self.outliving else { return KeptDescriptors::default() };
        KeptDescriptors {
            kept: outliving.count() as u64,
            refused: outliving.refused() as u64,
            fails: !outliving.is_kept(),
        }
    }

    /// What an operator should know where nobody keeps what is to be kept.
    pub(crate) fn unkept(&self) -> Option<String> {
        self.outliving.as_ref()?.trouble()
    }
}

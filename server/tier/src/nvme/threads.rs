//! How many threads a tier has for what costs processor time. Owns: the counts. Must not know: what they do.

use crate::limits::{
    CORES_PER_FINISHER, CORES_PER_PACKER, FINISHERS_MAX, FINISHERS_MIN, PACKERS_MAX, PACKERS_MIN,
};

/// Those that decode and verify what was read.
pub(super) fn finishers() -> usize {
    (cores() / CORES_PER_FINISHER).clamp(FINISHERS_MIN, FINISHERS_MAX)
}

/// Those that pack pages.
pub(super) fn packers() -> usize {
    (cores() / CORES_PER_PACKER).clamp(PACKERS_MIN, PACKERS_MAX)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

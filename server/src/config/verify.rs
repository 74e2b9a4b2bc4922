//! Which bytes the server checks itself. Owns: the names of the choices. Must not know: how it is done.

use serde::{Deserialize, Serialize};

/// Which bytes are checked against their page's checksum. Clients check what they read in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verify {
    /// What is written to NVMe, once it is, and what is read from there.
    #[default]
    Tiers,
    /// Beside that, what a reload finds in DRAM, before it is told where.
    Always,
}

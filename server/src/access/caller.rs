//! Who asks. Owns: a caller's name and grants. Must not know: how its door found out.

use super::grants::{Grants, Seen};

/// Bytes of a caller's name in logs and messages.
const NAME_BYTES_MAX: usize = 128;

/// Whoever is at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// For logs and messages: `user 1000`, `certificate engine-7`, `plain TCP`.
    name: String,
    pub(super) grants: Grants,
}

impl Caller {
    /// Somebody with these grants. What is no plain letter in the name cannot lead a log astray.
    pub(crate) fn new(name: &str, grants: Grants) -> Caller {
        let name = name[..name.floor_char_boundary(NAME_BYTES_MAX)].escape_default().to_string();
        Caller { name, grants }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Which tenants a list for it may tell of.
    pub(crate) fn seen(&self) -> Seen<'_> {
        self.grants.seen()
    }
}

#[cfg(test)]
impl Caller {
    /// Somebody who may do nothing.
    pub(crate) fn nobody() -> std::sync::Arc<Caller> {
        std::sync::Arc::new(Caller::new("of a test", Grants::default()))
    }
}

//! Whose turn it is to give up pages. Owns: the place in the round. Must not know: what is given up.

/// A round through all namespaces.
#[derive(Default)]
pub(crate) struct Turns(u16);

impl Turns {
    /// The namespace whose turn it is among so many; none: there are none.
    pub(crate) fn next(&mut self, namespaces: u16) -> Option<u16> {
        let ns = self.0.checked_rem(namespaces)?;
        self.0 = ns + 1;
        Some(ns)
    }
}

//! The catalog's tables. Owns: their names, and which of them there are. Must not know: what is in a row.

use super::CatalogError;
use redb::{TableDefinition, WriteTransaction};

/// All tables are of this form. The key of those of namespaces begins with a namespace's id.
pub(super) type CatalogTable = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// Namespace id -> `wire::NamespaceSpec`.
pub(super) const NAMESPACES: CatalogTable = TableDefinition::new("namespaces");
/// Namespace id + session id -> a row of [`super::sessions`].
pub(super) const SESSIONS: CatalogTable = TableDefinition::new("sessions");
/// Namespace id + a chunk's last page -> a row of [`super::lists`].
pub(super) const LISTS: CatalogTable = TableDefinition::new("session_lists");
/// Namespace id + the pin's name, a page -> a row of [`super::pins`].
pub(super) const PINS: CatalogTable = TableDefinition::new("pins");
/// Namespace id -> a row of [`super::learned`]; one more row is of all namespaces.
pub(super) const LEARNED: CatalogTable = TableDefinition::new("learned");
/// A segment's number -> a row of [`super::segments`].
pub(super) const SEGMENTS: CatalogTable = TableDefinition::new("segments");
/// One row, of [`super::owner`].
pub(super) const TIER: CatalogTable = TableDefinition::new("tier");

/// Those that have rows of namespaces, the namespaces' own last: as long as it is there, there may be others.
pub(super) const OF_NAMESPACES: [CatalogTable; 5] = [SESSIONS, LISTS, PINS, LEARNED, NAMESPACES];

/// Makes those that are not there.
pub(super) fn create(write: &WriteTransaction) -> Result<(), CatalogError> {
    for table in OF_NAMESPACES.into_iter().chain([SEGMENTS, TIER]) {
        write.open_table(table)?;
    }
    Ok(())
}

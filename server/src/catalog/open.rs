//! Opening the catalog. Owns: what is damage and what is not, and setting a damaged one aside. Must not know: what is in the
//! tables.

use super::place::Place;
use super::{namespaces, pins, sessions};
use crate::limits::CATALOG_CACHE_BYTES;
use redb::{Builder, Database};

/// Opens or creates the catalog at its place. One that cannot be read is set aside, not trusted: its sessions and
/// namespaces are forgotten, and the server starts.
pub(super) fn open(place: &dyn Place) -> Result<Database, redb::Error> {
    match open_tables(place) {
        Err(error) if is_damage(&error) => {
            let aside = place.set_aside().map_err(redb::Error::Io)?;
            tracing::error!(%error, %aside, "the catalog cannot be read and was set aside");
            open_tables(place)
        }
        opened => opened,
    }
}

fn open_tables(place: &dyn Place) -> Result<Database, redb::Error> {
    let mut builder = Builder::new();
    builder.set_cache_size(CATALOG_CACHE_BYTES);
    let database = place.open(&builder)?;
    let write = database.begin_write()?;
    namespaces::create(&write)?;
    sessions::create(&write)?;
    pins::create(&write)?;
    write.commit()?;
    Ok(database)
}

/// Does this error say that the file's content is bad, rather than that it cannot be reached?
fn is_damage(error: &redb::Error) -> bool {
    match error {
        redb::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        redb::Error::DatabaseAlreadyOpen => false,
        _ => true,
    }
}

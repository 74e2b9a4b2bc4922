//! A catalog on a simulated disk. Owns: the step from a database's storage to the disk's file. Must not know: tables.

use crate::catalog::CatalogPlace;
use redb::{Builder, Database, DatabaseError, StorageBackend};
use std::io;
use turnkv_tier::nvme::simulation::{SimulatedDisk, SimulatedFile};

const NAME: &str = "catalog.redb";

/// Where a simulated server has its catalog.
pub(super) struct SimulatedPlace(pub(super) SimulatedDisk);

#[derive(Debug)]
struct Storage(SimulatedFile);

impl CatalogPlace for SimulatedPlace {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        let made = !self.0.names().iter().any(|name| name == NAME);
        let file = self.0.open_file(NAME).map_err(io::Error::from)?;
        if made {
            self.0.sync().map_err(io::Error::from)?;
        }
        builder.create_with_backend(Storage(file))
    }

    fn set_aside(&self) -> io::Result<String> {
        let file = self.0.open_file(NAME)?;
        file.set_len(0)?;
        file.sync()?;
        Ok(format!("{NAME}, emptied"))
    }

    fn bytes(&self) -> u64 {
        self.0.open_file(NAME).and_then(|file| file.len()).unwrap_or(0)
    }
}

impl StorageBackend for Storage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len()?)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        Ok(self.0.read(offset, out)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(self.0.set_len(len)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(self.0.sync()?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Ok(self.0.write(offset, data)?)
    }
}

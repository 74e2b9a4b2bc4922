//! Intents: what captures under way reuse, so that collections let it be. Owns: their form. Must not know: who reads them, and why.
//!
//! An intent is JSON: `{"version":1,"packs":[ids]}`. It is written again with each pack that is added, before anything relies on the
//! pack.

use crate::archive::Archive;
use crate::error::Error;
use crate::id::ObjectId;
use crate::limits::{PACKS_NAMED_MAX, SMALL_OBJECT_BYTES_MAX};
use crate::store::{Key, Kind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawIntent {
    version: u64,
    packs: Vec<String>,
}

/// What one capture reuses.
pub(crate) struct Intent {
    key: Key,
    packs: BTreeSet<ObjectId>,
    /// It is in the store.
    is_written: bool,
}

impl Intent {
    /// Of a capture that reuses nothing yet: nothing is written.
    pub(crate) fn new(id: ObjectId) -> Intent {
        Intent { key: Key::Of(Kind::Intent, id), packs: BTreeSet::new(), is_written: false }
    }

    /// Names packs. Returns when that is in the store.
    pub(crate) async fn add(&mut self, archive: &Archive, packs: &[ObjectId]) -> Result<(), Error> {
        let before = self.packs.len();
        self.packs.extend(packs);
        if self.packs.len() == before {
            return Ok(());
        }
        Error::bound("packs that a capture reuses", self.packs.len() as u64, PACKS_NAMED_MAX as u64)?;
        let raw = RawIntent { version: VERSION, packs: self.packs.iter().map(ToString::to_string).collect() };
        let text = serde_json::to_vec(&raw).map_err(|fault| Error::invalid("intent", fault.to_string()))?;
        archive.store.put(self.key, text.into()).await?;
        self.is_written = true;
        Ok(())
    }

    /// Removes it: its capture has ended. One that can not be removed is too old after the grace time.
    pub(crate) async fn end(self, archive: &Archive) {
        if self.is_written
            && let Err(fault) = archive.store.delete(self.key).await
        {
            tracing::warn!(%fault, "an intent stays until a collection finds it too old");
        }
    }
}

/// The packs that an intent names; all that can be read of it if it is damaged: nothing rests on it but work saved.
pub(crate) async fn read(archive: &Archive, id: ObjectId) -> Result<BTreeSet<ObjectId>, Error> {
    let text = match archive.store.get(Key::Of(Kind::Intent, id), SMALL_OBJECT_BYTES_MAX).await {
        Ok(text) => text,
        Err(Error::NotFound { .. }) => return Ok(BTreeSet::new()),
        Err(fault) => return Err(fault),
    };
    let Ok(raw) = serde_json::from_slice::<RawIntent>(&text) else { return Ok(BTreeSet::new()) };
    Ok(raw.packs.iter().filter_map(|pack| ObjectId::parse(pack)).collect())
}

//! Moving blobs from packs that will go to packs that stay. Owns: copying what is stored, checked. Must not know: why.

use crate::archive::Archive;
use crate::blob::{StoredBlob, verify_stored};
use crate::error::Error;
use crate::fill::Filler;
use crate::id::ObjectId;
use crate::pack::format::Entry;
use crate::read::read_again;
use crate::store::{Key, Kind};

/// Adds blobs of a pack to others, as they are stored. Their checksums are compared; they are not decoded.
pub(crate) async fn move_blobs(
    archive: &Archive,
    filler: &mut Filler,
    pack: ObjectId,
    entries: &[Entry],
) -> Result<u64, Error> {
    let mut moved = 0;
    for entry in entries {
        let blob = read_again(|| read_stored(archive, pack, entry)).await?;
        moved += blob.bytes.len() as u64;
        filler.add(blob).await?;
    }
    Ok(moved)
}

async fn read_stored(archive: &Archive, pack: ObjectId, entry: &Entry) -> Result<StoredBlob, Error> {
    let key = Key::Of(Kind::Pack, pack);
    let range = entry.offset..entry.offset + u64::from(entry.stored_bytes);
    let blob = entry.blob(archive.store.get_range(key, range).await?);
    let checked = archive.workers.run(move |_| verify_stored(&blob).map(|()| blob)).await?;
    checked.map_err(|fault| Error::damaged(key.to_string(), fault))
}

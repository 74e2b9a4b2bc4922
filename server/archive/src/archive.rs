//! An archive of one tenant, opened. Owns: what its verbs share, and how it comes to know packs. Must not know: the verbs.
//!
//! Tenants have nothing in common: all objects of one stand below a prefix made of its name's digest, and blobs are found again only
//! there. Whether somebody else has the same bytes can not be found out.

use crate::again::read_again;
use crate::blob::Compression;
use crate::directory::folder_of;
use crate::error::Error;
use crate::id::{Digest, ObjectId};
use crate::index::{Found, Index};
use crate::limits::{
    GRACE_DEFAULT, GRACE_MAX, GRACE_MIN, INDEX_BLOBS_DEFAULT, OBJECTS_AT_ONCE, PACK_BYTES_DEFAULT,
    PACK_BYTES_MAX, PACK_BYTES_MIN, PACK_TAIL_BYTES, SMALL_OBJECT_BYTES_MAX,
};
use crate::pack::format::{PackIndex, TRAILER_BYTES, Trailer};
use crate::store::{Key, Kind, Listed, Place, Store, StoreSettings};
use crate::workers::Workers;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How an archive is used by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveSettings {
    /// Bytes of stored blobs at which a pack is written; 16 to 64 MiB, less for tests.
    pub pack_bytes: u64,
    /// How new blobs are stored; none: by what each capture says its values are.
    pub compression: Option<Compression>,
    /// Threads that hash, encode and decode; 0: one a core. At most 16.
    pub workers: usize,
    /// How long captures may take, and what is no longer needed stays. Counts when the archive is made; later its own time counts.
    /// 1 second to 30 days.
    pub grace: Duration,
    /// Blobs whose places are kept in memory.
    pub index_blobs_max: usize,
    /// How the store is asked.
    pub store: StoreSettings,
}

impl Default for ArchiveSettings {
    fn default() -> Self {
        ArchiveSettings {
            pack_bytes: PACK_BYTES_DEFAULT,
            compression: None,
            workers: 0,
            grace: GRACE_DEFAULT,
            index_blobs_max: INDEX_BLOBS_DEFAULT,
            store: StoreSettings::default(),
        }
    }
}

/// An archive. Clones are the same one.
#[derive(Clone)]
pub struct Archive {
    pub(crate) store: Arc<Store>,
    pub(crate) workers: Workers,
    pub(crate) settings: Arc<ArchiveSettings>,
    /// The archive's own grace time; nothing as long as nobody wrote anything.
    settled: Arc<OnceLock<Duration>>,
    pub(crate) index: Arc<Mutex<Index>>,
    /// Held while packs are listed and read.
    refreshing: Arc<tokio::sync::Mutex<()>>,
}

/// What was settled when the archive was made.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settled {
    version: u64,
    grace_ms: u64,
}

const VERSION: u64 = 1;

impl Archive {
    /// Opens a tenant's archive. One that is not there is empty, and is made by the first verb that writes. Which blobs there are is found
    /// out when it must be known.
    pub async fn open(place: &Place, tenant: &str, settings: ArchiveSettings) -> Result<Archive, Error> {
        settings.check()?;
        let store = Store::open(place, settings.store.clone(), &folder_of(tenant))?;
        let settled = read_settled(&store).await?.map_or_else(OnceLock::new, OnceLock::from);
        Ok(Archive {
            store: Arc::new(store),
            workers: Workers::new(settings.workers),
            settings: Arc::new(settings),
            settled: Arc::new(settled),
            index: Arc::default(),
            refreshing: Arc::default(),
        })
    }

    /// The archive's own grace time; the one it would be made with, as long as it is not there.
    #[must_use]
    pub fn grace(&self) -> Duration {
        self.settled.get().copied().unwrap_or(self.settings.grace)
    }

    /// The archive's own grace time, if it is there.
    pub(crate) async fn settled(&self) -> Result<Option<Duration>, Error> {
        if self.settled.get().is_none()
            && let Some(grace) = read_settled(&self.store).await?
        {
            self.settled.get_or_init(|| grace);
        }
        Ok(self.settled.get().copied())
    }

    /// The archive's own grace time. The archive is made if it is not there.
    pub(crate) async fn made(&self) -> Result<Duration, Error> {
        match self.settled().await? {
            Some(grace) => Ok(grace),
            None => {
                let grace = settle(&self.store, self.settings.grace).await?;
                Ok(*self.settled.get_or_init(|| grace))
            }
        }
    }

    /// Learns which packs came, went, or are condemned: reads the indexes of those that are new, newest first, as many as there is room
    /// for. What it says of a pack was true after this was called.
    pub(crate) async fn refresh(&self) -> Result<(), Error> {
        let alone = self.refreshing.lock().await;
        let before = self.index.lock().packs();
        // A pack goes before its condemnation does: one that is listed without was not condemned.
        let condemned = self.store.list(Kind::Condemned).await?;
        let listed = self.store.list(Kind::Pack).await?;
        let there: HashSet<ObjectId> = listed.iter().map(|pack| pack.id).collect();
        let new: Vec<ObjectId> = {
            let mut index = self.index.lock();
            condemned.iter().for_each(|pack| index.condemn(pack.id));
            before.iter().filter(|pack| !there.contains(pack)).for_each(|pack| index.remove(pack));
            index.begin_reading();
            listed.iter().map(|pack| pack.id).filter(|pack| !index.knows(pack)).rev().collect()
        };
        self.read_indexes(&new).await?;
        drop(alone);
        Ok(())
    }

    /// Learns what these packs have that a manifest names: enough to read it, where no collection has moved anything since.
    pub(crate) async fn learn(&self, named: &[ObjectId]) -> Result<(), Error> {
        let new: Vec<ObjectId> = {
            let index = self.index.lock();
            named.iter().copied().filter(|pack| !index.knows(pack)).collect()
        };
        self.read_indexes(&new).await
    }

    /// Reads the indexes of packs; those that there is no room for are remembered.
    async fn read_indexes(&self, new: &[ObjectId]) -> Result<(), Error> {
        let blobs_max = self.settings.index_blobs_max;
        for packs in new.chunks(OBJECTS_AT_ONCE) {
            if self.index.lock().blobs() >= blobs_max {
                self.index.lock().add_unread(packs);
                continue;
            }
            let reads = packs.iter().copied().map(|pack| {
                let archive = self.clone();
                async move { (pack, archive.read_index(pack).await) }
            });
            for (pack, read) in futures_util::future::join_all(reads).await {
                match read {
                    Ok(read) => self.index.lock().add(read, blobs_max),
                    // It went meanwhile.
                    Err(Error::NotFound { .. }) => {}
                    Err(fault @ Error::Damaged { .. }) => {
                        tracing::warn!(%pack, %fault, "a pack of the archive is left alone");
                        self.index.lock().add_damaged(pack);
                    }
                    Err(fault) => return Err(fault),
                }
            }
        }
        Ok(())
    }

    /// Reads a pack's index.
    pub(crate) async fn read_index(&self, pack: ObjectId) -> Result<PackIndex, Error> {
        read_again(|| self.try_read_index(pack)).await
    }

    async fn try_read_index(&self, pack: ObjectId) -> Result<PackIndex, Error> {
        let key = Key::Of(Kind::Pack, pack);
        let (tail, object_bytes) = match self.store.get_tail(key, PACK_TAIL_BYTES).await {
            Ok(read) => read,
            // Stores refuse the end of an object that is empty.
            Err(fault @ Error::Unreachable { .. }) => match self.store.head(key).await {
                Ok(Listed { bytes: 0, .. }) => (Bytes::new(), 0),
                _ => return Err(fault),
            },
            Err(fault) => return Err(fault),
        };
        let trailer = Trailer::parse(pack, object_bytes, &tail)?;
        let index_end = object_bytes - TRAILER_BYTES as u64;
        let tail_begins = object_bytes - tail.len() as u64;
        let bytes = match trailer.index_offset.checked_sub(tail_begins) {
            Some(at) => tail.slice(at as usize..(index_end - tail_begins) as usize),
            None => self.store.get_range(key, trailer.index_offset..index_end).await?,
        };
        trailer.parse_index(pack, &bytes)
    }

    /// Where blobs are: those that are found.
    pub(crate) async fn locate(&self, digests: &HashSet<Digest>) -> Result<HashMap<Digest, Found>, Error> {
        let found = |digests: &HashSet<Digest>| {
            let index = self.index.lock();
            let found = digests.iter().filter_map(|digest| index.find(digest).map(|found| (*digest, found)));
            found.collect::<HashMap<_, _>>()
        };
        let mut places = found(digests);
        if places.len() < digests.len() {
            self.refresh().await?;
            places = found(digests);
        }
        if places.len() < digests.len() {
            let unread = self.index.lock().unread().to_vec();
            for pack in unread {
                let read = match self.read_index(pack).await {
                    Ok(read) => read,
                    Err(Error::NotFound { .. } | Error::Damaged { .. }) => continue,
                    Err(fault) => return Err(fault),
                };
                for entry in read.entries.iter().filter(|entry| digests.contains(&entry.digest)) {
                    let found = Found { pack, pack_bytes: read.object_bytes, entry: *entry };
                    places.entry(entry.digest).or_insert(found);
                }
            }
        }
        Ok(places)
    }

    /// How new blobs of such values are stored.
    pub(crate) fn compression(&self, dtype: &str) -> Compression {
        self.settings.compression.unwrap_or_else(|| Compression::for_dtype(dtype))
    }
}

impl ArchiveSettings {
    fn check(&self) -> Result<(), Error> {
        if !(PACK_BYTES_MIN..=PACK_BYTES_MAX).contains(&self.pack_bytes) {
            return Err(Error::invalid(
                "pack_bytes",
                format!("must be {PACK_BYTES_MIN} to {PACK_BYTES_MAX}"),
            ));
        }
        if !(GRACE_MIN..=GRACE_MAX).contains(&self.grace) {
            return Err(Error::invalid("grace", format!("must be {GRACE_MIN:?} to {GRACE_MAX:?}")));
        }
        if self.compression.is_some_and(|compression| !compression.is_allowed()) {
            return Err(Error::invalid("compression", "must be a level of zstd of 1 to 22"));
        }
        Ok(())
    }
}

/// Makes an archive with this grace time; the one that it has then.
async fn settle(store: &Store, grace: Duration) -> Result<Duration, Error> {
    let settled = Settled { version: VERSION, grace_ms: grace.as_millis() as u64 };
    let object = Key::Settled.to_string();
    let text = serde_json::to_vec(&settled).map_err(|fault| Error::invalid(&object, fault.to_string()))?;
    match store.put_new(Key::Settled, &[text.into()]).await {
        // Somebody else made it at the same time, with another grace time: theirs counts.
        Ok(()) | Err(Error::Exists { .. }) => {}
        Err(Error::NotFound { .. }) => return Err(Error::NotFound { object: "the bucket".to_owned() }),
        Err(fault) => return Err(fault),
    }
    read_settled(store).await?.ok_or(Error::NotFound { object })
}

/// What was settled when an archive was made; nothing if it is not there.
async fn read_settled(store: &Store) -> Result<Option<Duration>, Error> {
    let object = || Key::Settled.to_string();
    let text = match store.get(Key::Settled, SMALL_OBJECT_BYTES_MAX).await {
        Ok(text) => text,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let settled: Settled =
        serde_json::from_slice(&text).map_err(|fault| Error::damaged(object(), fault.to_string()))?;
    if settled.version != VERSION {
        let fault = format!("its version is {}; this program knows {VERSION}", settled.version);
        return Err(Error::damaged(object(), fault));
    }
    let grace = Duration::from_millis(settled.grace_ms);
    if !(GRACE_MIN..=GRACE_MAX).contains(&grace) {
        return Err(Error::damaged(object(), format!("its grace time is {grace:?}")));
    }
    Ok(Some(grace))
}

//! One request to a store: bounded in number and time, made again after faults that may pass. Owns: [`Store`]. Must not know: what
//! objects mean.

use crate::error::Error;
use crate::id::{ObjectId, SessionName};
use crate::limits::{LIST_OBJECTS_MAX, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use crate::store::key::{BOOKMARKS, Key, Kind};
use crate::store::litter;
use crate::store::place::{Opened, Place, StoreSettings};
use crate::store::tried::{Tried, sorted, too_slow};
use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutPayload,
};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// The objects of one tenant.
pub(crate) struct Store {
    inner: Arc<dyn ObjectStore>,
    prefix: Path,
    creates_only: bool,
    directory: Option<PathBuf>,
    permits: Semaphore,
    settings: StoreSettings,
}

/// An object as the store tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) id: ObjectId,
    pub(crate) bytes: u64,
    /// When it was written, in milliseconds since 1970 by the store's clock.
    pub(crate) stored_unix_ms: i64,
}

impl Store {
    /// Opens a place for the objects below a prefix.
    pub(crate) fn open(place: &Place, settings: StoreSettings, below: &str) -> Result<Store, Error> {
        settings.check()?;
        let Opened { store, prefix, creates_only, directory } = place.open(&settings)?;
        let prefix = Path::parse(&prefix).map_err(|fault| Error::invalid("prefix", fault.to_string()))?;
        let prefix = below.split('/').fold(prefix, |path, part| path.join(part));
        let permits = Semaphore::new(settings.requests_max);
        Ok(Store { inner: store, prefix, creates_only, directory, permits, settings })
    }

    /// As a service that does not know how to refuse.
    #[cfg(test)]
    pub(crate) fn set_creates_only(&mut self, creates_only: bool) {
        self.creates_only = creates_only;
    }

    /// Writes an object that must not be there. One that is there and is the same counts as written: an earlier try reached the store.
    pub(crate) async fn put_new(&self, key: Key, pieces: &[Bytes]) -> Result<(), Error> {
        let path = key.path(&self.prefix);
        let payload: PutPayload = pieces.iter().cloned().collect();
        let mut tries = Tries::new(self.settings.retries_max);
        loop {
            let fault = match self.try_put_new(key, &path, payload.clone()).await {
                Ok(()) => return Ok(()),
                Err(Tried::Exists) => match self.get(key, payload.content_length() as u64).await {
                    Ok(found) if is_made_of(&found, pieces) => return Ok(()),
                    // Two who create at once are refused both (409), or the store is not sure: it is asked again.
                    Err(Error::NotFound { object }) => {
                        let fault = "it exists and it does not".to_owned();
                        Error::Unreachable { object, fault }
                    }
                    Ok(_) | Err(Error::TooLarge { .. }) => {
                        return Err(Error::Exists { object: key.to_string() });
                    }
                    Err(fault) => return Err(fault),
                },
                Err(fault) => fault.passing_at(&key.to_string())?,
            };
            tries.pause(fault).await?;
        }
    }

    async fn try_put_new(&self, key: Key, path: &Path, payload: PutPayload) -> Result<(), Tried> {
        if !self.creates_only {
            match self.once(key, self.inner.head(path)).await {
                Ok(_) => return Err(Tried::Exists),
                Err(Tried::Ended(Error::NotFound { .. })) => {}
                Err(fault) => return Err(fault),
            }
            return self.once(key, self.inner.put(path, payload)).await.map(drop);
        }
        match self.once(key, self.inner.put_opts(path, payload, PutMode::Create.into())).await {
            Err(Tried::Unknown(answer)) => {
                let fault = format!(
                    "the store does not know If-None-Match ({answer}); for such a store set it to false"
                );
                Err(Tried::Ended(Error::invalid("conditional_puts", fault)))
            }
            done => done.map(drop),
        }
    }

    /// Writes an object, or writes it again.
    pub(crate) async fn put(&self, key: Key, bytes: Bytes) -> Result<(), Error> {
        let path = key.path(&self.prefix);
        self.ask(key, || self.inner.put(&path, PutPayload::from(bytes.clone()))).await.map(drop)
    }

    /// All of an object that has at most so many bytes.
    pub(crate) async fn get(&self, key: Key, bytes_max: u64) -> Result<Bytes, Error> {
        let path = key.path(&self.prefix);
        let mut tries = Tries::new(self.settings.retries_max);
        loop {
            let read = async {
                let found = self.inner.get_opts(&path, GetOptions::default()).await?;
                if found.meta.size > bytes_max {
                    Ok(Err(found.meta.size))
                } else {
                    found.bytes().await.map(Ok)
                }
            };
            match self.once(key, read).await {
                Ok(Ok(bytes)) => return Ok(bytes),
                Ok(Err(got)) => {
                    return Err(Error::TooLarge { what: format!("bytes of {key}"), got, max: bytes_max });
                }
                Err(fault) => tries.pause(fault.passing_at(&key.to_string())?).await?,
            }
        }
    }

    /// Exactly these bytes of an object.
    pub(crate) async fn get_range(&self, key: Key, range: Range<u64>) -> Result<Bytes, Error> {
        let path = key.path(&self.prefix);
        let wanted = range.end - range.start;
        let options =
            || GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let read =
            self.ask(key, || async { self.inner.get_opts(&path, options()).await?.bytes().await }).await;
        match read {
            Ok(bytes) if bytes.len() as u64 == wanted => Ok(bytes),
            Err(fault) if !matches!(fault, Error::Unreachable { .. }) => Err(fault),
            // Stores refuse what begins behind the end in ways of their own.
            short => match self.head(key).await {
                Ok(found) if found.bytes < range.end => {
                    let fault = format!("it ends at byte {}, and a blob of it at {}", found.bytes, range.end);
                    Err(Error::damaged(key.to_string(), fault))
                }
                Ok(_) => Err(short.err().unwrap_or_else(|| Error::Unreachable {
                    object: key.to_string(),
                    fault: "the store gave fewer bytes than were asked for".to_owned(),
                })),
                Err(fault) => Err(fault),
            },
        }
    }

    /// The last bytes of an object, up to so many, and how many it has.
    pub(crate) async fn get_tail(&self, key: Key, bytes: u64) -> Result<(Bytes, u64), Error> {
        let path = key.path(&self.prefix);
        let options = || GetOptions { range: Some(GetRange::Suffix(bytes)), ..GetOptions::default() };
        let read = || async {
            let found: GetResult = self.inner.get_opts(&path, options()).await?;
            let size = found.meta.size;
            Ok((found.bytes().await?, size))
        };
        match self.ask(key, read).await {
            // Some fail where an object has fewer bytes, of which all were asked for.
            Err(fault @ Error::Unreachable { .. }) => match self.head(key).await {
                Ok(found) if found.bytes < bytes => Ok((self.get(key, bytes).await?, found.bytes)),
                _ => Err(fault),
            },
            read => read,
        }
    }

    /// What the store tells of an object.
    pub(crate) async fn head(&self, key: Key) -> Result<Listed, Error> {
        let path = key.path(&self.prefix);
        let meta = self.ask(key, || self.inner.head(&path)).await?;
        let id = match key {
            Key::Of(_, id) | Key::Bookmark(_, id) => id,
            Key::Settled => ObjectId([0; 16]),
        };
        Ok(listed(id, &meta))
    }

    /// All objects of a kind, in the order of their ids. What has another name than ours is not among them.
    pub(crate) async fn list(&self, kind: Kind) -> Result<Vec<Listed>, Error> {
        let (found, strange) = self.list_with_strange(kind).await?;
        if let Some(name) = strange {
            tracing::warn!(object = %name, "left alone: it has no name of ours");
        }
        Ok(found)
    }

    /// All objects of a kind; fails if anything else is where they are: it may be one that was renamed, and is needed.
    pub(crate) async fn list_strictly(&self, kind: Kind) -> Result<Vec<Listed>, Error> {
        match self.list_with_strange(kind).await? {
            (found, None) => Ok(found),
            (_, Some(name)) => {
                let fault = "it has no name that objects have here, and may be one that was renamed: give it its name back, or move it out of this folder";
                Err(Error::damaged(name, fault))
            }
        }
    }

    async fn list_with_strange(&self, kind: Kind) -> Result<(Vec<Listed>, Option<String>), Error> {
        let folder = self.prefix.clone().join(kind.form().0);
        let depth = folder.parts().count();
        let ours = |meta: &ObjectMeta| {
            // Some services have an empty object for a folder.
            let below = meta.location.parts().count().checked_sub(depth + 1)?;
            let id = meta.location.filename().and_then(|file| kind.id_of(file)).filter(|_| below == 0);
            Some(id.map(|id| listed(id, meta)).ok_or_else(|| meta.location.to_string()))
        };
        let (mut found, mut strange) = (Vec::new(), None);
        for one in self.list_below(&folder, ours).await? {
            match one {
                Ok(one) => found.push(one),
                Err(name) => strange = strange.or(Some(name)),
            }
        }
        found.sort_unstable_by_key(|one: &Listed| one.id);
        found.dedup_by_key(|one| one.id);
        Ok((found, strange))
    }

    /// All bookmarks, or those of one session.
    pub(crate) async fn list_bookmarks(
        &self,
        of: Option<SessionName>,
    ) -> Result<Vec<(SessionName, Listed)>, Error> {
        let (folder, ending) = BOOKMARKS;
        let folder = self.prefix.clone().join(folder);
        let folder = of.map_or(folder.clone(), |name| folder.join(name.to_string()));
        let bookmark = |meta: &ObjectMeta| {
            let id = ObjectId::parse(meta.location.filename()?.strip_suffix(ending)?)?;
            let parts: Vec<_> = meta.location.parts().collect();
            let name = SessionName::parse(parts.get(parts.len().checked_sub(2)?)?.as_ref())?;
            Some((name, listed(id, meta)))
        };
        self.list_below(&folder, bookmark).await
    }

    /// What is below a folder and is `ours`.
    async fn list_below<T>(
        &self,
        folder: &Path,
        ours: impl Fn(&ObjectMeta) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let mut tries = Tries::new(self.settings.retries_max);
        loop {
            match self.try_list(folder, &ours).await {
                Ok(found) => return Ok(found),
                // A folder without objects is none; a bucket is.
                Err(Tried::Ended(Error::NotFound { .. })) => {
                    return Err(Error::NotFound { object: "the bucket".to_owned() });
                }
                Err(fault) => tries.pause(fault.passing_at(folder.as_ref())?).await?,
            }
        }
    }

    async fn try_list<T>(
        &self,
        folder: &Path,
        ours: &impl Fn(&ObjectMeta) -> Option<T>,
    ) -> Result<Vec<T>, Tried> {
        let permit = self.permit().await.map_err(Tried::Ended)?;
        let mut stream = self.inner.list(Some(folder));
        let mut found = Vec::new();
        let object = || format!("the list of {}", folder.filename().unwrap_or_default());
        loop {
            let next = timeout(self.settings.request_timeout, stream.next()).await;
            let Some(meta) =
                next.map_err(|_| Tried::Passing(too_slow(&object(), self.settings.request_timeout)))?
            else {
                break;
            };
            let meta = meta.map_err(|fault| sorted(&object(), &fault))?;
            let Some(one) = ours(&meta) else {
                tracing::trace!(object = %meta.location, "left alone: it is no object of ours");
                continue;
            };
            found.push(one);
            Error::bound("objects of one kind", found.len() as u64, LIST_OBJECTS_MAX as u64)
                .map_err(Tried::Ended)?;
        }
        drop(permit);
        Ok(found)
    }

    /// Removes an object. One that is not there counts as removed.
    pub(crate) async fn delete(&self, key: Key) -> Result<(), Error> {
        let path = key.path(&self.prefix);
        match self.ask(key, || self.inner.delete(&path)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    /// Removes what killed processes left of files that they were writing, if it was last written before a time; how many files.
    pub(crate) async fn sweep_litter(&self, before_unix_ms: i64) -> Result<u64, Error> {
        let Some(directory) = self.directory.clone() else { return Ok(0) };
        let place = self.prefix.parts().fold(directory, |path, part| path.join(part.as_ref()));
        let swept = tokio::task::spawn_blocking(move || litter::sweep(&place, before_unix_ms)).await;
        swept.map_err(|fault| Error::Short(format!("a sweep ended early: {fault}")))
    }

    async fn permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Error> {
        self.permits.acquire().await.map_err(|_| Error::Short("the store was closed".to_owned()))
    }

    /// One try.
    async fn once<T>(
        &self,
        key: Key,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Tried> {
        let permit = self.permit().await.map_err(Tried::Ended)?;
        let done = timeout(self.settings.request_timeout, request).await;
        drop(permit);
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(fault)) => Err(sorted(&key.to_string(), &fault)),
            Err(_) => Err(Tried::Passing(too_slow(&key.to_string(), self.settings.request_timeout))),
        }
    }

    /// As many tries as are worth it.
    async fn ask<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        key: Key,
        request: impl Fn() -> F,
    ) -> Result<T, Error> {
        let mut tries = Tries::new(self.settings.retries_max);
        loop {
            match self.once(key, request()).await {
                Ok(done) => return Ok(done),
                Err(fault) => tries.pause(fault.passing_at(&key.to_string())?).await?,
            }
        }
    }
}

/// How often a request was tried.
struct Tries {
    left: u32,
    pause: std::time::Duration,
}

impl Tries {
    fn new(retries_max: u32) -> Tries {
        Tries { left: retries_max, pause: RETRY_PAUSE_MIN }
    }

    /// Waits until it is time for the next try; the fault if there is none.
    async fn pause(&mut self, fault: Error) -> Result<(), Error> {
        self.left = self.left.checked_sub(1).ok_or(fault)?;
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(RETRY_PAUSE_MAX);
        Ok(())
    }
}

fn listed(id: ObjectId, meta: &ObjectMeta) -> Listed {
    Listed { id, bytes: meta.size, stored_unix_ms: meta.last_modified.timestamp_millis() }
}

fn is_made_of(mut whole: &[u8], pieces: &[Bytes]) -> bool {
    pieces.iter().all(|piece| match whole.strip_prefix(&piece[..]) {
        Some(rest) => {
            whole = rest;
            true
        }
        None => false,
    }) && whole.is_empty()
}

//! The directory of a tenant's archived sessions. Owns: writing, listing and reading bookmarks, and taking back what one is for. Must
//! not know: pages, packs, why a session is archived.
//!
//! A session's bookmarks have a folder of their own, so one list finds whether the session is archived, and a list of all names every
//! archived session without reading any object. The newest bookmark of a session is the one that counts.

use crate::bookmark::Bookmark;
use crate::error::Error;
use crate::id::{Digest, ObjectId, SessionName};
use crate::limits::BOOKMARK_BYTES_MAX;
use crate::store::{Key, Kind, Place, Store, StoreSettings};
use std::sync::Arc;

/// A tenant's archived sessions. Clones are the same one.
#[derive(Clone)]
pub struct Directory {
    store: Arc<Store>,
}

/// A bookmark in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListedBookmark {
    /// The session's name in the store.
    pub name: SessionName,
    /// The snapshot that has it; of several, that of the greatest id counts.
    pub snapshot: ObjectId,
}

/// Where the objects of a tenant are.
pub(crate) fn folder_of(tenant: &str) -> String {
    format!("tenants/{}", &Digest::of(tenant.as_bytes()).to_string()[..32])
}

impl Directory {
    /// Opens the directory of a tenant. Nothing is asked of the store yet.
    pub fn open(place: &Place, tenant: &str, settings: StoreSettings) -> Result<Directory, Error> {
        Ok(Directory { store: Arc::new(Store::open(place, settings, &folder_of(tenant))?) })
    }

    /// The directory of an archive that is open.
    pub(crate) fn of(store: &Arc<Store>) -> Directory {
        Directory { store: Arc::clone(store) }
    }

    /// All bookmarks, in order.
    pub async fn list(&self) -> Result<Vec<ListedBookmark>, Error> {
        self.list_some(None).await
    }

    /// Those of one session, the newest last.
    pub async fn list_of(&self, name: SessionName) -> Result<Vec<ListedBookmark>, Error> {
        self.list_some(Some(name)).await
    }

    async fn list_some(&self, of: Option<SessionName>) -> Result<Vec<ListedBookmark>, Error> {
        let listed = self.store.list_bookmarks(of).await?;
        let place =
            |(name, one): (SessionName, crate::store::Listed)| ListedBookmark { name, snapshot: one.id };
        let mut listed: Vec<ListedBookmark> = listed.into_iter().map(place).collect();
        listed.sort_unstable();
        listed.dedup();
        Ok(listed)
    }

    /// Reads a bookmark and checks it.
    pub async fn read(&self, at: ListedBookmark) -> Result<Bookmark, Error> {
        let key = Key::Bookmark(at.name, at.snapshot);
        let text = self.store.get(key, BOOKMARK_BYTES_MAX).await?;
        let bookmark = Bookmark::parse(&text).map_err(|fault| Error::damaged(key.to_string(), fault))?;
        if bookmark.name() != at.name {
            return Err(Error::damaged(key.to_string(), "it is another session's"));
        }
        Ok(bookmark)
    }

    /// The same, of a snapshot that is there. One that is not is being written still, or never was: a bookmark comes first.
    pub async fn read_whole(&self, at: ListedBookmark) -> Result<Bookmark, Error> {
        let manifest = self.store.head(Key::Of(Kind::Manifest, at.snapshot));
        let (bookmark, manifest) = tokio::join!(self.read(at), manifest);
        match manifest {
            // Something is there, and whoever reads it says what is wrong with it.
            Ok(_) | Err(Error::Damaged { .. }) => bookmark,
            Err(fault) => Err(fault),
        }
    }

    /// Writes the bookmark of a snapshot that is about to be written.
    pub async fn write(&self, snapshot: ObjectId, bookmark: &Bookmark) -> Result<ListedBookmark, Error> {
        let at = ListedBookmark { name: bookmark.name(), snapshot };
        self.store.put_new(Key::Bookmark(at.name, snapshot), &[bookmark.to_json()?.into()]).await?;
        Ok(at)
    }

    /// Removes a snapshot that a bookmark is for, and then the bookmark: a snapshot without one would never be taken for an archived
    /// session again.
    pub async fn retire(&self, at: ListedBookmark) -> Result<(), Error> {
        self.store.delete(Key::Of(Kind::Manifest, at.snapshot)).await?;
        self.store.delete(Key::Bookmark(at.name, at.snapshot)).await
    }
}

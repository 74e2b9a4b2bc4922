//! What the archive has, as its directory says. Owns: which bookmarks were read. Must not know: who looks for sessions.
//!
//! A list names all bookmarks of a tenant; each is read once, and one that found no room again when others left. So what a server
//! archived is known here after a while, and what was there before this server started.

use super::known::TenantBookmarks;
use super::run::{Tier, is_of_store};
use crate::engine::archived::{ArchivedSession, SnapshotName};
use crate::limits::{ARCHIVE_BOOKMARKS_AT_ONCE, ARCHIVE_TENANTS_MAX};
use futures_util::StreamExt;
use std::collections::HashSet;
use tokio::time::{sleep, timeout};
use turnkv_archive::{Bookmark, Error as Fault, ListedBookmark};
use turnkv_proto::SessionId;

impl Tier {
    /// Asks again and again, and when a namespace was opened.
    pub(super) async fn refresh_sessions(&self) {
        loop {
            for tenant in self.engine().open_tenants() {
                if let Err(fault) = self.refresh(&tenant).await {
                    let pause = self.store_failed(&fault);
                    tracing::warn!(%fault, "what is archived can not be asked for: tried again");
                    sleep(pause).await;
                }
            }
            let opened = self.engine().archived.opened_bell.notified();
            // That the time is over is as good a reason.
            drop(timeout(self.config().refresh, opened).await);
        }
    }

    /// Learns which sessions of a tenant are archived, and which are not any more.
    async fn refresh(&self, tenant: &str) -> Result<(), Fault> {
        let mut known = self.known.lock().await;
        if !known.tenants.contains_key(tenant) {
            if known.tenants.len() >= ARCHIVE_TENANTS_MAX {
                return Ok(());
            }
            let directory = self.snapshots.directory_of(tenant)?;
            let fresh = TenantBookmarks { directory, seen: HashSet::new(), unlisted: HashSet::new() };
            known.tenants.insert(tenant.to_owned(), fresh);
        }
        let Some(bookmarks) = known.tenants.get_mut(tenant) else { return Ok(()) };
        let listed: HashSet<ListedBookmark> = bookmarks.directory.list().await?.into_iter().collect();
        let gone: Vec<SnapshotName> =
            bookmarks.seen.difference(&listed).map(|one| SnapshotName(one.snapshot.0)).collect();
        bookmarks.seen.retain(|one| listed.contains(one));
        bookmarks.unlisted.retain(|one| listed.contains(one));
        self.forget(&gone);
        known.try_again(gone.len());
        let Some(bookmarks) = known.tenants.get_mut(tenant) else { return Ok(()) };
        let mut new: Vec<ListedBookmark> = listed.difference(&bookmarks.seen).copied().collect();
        // The newest first: where there is no room for all, the oldest are not found.
        new.sort_unstable_by_key(|one| std::cmp::Reverse(one.snapshot));
        let read = self.read_bookmarks(tenant, bookmarks, new).await;
        let unlisted = known.unlisted();
        drop(known);
        // What was read is found, though the store failed before the rest was.
        self.counts.unlisted(unlisted);
        self.index_changed();
        read
    }

    /// Reads bookmarks, until the store fails.
    async fn read_bookmarks(
        &self,
        tenant: &str,
        bookmarks: &mut TenantBookmarks,
        new: Vec<ListedBookmark>,
    ) -> Result<(), Fault> {
        let directory = bookmarks.directory.clone();
        let reads = futures_util::stream::iter(new).map(|one| {
            let directory = directory.clone();
            async move { (one, directory.read_whole(one).await) }
        });
        let mut reads = std::pin::pin!(reads.buffered(ARCHIVE_BOOKMARKS_AT_ONCE));
        while let Some((one, read)) = reads.next().await {
            match read {
                Ok(bookmark) if self.is_anothers(&bookmark, tenant) => {
                    tracing::warn!(
                        session = bookmark.session,
                        "a bookmark of another tenant's session is left alone"
                    );
                }
                Ok(bookmark) => {
                    if !self.learn(one, bookmark) {
                        bookmarks.unlisted.insert(one);
                    }
                }
                // It went meanwhile, or its snapshot is not there yet: it is asked for again.
                Err(Fault::NotFound { .. }) => continue,
                Err(fault) if is_of_store(&fault) => return Err(fault),
                Err(fault) => tracing::warn!(%fault, "an archived session is not found"),
            }
            bookmarks.seen.insert(one);
        }
        Ok(())
    }

    /// A bookmark's snapshot was not there. It may be one that is about to be written: its bookmark is looked at again.
    pub(super) async fn look_again(&self, snapshot: SnapshotName) {
        let mut known = self.known.lock().await;
        for tenant in known.tenants.values_mut() {
            tenant.seen.retain(|one| one.snapshot.0 != snapshot.0);
            tenant.unlisted.retain(|one| one.snapshot.0 != snapshot.0);
        }
        known.try_again(1);
        drop(known);
        self.forget(&[snapshot]);
    }

    /// Whether the session's namespace is known to be another tenant's.
    fn is_anothers(&self, bookmark: &Bookmark, tenant: &str) -> bool {
        self.engine().namespace_spec(&bookmark.namespace).is_ok_and(|spec| spec.tenant() != tenant)
    }

    /// A session is archived so. False: there is no room to know it.
    pub(super) fn learn(&self, at: ListedBookmark, bookmark: Bookmark) -> bool {
        let Ok(session) = SessionId::parse(&bookmark.session) else { return true };
        let pages: Box<[u64]> = bookmark.pages.iter().map(|mark| mark.0).collect();
        let (namespace, snapshot) = (bookmark.namespace, SnapshotName(at.snapshot.0));
        let one = ArchivedSession { namespace, session: session.clone(), snapshot, pages };
        let mut index = self.engine().archived.index.write();
        // Where a newer one is known, turns find that.
        index.put(one) || index.session(&namespace, &session).is_some()
    }

    /// These are not there any more.
    pub(super) fn forget(&self, gone: &[SnapshotName]) {
        {
            let mut index = self.engine().archived.index.write();
            for one in gone {
                index.forget(*one);
            }
        }
        self.index_changed();
    }

    /// Sessions came or went. Those that are left may have pages of those that went: whoever looks something up need not wait
    /// while that is found out.
    pub(super) fn index_changed(&self) {
        let archived = &self.engine().archived;
        while archived.index.read().has_gaps() {
            let pages = archived.index.read().map_pages();
            archived.index.write().take_pages(pages);
        }
        archived.index_changed();
    }
}

#[cfg(test)]
mod tests;

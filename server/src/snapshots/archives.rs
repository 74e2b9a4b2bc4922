//! Tenants' archives, opened. Owns: how many are, and which is closed for another. Must not know: what is done with them.

use crate::config::ArchiveConfig;
use crate::limits::{ARCHIVE_INDEX_BLOBS_MAX, ARCHIVES_OPEN_MAX};
use parking_lot::Mutex;
use std::collections::VecDeque;
use turnkv_archive::{Archive, ArchiveSettings, Directory, Error, Place, StoreSettings};
use turnkv_proto::limits::TENANT_BYTES_MAX;

/// Archives of one place.
pub(super) struct Archives {
    place: Place,
    settings: ArchiveSettings,
    /// Those that are open, the one that was used last at the end.
    open: Mutex<VecDeque<(String, Archive)>>,
}

impl Archives {
    pub(super) fn new(place: Place, config: &ArchiveConfig) -> Archives {
        let store = StoreSettings {
            requests_max: config.requests_max,
            request_timeout: config.request_timeout,
            retries_max: config.retries_max,
        };
        let settings = ArchiveSettings {
            workers: config.workers,
            grace: config.grace,
            index_blobs_max: ARCHIVE_INDEX_BLOBS_MAX,
            store,
            ..ArchiveSettings::default()
        };
        Archives { place, settings, open: Mutex::default() }
    }

    /// The archive of a tenant, opened; the first verb that writes makes it. Two that open one at once have two, which do not mind one another.
    pub(super) async fn of(&self, tenant: &str) -> Result<Archive, Error> {
        check_tenant(tenant)?;
        if let Some(archive) = self.take(tenant) {
            self.keep(tenant, &archive);
            return Ok(archive);
        }
        let archive = Archive::open(&self.place, tenant, self.settings.clone()).await?;
        self.keep(tenant, &archive);
        Ok(archive)
    }

    /// The directory of a tenant's archived sessions; nothing is asked of the store yet.
    pub(super) fn directory_of(&self, tenant: &str) -> Result<Directory, Error> {
        check_tenant(tenant)?;
        Directory::open(&self.place, tenant, self.settings.store.clone())
    }

    fn take(&self, tenant: &str) -> Option<Archive> {
        let mut open = self.open.lock();
        let at = open.iter().position(|(name, _)| name == tenant)?;
        open.remove(at).map(|(_, archive)| archive)
    }

    fn keep(&self, tenant: &str, archive: &Archive) {
        let mut open = self.open.lock();
        open.retain(|(name, _)| name != tenant);
        open.push_back((tenant.to_owned(), archive.clone()));
        while open.len() > ARCHIVES_OPEN_MAX {
            drop(open.pop_front());
        }
    }
}

/// Fails unless a namespace may have this tenant.
fn check_tenant(tenant: &str) -> Result<(), Error> {
    if tenant.len() <= TENANT_BYTES_MAX && !tenant.chars().any(char::is_control) {
        return Ok(());
    }
    let fault = format!("must be at most {TENANT_BYTES_MAX} bytes without control characters");
    Err(Error::Invalid { field: "tenant".to_owned(), fault })
}

//! `[archive]`: where snapshots are kept, and how much of this host they may take. Owns: its keys and their check. Must not know:
//! whether the place can be reached.

use super::archived::{ArchivedSessions, SessionKeys, SessionsConfig};
use super::bounds::{bad, within};
use super::bytes::Bytes;
use super::error::ConfigError;
use crate::limits::{
    ARCHIVES_OPEN_MAX, SNAPSHOT_BYTES_IN_FLIGHT_MAX, SNAPSHOT_BYTES_IN_FLIGHT_MIN, SNAPSHOT_OPERATIONS_MAX,
    SNAPSHOT_REQUEST_MS_MAX,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use turnkv_archive::Place;
use turnkv_archive::limits::{GRACE_DEFAULT, GRACE_MAX, RETRIES_MAX, STORE_REQUESTS_MAX, WORKERS_MAX};

/// `[archive]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ArchiveFile {
    /// A directory, or `s3://bucket/prefix`; none by default: no snapshots. Credentials of S3 come from the environment.
    place: Option<String>,
    /// Address of the S3 service, `http://` or `https://`; default: that of the region.
    endpoint: Option<String>,
    /// Region of the bucket; default: what the environment says.
    region: Option<String>,
    /// Whether the S3 service refuses to overwrite when it is asked to (`If-None-Match`); default true.
    conditional_puts: Option<bool>,
    /// Directory within which exports are written and imports read; none by default: neither.
    exports: Option<PathBuf>,
    /// Of archives that are made: how long captures may take, and what is no longer needed stays, s; default 3600, 1 to 2592000.
    grace_s: Option<u64>,
    /// Snapshot operations at a time; default 2, 1 to 16.
    operations_max: Option<u64>,
    /// Bytes of pages that one operation has between the pool and the archive; default `32MiB`, `1MiB` to `1GiB`.
    inflight_bytes: Option<Bytes>,
    /// Requests to the store in flight, for each tenant's archive; default 8, 1 to 256.
    requests_max: Option<u64>,
    /// How long one request to the store may take, ms; default 30000, 100 to 600000.
    request_ms: Option<u64>,
    /// Times that a request is made again after a fault that may pass; default 2, 0 to 10.
    retries_max: Option<u64>,
    /// Threads that hash, encode and decode; default 2, 1 to 16.
    workers: Option<u64>,
    /// Which sessions are archived by themselves, and found by their next turn: `off` (default), `asked` (those whose owner asks
    /// for it), or `all` (those too that are idle or about to leave NVMe).
    sessions: Option<ArchivedSessions>,
    /// With `all`: how long a session is without a turn before it is archived, s; default 600, 1 to 2592000.
    idle_s: Option<u64>,
    /// With `all`: pages that a session has at least; default 1, 1 to 262144. One that is asked for may have fewer.
    pages_min: Option<u64>,
    /// Bytes of pages that are archived in a second; default `64MiB`, at least `64KiB`.
    bytes_per_second: Option<Bytes>,
    /// Sessions that wait to be archived because their owners asked; default 1024, 1 to 65536. More are told that they will not be.
    queue_max: Option<u64>,
    /// How long a reload waits for pages that only the archive has, within its own deadline, ms; default 2000, up to 60000. 0: not
    /// at all, and lookups do not count them; they come back behind the scenes.
    wait_ms: Option<u64>,
    /// How often the archive is asked what other servers archived, ms; default 10000, 100 to 86400000.
    refresh_ms: Option<u64>,
    /// How often this server collects the archives of its tenants, s; default 43200, up to 2592000; 0: never.
    collect_s: Option<u64>,
    /// Archived sessions that are older are deleted by such a collection; none by default, 1 to 36500.
    older_than_days: Option<u64>,
    /// While a tenant's archive has more bytes, such a collection deletes its oldest archived session; none by default.
    stored_max: Option<Bytes>,
}

impl ArchiveFile {
    fn session_keys(&self) -> SessionKeys {
        SessionKeys {
            sessions: self.sessions,
            idle_s: self.idle_s,
            pages_min: self.pages_min,
            bytes_per_second: self.bytes_per_second,
            queue_max: self.queue_max,
            wait_ms: self.wait_ms,
            refresh_ms: self.refresh_ms,
            collect_s: self.collect_s,
            older_than_days: self.older_than_days,
            stored_max: self.stored_max,
        }
    }
}

/// Checked `[archive]`; by default there is none.
#[derive(Debug, Clone)]
pub(crate) struct ArchiveConfig {
    /// Where snapshots are kept; none: they are not.
    pub(crate) place: Option<ArchivePlace>,
    /// Where exports are written and imports are read.
    pub(crate) exports: Option<PathBuf>,
    /// Of archives that are made.
    pub(crate) grace: Duration,
    /// Operations at a time.
    pub(crate) operations_max: usize,
    /// Bytes of one operation between the pool and the archive.
    pub(crate) inflight_bytes: u64,
    /// Requests to a store in flight.
    pub(crate) requests_max: usize,
    /// How long one may take.
    pub(crate) request_timeout: Duration,
    /// How often one is made again.
    pub(crate) retries_max: u32,
    /// Threads that hash, encode and decode.
    pub(crate) workers: usize,
    /// Which sessions are archived by themselves.
    pub(crate) sessions: SessionsConfig,
}

impl Default for ArchiveConfig {
    fn default() -> ArchiveConfig {
        ArchiveConfig {
            place: None,
            exports: None,
            grace: GRACE_DEFAULT,
            operations_max: 2,
            inflight_bytes: 32 << 20,
            requests_max: 8,
            request_timeout: Duration::from_secs(30),
            retries_max: 2,
            workers: 2,
            sessions: SessionsConfig::default(),
        }
    }
}

/// Where snapshots are kept, as the operator wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArchivePlace {
    /// A directory, or `s3://bucket/prefix`.
    text: String,
    endpoint: Option<String>,
    region: Option<String>,
    conditional_puts: bool,
}

impl ArchiveConfig {
    /// Checks the keys.
    pub(super) fn check(file: ArchiveFile) -> Result<ArchiveConfig, ConfigError> {
        let usual = ArchiveConfig::default();
        let inflight_bytes = file.inflight_bytes.map_or(usual.inflight_bytes, |bytes| bytes.0);
        if !(SNAPSHOT_BYTES_IN_FLIGHT_MIN..=SNAPSHOT_BYTES_IN_FLIGHT_MAX).contains(&inflight_bytes) {
            let why = format!("{} is not within 1MiB..1GiB", Bytes(inflight_bytes));
            return Err(bad("archive.inflight_bytes", why));
        }
        if let Some(exports) = file.exports.as_ref().filter(|exports| !exports.is_absolute()) {
            return Err(bad("archive.exports", format!("{} must be an absolute path", exports.display())));
        }
        let number = |key, value, usual: usize, least, most: usize| {
            within(key, value, usual as u64, least, most as u64)
        };
        let (most, operations) = (SNAPSHOT_OPERATIONS_MAX, file.operations_max);
        let operations = number("archive.operations_max", operations, usual.operations_max, 1, most)?;
        let (most, requests) = (STORE_REQUESTS_MAX, file.requests_max);
        let requests = number("archive.requests_max", requests, usual.requests_max, 1, most)?;
        let (most, retries) = (RETRIES_MAX as usize, file.retries_max);
        let retries = number("archive.retries_max", retries, usual.retries_max as usize, 0, most)?;
        let workers = number("archive.workers", file.workers, usual.workers, 1, WORKERS_MAX)?;
        let (most, grace_s) = (GRACE_MAX.as_secs(), usual.grace.as_secs());
        let grace_s = within("archive.grace_s", file.grace_s, grace_s, 1, most)?;
        let (most, request_ms) = (SNAPSHOT_REQUEST_MS_MAX, usual.request_timeout.as_millis() as u64);
        let request_ms = within("archive.request_ms", file.request_ms, request_ms, 100, most)?;
        let sessions = SessionsConfig::check(file.session_keys(), file.place.is_some())?;
        Ok(ArchiveConfig {
            place: file
                .place
                .map(|text| ArchivePlace::check(text, file.endpoint, file.region, file.conditional_puts))
                .transpose()?,
            exports: file.exports,
            grace: Duration::from_secs(grace_s),
            operations_max: operations as usize,
            inflight_bytes,
            requests_max: requests as usize,
            request_timeout: Duration::from_millis(request_ms),
            retries_max: retries as u32,
            workers: workers as usize,
            sessions,
        })
    }

    /// File descriptors that snapshots may need: one for each request to the store of an archive that is open.
    pub(crate) fn descriptors(&self) -> u64 {
        self.place.as_ref().map_or(0, |_| (ARCHIVES_OPEN_MAX * self.requests_max) as u64)
    }

    /// The keys that say as much.
    pub(super) fn as_file(&self) -> ArchiveFile {
        let (place, keys) = (self.place.as_ref(), self.sessions.as_keys());
        ArchiveFile {
            place: place.map(|place| place.text.clone()),
            endpoint: place.and_then(|place| place.endpoint.clone()),
            region: place.and_then(|place| place.region.clone()),
            conditional_puts: Some(place.is_none_or(|place| place.conditional_puts)),
            exports: self.exports.clone(),
            grace_s: Some(self.grace.as_secs()),
            operations_max: Some(self.operations_max as u64),
            inflight_bytes: Some(Bytes(self.inflight_bytes)),
            requests_max: Some(self.requests_max as u64),
            request_ms: Some(self.request_timeout.as_millis() as u64),
            retries_max: Some(self.retries_max.into()),
            workers: Some(self.workers as u64),
            sessions: keys.sessions,
            idle_s: keys.idle_s,
            pages_min: keys.pages_min,
            bytes_per_second: keys.bytes_per_second,
            queue_max: keys.queue_max,
            wait_ms: keys.wait_ms,
            refresh_ms: keys.refresh_ms,
            collect_s: keys.collect_s,
            older_than_days: keys.older_than_days,
            stored_max: keys.stored_max,
        }
    }

    /// The keys that have no value.
    pub(super) fn unset(&self) -> [(&'static str, bool); 6] {
        let place = self.place.as_ref();
        [
            ("archive.place", place.is_none()),
            ("archive.endpoint", place.is_none_or(|place| place.endpoint.is_none())),
            ("archive.region", place.is_none_or(|place| place.region.is_none())),
            ("archive.exports", self.exports.is_none()),
            ("archive.older_than_days", self.sessions.age_max.is_none()),
            ("archive.stored_max", self.sessions.stored_max.is_none()),
        ]
    }
}

impl ArchivePlace {
    fn check(
        text: String,
        endpoint: Option<String>,
        region: Option<String>,
        conditional_puts: Option<bool>,
    ) -> Result<ArchivePlace, ConfigError> {
        match text.strip_prefix("s3://") {
            Some(rest) if rest.split('/').next().is_none_or(str::is_empty) => {
                return Err(bad("archive.place", format!("`{text}` names no bucket: s3://bucket/prefix")));
            }
            Some(_) => {}
            None if !text.starts_with('/') => {
                let why = format!("`{text}` is neither an absolute path nor s3://bucket/prefix");
                return Err(bad("archive.place", why));
            }
            None if endpoint.is_some() || region.is_some() => {
                let why = "archive.endpoint and archive.region are for s3://, this is a directory".to_owned();
                return Err(bad("archive.place", why));
            }
            None => {}
        }
        let is_url = |address: &String| address.starts_with("http://") || address.starts_with("https://");
        if let Some(address) = endpoint.as_ref().filter(|address| !is_url(address)) {
            return Err(bad("archive.endpoint", format!("`{address}` must begin with http:// or https://")));
        }
        Ok(ArchivePlace { text, endpoint, region, conditional_puts: conditional_puts.unwrap_or(true) })
    }

    /// As the archive wants it.
    pub(crate) fn place(&self) -> Place {
        let Some(rest) = self.text.strip_prefix("s3://") else {
            return Place::Directory(PathBuf::from(&self.text));
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        Place::S3 {
            bucket: bucket.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            conditional_puts: self.conditional_puts,
        }
    }
}

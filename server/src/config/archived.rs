//! The keys of `[archive]` that say which sessions are archived by themselves, how fast, and how long they stay. Owns: their check. Must
//! not know: where the archive is.

use super::bounds::{bad, within};
use super::bytes::Bytes;
use super::error::ConfigError;
use crate::limits::{ARCHIVE_BYTES_PER_SECOND_MIN, ARCHIVE_WAITING_MAX, WAIT_MS_MAX};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Which sessions are archived by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ArchivedSessions {
    /// None; archived ones are not looked for.
    Off,
    /// Those whose owners ask for it.
    Asked,
    /// Those too that are idle, or about to leave NVMe.
    All,
}

/// Checked keys on archived sessions.
#[derive(Debug, Clone)]
pub(crate) struct SessionsConfig {
    /// Which are archived.
    pub(crate) keep: ArchivedSessions,
    /// After so long without a turn.
    pub(crate) idle: Duration,
    /// Of at least so many pages.
    pub(crate) pages_min: u32,
    /// So many bytes of pages a second.
    pub(crate) bytes_per_second: u64,
    /// Sessions that may wait.
    pub(crate) queue_max: usize,
    /// How long a reload waits for pages that only the archive has.
    pub(crate) wait: Duration,
    /// How often the archive is asked what other servers archived.
    pub(crate) refresh: Duration,
    /// How often the archive is collected; none: not by this server.
    pub(crate) collect: Option<Duration>,
    /// Archived sessions that are older go.
    pub(crate) age_max: Option<Duration>,
    /// While the archive has more bytes, the oldest archived session goes.
    pub(crate) stored_max: Option<u64>,
}

impl Default for SessionsConfig {
    fn default() -> SessionsConfig {
        SessionsConfig {
            keep: ArchivedSessions::Off,
            idle: Duration::from_secs(600),
            pages_min: 1,
            bytes_per_second: 64 << 20,
            queue_max: 1_024,
            wait: Duration::from_secs(2),
            refresh: Duration::from_secs(10),
            collect: Some(Duration::from_secs(12 * 3600)),
            age_max: None,
            stored_max: None,
        }
    }
}

/// These keys as they were written.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SessionKeys {
    pub(super) sessions: Option<ArchivedSessions>,
    pub(super) idle_s: Option<u64>,
    pub(super) pages_min: Option<u64>,
    pub(super) bytes_per_second: Option<Bytes>,
    pub(super) queue_max: Option<u64>,
    pub(super) wait_ms: Option<u64>,
    pub(super) refresh_ms: Option<u64>,
    pub(super) collect_s: Option<u64>,
    pub(super) older_than_days: Option<u64>,
    pub(super) stored_max: Option<Bytes>,
}

const DAY_S: u64 = 24 * 3600;
/// The longest time that one of these keys may say.
const SECONDS_MAX: u64 = 30 * DAY_S;
/// The longest life of archived sessions that may be said, in days.
const DAYS_MAX: u64 = 36_500;

impl SessionsConfig {
    /// Checks the keys; there is a place to archive to, or not.
    pub(super) fn check(keys: SessionKeys, has_place: bool) -> Result<SessionsConfig, ConfigError> {
        let usual = SessionsConfig::default();
        let keep = keys.sessions.unwrap_or(usual.keep);
        if keep != ArchivedSessions::Off && !has_place {
            let why = "sessions are archived in archive.place: set it, or leave this out".to_owned();
            return Err(bad("archive.sessions", why));
        }
        let bytes_per_second = keys.bytes_per_second.map_or(usual.bytes_per_second, |bytes| bytes.0);
        if bytes_per_second < ARCHIVE_BYTES_PER_SECOND_MIN {
            let why = format!("{} is less than 64KiB", Bytes(bytes_per_second));
            return Err(bad("archive.bytes_per_second", why));
        }
        let idle_s = within("archive.idle_s", keys.idle_s, usual.idle.as_secs(), 1, SECONDS_MAX)?;
        let pages_min = within(
            "archive.pages_min",
            keys.pages_min,
            usual.pages_min.into(),
            1,
            turnkv_archive::limits::MANIFEST_PAGES_MAX as u64,
        )?;
        let queue_max =
            within("archive.queue_max", keys.queue_max, usual.queue_max as u64, 1, ARCHIVE_WAITING_MAX)?;
        let wait_ms = usual.wait.as_millis() as u64;
        let wait_ms = within("archive.wait_ms", keys.wait_ms, wait_ms, 0, WAIT_MS_MAX.into())?;
        let refresh_ms = usual.refresh.as_millis() as u64;
        let refresh_ms = within("archive.refresh_ms", keys.refresh_ms, refresh_ms, 100, DAY_S * 1_000)?;
        let collect_s = usual.collect.map_or(0, |every| every.as_secs());
        let collect_s = within("archive.collect_s", keys.collect_s, collect_s, 0, SECONDS_MAX)?;
        let days = match keys.older_than_days {
            None => None,
            days => Some(within("archive.older_than_days", days, 1, 1, DAYS_MAX)?),
        };
        if keys.stored_max.is_some_and(|bytes| bytes.0 == 0) {
            return Err(bad(
                "archive.stored_max",
                "is 0, which would keep nothing: leave it out for no bound".to_owned(),
            ));
        }
        Ok(SessionsConfig {
            keep,
            idle: Duration::from_secs(idle_s),
            pages_min: pages_min as u32,
            bytes_per_second,
            queue_max: queue_max as usize,
            wait: Duration::from_millis(wait_ms),
            refresh: Duration::from_millis(refresh_ms),
            collect: (collect_s > 0).then(|| Duration::from_secs(collect_s)),
            age_max: days.map(|days| Duration::from_secs(days * DAY_S)),
            stored_max: keys.stored_max.map(|bytes| bytes.0),
        })
    }

    /// The keys that say as much.
    pub(super) fn as_keys(&self) -> SessionKeys {
        SessionKeys {
            sessions: Some(self.keep),
            idle_s: Some(self.idle.as_secs()),
            pages_min: Some(self.pages_min.into()),
            bytes_per_second: Some(Bytes(self.bytes_per_second)),
            queue_max: Some(self.queue_max as u64),
            wait_ms: Some(self.wait.as_millis() as u64),
            refresh_ms: Some(self.refresh.as_millis() as u64),
            collect_s: Some(self.collect.map_or(0, |every| every.as_secs())),
            older_than_days: self.age_max.map(|age| age.as_secs() / DAY_S),
            stored_max: self.stored_max.map(Bytes),
        }
    }
}

//! What is counted of the archive tier. Owns: the names of the series. Must not know: what is done.

use crate::engine::Engine;
use crate::limits::{ARCHIVE_FETCHES_WAITING_MAX, ARCHIVED_PAGES_MAX};
use crate::telemetry::{counted, shown};
use metrics::{Counter, Gauge};
use std::sync::atomic::Ordering;

/// Handles of what is counted.
pub(super) struct TierCounts {
    pub(super) archived_sessions: Counter,
    pub(super) superseded_sessions: Counter,
    pub(super) postponed: Counter,
    pub(super) given_up_sessions: Counter,
    pub(super) fetched_sessions: Counter,
    pub(super) fetched_pages: Counter,
    pub(super) failed_fetches: Counter,
    refused_fetches: Counter,
    unlisted_sessions: Gauge,
    known_sessions: Gauge,
    known_pages: Gauge,
    waiting_sessions: Gauge,
    waiting_fetches: Gauge,
    waiting_reloads: Gauge,
    distrusting: Gauge,
}

impl TierCounts {
    /// Registers everything once, at start.
    pub(super) fn new(queue_max: usize) -> TierCounts {
        shown("turnkv_archive_limit_waiting_sessions", "Sessions that may wait to be archived")
            .set(queue_max as f64);
        shown("turnkv_archive_limit_fetching_sessions", "Archived sessions that may wait to be brought back")
            .set(ARCHIVE_FETCHES_WAITING_MAX as f64);
        shown("turnkv_archive_limit_known_pages", "Pages of archived sessions that may be known in memory")
            .set(ARCHIVED_PAGES_MAX as f64);
        TierCounts {
            archived_sessions: counted(
                "turnkv_archive_archived_sessions_total",
                "Sessions archived by themselves",
            ),
            superseded_sessions: counted(
                "turnkv_archive_superseded_sessions_total",
                "Archived sessions deleted because a later turn of them was archived",
            ),
            postponed: counted(
                "turnkv_archive_postponed_total",
                "Times that archiving waited because the store did not answer, or refused",
            ),
            given_up_sessions: counted(
                "turnkv_archive_given_up_sessions_total",
                "Sessions that were to be archived and can not be: a log line says why",
            ),
            fetched_sessions: counted(
                "turnkv_archive_fetched_sessions_total",
                "Archived sessions of which pages were brought back for a turn",
            ),
            fetched_pages: counted(
                "turnkv_archive_fetched_pages_total",
                "Pages brought back from the archive for a turn",
            ),
            failed_fetches: counted(
                "turnkv_archive_failed_fetches_total",
                "Archived sessions that a turn wanted and that could not be brought back",
            ),
            refused_fetches: counted(
                "turnkv_archive_refused_fetches_total",
                "Times that a turn wanted an archived session and too many waited",
            ),
            unlisted_sessions: shown(
                "turnkv_archive_unlisted_sessions",
                "Archived sessions that turns do not find because there is no room to know them",
            ),
            known_sessions: shown("turnkv_archive_known_sessions", "Archived sessions that turns find"),
            known_pages: shown(
                "turnkv_archive_known_pages",
                "Pages of archived sessions that turns find, a shared one in each",
            ),
            waiting_sessions: shown("turnkv_archive_waiting_sessions", "Sessions that wait to be archived"),
            waiting_fetches: shown(
                "turnkv_archive_fetching_sessions",
                "Archived sessions that wait to be brought back",
            ),
            waiting_reloads: shown(
                "turnkv_archive_waiting_operations",
                "Reloads that wait for pages that only the archive has",
            ),
            distrusting: shown(
                "turnkv_archive_distrusting_servers",
                "1: turns are not told of the archive for now, because its store does not answer, or is slow",
            ),
        }
    }

    /// Brings the gauges up to date.
    pub(super) fn look(&self, engine: &Engine, waiting: usize) {
        let archived = &engine.archived;
        {
            let index = archived.index.read();
            self.known_sessions.set(index.sessions() as f64);
            self.known_pages.set(index.pages() as f64);
        }
        self.waiting_sessions.set((archived.asked_count() + waiting) as f64);
        self.waiting_fetches.set(archived.waiting_fetches() as f64);
        self.waiting_reloads.set(archived.waiting_reloads.load(Ordering::Relaxed) as f64);
        self.refused_fetches.absolute(archived.refused_fetches.load(Ordering::Relaxed));
        let distrusted = !archived.is_trusted(engine.moment_after(std::time::Duration::ZERO));
        self.distrusting.set(f64::from(u8::from(distrusted)));
    }

    /// So many archived sessions are not known.
    pub(super) fn unlisted(&self, sessions: usize) {
        self.unlisted_sessions.set(sessions as f64);
    }
}

//! Sessions into the archive, one at a time and at a rate. Owns: which is next, what of it is captured, what it supersedes. Must not know:
//! the rules of turns.
//!
//! 1. Those that somebody asked for come first, then those at rest that the engine finds.
//! 2. One of which all pages are archived already is done. So nothing is captured twice.
//! 3. Pages are captured. The bookmark is written, then the manifest, then what it supersedes goes.
//!
//! A store that does not answer, or is full, is asked again after a pause that grows: what waits, waits. Nobody else does. A session for
//! which it did not answer comes after others, and is given up where others are archived between its tries, time and again.

use super::run::{Tier, is_of_store};
use crate::config::ArchivedSessions;
use crate::engine::archived::AskedSession;
use crate::engine::session::SessionKey;
use crate::limits::{ARCHIVE_FOUND_MAX, ARCHIVE_LATE_MAX, ARCHIVE_LOOK_MS, ARCHIVE_TRIES_MAX};
use crate::snapshots::header::header_of;
use crate::snapshots::plan::{Plan, TokensOf};
use crate::snapshots::read::PageReader;
use crate::snapshots::take::{TakeFault, Taking};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use turnkv_archive::{Bookmark, Error as Fault, ListedBookmark, PageMark};
use turnkv_pool::{PageOutline, RestingWalk};
use turnkv_proto::{BlockHash, CheckedSpec, Error, ErrorKind};

/// A session to be archived.
enum Job {
    Asked(AskedSession),
    Found(SessionKey),
}

/// A session for which the store did not answer.
struct Late {
    job: Job,
    /// How often it did not though others had been archived since the time before.
    tries: u32,
    /// Sessions that had been archived when it did not the last time.
    archived: u64,
}

impl Late {
    /// The store did not answer for it, and has taken so many others by now: whether it will not the next time either.
    fn is_hopeless(&mut self, archived: u64) -> bool {
        self.tries += u32::from(self.archived < archived);
        self.archived = archived;
        self.tries >= ARCHIVE_TRIES_MAX
    }
}

/// Why a session is not archived.
enum KeepFault {
    /// The archive says so.
    Archive(Fault),
    /// The pool does.
    Pool(Error),
}

impl From<Fault> for KeepFault {
    fn from(fault: Fault) -> KeepFault {
        KeepFault::Archive(fault)
    }
}

impl From<Error> for KeepFault {
    fn from(error: Error) -> KeepFault {
        KeepFault::Pool(error)
    }
}

impl Job {
    fn of(&self) -> SessionKey {
        match self {
            Job::Asked(AskedSession { namespace, session, .. }) => {
                SessionKey { namespace: *namespace, session: session.clone() }
            }
            Job::Found(of) => of.clone(),
        }
    }
}

impl Tier {
    /// Archives one session after another.
    pub(super) async fn keep_sessions(&self) {
        let (mut found, mut walk, mut late) = (VecDeque::new(), RestingWalk::default(), VecDeque::new());
        let mut archived = 0;
        loop {
            self.found_waiting.store(found.len() + late.len(), Ordering::Relaxed);
            let Some(mut next) = self.next_session(&mut found, &mut late, archived) else {
                let asked = self.engine().archived.asked_bell.notified();
                // That the time is over is as good a reason.
                drop(timeout(Duration::from_millis(ARCHIVE_LOOK_MS), asked).await);
                if self.config().keep == ArchivedSessions::All {
                    found.extend(self.look_for_sessions(&mut walk).await);
                }
                continue;
            };
            match self.keep_one(&next.job).await {
                Ok(is_new) => archived += u64::from(is_new),
                Err(fault) if next.is_hopeless(archived) => {
                    self.give_up(&next.job.of(), KeepFault::Archive(fault));
                }
                Err(_) => {
                    late.push_back(next);
                    continue;
                }
            }
            if let Job::Asked(asked) = next.job
                && asked.is_last
                && let Err(error) = self.engine().close_archived(&asked)
            {
                tracing::debug!(%error, "a session that was archived is closed already");
            }
        }
    }

    /// The next session: one that somebody asked for, one that was found, one that is late.
    fn next_session(
        &self,
        found: &mut VecDeque<SessionKey>,
        late: &mut VecDeque<Late>,
        archived: u64,
    ) -> Option<Late> {
        if late.len() >= ARCHIVE_LATE_MAX {
            return late.pop_front();
        }
        let asked = self.engine().archived.next_asked().map(Job::Asked);
        let new = asked.or_else(|| found.pop_front().map(Job::Found));
        new.map(|job| Late { job, tries: 0, archived }).or_else(|| late.pop_front())
    }

    /// Archives a session, or gives it up; whether the store has it now and had not. Fails, after a pause, where the store did not answer.
    async fn keep_one(&self, job: &Job) -> Result<bool, Fault> {
        let of = job.of();
        loop {
            match self.keep(&of).await {
                Ok(is_new) => {
                    self.postponing.reset();
                    if is_new {
                        self.distrust.reset();
                    }
                    return Ok(is_new);
                }
                Err(KeepFault::Archive(fault)) if is_of_store(&fault) => {
                    self.counts.postponed.increment(1);
                    self.store_failed(&fault);
                    let pause = self.postponing.next();
                    tracing::warn!(%fault, pause_s = pause.as_secs(), "archiving waits for the store");
                    sleep(pause).await;
                    return Err(fault);
                }
                Err(KeepFault::Pool(Error { kind: ErrorKind::Busy { .. }, .. })) => {
                    self.counts.postponed.increment(1);
                    sleep(self.postponing.next()).await;
                }
                Err(fault) => {
                    self.give_up(&of, fault);
                    return Ok(false);
                }
            }
        }
    }

    fn give_up(&self, of: &SessionKey, fault: KeepFault) {
        self.counts.given_up_sessions.increment(1);
        let text = match fault {
            KeepFault::Pool(error) => error.to_string(),
            KeepFault::Archive(fault) => {
                self.snapshots.counts.failed(&fault);
                fault.to_string()
            }
        };
        tracing::warn!(session = of.session.as_str(), fault = text, "a session is not archived");
    }

    /// Sessions at rest that are not archived as they are.
    async fn look_for_sessions(&self, walk: &mut RestingWalk) -> Vec<SessionKey> {
        let (engine, mut at) = (Arc::clone(self.engine()), std::mem::take(walk));
        let (pages_min, idle) = (self.config().pages_min, self.config().idle);
        let looked = tokio::task::spawn_blocking(move || {
            let found = engine.resting(&mut at, pages_min, idle);
            let index = engine.archived.index.read();
            let is_archived = |of: &SessionKey, pages: u32, last: &BlockHash| {
                index.session(&of.namespace, &of.session).is_some_and(|one| one.has(pages, last))
            };
            let new = found.into_iter().filter(|(of, pages, last)| !is_archived(of, *pages, last));
            let new: Vec<SessionKey> = new.map(|(of, ..)| of).take(ARCHIVE_FOUND_MAX).collect();
            drop(index);
            (at, new)
        });
        match looked.await {
            Ok((at, new)) => {
                *walk = at;
                new
            }
            Err(error) => {
                tracing::warn!(%error, "a look for sessions to archive ended early");
                Vec::new()
            }
        }
    }

    /// Archives a session as it is now. False: nothing was to be done, as it is gone, or is archived.
    async fn keep(&self, of: &SessionKey) -> Result<bool, KeepFault> {
        let engine = Arc::clone(self.engine());
        let (key, spec) = (of.clone(), engine.namespace_spec(&of.namespace));
        let Ok(spec) = spec else { return Ok(false) };
        let outlined = tokio::task::spawn_blocking(move || engine.session_outline(&key)).await;
        let outlined = outlined.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let chain = match outlined {
            Err(Error { kind: ErrorKind::SessionUnknown, .. }) => return Ok(false),
            chain => chain?,
        };
        if chain.is_empty() || self.is_archived(of, &chain) {
            return Ok(false);
        }
        let directory = self.snapshots.directory_of(spec.tenant())?;
        let name = turnkv_archive::SessionName::of(&of.namespace, of.session.as_str());
        let older = directory.list_of(name).await?;
        // Another server may have archived it since the directory was looked at; the newest that it ended counts.
        for one in older.iter().rev() {
            match directory.read_whole(*one).await {
                Ok(bookmark) => {
                    self.learn(*one, bookmark);
                    break;
                }
                Err(Fault::NotFound { .. } | Fault::Damaged { .. }) => {}
                Err(fault) => return Err(fault.into()),
            }
        }
        self.index_changed();
        if self.is_archived(of, &chain) {
            return Ok(false);
        }
        self.capture(of, &spec, &chain, &older).await
    }

    /// Whether the archive has all these pages as the session's.
    fn is_archived(&self, of: &SessionKey, chain: &[PageOutline]) -> bool {
        let index = self.engine().archived.index.read();
        let known = index.session(&of.namespace, &of.session);
        known.zip(chain.last()).is_some_and(|(known, last)| known.has(chain.len() as u32, &last.hash))
    }

    async fn capture(
        &self,
        of: &SessionKey,
        spec: &CheckedSpec,
        chain: &[PageOutline],
        older: &[ListedBookmark],
    ) -> Result<bool, KeepFault> {
        let plan = Plan::of_chain(of.session.as_str(), chain, spec.page_tokens());
        let archive = self.snapshots.archive_of(spec.tenant()).await?;
        let mut capture = archive.capture(header_of(spec)?).await?;
        let reader = PageReader::of(self.engine(), spec)?;
        let page_bytes = reader.page_bytes();
        let mut taking = Taking::new(&mut capture, reader, self.snapshots.config().inflight_bytes);
        for some in taking.parts(&plan.pages) {
            self.pace.spend(some.len() as u64 * page_bytes).await;
            taking.take(some).await.map_err(|fault| match fault {
                TakeFault::Pool(error) => KeepFault::Pool(error),
                TakeFault::Archive(fault) => KeepFault::Archive(fault),
            })?;
        }
        let taken = taking.taken();
        let whole: Vec<PageOutline> =
            chain.iter().zip(&taken).map_while(|(page, number)| number.is_some().then_some(*page)).collect();
        // Its pages left the pool meanwhile, all or those that are not archived.
        if whole.is_empty() || self.is_archived(of, &whole) {
            return Ok(false);
        }
        let marks = whole.iter().map(|page| PageMark::of(&page.hash)).collect();
        let session = of.session.as_str().to_owned();
        let bookmark = Bookmark { namespace: of.namespace, session, pages: marks };
        let directory = self.snapshots.directory_of(spec.tenant())?;
        let at = directory.write(capture.id(), &bookmark).await?;
        capture.mark_bookmarked();
        plan.sequences(&taken, &mut TokensOf::new()).into_iter().for_each(|one| capture.sequence(one));
        let (manifest, counts) = capture.finish().await?;
        self.snapshots.counts.captured_pages.increment(manifest.pages.len() as u64);
        self.snapshots.counts.captured_bytes.increment(manifest.page_bytes());
        self.snapshots.counts.stored_bytes.increment(counts.stored_bytes);
        self.counts.archived_sessions.increment(1);
        self.learn(at, bookmark);
        self.index_changed();
        for old in older {
            directory.retire(*old).await?;
            self.counts.superseded_sessions.increment(1);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;

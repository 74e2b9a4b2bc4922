//! Restore: a snapshot's pages come back, and then its sessions. Owns: the verb's order, and the check that what comes back is what
//! the namespace is. Must not know: how pages are read or stored.
//!
//! 1. What the snapshot says of its namespace must be so, and be the namespace's that is asked for.
//! 2. Pages are read, compared with their SHA-256, and stored, parents first.
//! 3. When all are there, each session is made at once with all its pages.
//!
//! What ends before the third step leaves pages and no session. They are whole pages under their own names: the policy takes them like
//! any others that nobody uses, and a restore that is made again finds them.

use super::Snapshots;
use super::counts::SnapshotVerb;
use super::header::namespace_of;
use super::progress::{PagesDone, Tell};
use super::room::Operation;
use super::spec_text::differences;
use super::storing::Storing;
use super::summary::{SnapshotSummary, summary_of};
use super::write::WrittenPages;
use crate::engine::session::SessionKey;
use crate::engine::snapshot::{WholeSession, session_exists};
use std::collections::BTreeSet;
use std::sync::Arc;
use turnkv_archive::{Archive, Manifest, ObjectId, Sequence};
use turnkv_proto::{BlockHash, CheckedSpec, Error, ErrorKind, NamespaceId, SessionId};

/// What is to come back.
pub(crate) struct RestoreSnapshot {
    /// Whose archive it is in.
    pub(crate) tenant: String,
    /// Which snapshot.
    pub(crate) snapshot: ObjectId,
    /// Into this namespace; none: into its own, which is opened.
    pub(crate) namespace: Option<NamespaceId>,
    /// This sequence alone.
    pub(crate) sequence: Option<String>,
    /// What its session is called; none: as the sequence.
    pub(crate) session: Option<SessionId>,
    /// No session is made.
    pub(crate) pages_only: bool,
}

/// What came back.
pub(crate) struct RestoredSnapshot {
    /// The snapshot.
    pub(crate) summary: SnapshotSummary,
    /// Pages that are new in the pool.
    pub(crate) stored_pages: u64,
    /// Pages that were there.
    pub(crate) present_pages: u64,
    /// Sessions that were made.
    pub(crate) sessions: Vec<String>,
}

/// A session to be made.
struct ComingSession<'a> {
    of: SessionKey,
    sequence: &'a Sequence,
}

impl Snapshots {
    /// Brings a snapshot back.
    pub(crate) async fn restore(
        &self,
        ask: RestoreSnapshot,
        tell: Tell<'_, PagesDone>,
    ) -> Result<RestoredSnapshot, Error> {
        let operation = self.begin(SnapshotVerb::Restore)?;
        let archive = operation.archive(&ask.tenant).await?;
        let described = archive.describe(ask.snapshot).await;
        let manifest = Arc::new(described.map_err(|fault| operation.refuse(fault))?);
        let spec = namespace_of(&manifest.header, &ask.tenant)?;
        self.check_namespace(&spec, ask.namespace.as_ref())?;
        let sequences = chosen(&manifest, &ask)?;
        self.open(&spec).await?;
        let sessions = self.coming_sessions(&ask, &spec, &sequences)?;
        let pages = match ask.sequence {
            None => (0..manifest.pages.len()).collect(),
            Some(_) => pages_of(&sequences),
        };
        let written = self.restore_pages(&operation, &archive, &spec, &manifest, pages, tell).await?;
        let mut made = Vec::with_capacity(sessions.len());
        for session in &sessions {
            self.make_session(&manifest, session)?;
            made.push(session.of.session.as_str().to_owned());
        }
        operation.done();
        let summary = summary_of(&manifest);
        let WrittenPages { stored: stored_pages, present: present_pages } = written;
        Ok(RestoredSnapshot { summary, stored_pages, present_pages, sessions: made })
    }

    /// Fails, with the fields that differ, unless the namespace asked for is the snapshot's own.
    fn check_namespace(&self, spec: &CheckedSpec, asked: Option<&NamespaceId>) -> Result<(), Error> {
        let Some(asked) = asked.filter(|asked| **asked != spec.id()) else { return Ok(()) };
        let mut fields = differences(spec, &self.engine.namespace_spec(asked)?);
        if fields.is_empty() {
            fields.push(format!("its id is {} and that of the namespace {asked}", spec.id()));
        }
        let text = format!("namespace: the snapshot is not of this one: {}", fields.join("; "));
        Err(Error::invalid(text))
    }

    /// Opens the namespace, as whoever restores into it would. It is written to the catalog: not on an async thread.
    async fn open(&self, spec: &CheckedSpec) -> Result<(), Error> {
        let (engine, spec) = (Arc::clone(&self.engine), spec.clone());
        let opened = tokio::task::spawn_blocking(move || engine.open_namespace(&spec)).await;
        opened.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?
    }

    /// The sessions that are to be made; refused where one is there.
    fn coming_sessions<'a>(
        &self,
        ask: &RestoreSnapshot,
        spec: &CheckedSpec,
        sequences: &[&'a Sequence],
    ) -> Result<Vec<ComingSession<'a>>, Error> {
        if ask.pages_only {
            return Ok(Vec::new());
        }
        let mut sessions = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let session = match &ask.session {
                Some(session) => session.clone(),
                None => SessionId::parse(&sequence.id)?,
            };
            let of = SessionKey { namespace: spec.id(), session };
            if self.engine.has_session(&of)? {
                return Err(session_exists(of.session.as_str()));
            }
            sessions.push(ComingSession { of, sequence });
        }
        Ok(sessions)
    }

    async fn restore_pages(
        &self,
        operation: &Operation<'_>,
        archive: &Archive,
        spec: &CheckedSpec,
        manifest: &Arc<Manifest>,
        pages: Vec<usize>,
        tell: Tell<'_, PagesDone>,
    ) -> Result<WrittenPages, Error> {
        let refuse = |fault| operation.refuse(fault);
        let storing = Storing::new(&self.engine, spec, self.config().inflight_bytes)?;
        let page_bytes = storing.page_bytes();
        let mut done = PagesDone { pages: pages.len() as u64, page_bytes, ..PagesDone::default() };
        tell(done);
        let mut told = |pages: u64, WrittenPages { stored, present }| {
            self.counts.restored_pages.increment(stored + present);
            self.counts.restored_bytes.increment((stored + present) * page_bytes);
            done.pages_done += pages;
            tell(done);
        };
        storing.store(archive, manifest, pages, &refuse, &mut told).await
    }

    fn make_session(&self, manifest: &Manifest, session: &ComingSession<'_>) -> Result<(), Error> {
        let pages = session.sequence.pages.iter();
        let hashes: Vec<BlockHash> =
            pages.filter_map(|ix| manifest.pages.get(*ix as usize)).map(|page| page.hash).collect();
        let tail = session.sequence.last_page_tokens;
        let tail_tokens = if tail < manifest.header.page_tokens { tail } else { 0 };
        self.engine.make_session(&WholeSession { of: &session.of, hashes: &hashes, tail_tokens })
    }
}

/// The sequences that are to come back.
fn chosen<'a>(manifest: &'a Manifest, ask: &RestoreSnapshot) -> Result<Vec<&'a Sequence>, Error> {
    let sequences: Vec<&Sequence> = match &ask.sequence {
        None => manifest.sequences.iter().collect(),
        Some(name) => {
            let found = manifest.sequences.iter().find(|sequence| sequence.id == *name);
            let missing = || Error::invalid(format!("sequence: the snapshot has none called {name:?}"));
            vec![found.ok_or_else(missing)?]
        }
    };
    if ask.session.is_some() && sequences.len() != 1 {
        let text = format!(
            "session: the snapshot has {} sequences and one of them can have this name: name the sequence as well",
            sequences.len()
        );
        return Err(Error::invalid(text));
    }
    Ok(sequences)
}

/// The pages of sequences, each once, parents before children.
fn pages_of(sequences: &[&Sequence]) -> Vec<usize> {
    let pages: BTreeSet<usize> =
        sequences.iter().flat_map(|sequence| &sequence.pages).map(|ix| *ix as usize).collect();
    pages.into_iter().collect()
}

#[cfg(test)]
mod tests;

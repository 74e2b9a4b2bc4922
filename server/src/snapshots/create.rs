//! Create: pages of the pool become a snapshot. Owns: the verb's order. Must not know: how pages are read or written.

use super::Snapshots;
use super::counts::SnapshotVerb;
use super::header::header_of;
use super::plan::{Plan, TokensOf};
use super::progress::{PagesDone, Tell};
use super::read::PageReader;
use super::room::Operation;
use super::summary::{SnapshotSummary, summary_of};
use super::take::Taking;
use crate::engine::Engine;
use crate::engine::session::SessionKey;
use std::sync::Arc;
use turnkv_archive::limits::{MANIFEST_PAGES_MAX, SEQUENCES_MAX};
use turnkv_archive::{Archive, Capture, CaptureCounts, Manifest};
use turnkv_pool::PageOutline;
use turnkv_proto::{BlockHash, CheckedSpec, Error, ErrorKind, NamespaceId, SessionId};

/// What is to be captured.
pub(crate) struct CreateSnapshot {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// What of it.
    pub(crate) what: CaptureWish,
    /// Token ids of its sequences.
    pub(crate) tokens: TokensOf,
}

/// What of a namespace.
pub(crate) enum CaptureWish {
    /// A session's leading pages that are present.
    Session(SessionId),
    /// These pages, and how their sequence is called.
    Prefix(Vec<BlockHash>, SessionId),
    /// All pages and sessions.
    Everything,
}

/// A snapshot that was made.
pub(crate) struct CreatedSnapshot {
    /// What it is.
    pub(crate) summary: SnapshotSummary,
    /// Pages that were wanted and were not there.
    pub(crate) missing_pages: u64,
    /// What was written for it.
    pub(crate) counts: CaptureCounts,
}

impl Snapshots {
    /// Captures pages of an open namespace. There is no snapshot until it returns one.
    pub(crate) async fn create(
        &self,
        mut ask: CreateSnapshot,
        tell: Tell<'_, PagesDone>,
    ) -> Result<CreatedSnapshot, Error> {
        let operation = self.begin(SnapshotVerb::Create)?;
        let spec = self.engine.namespace_spec(&ask.namespace)?;
        let (engine, namespace, page_tokens) = (Arc::clone(&self.engine), ask.namespace, spec.page_tokens());
        // It may go over the whole index: not on an async thread.
        let planned =
            tokio::task::spawn_blocking(move || plan(&engine, &namespace, &ask.what, page_tokens)).await;
        let (plan, absent) =
            planned.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))??;
        if plan.pages.is_empty() {
            return Err(Error::invalid("none of the pages is in the pool: there is nothing to capture"));
        }
        plan.check_tokens(&ask.tokens)?;
        let archive = operation.archive(spec.tenant()).await?;
        let (manifest, counts, lost) =
            self.capture(&operation, &archive, &spec, plan, &mut ask.tokens, tell).await?;
        self.counts.captured_pages.increment(manifest.pages.len() as u64);
        self.counts.captured_bytes.increment(manifest.page_bytes());
        self.counts.stored_bytes.increment(counts.stored_bytes);
        operation.done();
        Ok(CreatedSnapshot { summary: summary_of(&manifest), missing_pages: absent + lost, counts })
    }

    /// Reads the pages and writes the snapshot. Also how many pages were gone before they were read.
    async fn capture(
        &self,
        operation: &Operation<'_>,
        archive: &Archive,
        spec: &CheckedSpec,
        plan: Plan,
        tokens: &mut TokensOf,
        tell: Tell<'_, PagesDone>,
    ) -> Result<(Manifest, CaptureCounts, u64), Error> {
        let refuse = |fault| operation.refuse(fault);
        let mut capture = archive.capture(header_of(spec)?).await.map_err(refuse)?;
        let reader = PageReader::of(&self.engine, spec)?;
        let mut done = PagesDone {
            pages: plan.pages.len() as u64,
            page_bytes: reader.page_bytes(),
            ..PagesDone::default()
        };
        tell(done);
        let mut taking = Taking::new(&mut capture, reader, self.config().inflight_bytes);
        for some in taking.parts(&plan.pages) {
            taking.take(some).await.map_err(|fault| fault.told(&refuse))?;
            done.pages_done += some.len() as u64;
            tell(done);
        }
        let taken = taking.taken();
        let lost = taken.iter().filter(|number| number.is_none()).count() as u64;
        if lost == taken.len() as u64 {
            return Err(Error::invalid("all pages left the pool before they could be captured"));
        }
        finish(&mut capture, plan, &taken, tokens);
        let (manifest, counts) = capture.finish().await.map_err(refuse)?;
        Ok((manifest, counts, lost))
    }
}

fn finish(capture: &mut Capture, plan: Plan, taken: &[Option<u32>], tokens: &mut TokensOf) {
    for sequence in plan.sequences(taken, tokens) {
        capture.sequence(sequence);
    }
}

/// What is to be captured, and how many pages that were named are not there. Blocking.
fn plan(
    engine: &Engine,
    namespace: &NamespaceId,
    what: &CaptureWish,
    page_tokens: u32,
) -> Result<(Plan, u64), Error> {
    match what {
        CaptureWish::Session(session) => {
            let of = SessionKey { namespace: *namespace, session: session.clone() };
            Ok((Plan::of_chain(session.as_str(), &engine.session_outline(&of)?, page_tokens), 0))
        }
        CaptureWish::Prefix(hashes, name) => {
            let chain = engine.prefix_outline(namespace, hashes)?;
            let absent = (hashes.len() - chain.len()) as u64;
            Ok((Plan::of_chain(name.as_str(), &chain, page_tokens), absent))
        }
        CaptureWish::Everything => Ok((plan_everything(engine, namespace, page_tokens)?, 0)),
    }
}

fn plan_everything(engine: &Engine, namespace: &NamespaceId, page_tokens: u32) -> Result<Plan, Error> {
    let (names, total) = engine.session_names_of(namespace)?;
    let too_many = |count: u64, what: &str, most: usize| {
        let text = format!(
            "the namespace has {count} {what} and a snapshot holds {most}: capture its sessions one by one"
        );
        Err(Error::new(ErrorKind::Limit, text))
    };
    if total > SEQUENCES_MAX as u64 {
        return too_many(total, "sessions", SEQUENCES_MAX);
    }
    let mut sessions: Vec<(String, Vec<PageOutline>)> = Vec::with_capacity(names.len());
    for session in names {
        let name = session.as_str().to_owned();
        match engine.session_outline(&SessionKey { namespace: *namespace, session }) {
            Ok(chain) => sessions.push((name, chain)),
            // It was closed since it was listed.
            Err(Error { kind: ErrorKind::SessionUnknown, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let all = engine.namespace_outline(namespace, MANIFEST_PAGES_MAX)?;
    if all.len() > MANIFEST_PAGES_MAX {
        return too_many(all.len() as u64, "pages or more", MANIFEST_PAGES_MAX);
    }
    Ok(Plan::of_all(all, &sessions, page_tokens))
}

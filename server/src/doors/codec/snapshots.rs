//! The snapshot verbs on the wire. Owns: their messages. Must not know: archives' objects.

use crate::access::Guest;
use crate::limits::SNAPSHOT_TOKENS_MAX;
use crate::snapshots::collect::Collected;
use crate::snapshots::create::{CaptureWish, CreateSnapshot, CreatedSnapshot};
use crate::snapshots::describe::{DescribeSnapshot, DescribedSnapshot, SequenceSummary};
use crate::snapshots::export::{ExportSnapshot, Exported};
use crate::snapshots::fork::ForkSnapshot;
use crate::snapshots::import::ImportedSnapshot;
use crate::snapshots::list::{ListSnapshots, ListedSnapshot, SnapshotList};
use crate::snapshots::progress::PagesDone;
use crate::snapshots::restore::{RestoreSnapshot, RestoredSnapshot};
use crate::snapshots::summary::SnapshotSummary;
use crate::snapshots::verify::VerifySnapshots;
use std::collections::BTreeMap;
use std::time::Duration;
use turnkv_archive::{CollectLimits, ObjectId, VerifyFault, VerifyProgress, VerifyReport};
use turnkv_proto::{Error, SessionId, pack_hashes, unpack_hashes, wire};

/// The snapshot that a message names.
pub(crate) fn snapshot(name: &str) -> Result<ObjectId, Error> {
    let bad =
        || Error::invalid(format!("snapshot: {name:?} is not a name of 32 lowercase hexadecimal digits"));
    ObjectId::parse(name).ok_or_else(bad)
}

fn optional_snapshot(name: &str) -> Result<Option<ObjectId>, Error> {
    if name.is_empty() { Ok(None) } else { snapshot(name).map(Some) }
}

/// The tenant that a message names.
fn tenant(name: String, guest: &Guest) -> Result<String, Error> {
    guest.tenant(&name)?;
    Ok(name)
}

fn optional_text(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Decodes a Create.
pub(crate) fn create(raw: wire::CreateSnapshotRequest, guest: &Guest) -> Result<CreateSnapshot, Error> {
    use wire::create_snapshot_request::What;
    let namespace = guest.namespace(&raw.namespace)?;
    let what = match raw.what {
        Some(What::Session(session)) => CaptureWish::Session(SessionId::parse(&session)?),
        Some(What::Prefix(wire::SnapshotPrefix { hashes, name })) => {
            let hashes = unpack_hashes(&hashes)?;
            if hashes.is_empty() {
                return Err(Error::invalid("prefix: it names no page"));
            }
            CaptureWish::Prefix(hashes, SessionId::parse(&name)?)
        }
        Some(What::Everything(true)) => CaptureWish::Everything,
        Some(What::Everything(false)) | None => {
            return Err(Error::invalid("name what is to be captured: a session, a prefix, or everything"));
        }
    };
    let count: usize = raw.tokens.iter().map(|sequence| sequence.tokens.len()).sum();
    if count > SNAPSHOT_TOKENS_MAX {
        let text = format!("tokens: {count} ids in one call, which takes {SNAPSHOT_TOKENS_MAX}");
        return Err(Error::invalid(text));
    }
    let mut tokens = BTreeMap::new();
    for sequence in raw.tokens {
        if tokens.contains_key(&sequence.sequence) {
            return Err(Error::invalid(format!("tokens: {:?} is named twice", sequence.sequence)));
        }
        tokens.insert(sequence.sequence, sequence.tokens);
    }
    Ok(CreateSnapshot { namespace, what, tokens })
}

/// Encodes how far one is.
pub(crate) fn creating(done: PagesDone) -> wire::CreateSnapshotReply {
    wire::CreateSnapshotReply { progress: Some(progress(done)), ..Default::default() }
}

/// Encodes its answer.
pub(crate) fn created(created: CreatedSnapshot) -> wire::CreateSnapshotReply {
    wire::CreateSnapshotReply {
        progress: None,
        snapshot: Some(summary(created.summary)),
        missing_pages: created.missing_pages,
        stored_bytes: created.counts.stored_bytes,
        new_blobs: created.counts.blobs_new,
        reused_blobs: created.counts.blobs_reused,
    }
}

/// Decodes a Restore.
pub(crate) fn restore(raw: wire::RestoreSnapshotRequest, guest: &Guest) -> Result<RestoreSnapshot, Error> {
    Ok(RestoreSnapshot {
        namespace: guest.optional_namespace(&raw.namespace)?,
        tenant: tenant(raw.tenant, guest)?,
        snapshot: snapshot(&raw.snapshot)?,
        sequence: optional_text(raw.sequence),
        session: super::optional_session(&raw.session)?,
        pages_only: raw.pages_only,
    })
}

/// Encodes how far one is.
pub(crate) fn restoring(done: PagesDone) -> wire::RestoreSnapshotReply {
    wire::RestoreSnapshotReply { progress: Some(progress(done)), ..Default::default() }
}

/// Encodes its answer.
pub(crate) fn restored(restored: RestoredSnapshot) -> wire::RestoreSnapshotReply {
    wire::RestoreSnapshotReply {
        progress: None,
        snapshot: Some(summary(restored.summary)),
        stored_pages: restored.stored_pages,
        present_pages: restored.present_pages,
        sessions: restored.sessions,
    }
}

/// Decodes a List.
pub(crate) fn list(raw: wire::ListSnapshotsRequest, guest: &Guest) -> Result<ListSnapshots, Error> {
    let limit = (raw.limit > 0).then_some(raw.limit as usize);
    Ok(ListSnapshots { tenant: tenant(raw.tenant, guest)?, after: optional_snapshot(&raw.after)?, limit })
}

/// Encodes its answer.
pub(crate) fn listed(list: SnapshotList) -> wire::ListSnapshotsReply {
    let one = |one: ListedSnapshot| {
        let (found, fault) = match one.summary {
            Ok(found) => (Some(summary(found)), String::new()),
            Err(fault) => (None, fault),
        };
        wire::ListedSnapshot {
            snapshot: one.found.id.to_string(),
            stored_unix_ms: u64::try_from(one.found.stored_unix_ms).unwrap_or(0),
            manifest_bytes: one.found.manifest_bytes,
            summary: found,
            fault,
        }
    };
    let snapshots = list.snapshots.into_iter().map(one).collect();
    wire::ListSnapshotsReply { snapshots, total: list.total, more: list.more }
}

/// Decodes a Describe.
pub(crate) fn describe(raw: wire::DescribeSnapshotRequest, guest: &Guest) -> Result<DescribeSnapshot, Error> {
    Ok(DescribeSnapshot {
        tenant: tenant(raw.tenant, guest)?,
        snapshot: snapshot(&raw.snapshot)?,
        sequence: optional_text(raw.sequence),
        from_page: raw.from_page as usize,
    })
}

/// Encodes its answer.
pub(crate) fn described(described: DescribedSnapshot) -> wire::DescribeSnapshotReply {
    let sequence = |one: SequenceSummary| wire::SnapshotSequence {
        sequence: one.name,
        pages: one.pages,
        last_page_tokens: one.last_page_tokens,
        tokens: one.tokens,
        has_tokens: one.has_tokens,
    };
    wire::DescribeSnapshotReply {
        snapshot: Some(summary(described.summary)),
        sequences: described.sequences.into_iter().map(sequence).collect(),
        layout: described.layout,
        dtype: described.dtype,
        hashes: pack_hashes(&described.hashes).into(),
        tokens: described.tokens,
        next_page: described.next_page.unwrap_or(0),
        unique_bytes: described.unique_bytes,
    }
}

/// Decodes a Verify.
pub(crate) fn verify(raw: wire::VerifySnapshotsRequest, guest: &Guest) -> Result<VerifySnapshots, Error> {
    Ok(VerifySnapshots { tenant: tenant(raw.tenant, guest)?, snapshot: optional_snapshot(&raw.snapshot)? })
}

/// Encodes how far one is.
pub(crate) fn verifying(done: VerifyProgress) -> wire::VerifySnapshotsReply {
    let VerifyProgress { snapshots_done, snapshots, pages_done } = done;
    wire::VerifySnapshotsReply { snapshots_done, snapshots, pages_done, ..Default::default() }
}

/// Encodes its answer.
pub(crate) fn verified(report: VerifyReport) -> wire::VerifySnapshotsReply {
    let fault = |fault: VerifyFault| wire::SnapshotFault {
        snapshot: fault.snapshot.to_string(),
        in_page: fault.page.is_some(),
        page: fault.page.unwrap_or(0),
        fault: fault.error.to_string(),
    };
    wire::VerifySnapshotsReply {
        snapshots_done: report.snapshots,
        snapshots: report.snapshots,
        pages_done: report.pages,
        finished: true,
        faults_found: report.faults_found,
        faults: report.faults.into_iter().map(fault).collect(),
    }
}

/// Decodes a Fork.
pub(crate) fn fork(raw: wire::ForkSnapshotRequest, guest: &Guest) -> Result<ForkSnapshot, Error> {
    Ok(ForkSnapshot {
        tenant: tenant(raw.tenant, guest)?,
        snapshot: snapshot(&raw.snapshot)?,
        sequence: optional_text(raw.sequence),
        pages: (raw.pages > 0).then_some(raw.pages),
        name: super::optional_session(&raw.name)?,
    })
}

/// Encodes its answer.
pub(crate) fn forked(fork: SnapshotSummary) -> wire::ForkSnapshotReply {
    wire::ForkSnapshotReply { snapshot: Some(summary(fork)) }
}

/// Decodes a Delete: whose, and which.
pub(crate) fn delete(raw: wire::DeleteSnapshotRequest, guest: &Guest) -> Result<(String, ObjectId), Error> {
    Ok((tenant(raw.tenant, guest)?, snapshot(&raw.snapshot)?))
}

/// Decodes a Collect: whose, and which snapshots may go.
pub(crate) fn collect(
    raw: wire::CollectSnapshotsRequest,
    guest: &Guest,
) -> Result<(String, CollectLimits), Error> {
    let limits = CollectLimits {
        snapshot_age_max: (raw.older_than_s > 0).then(|| Duration::from_secs(raw.older_than_s)),
        stored_bytes_max: (raw.stored_bytes_max > 0).then_some(raw.stored_bytes_max),
        sessions_only: false,
    };
    Ok((tenant(raw.tenant, guest)?, limits))
}

/// Encodes its answer.
pub(crate) fn collected(collected: Collected) -> wire::CollectSnapshotsReply {
    const PACKS_NAMED_MAX: usize = turnkv_archive::limits::FAULTS_NAMED_MAX;
    let report = collected.report;
    wire::CollectSnapshotsReply {
        snapshots: report.snapshots,
        snapshots_deleted: report.snapshots_deleted,
        packs_condemned: report.packs_condemned,
        packs_deleted: report.packs_deleted,
        bytes_deleted: report.bytes_deleted,
        bytes_moved: report.bytes_moved,
        bytes_needed: report.bytes_needed,
        blobs_missing: report.blobs_missing,
        packs_damaged: report.packs_damaged.iter().take(PACKS_NAMED_MAX).map(ToString::to_string).collect(),
        grace_ms: collected.grace.as_millis() as u64,
    }
}

/// Decodes an Export.
pub(crate) fn export(raw: wire::ExportSnapshotRequest, guest: &Guest) -> Result<ExportSnapshot, Error> {
    let level = i32::try_from(raw.level).map_err(|_| Error::invalid("level: must be 1 to 22"))?;
    Ok(ExportSnapshot {
        tenant: tenant(raw.tenant, guest)?,
        snapshot: snapshot(&raw.snapshot)?,
        directory: raw.directory,
        level: (level > 0).then_some(level),
    })
}

/// Encodes its answer.
pub(crate) fn exported(exported: Exported) -> wire::ExportSnapshotReply {
    let Exported { directory, counts } = exported;
    wire::ExportSnapshotReply {
        directory: directory.display().to_string(),
        blobs: counts.blobs,
        bytes: counts.bytes,
    }
}

/// Decodes an Import: for whom, and from where.
pub(crate) fn import(raw: wire::ImportSnapshotRequest, guest: &Guest) -> Result<(String, String), Error> {
    Ok((tenant(raw.tenant, guest)?, raw.directory))
}

/// Encodes its answer.
pub(crate) fn imported(imported: ImportedSnapshot) -> wire::ImportSnapshotReply {
    let ImportedSnapshot { summary: found, stored_bytes } = imported;
    wire::ImportSnapshotReply { snapshot: Some(summary(found)), stored_bytes }
}

fn progress(done: PagesDone) -> wire::SnapshotProgress {
    let PagesDone { pages_done, pages, page_bytes } = done;
    let (bytes_done, bytes) = (pages_done * page_bytes, pages * page_bytes);
    wire::SnapshotProgress { pages_done, pages, bytes_done, bytes }
}

fn summary(summary: SnapshotSummary) -> wire::SnapshotSummary {
    wire::SnapshotSummary {
        snapshot: summary.snapshot,
        namespace: summary.namespace.0.to_vec().into(),
        model: summary.model,
        created_unix_s: summary.created_unix_s,
        pages: summary.pages,
        bytes: summary.bytes,
        sequences: summary.sequences,
        first_sequence: summary.first_sequence,
        page_tokens: summary.page_tokens,
        shards: summary.shards,
        shard_bytes: summary.shard_bytes,
    }
}

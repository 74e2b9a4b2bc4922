//! List: which snapshots a tenant has. Owns: how many one answer tells of. Must not know: their pages.

use super::Snapshots;
use super::counts::SnapshotVerb;
use super::summary::{SnapshotSummary, summary_of};
use crate::limits::{SNAPSHOT_LIST_MAX, SNAPSHOT_MANIFESTS_AT_ONCE};
use futures_util::StreamExt;
use turnkv_archive::{Error as Fault, ObjectId, Snapshot};
use turnkv_proto::Error;

/// Which snapshots are there?
pub(crate) struct ListSnapshots {
    /// Of this tenant.
    pub(crate) tenant: String,
    /// Behind this one.
    pub(crate) after: Option<ObjectId>,
    /// So many, within the server's bound; none: as many as that.
    pub(crate) limit: Option<usize>,
}

/// One of them.
pub(crate) struct ListedSnapshot {
    /// As the store has it.
    pub(crate) found: Snapshot,
    /// What it is, or why that can not be read.
    pub(crate) summary: Result<SnapshotSummary, String>,
}

/// Some of them.
pub(crate) struct SnapshotList {
    /// Oldest first.
    pub(crate) snapshots: Vec<ListedSnapshot>,
    /// How many the tenant has.
    pub(crate) total: u64,
    /// There are more behind these.
    pub(crate) more: bool,
}

impl Snapshots {
    /// The snapshots of a tenant, oldest first.
    pub(crate) async fn list(&self, ask: &ListSnapshots) -> Result<SnapshotList, Error> {
        let look = self.begin(SnapshotVerb::List)?;
        let archive = look.archive(&ask.tenant).await?;
        let all = archive.list().await.map_err(|fault| look.refuse(fault))?;
        let total = all.len() as u64;
        let mut some: Vec<Snapshot> =
            all.into_iter().filter(|one| ask.after.is_none_or(|after| one.id > after)).collect();
        some.sort_by_key(|one| one.id);
        let limit = ask.limit.map_or(SNAPSHOT_LIST_MAX, |limit| limit.min(SNAPSHOT_LIST_MAX));
        let more = some.len() > limit;
        some.truncate(limit);
        let reads = some.into_iter().map(|found| {
            let archive = archive.clone();
            async move { (found, archive.describe(found.id).await) }
        });
        let mut reads = futures_util::stream::iter(reads).buffered(SNAPSHOT_MANIFESTS_AT_ONCE);
        let mut snapshots = Vec::new();
        while let Some((found, read)) = reads.next().await {
            let summary = match read {
                Ok(manifest) => Ok(summary_of(&manifest)),
                // Deleted since it was listed.
                Err(Fault::NotFound { .. }) => continue,
                Err(fault) if fault.may_pass() => return Err(look.refuse(fault)),
                Err(fault) => Err(fault.to_string()),
            };
            snapshots.push(ListedSnapshot { found, summary });
        }
        look.done();
        Ok(SnapshotList { snapshots, total, more })
    }
}

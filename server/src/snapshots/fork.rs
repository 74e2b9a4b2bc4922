//! Fork: a snapshot that is the beginning of another's sequence. Owns: which sequence is meant. Must not know: blobs.

use super::Snapshots;
use super::counts::SnapshotVerb;
use super::summary::{SnapshotSummary, summary_of};
use turnkv_archive::{Cut, Manifest, ObjectId, Sequence};
use turnkv_proto::{Error, SessionId};

/// What is to be forked.
pub(crate) struct ForkSnapshot {
    /// Whose.
    pub(crate) tenant: String,
    /// Which snapshot.
    pub(crate) snapshot: ObjectId,
    /// Which sequence of it; none: its only one.
    pub(crate) sequence: Option<String>,
    /// So many leading pages; none: all.
    pub(crate) pages: Option<u32>,
    /// What the fork's sequence is called; none: the same.
    pub(crate) name: Option<SessionId>,
}

impl Snapshots {
    /// Makes a snapshot of the beginning of another.
    pub(crate) async fn fork(&self, ask: &ForkSnapshot) -> Result<SnapshotSummary, Error> {
        let operation = self.begin(SnapshotVerb::Fork)?;
        let archive = operation.archive(&ask.tenant).await?;
        let source = archive.describe(ask.snapshot).await.map_err(|fault| operation.refuse(fault))?;
        let sequence = only(&source, ask.sequence.as_deref())?;
        // Within a page nothing can be cut: its name is that of all its tokens.
        let cut = Cut::Pages(ask.pages.unwrap_or(sequence.pages.len() as u32));
        let name = ask.name.as_ref().map_or(sequence.id.as_str(), SessionId::as_str);
        let fork = archive.fork(ask.snapshot, &sequence.id, cut, name).await;
        let fork = fork.map_err(|fault| operation.refuse(fault))?;
        operation.done();
        Ok(summary_of(&fork))
    }
}

/// The sequence that is named, or the only one.
fn only<'a>(manifest: &'a Manifest, name: Option<&str>) -> Result<&'a Sequence, Error> {
    let found = match (name, manifest.sequences.as_slice()) {
        (Some(name), all) => all.iter().find(|sequence| sequence.id == name),
        (None, [one]) => Some(one),
        (None, all) => {
            let text = format!("sequence: the snapshot has {}: name one of them", all.len());
            return Err(Error::invalid(text));
        }
    };
    found.ok_or_else(|| {
        Error::invalid(format!("sequence: the snapshot has none called {:?}", name.unwrap_or_default()))
    })
}

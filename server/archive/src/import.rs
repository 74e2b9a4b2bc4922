//! Import: an export becomes a snapshot. Owns: checking it. Must not know: packs; it is a capture of what was read.

use crate::archive::Archive;
use crate::blob::Coder;
use crate::capture::{CaptureCounts, CapturedPage};
use crate::error::Error;
use crate::id::Digest;
use crate::manifest::{Header, Manifest, ManifestPage};
use crate::restore::pages_ahead;
use crate::source::Export;
use bytes::Bytes;
use futures_util::StreamExt;
use std::sync::Arc;

impl Archive {
    /// Takes in an export, as a snapshot with a new name. Every blob is checked before the snapshot is there.
    pub async fn import(&self, export: Export) -> Result<(Manifest, CaptureCounts), Error> {
        let manifest = Arc::clone(export.manifest());
        let mut capture = self.capture(manifest.header.clone()).await?;
        capture.keep(manifest.other.clone(), manifest.created_unix_s);
        let ahead = pages_ahead(&manifest.header).min(self.workers.count());
        let (source, workers) = (Arc::clone(&manifest), self.workers.clone());
        let reads = (0..manifest.pages.len()).map(move |ix| {
            let (manifest, workers, export) = (Arc::clone(&source), workers.clone(), export.clone());
            async move {
                let read = move |coder: &mut Coder| {
                    read_page(coder, &export, &manifest.header, ix, &manifest.pages[ix])
                };
                workers.run(read).await
            }
        });
        let mut reads = std::pin::pin!(futures_util::stream::iter(reads).buffered(ahead));
        while let Some(read) = reads.next().await {
            capture.page(read??).await?;
        }
        for sequence in &manifest.sequences {
            capture.sequence(sequence.clone());
        }
        capture.finish().await
    }
}

fn read_page(
    coder: &mut Coder,
    export: &Export,
    header: &Header,
    ix: usize,
    page: &ManifestPage,
) -> Result<CapturedPage, Error> {
    let wanted = header.split.parts(header.shard_bytes);
    let mut shards = Vec::with_capacity(page.shards.len());
    for (shard, digests) in page.shards.iter().enumerate() {
        let mut parts = Vec::with_capacity(wanted.len());
        for ((part, digest), (_, bytes)) in digests.each().zip(&wanted) {
            let read = read_blob(coder, export, &digest, *bytes);
            parts.push(read.map_err(|fault| match fault {
                Error::Damaged { object, fault } => {
                    Error::damaged(object, format!("page {ix}, shard {shard}, {}: {fault}", part.name()))
                }
                fault => fault,
            })?);
        }
        shards.push(header.split.join(header.shard_bytes, parts));
    }
    Ok(CapturedPage { hash: page.hash, parent: page.parent, shards })
}

fn read_blob(
    coder: &mut Coder,
    export: &Export,
    digest: &Digest,
    decoded_bytes: u32,
) -> Result<Bytes, Error> {
    let path = export.blob_path(digest);
    let damaged = |fault: String| Error::damaged(path.display().to_string(), fault);
    // What does not shrink has a few bytes more for each of its blocks.
    let frame_bytes_max = u64::from(decoded_bytes) + u64::from(decoded_bytes) / 128 + 1024;
    let frame = export.read_blob(digest, frame_bytes_max)?;
    let bytes = coder.decompress(&frame, decoded_bytes).map_err(damaged)?;
    let found = Digest::of(&bytes);
    if found != *digest {
        return Err(damaged(format!("its content's SHA-256 is {found}")));
    }
    Ok(Bytes::from(bytes))
}

//! Import: an export becomes a snapshot. Owns: checking it. Must not know: packs; it is a capture of what was read.

use crate::archive::Archive;
use crate::blob::Coder;
use crate::capture::{CaptureCounts, CapturedPage};
use crate::error::Error;
use crate::export::{MANIFEST, blob_path, file_fault};
use crate::id::Digest;
use crate::limits::MANIFEST_BYTES_MAX;
use crate::manifest::{Header, Manifest, ManifestPage};
use crate::restore::pages_ahead;
use bytes::Bytes;
use futures_util::StreamExt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

impl Archive {
    /// Takes in a directory that [`Archive::export`] wrote, as a snapshot with a new name. Every blob is checked before the snapshot
    /// is there.
    pub async fn import(&self, directory: &Path) -> Result<(Manifest, CaptureCounts), Error> {
        let path = directory.join(MANIFEST);
        let parsed = self.workers.run(move |_| {
            let text = read_file(&path, MANIFEST_BYTES_MAX)?;
            Manifest::parse(&text).map_err(|fault| match fault {
                Error::Invalid { field, fault } => {
                    Error::damaged(path.display().to_string(), format!("{field}: {fault}"))
                }
                fault => fault,
            })
        });
        let manifest = Arc::new(parsed.await??);
        let mut capture = self.capture(manifest.header.clone()).await?;
        capture.keep(manifest.other.clone(), manifest.created_unix_s);
        let ahead = pages_ahead(&manifest.header).min(self.workers.count());
        let (source, workers, folder) = (Arc::clone(&manifest), self.workers.clone(), directory.to_owned());
        let reads = (0..manifest.pages.len()).map(move |ix| {
            let (manifest, workers, directory) = (Arc::clone(&source), workers.clone(), folder.clone());
            async move {
                let read = move |coder: &mut Coder| {
                    read_page(coder, &directory, &manifest.header, ix, &manifest.pages[ix])
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
    directory: &Path,
    header: &Header,
    ix: usize,
    page: &ManifestPage,
) -> Result<CapturedPage, Error> {
    let wanted = header.split.parts(header.shard_bytes);
    let mut shards = Vec::with_capacity(page.shards.len());
    for (shard, digests) in page.shards.iter().enumerate() {
        let mut parts = Vec::with_capacity(wanted.len());
        for ((part, digest), (_, bytes)) in digests.each().zip(&wanted) {
            let read = read_blob(coder, directory, &digest, *bytes);
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
    directory: &Path,
    digest: &Digest,
    decoded_bytes: u32,
) -> Result<Bytes, Error> {
    let path = blob_path(directory, digest);
    let damaged = |fault: String| Error::damaged(path.display().to_string(), fault);
    // What does not shrink has a few bytes more for each of its blocks.
    let frame_bytes_max = u64::from(decoded_bytes) + u64::from(decoded_bytes) / 128 + 1024;
    let frame = read_file(&path, frame_bytes_max)?;
    let bytes = coder.decompress(&frame, decoded_bytes).map_err(damaged)?;
    let found = Digest::of(&bytes);
    if found != *digest {
        return Err(damaged(format!("its content's SHA-256 is {found}")));
    }
    Ok(Bytes::from(bytes))
}

/// A file of at most so many bytes. Only a plain one: to open a pipe waits until somebody writes, and a link may lead anywhere.
fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Error> {
    let kind = std::fs::symlink_metadata(path).map_err(|fault| file_fault(path, &fault))?;
    if !kind.is_file() {
        return Err(Error::damaged(path.display().to_string(), "it is no plain file"));
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    read.map_err(|fault| file_fault(path, &fault))?;
    Error::bound(&format!("bytes of {}", path.display()), bytes.len() as u64, bytes_max)?;
    Ok(bytes)
}

//! Export: a snapshot as a directory that ordinary tools can check. Owns: its form. Must not know: who reads it.
//!
//! `blobs/<sha256>.zst`, one file a blob: one frame of zstd whose content has the SHA-256 that is its name. `manifest.json`, written
//! last: a directory without it is not an export, and the next one of that name takes its place. Its `turnkv.packs` is empty.

use crate::archive::Archive;
use crate::error::Error;
use crate::id::{Digest, ObjectId};
use crate::limits::{EXPORT_BLOBS_AT_ONCE, ZSTD_LEVEL_MAX, ZSTD_LEVEL_MIN};
use crate::manifest::Manifest;
use crate::read::Places;
use crate::store::make_private;
use futures_util::StreamExt;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The folder of blobs in an export.
pub(crate) const BLOBS: &str = "blobs";
/// The manifest's name in an export.
pub(crate) const MANIFEST: &str = "manifest.json";

/// What the manifest is called while it is written.
const PART: &str = "manifest.json.part";
/// Digits of a blob's digest.
const DIGEST_DIGITS: usize = 64;

/// What an export has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounts {
    /// Blobs.
    pub blobs: u64,
    /// Bytes of their files.
    pub bytes: u64,
}

impl Archive {
    /// Writes a snapshot into a directory that is not there yet, is empty, or has an export that was not finished, at a level of zstd of
    /// 1 to 22. What failed leaves nothing but the directory.
    pub async fn export(&self, id: ObjectId, directory: &Path, level: i32) -> Result<ExportCounts, Error> {
        if !(ZSTD_LEVEL_MIN..=ZSTD_LEVEL_MAX).contains(&level) {
            return Err(Error::invalid("level", format!("must be {ZSTD_LEVEL_MIN} to {ZSTD_LEVEL_MAX}")));
        }
        let manifest = self.manifest(id).await?;
        let place = directory.to_owned();
        let lock = self.workers.run(move |_| make_directory(&place)).await??;
        let written = self.write_export(manifest, directory, level).await;
        if written.is_err() {
            let place = directory.to_owned();
            // What could not be removed is in nobody's way: the next export of that name takes its place.
            if let Ok(Err(fault)) = self.workers.run(move |_| clear(&place)).await {
                tracing::warn!(%fault, directory = %directory.display(), "what a failed export wrote stays");
            }
        }
        drop(lock);
        written
    }

    async fn write_export(
        &self,
        manifest: Manifest,
        directory: &Path,
        level: i32,
    ) -> Result<ExportCounts, Error> {
        let places = Places::of(self, &manifest).await?;
        let digests: BTreeSet<Digest> = manifest.digests().collect();
        let writes = digests.into_iter().map(|digest| {
            let (places, workers) = (places.clone(), self.workers.clone());
            let file = blob_path(directory, &digest);
            async move {
                let bytes = match places.read(digest).await {
                    Err(Error::NotFound { object }) => return Err(places.missing(object, "export")),
                    read => read?,
                };
                let written = workers.run(move |coder| {
                    let frame = coder.compress(level, &bytes);
                    let frame = frame.ok_or_else(|| Error::Short("no memory for zstd".to_owned()))?;
                    write_file(&file, &frame).map(|()| frame.len() as u64)
                });
                written.await?
            }
        });
        let mut counts = ExportCounts::default();
        let mut writes =
            std::pin::pin!(futures_util::stream::iter(writes).buffer_unordered(EXPORT_BLOBS_AT_ONCE));
        while let Some(written) = writes.next().await {
            counts.blobs += 1;
            counts.bytes += written?;
        }
        let text = Manifest { packs: Vec::new(), ..manifest }.to_json()?;
        let place = directory.to_owned();
        self.workers.run(move |_| finish(&place, &text)).await??;
        Ok(counts)
    }
}

/// Where a blob is in an export.
pub(crate) fn blob_path(directory: &Path, digest: &Digest) -> PathBuf {
    directory.join(BLOBS).join(format!("{digest}.zst"))
}

/// What went wrong with a file.
pub(crate) fn file_fault(path: &Path, fault: &std::io::Error) -> Error {
    let (object, text) = (path.display().to_string(), fault.to_string());
    match fault.kind() {
        std::io::ErrorKind::NotFound => Error::NotFound { object },
        std::io::ErrorKind::AlreadyExists => Error::Exists { object },
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Error::Full { object, fault: text }
        }
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            Error::CredentialsRefused { object, fault: text }
        }
        std::io::ErrorKind::NotADirectory => Error::invalid(object, "is no directory"),
        _ => Error::Unreachable { object, fault: text },
    }
}

/// The directory is there, empty, and locked as long as the file that is returned is open.
fn make_directory(directory: &Path) -> Result<File, Error> {
    let wrong = |fault: std::io::Error| file_fault(directory, &fault);
    let taken = || Error::Exists { object: directory.display().to_string() };
    make_private(directory).map_err(wrong)?;
    let lock = File::open(directory).map_err(wrong)?;
    let locked = match lock.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => return Err(taken()),
        // Not every file system locks: there, nobody knows whether what is not finished is being written.
        Err(TryLockError::Error(_)) => false,
    };
    let is_empty = std::fs::read_dir(directory).map_err(wrong)?.next().is_none();
    let is_free = is_empty || (locked && is_unfinished(directory).map_err(wrong)?);
    if !is_free {
        return Err(taken());
    }
    clear(directory).map_err(wrong)?;
    make_private(&directory.join(BLOBS)).map_err(wrong)?;
    Ok(lock)
}

/// Whether a directory has nothing but what an export leaves that was not finished.
fn is_unfinished(directory: &Path) -> std::io::Result<bool> {
    let is_blob = |name: &str| {
        let digits = name.strip_suffix(".zst").unwrap_or_default().as_bytes();
        digits.len() == DIGEST_DIGITS && digits.iter().all(u8::is_ascii_hexdigit)
    };
    for entry in std::fs::read_dir(directory)? {
        let (entry, mut ours) = (entry?, false);
        if entry.file_name() == PART {
            ours = entry.file_type()?.is_file();
        } else if entry.file_name() == BLOBS && entry.file_type()?.is_dir() {
            ours = true;
            for blob in std::fs::read_dir(entry.path())? {
                ours &= blob?.file_name().to_str().is_some_and(is_blob);
            }
        }
        if !ours {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what an export wrote, so that it is none at any moment.
fn clear(directory: &Path) -> std::io::Result<()> {
    let gone = |removed: std::io::Result<()>| match removed {
        Err(fault) if fault.kind() != std::io::ErrorKind::NotFound => Err(fault),
        _ => Ok(()),
    };
    gone(std::fs::remove_file(directory.join(MANIFEST)))?;
    gone(std::fs::remove_file(directory.join(PART)))?;
    gone(std::fs::remove_dir_all(directory.join(BLOBS)))
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|fault| file_fault(path, &fault))
}

/// The manifest appears whole, when everything before it is on the disk.
fn finish(directory: &Path, text: &[u8]) -> Result<(), Error> {
    let sync = |path: &Path| File::open(path).and_then(|opened| opened.sync_all());
    let (part, whole) = (directory.join(PART), directory.join(MANIFEST));
    sync(&directory.join(BLOBS)).map_err(|fault| file_fault(directory, &fault))?;
    write_file(&part, text)?;
    let renamed = std::fs::rename(&part, &whole).and_then(|()| sync(directory));
    renamed.map_err(|fault| file_fault(&whole, &fault))
}

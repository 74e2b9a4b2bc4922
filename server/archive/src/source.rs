//! An export that is to be taken in, opened. Owns: that nothing outside of its folder is read, and nothing but plain files. Must not
//! know: what becomes of it.
//!
//! No link is followed: each step on the way is opened from the one before. What is a pipe is not waited for.

use crate::error::Error;
use crate::export::{BLOBS, MANIFEST, file_fault};
use crate::id::Digest;
use crate::limits::MANIFEST_BYTES_MAX;
use crate::manifest::Manifest;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// A directory that [`crate::Archive::export`] wrote, with its manifest. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Export {
    folder: Arc<OwnedFd>,
    path: PathBuf,
    manifest: Arc<Manifest>,
}

impl Export {
    /// Opens what is below a folder, and reads its manifest. Links are followed on the way to the folder only, and no step leads up.
    /// Blocking.
    pub fn open(root: &Path, below: &Path) -> Result<Export, Error> {
        let path = root.join(below);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, root, flags, Mode::empty());
        let mut folder = opened.map_err(|fault| file_fault(root, &fault.into()))?;
        for part in below.components().filter(|part| *part != Component::CurDir) {
            if !matches!(part, Component::Normal(_)) {
                return Err(Error::invalid(path.display().to_string(), "leads out of its folder"));
            }
            folder = open_folder(&folder, Path::new(part.as_os_str()), &path)?;
        }
        let file = path.join(MANIFEST);
        let text = read_file(&folder, MANIFEST, &file, MANIFEST_BYTES_MAX)?;
        let manifest = Manifest::parse(&text).map_err(|fault| match fault {
            Error::Invalid { field, fault } => {
                Error::damaged(file.display().to_string(), format!("{field}: {fault}"))
            }
            fault => fault,
        })?;
        Ok(Export { folder: Arc::new(folder), path, manifest: Arc::new(manifest) })
    }

    /// What it says it has.
    #[must_use]
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Where a blob is, for messages.
    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        crate::export::blob_path(&self.path, digest)
    }

    /// A blob's file of at most so many bytes.
    pub(crate) fn read_blob(&self, digest: &Digest, bytes_max: u64) -> Result<Vec<u8>, Error> {
        let blobs = open_folder(&self.folder, Path::new(BLOBS), &self.path.join(BLOBS))?;
        read_file(&blobs, &format!("{digest}.zst"), &self.blob_path(digest), bytes_max)
    }
}

fn open_folder(within: impl AsFd, name: &Path, path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(within, name, flags, Mode::empty()).map_err(|fault| match fault {
        Errno::NOTDIR | Errno::LOOP => Error::damaged(path.display().to_string(), "it is no plain directory"),
        fault => file_fault(path, &fault.into()),
    })
}

/// A file of at most so many bytes. Only a plain one: to open a pipe waits until somebody writes, and a link may lead anywhere.
fn read_file(within: impl AsFd, name: &str, path: &Path, bytes_max: u64) -> Result<Vec<u8>, Error> {
    let no_file = || Error::damaged(path.display().to_string(), "it is no plain file");
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(within, name, flags, Mode::empty()).map(File::from).map_err(|fault| match fault {
        Errno::LOOP | Errno::NXIO => no_file(),
        fault => file_fault(path, &fault.into()),
    })?;
    let failed = |fault: std::io::Error| file_fault(path, &fault);
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(no_file());
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    Error::bound(&format!("bytes of {}", path.display()), bytes.len() as u64, bytes_max)?;
    Ok(bytes)
}

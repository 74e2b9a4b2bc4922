//! A directory as a store. Owns: that lists leave out nothing that is there, that only plain files are read, and that nobody else may
//! look into the folders it makes. Must not know: what objects are called.
//!
//! The file system of `object_store` writes and deletes. Its lists leave out what it can not look at, and its reads wait for a pipe.

use crate::limits::{FOLDER_DEPTH_MAX, FOLDER_LIST_AHEAD_MAX};
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use rustix::fs::{Mode, OFlags};
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path as FilePath, PathBuf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const STORE: &str = "directory";

/// A directory. What was written is on the disk before it is called written.
#[derive(Debug)]
pub(super) struct Folder {
    files: LocalFileSystem,
    root: PathBuf,
}

/// Something is there, and it is not what can be read: a pipe, a directory, a link that leads nowhere.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotPlain(pub(super) &'static str);

const NO_FILE: NotPlain = NotPlain("it is no plain file");
const DANGLING: NotPlain = NotPlain("it is a link that leads nowhere");

impl Folder {
    /// Opens a directory; it is made if it is not there.
    pub(super) fn open(root: &FilePath) -> std::io::Result<Folder> {
        make_private(root)?;
        let files = LocalFileSystem::new_with_prefix(root).map_err(std::io::Error::other)?.with_fsync(true);
        Ok(Folder { files, root: root.to_owned() })
    }
}

impl std::fmt::Display for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "directory {}", self.root.display())
    }
}

#[async_trait]
impl ObjectStore for Folder {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let path = self.files.path_to_filesystem(location)?;
        blocking(move || path.parent().map_or(Ok(()), |parent| make_private(parent).map_err(generic)))
            .await?;
        self.files.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.files.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (location, path) = (location.clone(), self.files.path_to_filesystem(location)?);
        blocking(move || {
            let (file, about) = open_plain(&path, location.as_ref())?;
            let meta = meta_of(location, &about);
            options.check_preconditions(&meta)?;
            let range = match options.range {
                Some(range) => range.as_range(meta.size).map_err(generic)?,
                None => 0..meta.size,
            };
            let (attributes, extensions) = Default::default();
            Ok(GetResult { payload: GetResultPayload::File(file, path), meta, range, attributes, extensions })
        })
        .await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.files.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned().unwrap_or_default();
        let place = prefix.parts().fold(self.root.clone(), |place, part| place.join(part.as_ref()));
        let (found, listed) = mpsc::channel(FOLDER_LIST_AHEAD_MAX);
        let walk = tokio::task::spawn_blocking(move || walk(&place, &prefix, FOLDER_DEPTH_MAX, &found));
        stream::unfold((listed, Some(walk)), next_listed).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }
}

type Listing = (mpsc::Receiver<ObjectMeta>, Option<JoinHandle<std::io::Result<()>>>);

/// The next of a list. How its walk ended comes last: a list that ended early is none.
async fn next_listed((mut listed, mut walk): Listing) -> Option<(Result<ObjectMeta>, Listing)> {
    if let Some(meta) = listed.recv().await {
        return Some((Ok(meta), (listed, walk)));
    }
    let fault = match walk.take()?.await {
        Ok(Ok(())) => return None,
        Ok(Err(fault)) => generic(fault),
        Err(fault) => Error::from(fault),
    };
    Some((Err(fault), (listed, None)))
}

/// Names all that is below a folder, folders too, as far as somebody listens. What goes meanwhile is not there; what can not be looked at
/// ends it.
fn walk(
    folder: &FilePath,
    below: &Path,
    depth: usize,
    found: &mpsc::Sender<ObjectMeta>,
) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(fault) if fault.kind() == ErrorKind::NotFound => return is_gone(folder),
        Err(fault) => return Err(fault),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if is_unfinished(&name) {
            continue;
        }
        let Some(about) = look_at(&entry.path())? else { continue };
        let location = below.clone().join(&*name);
        if found.blocking_send(meta_of(location.clone(), &about)).is_err() {
            return Ok(());
        }
        if about.is_dir() && depth > 1 {
            walk(&entry.path(), &location, depth - 1, found)?;
        }
    }
    Ok(())
}

/// What is there, links followed; of a link that leads nowhere, the link. None: it went.
fn look_at(path: &FilePath) -> std::io::Result<Option<Metadata>> {
    let missing = |fault: &std::io::Error| fault.kind() == ErrorKind::NotFound;
    match std::fs::metadata(path) {
        Err(fault) if missing(&fault) => match std::fs::symlink_metadata(path) {
            Err(fault) if missing(&fault) => Ok(None),
            about => about.map(Some),
        },
        about => about.map(Some),
    }
}

/// Fails if something has that name after all: a link that leads nowhere hides what was behind it.
fn is_gone(path: &FilePath) -> std::io::Result<()> {
    match look_at(path)? {
        None => Ok(()),
        Some(_) => Err(std::io::Error::other(DANGLING)),
    }
}

/// Whether a file is being written, or its writer died: its name ends with `#` and a number.
pub(super) fn is_unfinished(name: &str) -> bool {
    let ending = name.rsplit_once('#').map_or("", |(_, ending)| ending);
    !ending.is_empty() && ending.bytes().all(|byte| byte.is_ascii_digit())
}

/// Opens a file, without waiting for who writes into a pipe.
fn open_plain(path: &FilePath, location: &str) -> Result<(File, Metadata)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map(File::from).map_err(std::io::Error::from);
    let file = match opened {
        Ok(file) => file,
        Err(fault) if fault.kind() == ErrorKind::NotFound => {
            is_gone(path).map_err(generic)?;
            return Err(Error::NotFound { path: location.to_owned(), source: Box::new(fault) });
        }
        // A socket.
        Err(fault) if fault.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
            return Err(generic(NO_FILE));
        }
        Err(fault) => return Err(generic(fault)),
    };
    let about = file.metadata().map_err(generic)?;
    if about.is_file() { Ok((file, about)) } else { Err(generic(NO_FILE)) }
}

fn meta_of(location: Path, about: &Metadata) -> ObjectMeta {
    let last_modified = about.modified().unwrap_or(std::time::UNIX_EPOCH).into();
    ObjectMeta { location, last_modified, size: about.len(), e_tag: None, version: None }
}

/// Makes a folder, and those on the way to it, so that nobody else may look into it. They are on the disk when it returns.
pub(crate) fn make_private(folder: &FilePath) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let new: Vec<&FilePath> =
        folder.ancestors().take_while(|one| !one.as_os_str().is_empty() && !one.is_dir()).collect();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for one in new {
        let parent = one.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(FilePath::new(".")))?.sync_all()?;
    }
    Ok(())
}

fn generic(fault: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic { store: STORE, source: Box::new(fault) }
}

async fn blocking<T: Send + 'static>(job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(job).await?
}

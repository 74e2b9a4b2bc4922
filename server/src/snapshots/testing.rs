//! What tests of snapshots and of the archive tier share: a server with an archive in a directory, and sessions in it. Owns:
//! the server. Must not know: any one test.

use super::Snapshots;
use super::read::{PageReader, all_shards};
use super::tier::Tier;
use super::write::{PageChain, PageWriter, WholePage, WrittenPages};
use crate::config;
use crate::engine::Engine;
use crate::engine::archived::{ArchivedPage, ArchivedSession, SnapshotName};
use crate::engine::session::SessionKey;
use crate::engine::snapshot::WholeSession;
use crate::engine::stats::EvictFrom;
use crate::engine::testing::open;
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use turnkv_archive::{Bookmark, Directory, ListedBookmark, ObjectId, PageMark};
use turnkv_proto::{BlockHash, NamespaceId, SessionId, Spec};

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

/// A server that archives sessions by itself, as far as a test has it do so: nothing of the tier runs on its own.
pub(super) struct Rig {
    dir: TempDir,
    pub(super) engine: Arc<Engine>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) tier: Arc<Tier>,
    pub(super) directory: Directory,
    pub(super) namespace: NamespaceId,
}

impl Rig {
    pub(super) fn new() -> Rig {
        Rig::at(tempfile::tempdir().unwrap())
    }

    fn at(dir: TempDir) -> Rig {
        let file = dir.path().join("turnkv.toml");
        let text = format!(
            "[dram]\nbytes = \"16MiB\"\nlock = false\n[archive]\nplace = \"{}\"\nsessions = \"all\"\nretries_max = 0\n",
            dir.path().join("archive").display()
        );
        std::fs::write(&file, text).unwrap();
        let engine = Engine::start(config::load(Some(&file)).unwrap(), |_| None, None).unwrap();
        let namespace = open(&engine, "m", PAGE);
        let snapshots = Snapshots::new(&engine);
        let tier = Tier::new(&snapshots).unwrap();
        let directory = snapshots.directory_of("").unwrap();
        Rig { dir, engine, snapshots, tier, directory, namespace }
    }

    /// Another server at the same archive; this one is gone.
    pub(super) fn another(self) -> Rig {
        let Rig { dir, .. } = self;
        Rig::at(dir)
    }

    /// Where the archive is.
    pub(super) fn place(&self) -> PathBuf {
        self.dir.path().join("archive")
    }

    /// Every request to the store fails from now on, as one to a service that is not there does.
    pub(super) fn lose_store(&self) {
        let (tenants, away) = (self.place().join("tenants"), self.place().join("away"));
        std::fs::create_dir_all(&tenants).unwrap();
        std::fs::rename(&tenants, away).unwrap();
        std::os::unix::fs::symlink("tenants", tenants).unwrap();
    }

    /// It is back, with all that it had.
    pub(super) fn find_store(&self) {
        let (tenants, away) = (self.place().join("tenants"), self.place().join("away"));
        std::fs::remove_file(&tenants).unwrap();
        std::fs::rename(away, tenants).unwrap();
    }

    pub(super) fn key(&self, name: &str) -> SessionKey {
        SessionKey { namespace: self.namespace, session: session(name) }
    }

    /// These pages are in the pool, each after the one before.
    pub(super) async fn store(&self, hashes: &[BlockHash], tail_tokens: u32) -> WrittenPages {
        let whole = |hash: &BlockHash| WholePage { hash: *hash, shards: vec![bytes_of(hash)] };
        let pages: Vec<WholePage> = hashes.iter().map(whole).collect();
        let shards = all_shards(&self.engine.namespace_spec(&self.namespace).unwrap()).unwrap();
        let writer = PageWriter { engine: &self.engine, namespace: self.namespace, shards };
        writer.write(&PageChain { parent: None, pages: &pages, tail_tokens }).await.unwrap()
    }

    /// A session of these pages is here.
    pub(super) async fn make(&self, name: &str, hashes: &[BlockHash], tail_tokens: u32) {
        self.store(hashes, tail_tokens).await;
        let of = self.key(name);
        self.engine.make_session(&WholeSession { of: &of, hashes, tail_tokens }).unwrap();
    }

    /// Nothing of the namespace is in the pool any more.
    pub(super) fn evict_all(&self) {
        self.engine.evict(Some(&self.namespace), EvictFrom::Everywhere).unwrap();
    }

    /// The leading ones of these pages that are here, byte for byte.
    pub(super) async fn here(&self, hashes: &[BlockHash]) -> usize {
        let spec = self.engine.namespace_spec(&self.namespace).unwrap();
        let read = PageReader::of(&self.engine, &spec).unwrap().read(hashes).await.unwrap();
        let is_right = |(page, hash): &(Option<Vec<Bytes>>, &BlockHash)| {
            page.as_ref().is_some_and(|shards| shards.as_slice() == [bytes_of(hash)])
        };
        read.into_iter().zip(hashes).take_while(is_right).count()
    }

    /// Another server archived a session: its bookmark is there, and something in the place of its snapshot.
    pub(super) async fn bookmark(&self, name: &str, hashes: &[BlockHash]) -> ListedBookmark {
        let at = self.begin_to_archive(name, hashes).await;
        self.put_snapshot(at);
        at
    }

    /// The snapshot of a bookmark is there.
    pub(super) fn put_snapshot(&self, at: ListedBookmark) {
        let file = self.snapshot_file(at);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "{}").unwrap();
    }

    /// Where the snapshot of a bookmark is, or will be.
    pub(super) fn snapshot_file(&self, at: ListedBookmark) -> PathBuf {
        let bookmark = self.bookmark_file(at);
        let tenant = bookmark.ancestors().nth(3).unwrap();
        tenant.join("manifests").join(bookmark.file_name().unwrap())
    }

    /// Where a bookmark is.
    pub(super) fn bookmark_file(&self, at: ListedBookmark) -> PathBuf {
        let named = files(&self.place(), &at.snapshot.to_string());
        named.into_iter().find(|file| file.to_string_lossy().contains("/sessions/")).unwrap()
    }

    /// Another server is about to archive a session: its bookmark is there.
    pub(super) async fn begin_to_archive(&self, name: &str, hashes: &[BlockHash]) -> ListedBookmark {
        let pages = hashes.iter().map(PageMark::of).collect();
        let bookmark = Bookmark { namespace: self.namespace, session: name.to_owned(), pages };
        self.directory.write(ObjectId::new(), &bookmark).await.unwrap()
    }

    /// Where a page is said to be.
    pub(super) fn find(&self, hash: &BlockHash) -> Option<ArchivedPage> {
        self.engine.archived.index.read().find(&self.namespace, hash)
    }

    /// What is known of a session.
    pub(super) fn known(&self, name: &str) -> Option<ArchivedSession> {
        self.engine.archived.index.read().session(&self.namespace, &session(name)).cloned()
    }
}

/// The snapshot of a bookmark, as turns know it.
pub(super) fn snapshot_of(at: ListedBookmark) -> SnapshotName {
    SnapshotName(at.snapshot.0)
}

pub(super) fn session(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

/// So many pages of one prefix.
pub(super) fn chain(seed: u32, pages: u32) -> Vec<BlockHash> {
    let mut chain: Vec<BlockHash> = Vec::new();
    for at in 0..pages {
        chain.push(BlockHash::chain(chain.last(), &[seed, at]));
    }
    chain
}

/// What a page holds.
fn bytes_of(hash: &BlockHash) -> Bytes {
    hash.0.repeat(PAGE as usize / hash.0.len()).into()
}

/// A namespace that is another tenant's.
pub(super) fn open_of_tenant(engine: &Arc<Engine>, tenant: &str) -> NamespaceId {
    let spec = Spec::opaque("m", 16, PAGE).with_tenant(tenant).check().unwrap();
    engine.open_namespace(&spec).unwrap();
    spec.id()
}

/// The files below a folder whose paths have this in them.
pub(super) fn files(under: &Path, named: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(under).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        match path.is_dir() {
            true => found.extend(files(&path, named)),
            false if path.to_string_lossy().contains(named) => found.push(path),
            false => {}
        }
    }
    found
}

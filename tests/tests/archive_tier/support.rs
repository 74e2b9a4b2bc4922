//! A place for an archive, servers that share it, and waiting for what happens by itself. Must not know: what is tested.

use anyhow::{Result, bail, ensure};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions};
use turnkv_tests::http::{get, value};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

pub(crate) const PAGE: u64 = 64 << 10;

/// A directory for an archive; it goes when this is dropped.
pub(crate) struct Shelf {
    folder: TempDir,
}

impl Shelf {
    pub(crate) fn new() -> Result<Shelf> {
        Ok(Shelf { folder: tempfile::Builder::new().prefix("turnkv-shelf").tempdir()? })
    }

    pub(crate) fn archive(&self) -> PathBuf {
        self.folder.path().join("archive")
    }

    /// A server's setup with this archive, which archives such sessions, and more keys for its section.
    pub(crate) fn setup(&self, sessions: &str, keys: &str) -> Setup {
        let sections = format!(
            "[archive]\nplace = \"{}\"\ninflight_bytes = \"1MiB\"\nsessions = \"{sessions}\"\nrefresh_ms = 200\n{keys}\n",
            self.archive().display()
        );
        Setup { dram_mib: 64, sections, ..Setup::default() }
    }

    pub(crate) fn server(&self, sessions: &str, keys: &str) -> Result<Server> {
        Server::start(self.setup(sessions, keys))
    }

    /// The objects of the archive in folders of this name, at any depth; not those that are being written, whose names end with `#` and
    /// a number.
    pub(crate) fn objects(&self, kind: &str) -> Result<Vec<PathBuf>> {
        let mut found = files(&self.archive())?;
        found.retain(|file| {
            file.components().any(|part| part.as_os_str() == kind) && !file.to_string_lossy().contains('#')
        });
        found.sort();
        Ok(found)
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if !folder.exists() {
        return Ok(found);
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}

/// The user of a server, with its one namespace open.
pub(crate) async fn user(server: &Server) -> Result<User> {
    User::connect(&server.address(), DataPlane::Shm, PAGE).await
}

/// A turn of a session, after which it has these pages. Whether it will be archived.
pub(crate) async fn converse(user: &User, session: &str, hashes: &[BlockHash], end: EndTurn) -> Result<bool> {
    user.namespace.begin_turn(session).await?;
    let options = OffloadOptions {
        session: Some(session.to_owned()),
        tail_tokens: end.tail_tokens,
        ..OffloadOptions::default()
    };
    let report = user.offload(&options, hashes).await?;
    ensure!(report.stored + report.present == hashes.len(), "{report:?}");
    let ended = user.namespace.end_turn_told(session, &EndTurn { hashes: hashes.to_vec(), ..end }).await?;
    ensure!(ended.pages == hashes.len(), "{ended:?}");
    Ok(ended.archiving)
}

/// That it is to be archived.
pub(crate) fn archived() -> EndTurn {
    EndTurn { archive: true, ..EndTurn::default() }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so().await? {
        if began.elapsed() > Duration::from_secs(60) {
            bail!("after 60 s it is not so that {what}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// What a server counts or holds, by the name of the series.
pub(crate) fn counted(metrics: SocketAddr, name: &str) -> Result<u64> {
    let (_, page) = get(metrics, "/metrics")?;
    Ok(value(&page, name)? as u64)
}

/// Waits until the archive has so many snapshots.
pub(crate) async fn until_archived(shelf: &Shelf, count: usize) -> Result<()> {
    until(&format!("{count} sessions are archived"), async || Ok(shelf.objects("manifests")?.len() == count))
        .await
}

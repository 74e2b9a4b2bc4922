//! A place for an archive, a server that uses it, and the calls of its Snapshots service. Must not know: what is tested.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions};
use turnkv_proto::{Error, ErrorKind, wire};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use wire::create_snapshot_request::What;
use wire::snapshots_client::SnapshotsClient;

pub(crate) const PAGE: u64 = 64 << 10;

/// A directory for an archive and one for exports; both go when it is dropped.
pub(crate) struct Shelf {
    folder: TempDir,
}

impl Shelf {
    pub(crate) fn new() -> Result<Shelf> {
        let folder = tempfile::Builder::new().prefix("turnkv-shelf").tempdir()?;
        std::fs::create_dir(folder.path().join("exports"))?;
        Ok(Shelf { folder })
    }

    pub(crate) fn archive(&self) -> PathBuf {
        self.folder.path().join("archive")
    }

    pub(crate) fn exports(&self) -> PathBuf {
        self.folder.path().join("exports")
    }

    /// A server's setup with this archive, and more keys for its section.
    pub(crate) fn setup(&self, keys: &str) -> Setup {
        let (archive, exports) = (self.archive(), self.exports());
        let sections = format!(
            "[archive]\nplace = \"{}\"\nexports = \"{}\"\ninflight_bytes = \"1MiB\"\n{keys}\n",
            archive.display(),
            exports.display()
        );
        Setup { dram_mib: 64, sections, ..Setup::default() }
    }

    pub(crate) fn server(&self) -> Result<Server> {
        Server::start(self.setup(""))
    }

    /// Bytes of all files of the archive.
    pub(crate) fn bytes(&self) -> Result<u64> {
        files(&self.archive())?.iter().map(|file| Ok(std::fs::metadata(file)?.len())).sum()
    }

    /// The objects of the archive in folders of this name.
    pub(crate) fn objects(&self, kind: &str) -> Result<Vec<PathBuf>> {
        let mut found = files(&self.archive())?;
        found.retain(|file| file.parent().is_some_and(|parent| parent.ends_with(kind)));
        found.sort();
        Ok(found)
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}

/// A client of the service.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(crate) client: SnapshotsClient<Channel>,
    pub(crate) tenant: String,
}

impl Keeper {
    pub(crate) async fn connect(address: &str) -> Result<Keeper> {
        let channel = Endpoint::from_shared(address.to_owned())?.connect().await?;
        let client = SnapshotsClient::new(channel).max_decoding_message_size(8 << 20);
        Ok(Keeper { client, tenant: String::new() })
    }

    pub(crate) async fn create(&self, user: &User, what: What) -> Result<wire::CreateSnapshotReply, Status> {
        self.create_with(user, what, Vec::new()).await
    }

    pub(crate) async fn create_with(
        &self,
        user: &User,
        what: What,
        tokens: Vec<wire::SequenceTokens>,
    ) -> Result<wire::CreateSnapshotReply, Status> {
        let namespace = user.namespace.id().0.to_vec().into();
        let request = wire::CreateSnapshotRequest { namespace, what: Some(what), tokens };
        last(self.client.clone().create(request).await?.into_inner()).await
    }

    pub(crate) async fn session(&self, user: &User, session: &str) -> Result<wire::SnapshotSummary> {
        let made = self.create(user, What::Session(session.to_owned())).await?;
        ensure!(made.missing_pages == 0, "{made:?}");
        made.snapshot.context("a snapshot")
    }

    pub(crate) fn wish(&self, snapshot: &str) -> wire::RestoreSnapshotRequest {
        wire::RestoreSnapshotRequest {
            tenant: self.tenant.clone(),
            snapshot: snapshot.to_owned(),
            ..Default::default()
        }
    }

    pub(crate) async fn restore(
        &self,
        request: wire::RestoreSnapshotRequest,
    ) -> Result<wire::RestoreSnapshotReply, Status> {
        last(self.client.clone().restore(request).await?.into_inner()).await
    }

    pub(crate) async fn describe(
        &self,
        snapshot: &str,
        sequence: &str,
    ) -> Result<wire::DescribeSnapshotReply, Status> {
        let request = wire::DescribeSnapshotRequest {
            tenant: self.tenant.clone(),
            snapshot: snapshot.to_owned(),
            sequence: sequence.to_owned(),
            from_page: 0,
        };
        Ok(self.client.clone().describe(request).await?.into_inner())
    }

    pub(crate) async fn verify(&self, snapshot: &str) -> Result<wire::VerifySnapshotsReply, Status> {
        let request =
            wire::VerifySnapshotsRequest { tenant: self.tenant.clone(), snapshot: snapshot.to_owned() };
        last(self.client.clone().verify(request).await?.into_inner()).await
    }

    pub(crate) async fn list(&self) -> Result<wire::ListSnapshotsReply, Status> {
        let request = wire::ListSnapshotsRequest { tenant: self.tenant.clone(), ..Default::default() };
        Ok(self.client.clone().list(request).await?.into_inner())
    }

    pub(crate) async fn delete(&self, snapshot: &str) -> Result<(), Status> {
        let request =
            wire::DeleteSnapshotRequest { tenant: self.tenant.clone(), snapshot: snapshot.to_owned() };
        self.client.clone().delete(request).await.map(drop)
    }

    pub(crate) async fn collect(&self) -> Result<wire::CollectSnapshotsReply, Status> {
        let request = wire::CollectSnapshotsRequest { tenant: self.tenant.clone(), ..Default::default() };
        Ok(self.client.clone().collect(request).await?.into_inner())
    }
}

/// The last message of a stream.
async fn last<M>(mut messages: Streaming<M>) -> Result<M, Status> {
    let mut last = None;
    while let Some(message) = messages.message().await? {
        last = Some(message);
    }
    last.ok_or_else(|| Status::internal("no message"))
}

/// The user of a server, with its one namespace open.
pub(crate) async fn user(server: &Server) -> Result<User> {
    User::connect(&server.address(), DataPlane::Shm, PAGE).await
}

/// A session with these pages.
pub(crate) async fn converse(user: &User, session: &str, hashes: &[BlockHash]) -> Result<()> {
    converse_with_tail(user, session, hashes, 0).await
}

/// A session with these pages, of which the last is a partial tail of so many tokens, if any.
pub(crate) async fn converse_with_tail(
    user: &User,
    session: &str,
    hashes: &[BlockHash],
    tail_tokens: u32,
) -> Result<()> {
    user.namespace.begin_turn(session).await?;
    let options =
        OffloadOptions { session: Some(session.to_owned()), tail_tokens, ..OffloadOptions::default() };
    let report = user.offload(&options, hashes).await?;
    ensure!(report.stored + report.present == hashes.len(), "{report:?}");
    let end = EndTurn { hashes: hashes.to_vec(), tail_tokens, ..EndTurn::default() };
    ensure!(user.namespace.end_turn(session, &end).await? == hashes.len());
    Ok(())
}

/// The names of a server's sessions.
pub(crate) async fn sessions(user: &User) -> Result<Vec<String>> {
    let listed = user.client.sessions(None, 0).await?;
    let mut names: Vec<String> = listed.sessions.into_iter().map(|info| info.session).collect();
    names.sort();
    Ok(names)
}

/// Fails unless a call was refused in this way, with words that say all of this.
pub(crate) fn is_refused<T>(result: Result<T, Status>, kind: ErrorKind, words: &[&str]) -> Result<()> {
    let status = result.err().context("it was not refused")?;
    let error = Error::from_status(&status).with_context(|| format!("no error of ours: {status:?}"))?;
    let same = std::mem::discriminant(&error.kind) == std::mem::discriminant(&kind);
    ensure!(same, "{error:?} is not {kind:?}");
    for word in words {
        ensure!(error.message.contains(word), "{error:?} does not say {word:?}");
    }
    Ok(())
}

pub(crate) const BUSY: ErrorKind = ErrorKind::Busy { retry_after_ms: 0 };

//! Archives in a directory: what is there and can not be read is never taken for what is not there.

use crate::support::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use turnkv_archive::{Archive, CollectLimits, Error, Manifest, Place};

struct Kept {
    folder: tempfile::TempDir,
    archive: Archive,
    manifest: Manifest,
}

impl Kept {
    /// A snapshot that is old enough for its packs to go if nothing needs them.
    async fn new() -> Kept {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::Directory(folder.path().join("archive"));
        let settings = turnkv_archive::ArchiveSettings { grace: Duration::from_secs(1), ..settings() };
        let archive = Archive::open(&place, "tenant", settings).await.unwrap();
        let manifest = capture(&archive, &plain_header(), &chain(&plain_header(), 1, 5)).await.unwrap();
        Kept { folder, archive, manifest }
    }

    fn of_tenant(&self, name: &str) -> PathBuf {
        let tenants = std::fs::read_dir(self.folder.path().join("archive/tenants")).unwrap();
        tenants.map(|one| one.unwrap().path()).next().unwrap().join(name)
    }

    fn packs(&self) -> usize {
        std::fs::read_dir(self.of_tenant("packs")).unwrap().count()
    }

    fn aside(&self) -> PathBuf {
        self.folder.path().join("aside")
    }
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// What it is, in whose place, and how it is put there.
type Case = (&'static str, PathBuf, Box<dyn Fn(&Path)>);

/// Something stands in place of the manifest, or of its folder.
fn cases(kept: &Kept) -> Vec<Case> {
    let manifests = kept.of_tenant("manifests");
    let file = manifests.join(format!("{}.json", kept.manifest.id));
    let nowhere = kept.folder.path().join("unmounted/x.json");
    let link = move |path: &Path| symlink(&nowhere, path).unwrap();
    vec![
        ("a pipe as a manifest", file.clone(), Box::new(pipe)),
        ("a folder as a manifest", file.clone(), Box::new(|path| std::fs::create_dir(path).unwrap())),
        ("a link as a manifest", file.clone(), Box::new(link.clone())),
        (
            "another name",
            file,
            Box::new(|path| std::fs::write(path.with_extension("json.bak"), "{}").unwrap()),
        ),
        ("a link as manifests", manifests.clone(), Box::new(link)),
        ("a file as manifests", manifests, Box::new(|path| std::fs::write(path, "").unwrap())),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_that_is_not_seen_stops_collections() {
    let kept = Kept::new().await;
    let packs = kept.packs();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    for (what, path, put) in cases(&kept) {
        std::fs::rename(&path, kept.aside()).unwrap();
        put(&path);
        for _ in 0..2 {
            let collect = kept.archive.collect(CollectLimits::default());
            let refused = tokio::time::timeout(Duration::from_secs(20), collect).await.expect(what);
            assert!(matches!(&refused, Err(Error::Damaged { .. })), "{what}: {refused:?}");
        }
        let verified = kept.archive.verify(None, |_| {}).await;
        let told = verified.as_ref().is_ok_and(|report| report.faults_found == 1);
        assert!(told || verified.is_err() || what == "another name", "{what}: {verified:?}");
        for made in [path.clone(), path.with_extension("json.bak")] {
            match std::fs::symlink_metadata(&made) {
                Ok(about) if about.is_dir() => std::fs::remove_dir(&made).unwrap(),
                Ok(_) => std::fs::remove_file(&made).unwrap(),
                Err(_) => {}
            }
        }
        std::fs::rename(kept.aside(), &path).unwrap();
    }
    let name = kept.of_tenant("manifests").join("a\nb");
    std::fs::write(&name, "").unwrap();
    let refused = kept.archive.collect(CollectLimits::default()).await.unwrap_err().to_string();
    assert!(refused.contains("a%0Ab") && refused.contains("move it out"), "{refused}");
    assert_eq!(kept.archive.list().await.unwrap().len(), 1);
    std::fs::remove_file(&name).unwrap();
    assert_eq!(kept.packs(), packs);
    kept.archive.collect(CollectLimits::default()).await.unwrap();
    restore(&kept.archive, kept.manifest.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_may_look_into_an_archive_or_an_export() {
    let kept = Kept::new().await;
    let export = kept.folder.path().join("exports/one");
    kept.archive.export(kept.manifest.id, &export, 1).await.unwrap();
    let archive = kept.folder.path().join("archive");
    for folder in [archive, kept.of_tenant(""), kept.of_tenant("packs"), export.clone(), export.join("blobs")]
    {
        let mode = std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{}", folder.display());
    }
}

/// Who only looks leaves nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::Directory(folder.path().to_owned());
    for tenant in 0..3 {
        let archive = Archive::open(&place, &format!("nobody {tenant}"), settings()).await.unwrap();
        assert!(archive.list().await.unwrap().is_empty());
        assert!(archive.verify(None, |_| {}).await.unwrap().faults.is_empty());
        archive.collect(CollectLimits::default()).await.unwrap();
        assert!(archive.describe(turnkv_archive::ObjectId::new()).await.is_err());
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let archive = Archive::open(&place, "somebody", settings()).await.unwrap();
    capture(&archive, &plain_header(), &chain(&plain_header(), 1, 2)).await.unwrap();
    assert_eq!(archive.list().await.unwrap().len(), 1);
}

//! Damage is refused and named, or changes nothing: every kind of object, bytes flipped, cut off, exchanged.

use crate::shaky::Shaky;
use crate::support::*;
use std::path::Path;
use turnkv_archive::{Archive, CapturedPage, Error, Manifest};

/// Two snapshots over several packs.
async fn two_snapshots(store: &Shaky) -> (Vec<CapturedPage>, [Manifest; 2]) {
    let header = plain_header();
    let pages = chain(&header, 3, 7);
    let archive = open(store).await.unwrap();
    let first = capture(&archive, &header, &pages[..5]).await.unwrap();
    let second = capture(&archive, &header, &pages).await.unwrap();
    (pages, [first, second])
}

/// Opens what the store has now and reads the second snapshot: the pages, or what went wrong.
async fn read_again(store: &Shaky, manifest: &Manifest) -> Result<Vec<CapturedPage>, Error> {
    let archive = open(store).await?;
    restore(&archive, manifest.id).await
}

fn assert_named(read: Result<Vec<CapturedPage>, Error>, pages: &[CapturedPage], object: &str, what: &str) {
    match read {
        Ok(read) => {
            for (read, page) in read.iter().zip(pages) {
                assert!(read.shards == page.shards && read.hash == page.hash, "{what}: other bytes");
            }
            assert_eq!(read.len(), pages.len(), "{what}");
        }
        Err(Error::Damaged { object: named, fault }) => {
            assert!(named.contains(object), "{what}: {named} is blamed for {object}: {fault}");
        }
        Err(fault) => panic!("{what}: {fault:?}"),
    }
}

fn id_of(name: &str) -> &str {
    name.rsplit('/').next().unwrap().split('.').next().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flipped_bytes_are_found() {
    let store = Shaky::new();
    let (pages, [_, manifest]) = two_snapshots(&store).await;
    let mut refused = 0;
    for name in [store.names_with("/packs/").await, store.names_with(&manifest.id.to_string()).await].concat()
    {
        let whole = store.read(&name).await;
        // All bytes of manifests, indexes and trailers; some of blobs.
        let end = if name.contains("/packs/") { whole.len() - 64 * 9 } else { 0 };
        for at in (0..end).step_by(97).chain(end..whole.len()) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            store.write(&name, bytes).await;
            let read = read_again(&store, &manifest).await;
            refused += u64::from(read.is_err());
            assert_named(read, &pages, id_of(&name), &format!("byte {at} of {name}"));
        }
        store.write(&name, whole).await;
    }
    assert!(refused > 3000, "{refused}");
    assert_eq!(read_again(&store, &manifest).await.unwrap().len(), pages.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_off_or_exchanged_is_found() {
    let store = Shaky::new();
    let (pages, [first, manifest]) = two_snapshots(&store).await;
    let packs = store.names_with("/packs/").await;
    assert!(packs.len() > 2);
    for name in packs.iter().chain(&store.names_with(&manifest.id.to_string()).await) {
        let whole = store.read(name).await;
        for length in [0, 1, 63, 64, 65, whole.len() / 2, whole.len() - 65, whole.len() - 64, whole.len() - 1]
        {
            store.write(name, whole[..length].to_vec()).await;
            let read = read_again(&store, &manifest).await;
            assert!(read.is_err(), "{name} with {length} bytes");
            assert_named(read, &pages, id_of(name), &format!("{name} with {length} bytes"));
        }
        // An opened archive knows the pack as it was.
        store.write(name, whole.clone()).await;
        let archive = open(&store).await.unwrap();
        store.write(name, whole[..40].to_vec()).await;
        assert_named(restore(&archive, manifest.id).await, &pages, id_of(name), name);
        store.write(name, [&whole[..], b"more"].concat()).await;
        let read = read_again(&store, &manifest).await;
        assert!(read.is_err(), "{name} with more behind it");
        assert_named(read, &pages, id_of(name), name);
        store.write(name, whole).await;
    }
    let (one, other) = (store.read(&packs[0]).await, store.read(&packs[1]).await);
    store.write(&packs[0], other).await;
    assert_named(read_again(&store, &manifest).await, &pages, id_of(&packs[0]), "another pack");
    store.write(&packs[0], one).await;
    let names = store.names_with(&format!("manifests/{}", manifest.id)).await;
    let other = store.read(&store.names_with(&format!("manifests/{}", first.id)).await[0]).await;
    store.write(&names[0], other).await;
    let read = read_again(&store, &manifest).await;
    assert!(matches!(&read, Err(Error::Damaged { fault, .. }) if fault.contains("turnkv.id")), "{read:?}");
}

#[tokio::test]
async fn verify_reports_every_fault_and_deletion_is_possible() {
    let store = Shaky::new();
    let (_, [first, second]) = two_snapshots(&store).await;
    let archive = open(&store).await.unwrap();
    let mut calls = 0;
    let report = archive.verify(None, |_| calls += 1).await.unwrap();
    assert!(report.faults.is_empty() && report.snapshots == 2 && report.pages == 12, "{report:?}");
    assert!(calls >= 9);
    let name = &store.names_with(&format!("packs/{}", second.packs[0])).await[0];
    let mut bytes = store.read(name).await;
    bytes[10] ^= 1;
    store.write(name, bytes).await;
    let manifest = &store.names_with(&format!("manifests/{}", first.id)).await[0];
    store.write(manifest, b"{}".to_vec()).await;
    let report = archive.verify(None, |_| {}).await.unwrap();
    assert_eq!(report.faults_found as usize, report.faults.len());
    assert!(
        report.faults.iter().any(|fault| fault.snapshot == first.id && fault.page.is_none()),
        "{report:?}"
    );
    assert!(
        report.faults.iter().any(|fault| fault.snapshot == second.id && fault.page.is_some()),
        "{report:?}"
    );
    let refused = archive.collect(Default::default()).await;
    let named = format!("manifest {}", first.id);
    assert!(matches!(&refused, Err(Error::Damaged { object, .. }) if *object == named), "{refused:?}");
    archive.delete(first.id).await.unwrap();
    archive.collect(Default::default()).await.unwrap();
}

/// An opened archive finds blobs by what it remembers of a pack's index; who opens it next needs the index itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_finds_damage_of_an_index_that_is_remembered() {
    let store = Shaky::new();
    let (pages, [_, manifest]) = two_snapshots(&store).await;
    let archive = open(&store).await.unwrap();
    archive.verify(None, |_| {}).await.unwrap();
    let name = store.names_with(&format!("packs/{}", manifest.packs[0])).await.remove(0);
    let whole = store.read(&name).await;
    for at in [whole.len() - 64 * 2, whole.len() - 64, whole.len() - 30, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        store.write(&name, bytes).await;
        let report = archive.verify(None, |_| {}).await.unwrap();
        let [fault] = &report.faults[..] else { panic!("byte {at}: {report:?}") };
        let named = matches!(&fault.error, Error::Damaged { object, .. } if object.contains(id_of(&name)));
        assert!(named && fault.page.is_none(), "byte {at}: {fault:?}");
    }
    // What needs these blobs from now on does not rest on that pack.
    let again = capture(&archive, &plain_header(), &pages).await.unwrap();
    assert_restores(&open(&store).await.unwrap(), again.id, &pages).await;
}

/// What happens to an export's file is found before a snapshot is there.
async fn assert_import_refuses(
    archive: &Archive,
    directory: &Path,
    file: &Path,
    bytes: Vec<u8>,
    what: &str,
) -> bool {
    let whole = std::fs::read(file).unwrap();
    std::fs::write(file, bytes).unwrap();
    let imported = import(archive, directory).await;
    std::fs::write(file, whole).unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    match imported {
        Ok((manifest, _)) => {
            archive.delete(manifest.id).await.unwrap();
            false
        }
        Err(Error::Damaged { object, .. }) => {
            assert!(object.contains(name), "{what}: {object}");
            true
        }
        Err(Error::TooLarge { what: named, .. }) => {
            assert!(named.contains(name), "{what}: {named}");
            true
        }
        Err(fault) => panic!("{what}: {fault:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_exports_are_refused() {
    let store = Shaky::new();
    let (pages, [_, manifest]) = two_snapshots(&store).await;
    let archive = open(&store).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("export");
    archive.export(manifest.id, &directory, 3).await.unwrap();
    let blank = Shaky::new();
    let target = open(&blank).await.unwrap();
    let file = directory.join("manifest.json");
    let whole = std::fs::read(&file).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        let what = format!("byte {at} of the manifest");
        assert!(assert_import_refuses(&target, &directory, &file, bytes, &what).await, "{what}");
    }
    let mut refused = 0;
    let mut blobs: Vec<_> =
        std::fs::read_dir(directory.join("blobs")).unwrap().map(|it| it.unwrap().path()).collect();
    blobs.sort();
    for (number, file) in blobs.iter().enumerate() {
        let whole = std::fs::read(file).unwrap();
        for at in (0..16.min(whole.len())).chain((16 + number..whole.len()).step_by(131)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            let what = format!("byte {at} of {}", file.display());
            refused += u64::from(assert_import_refuses(&target, &directory, file, bytes, &what).await);
        }
        let cut = whole[..whole.len() - 1].to_vec();
        assert!(assert_import_refuses(&target, &directory, file, cut, "cut off").await);
        let other = std::fs::read(&blobs[(number + 1) % blobs.len()]).unwrap();
        assert!(assert_import_refuses(&target, &directory, file, other, "another").await);
    }
    assert!(refused > 200, "{refused}");
    assert!(target.list().await.unwrap().is_empty());
    let (imported, _) = import(&target, &directory).await.unwrap();
    assert_restores(&target, imported.id, &pages).await;
}

//! Exports: what ordinary tools say of them, and that they come back as they were.

use crate::shaky::Shaky;
use crate::support::*;
use std::path::Path;
use std::process::Command;
use turnkv_archive::{Error, Export, Split};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_comes_back_in_another_archive() {
    let (from, to) = (Shaky::new(), Shaky::new());
    let (from, to) = (open(&from).await.unwrap(), open(&to).await.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let headers =
        [plain_header(), header(3, 1000, Split::Whole), header(2, 4096, Split::by_layers(2, 4096).unwrap())];
    for (number, header) in headers.iter().enumerate() {
        let pages = chain(header, number as u64, 9);
        let manifest = capture(&from, header, &pages).await.unwrap();
        let directory = dir.path().join(number.to_string());
        let counts = from.export(manifest.id, &directory, 19).await.unwrap();
        assert_eq!(counts.blobs, manifest.digests().count() as u64);
        let (imported, _) = import(&to, &directory).await.unwrap();
        assert_restores(&to, imported.id, &pages).await;
        assert!(imported.id != manifest.id && imported.header == manifest.header);
        assert!(imported.sequences == manifest.sequences && imported.pages == manifest.pages);
        // Once more: nothing is written but a manifest.
        let (_, again) = import(&to, &directory).await.unwrap();
        assert_eq!(again.blobs_new, 0);
        let refused = from.export(manifest.id, &directory, 19).await;
        assert!(matches!(refused, Err(Error::Exists { .. })), "{refused:?}");
    }
    let nothing = import(&to, &dir.path().join("none")).await;
    assert!(matches!(nothing, Err(Error::NotFound { .. })), "{nothing:?}");
    let level = from.export(turnkv_archive::ObjectId::new(), &dir.path().join("level"), 23).await;
    assert!(matches!(level, Err(Error::Invalid { .. })), "{level:?}");
}

/// A process that died in the middle of an export is in nobody's way, and whatever else is there stays.
#[tokio::test]
async fn an_export_takes_the_place_of_one_that_was_not_finished_and_of_nothing_else() {
    let (from, to) = (Shaky::new(), Shaky::new());
    let (from, target) = (open(&from).await.unwrap(), open(&to).await.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let pages = chain(&plain_header(), 1, 5);
    let id = capture(&from, &plain_header(), &pages).await.unwrap().id;
    let left = dir.path().join("left");
    from.export(id, &left, 1).await.unwrap();
    std::fs::rename(left.join("manifest.json"), left.join("manifest.json.part")).unwrap();
    let half = std::fs::read_dir(left.join("blobs")).unwrap().next().unwrap().unwrap();
    std::fs::write(half.path(), b"half").unwrap();
    // As long as somebody is writing it, it is theirs.
    let lock = std::fs::File::open(&left).unwrap();
    lock.lock().unwrap();
    assert!(matches!(from.export(id, &left, 1).await, Err(Error::Exists { .. })));
    drop(lock);
    from.export(id, &left, 1).await.unwrap();
    let (imported, _) = import(&target, &left).await.unwrap();
    assert_restores(&target, imported.id, &pages).await;
    for strange in ["notes.txt", "blobs/notes.txt", "manifest.json.part/notes.txt"] {
        let other = dir.path().join(strange.replace('/', "-"));
        let file = other.join(strange);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, b"mine").unwrap();
        let refused = from.export(id, &other, 1).await;
        assert!(matches!(refused, Err(Error::Exists { .. })), "{strange}: {refused:?}");
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }
}

#[tokio::test]
async fn an_export_that_lacks_a_blob_is_refused_by_its_name() {
    let (from, to) = (Shaky::new(), Shaky::new());
    let (from, target) = (open(&from).await.unwrap(), open(&to).await.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let manifest = capture(&from, &plain_header(), &chain(&plain_header(), 1, 5)).await.unwrap();
    from.export(manifest.id, dir.path(), 1).await.unwrap();
    let digest = manifest.digests().nth(6).unwrap();
    std::fs::remove_file(dir.path().join(format!("blobs/{digest}.zst"))).unwrap();
    let refused = import(&target, dir.path()).await;
    assert!(
        matches!(&refused, Err(Error::NotFound { object }) if object.contains(&digest.to_string())),
        "{refused:?}"
    );
    assert!(target.list().await.unwrap().is_empty());
}

/// The digest is of the content: however it came about, a blob is one frame and nothing after it.
#[tokio::test]
async fn a_blob_of_several_frames_is_refused_though_its_content_is_right() {
    let (from, to) = (Shaky::new(), Shaky::new());
    let (from, target) = (open(&from).await.unwrap(), open(&to).await.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let manifest = capture(&from, &plain_header(), &chain(&plain_header(), 1, 5)).await.unwrap();
    from.export(manifest.id, dir.path(), 1).await.unwrap();
    let digest = manifest.digests().nth(2).unwrap();
    let file = dir.path().join(format!("blobs/{digest}.zst"));
    let whole = std::fs::read(&file).unwrap();
    let content = zstd::decode_all(&whole[..]).unwrap();
    let frame = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
    let (one, two) = content.split_at(content.len() / 3);
    let skippable = [&[0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0], &[7; 4][..]].concat();
    for (what, bytes) in [
        ("two frames", [frame(one), frame(two)].concat()),
        ("an empty frame more", [whole.clone(), frame(&[])].concat()),
        ("a frame that is passed over", [whole.clone(), skippable.clone()].concat()),
        ("one before it", [skippable, whole.clone()].concat()),
        ("a byte more", [&whole[..], &[0]].concat()),
        ("a byte less", whole[..whole.len() - 1].to_vec()),
        ("nothing", Vec::new()),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let refused = import(&target, dir.path()).await;
        assert!(
            matches!(&refused, Err(Error::Damaged { object, .. }) if object.contains(&digest.to_string())),
            "{what}: {refused:?}"
        );
    }
    assert!(target.list().await.unwrap().is_empty());
    std::fs::write(&file, frame(&content)).unwrap();
    import(&target, dir.path()).await.unwrap();
}

/// A pipe would be waited for, and a link may lead anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipes_and_links_in_an_export_are_refused_at_once() {
    let (from, to) = (Shaky::new(), Shaky::new());
    let (from, to) = (open(&from).await.unwrap(), open(&to).await.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("export");
    let manifest = capture(&from, &plain_header(), &chain(&plain_header(), 1, 5)).await.unwrap();
    from.export(manifest.id, &directory, 1).await.unwrap();
    let digest = manifest.digests().nth(3).unwrap();
    for name in ["manifest.json".to_owned(), format!("blobs/{digest}.zst")] {
        let (file, aside) = (directory.join(&name), dir.path().join("aside"));
        std::fs::rename(&file, &aside).unwrap();
        for put in ["pipe", "link"] {
            if put == "pipe" {
                assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
            } else {
                std::os::unix::fs::symlink(&aside, &file).unwrap();
            }
            let refused =
                tokio::time::timeout(std::time::Duration::from_secs(30), import(&to, &directory)).await;
            let refused = refused.unwrap_or_else(|_| panic!("{put} as {name}: it waits"));
            assert!(
                matches!(&refused, Err(Error::Damaged { fault, .. }) if fault.contains("no plain file")),
                "{put} as {name}: {refused:?}"
            );
            std::fs::remove_file(&file).unwrap();
        }
        std::fs::rename(&aside, &file).unwrap();
    }
    let (blobs, aside) = (directory.join("blobs"), dir.path().join("elsewhere"));
    std::fs::rename(&blobs, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &blobs).unwrap();
    let refused = import(&to, &directory).await;
    assert!(
        matches!(&refused, Err(Error::Damaged { object, .. }) if object.ends_with("blobs")),
        "{refused:?}"
    );
    std::fs::remove_file(&blobs).unwrap();
    std::fs::rename(&aside, &blobs).unwrap();
    import(&to, &directory).await.unwrap();
}

/// Whether a command is there.
fn is_there(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn check(directory: &Path) -> (bool, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python/check_export.py");
    let output = Command::new("python3").arg(script).arg(directory).output().unwrap();
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test]
async fn ordinary_tools_can_check_an_export() {
    if !is_there("zstd") || !is_there("python3") {
        println!(
            "LEFT OUT: the check of an export by ordinary tools; it needs the commands zstd and python3"
        );
        return;
    }
    let archive = open(&Shaky::new()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (number, header) in [plain_header(), header(2, 3000, Split::Whole)].iter().enumerate() {
        let manifest = capture(&archive, header, &chain(header, 1, 6)).await.unwrap();
        let directory = dir.path().join(number.to_string());
        archive.export(manifest.id, &directory, 19).await.unwrap();
        let (good, said) = check(&directory);
        assert!(good && said.contains("12 blobs: all as they are named"), "{said}");
        let blobs = directory.join("blobs");
        let mut names: Vec<_> = std::fs::read_dir(&blobs).unwrap().map(|it| it.unwrap().path()).collect();
        names.sort();
        std::fs::copy(&names[0], &names[1]).unwrap();
        let (good, said) = check(&directory);
        assert!(!good && said.contains("is damaged"), "{said}");
    }
}

/// Whoever names the folder below may not be who may read everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_outside_of_the_folder_of_exports_is_opened() {
    let from = open(&Shaky::new()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("exports");
    let (within, outside) = (root.join("mine"), dir.path().join("others"));
    let manifest = capture(&from, &plain_header(), &chain(&plain_header(), 1, 2)).await.unwrap();
    for place in [&within, &outside] {
        from.export(manifest.id, place, 1).await.unwrap();
    }
    assert_eq!(Export::open(&root, Path::new("mine")).unwrap().manifest().id, manifest.id);
    assert_eq!(Export::open(&root, Path::new("./mine/")).unwrap().manifest().id, manifest.id);
    for below in [Path::new("../others"), Path::new("mine/../../others"), &outside] {
        let opened = Export::open(&root, below);
        assert!(matches!(opened, Err(Error::Invalid { .. })), "{}: {opened:?}", below.display());
    }
}

/// A directory is an export when its manifest is there, which is last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_that_ended_half_way_is_none_and_leaves_no_snapshot() {
    let store = Shaky::new();
    let from = open(&store).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let manifest = capture(&from, &plain_header(), &chain(&plain_header(), 1, 9)).await.unwrap();
    let name = &store.names_with(&format!("packs/{}", manifest.packs[1])).await[0];
    let whole = store.read(name).await;
    let mut bytes = whole.clone();
    bytes[3] ^= 1;
    store.write(name, bytes).await;
    let (broken, good) = (dir.path().join("broken"), dir.path().join("good"));
    let refused = from.export(manifest.id, &broken, 1).await;
    let named = manifest.packs[1].to_string();
    assert!(matches!(&refused, Err(Error::Damaged { object, .. }) if object.contains(&named)), "{refused:?}");
    let none = Export::open(&broken, Path::new(""));
    assert!(matches!(none, Err(Error::NotFound { .. })), "{none:?}");
    assert_eq!(std::fs::read_dir(&broken).unwrap().count(), 0, "nothing is in the next one's way");
    store.write(name, whole).await;
    from.export(manifest.id, &broken, 1).await.unwrap();
    from.export(manifest.id, &good, 1).await.unwrap();
    std::fs::rename(good.join("manifest.json"), good.join("manifest.json.part")).unwrap();
    assert!(matches!(import(&from, &good).await, Err(Error::NotFound { .. })));
    assert_eq!(from.list().await.unwrap().len(), 1);
}

//! What goes in comes out: several layouts, shards, codecs, stores; what is there already is not written again.

use crate::shaky::Shaky;
use crate::support::*;
use turnkv_archive::{
    Archive, ArchiveSettings, Compression, Digest, Error, Header, Place, Sequence, ShardDigests, Split,
    Values,
};
use turnkv_mutate::{Random, each_seed};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn random_header(random: &mut Random) -> Header {
    let shards = 1 + random.below(4) as u32;
    match random.below(3) {
        0 => header(shards, 1 + random.below(20_000) as u64, Split::Whole),
        1 => {
            let layers = 1 + random.below(8) as u32;
            let shard_bytes = u64::from(layers) * 2 * (1 + random.below(2000) as u64);
            header(shards, shard_bytes, Split::by_layers(layers, shard_bytes).unwrap())
        }
        _ => {
            let (k, v) = (1 + random.below(9000) as u32, 1 + random.below(9000) as u32);
            let split = Split::KeyValue { k: vec![(v, k)], v: vec![(0, v)] };
            header(shards, u64::from(k + v), split)
        }
    }
}

#[test]
fn pages_of_any_layout_come_back() {
    let runtime = runtime();
    each_seed(24, |random| {
        let compressions = [
            Some(Compression::None),
            Some(Compression::Zstd(1)),
            Some(Compression::Zstd(3)),
            Some(Compression::Huffman(Values::Bf16)),
            None,
        ];
        let settings = ArchiveSettings {
            compression: *random.pick(&compressions).unwrap(),
            pack_bytes: 16 << random.below(6) << 10,
            ..settings()
        };
        runtime.block_on(async {
            let store = Shaky::new();
            let place = Place::Other(std::sync::Arc::new(store.clone()));
            let archive = Archive::open(&place, "tenant", settings.clone()).await.unwrap();
            let header = random_header(random);
            let mut pages = chain(&header, random.number(), 1 + random.below(20));
            if pages.len() > 3 {
                pages[2].shards = pages[1].shards.clone(); // a blob twice in one snapshot
            }
            let mut capture = archive.capture(header.clone()).await.unwrap();
            for page in &pages {
                capture.page(page.clone()).await.unwrap();
            }
            let fill = 1 + random.below(16) as u32;
            let tokens: Vec<u32> = (0..(pages.len() as u32 - 1) * 16 + fill).collect();
            let sequence = Sequence { tokens: Some(tokens), ..sequence(pages.len(), fill) };
            capture.sequence(sequence.clone());
            let (manifest, _) = capture.finish().await.unwrap();
            assert_restores(&archive, manifest.id, &pages).await;
            let again = Archive::open(&place, "tenant", settings).await.unwrap();
            assert_restores(&again, manifest.id, &pages).await;
            let told = again.describe(manifest.id).await.unwrap();
            assert!(told == manifest && told.header == header && told.sequences == [sequence]);
            assert_eq!(again.list().await.unwrap().len(), 1);
            assert!(store.names_with("intents").await.is_empty());
        });
    });
}

/// The published format's document: K and V of a page have `n_layers * page_size_tokens * n_heads * head_dim * 2` bytes each as
/// bf16, and digests of these bytes. Its own example, and the model that it was tried with.
#[tokio::test]
async fn a_page_of_the_published_document_has_the_bytes_that_it_says() {
    for (layers, heads, head_dim, bytes) in [(80, 64, 128, 20_971_520), (22, 4, 64, 180_224)] {
        let page_bytes = u64::from(layers * 16 * heads * head_dim * 2) * 2;
        assert_eq!(page_bytes, 2 * bytes);
        let split = Split::by_layers(layers, page_bytes).unwrap();
        let header = Header { layers, heads, head_dim, ..header(1, page_bytes, split) };
        let store = Shaky::new();
        let archive = open(&store).await.unwrap();
        let page = chain(&header, 1, 1);
        let mut capture = archive.capture(header).await.unwrap();
        capture.page(page[0].clone()).await.unwrap();
        let (manifest, counts) = capture.finish().await.unwrap();
        assert_eq!((counts.blobs_new, counts.decoded_bytes), (2, page_bytes));
        // Layer by layer, all K before all V.
        let halves = page[0].shards[0].chunks((page_bytes / u64::from(2 * layers)) as usize);
        let (mut k, mut v) = (Vec::new(), Vec::new());
        halves.enumerate().for_each(|(at, half)| [&mut k, &mut v][at % 2].extend_from_slice(half));
        assert_eq!(
            manifest.pages[0].shards,
            [ShardDigests::KeyValue { k: Digest::of(&k), v: Digest::of(&v) }]
        );
        let text: serde_json::Value = serde_json::from_slice(&manifest.to_json().unwrap()).unwrap();
        assert_eq!(text["layout"], "paged-batchinvariant-v1");
        for (field, value) in
            [("page_size_tokens", 16), ("n_layers", layers), ("n_heads", heads), ("head_dim", head_dim)]
        {
            assert_eq!(text[field], value, "{field}");
        }
    }
}

#[tokio::test]
async fn a_directory_keeps_pages_across_openings() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::Directory(dir.path().join("archive"));
    let header = plain_header();
    let pages = chain(&header, 1, 30);
    let archive = Archive::open(&place, "tenant", settings()).await.unwrap();
    let manifest = capture(&archive, &header, &pages).await.unwrap();
    let again = Archive::open(&place, "tenant", settings()).await.unwrap();
    assert_restores(&again, manifest.id, &pages).await;
    again.delete(manifest.id).await.unwrap();
    let gone = again.delete(manifest.id).await;
    assert!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
}

#[tokio::test]
async fn what_is_there_is_not_written_again_but_for_another_tenant() {
    let store = Shaky::new();
    let header = plain_header();
    let pages = chain(&header, 1, 40);
    let archive = open(&store).await.unwrap();
    capture(&archive, &header, &pages[..30]).await.unwrap();
    let before = store.bytes_with("packs").await;
    let second = capture(&archive, &header, &pages[..30]).await.unwrap();
    assert_eq!(store.bytes_with("packs").await, before, "the same pages cost no pack");
    let reopened = open(&store).await.unwrap();
    let third = capture(&reopened, &header, &pages).await.unwrap();
    let grown = store.bytes_with("packs").await - before;
    assert!(grown < before / 2, "ten pages more: {grown} bytes beside {before}");
    assert_restores(&reopened, second.id, &pages[..30]).await;
    assert_restores(&archive, third.id, &pages).await;
    let place = Place::Other(std::sync::Arc::new(store.clone()));
    let other = Archive::open(&place, "another", settings()).await.unwrap();
    assert!(other.list().await.unwrap().is_empty());
    let whole = store.bytes_with("packs").await;
    capture(&other, &header, &pages).await.unwrap();
    assert!(store.bytes_with("packs").await - whole >= whole - 1000, "tenants share nothing");
}

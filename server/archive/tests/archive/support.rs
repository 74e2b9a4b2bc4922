//! What the archive's tests share: pages that a seed makes, and taking them in and out.

use crate::shaky::Shaky;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use turnkv_archive::{
    Archive, ArchiveSettings, CaptureCounts, CapturedPage, Compression, Error, Export, Header, Manifest,
    ObjectId, Place, Sequence, Split, StoreSettings,
};
use turnkv_mutate::Random;
use turnkv_proto::{BlockHash, NamespaceId};

pub(crate) const GRACE: Duration = Duration::from_secs(600);

/// Small packs, no retries, two workers.
pub(crate) fn settings() -> ArchiveSettings {
    ArchiveSettings {
        pack_bytes: 16 << 10,
        compression: Some(Compression::None),
        workers: 2,
        grace: GRACE,
        store: StoreSettings { retries_max: 0, request_timeout: Duration::from_secs(20), requests_max: 16 },
        ..ArchiveSettings::default()
    }
}

pub(crate) async fn open(store: &Shaky) -> Result<Archive, Error> {
    Archive::open(&Place::Other(Arc::new(store.clone())), "tenant", settings()).await
}

pub(crate) fn header(shards: u32, shard_bytes: u64, split: Split) -> Header {
    Header {
        namespace: NamespaceId([7; 32]),
        spec: serde_json::json!({"model": "a model", "dtype": "bf16"}),
        page_layout: "layer_kv_head_token".to_owned(),
        page_tokens: 16,
        layers: 4,
        heads: 8,
        head_dim: 64,
        dtype: "bf16".to_owned(),
        groups: vec![serde_json::json!({"kind": "full", "layers": 4})],
        shards,
        shard_bytes,
        split,
    }
}

/// Split by four layers.
pub(crate) fn plain_header() -> Header {
    header(1, 4096, Split::by_layers(4, 4096).unwrap())
}

/// Bytes that look like bf16 of a cache to a codec.
pub(crate) fn shard(random: &mut Random, bytes: u64) -> Bytes {
    let mut out = Vec::with_capacity(bytes as usize + 8);
    while (out.len() as u64) < bytes {
        let number = random.number();
        for lane in 0..4 {
            let lane = (number >> (16 * lane)) as u16;
            let exponent = 120 + (lane >> 4 & 7);
            out.extend_from_slice(&(lane & 0x8000 | exponent << 7 | lane & 0x7f).to_le_bytes());
        }
    }
    out.truncate(bytes as usize);
    Bytes::from(out)
}

/// A chain of pages that a seed makes.
pub(crate) fn chain(header: &Header, seed: u64, count: usize) -> Vec<CapturedPage> {
    let mut random = Random::new(seed);
    let mut pages = Vec::with_capacity(count);
    for at in 0..count {
        let shards = (0..header.shards).map(|_| shard(&mut random, header.shard_bytes)).collect();
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&seed.to_le_bytes());
        hash[8..16].copy_from_slice(&(at as u64).to_le_bytes());
        pages.push(CapturedPage {
            hash: BlockHash(hash),
            parent: at.checked_sub(1).map(|it| it as u32),
            shards,
        });
    }
    pages
}

/// One sequence over all of so many pages.
pub(crate) fn sequence(count: usize, last_page_tokens: u32) -> Sequence {
    Sequence { id: "session".to_owned(), pages: (0..count as u32).collect(), last_page_tokens, tokens: None }
}

pub(crate) async fn capture(
    archive: &Archive,
    header: &Header,
    pages: &[CapturedPage],
) -> Result<Manifest, Error> {
    let mut capture = archive.capture(header.clone()).await?;
    for page in pages {
        capture.page(page.clone()).await?;
    }
    capture.sequence(sequence(pages.len(), 16));
    capture.finish().await.map(|(manifest, _)| manifest)
}

/// Takes in an export.
pub(crate) async fn import(archive: &Archive, directory: &Path) -> Result<(Manifest, CaptureCounts), Error> {
    archive.import(Export::open(directory, Path::new(""))?).await
}

/// Reads a snapshot; fails at the first fault.
pub(crate) async fn restore(archive: &Archive, id: ObjectId) -> Result<Vec<CapturedPage>, Error> {
    let mut restore = archive.restore(id).await?;
    let mut pages = Vec::new();
    while let Some(page) = restore.next().await {
        let page = page?;
        assert_eq!(page.ix as usize, pages.len());
        pages.push(CapturedPage { hash: page.hash, parent: page.parent, shards: page.shards });
    }
    Ok(pages)
}

/// Whether a snapshot gives back these pages.
pub(crate) async fn assert_restores(archive: &Archive, id: ObjectId, pages: &[CapturedPage]) {
    let read = restore(archive, id).await.unwrap_or_else(|fault| panic!("{id}: {fault}"));
    assert_eq!(read.len(), pages.len());
    for (at, (read, page)) in read.iter().zip(pages).enumerate() {
        assert!(
            read.hash == page.hash && read.parent == page.parent && read.shards == page.shards,
            "page {at}"
        );
    }
}

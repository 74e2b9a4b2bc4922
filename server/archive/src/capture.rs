//! Capture: pages into packs, then a manifest. Owns: the order in which things are written. Must not know: where pages come from.
//!
//! 1. Packs are listed, condemned ones are told apart: nothing of those is reused.
//! 2. Pages are cut, hashed and encoded by several workers. A blob that a lasting pack has is reused; its pack is named in the
//!    capture's intent first. Others fill new packs.
//! 3. When all packs are in the store, and those that are reused still are, the manifest is written, under a name that nothing had.
//!
//! A crash before the last step leaves packs that nothing needs. A pack goes no sooner than a grace time after it was condemned, and
//! a capture writes its manifest no later than three quarters of one after the first step: what was not condemned then is there.

use crate::archive::Archive;
use crate::blob::{Coder, Compression, StoredBlob};
use crate::error::Error;
use crate::fill::Filler;
use crate::id::{Digest, ObjectId};
use crate::intent::Intent;
use crate::limits::{CAPTURE_BYTES_AHEAD_MAX, MANIFEST_PAGES_MAX, OBJECTS_AT_ONCE, PAGES_AHEAD_PER_WORKER};
use crate::manifest::{BOOKMARKED, Header, Manifest, ManifestPage, Sequence, ShardDigests};
use crate::split::{Part, Split};
use crate::store::{Key, Kind};
use crate::term::Term;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::{JoinHandle, JoinSet};
use turnkv_proto::BlockHash;

/// A page to be captured.
#[derive(Clone, Debug)]
pub struct CapturedPage {
    /// Its block hash.
    pub hash: BlockHash,
    /// Which of the capture's pages is before it, counted from 0 in the order they were given; none for the first of a prompt.
    pub parent: Option<u32>,
    /// Its shards, each of the header's `shard_bytes`.
    pub shards: Vec<Bytes>,
}

/// What a capture has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// Blobs that were written.
    pub blobs_new: u64,
    /// Blobs that were there, in another snapshot or earlier in this one.
    pub blobs_reused: u64,
    /// Bytes of the new blobs, as engines have them.
    pub decoded_bytes: u64,
    /// Bytes of the new blobs, as stored.
    pub stored_bytes: u64,
}

/// A snapshot under way.
pub struct Capture {
    archive: Archive,
    term: Term,
    id: ObjectId,
    header: Arc<Header>,
    compression: Compression,
    /// Pages that were given: for each its hash and parent.
    given: Vec<(BlockHash, Option<u32>)>,
    /// Digests of the pages that were hashed, the first of those given.
    hashed: Vec<Vec<ShardDigests>>,
    /// Pages that are being hashed, in order, with their bytes.
    ahead: VecDeque<(u64, JoinHandle<Result<Hashed, Error>>)>,
    ahead_bytes: u64,
    /// Digests of blobs that this capture writes.
    claimed: Arc<Mutex<HashSet<Digest>>>,
    filler: Filler,
    intent: Intent,
    /// Packs that are reused, with the bytes of each.
    reused: BTreeMap<ObjectId, u64>,
    sequences: Vec<Sequence>,
    other: Map<String, Value>,
    created_unix_s: u64,
    counts: CaptureCounts,
}

/// What a worker made of a page.
struct Hashed {
    shards: Vec<ShardDigests>,
    blobs: Vec<StoredBlob>,
    reused: Vec<(ObjectId, u64)>,
    reused_blobs: u64,
}

impl Archive {
    /// Begins a snapshot of pages that have this in common.
    pub async fn capture(&self, header: Header) -> Result<Capture, Error> {
        header.check()?;
        let term = Term::begin("a capture", self.made().await?);
        self.refresh().await?;
        let id = ObjectId::new();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Capture {
            archive: self.clone(),
            term,
            id,
            compression: self.compression(&header.dtype),
            header: Arc::new(header),
            given: Vec::new(),
            hashed: Vec::new(),
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            claimed: Arc::default(),
            filler: Filler::new(self),
            intent: Intent::new(id),
            reused: BTreeMap::new(),
            sequences: Vec::new(),
            other: Map::new(),
            created_unix_s: since.as_secs(),
            counts: CaptureCounts::default(),
        })
    }
}

impl Capture {
    /// The name that the manifest will have.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// What was done until now; the pages that are being hashed do not count yet.
    #[must_use]
    pub fn counts(&self) -> CaptureCounts {
        self.counts
    }

    /// Bytes of pages and blobs that it holds, beside packs that are on their way to the store.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.ahead_bytes + self.filler.waiting_bytes()
    }

    /// It is an archived session, whose bookmark was written: a verification misses that if it goes.
    pub fn mark_bookmarked(&mut self) {
        self.other.insert(BOOKMARKED.to_owned(), Value::String(self.id.to_string()));
    }

    /// Keeps what another manifest had beside the published fields, and when it was captured.
    pub(crate) fn keep(&mut self, other: Map<String, Value>, created_unix_s: u64) {
        (self.other, self.created_unix_s) = (other, created_unix_s);
    }

    /// Takes a page; its number. Waits while enough pages are being hashed or written. After an error the capture is void.
    pub async fn page(&mut self, page: CapturedPage) -> Result<u32, Error> {
        self.term.left()?;
        let at = self.given.len();
        let field = |name: &str| format!("pages[{at}].{name}");
        Error::bound("pages of a manifest", at as u64 + 1, MANIFEST_PAGES_MAX as u64)?;
        if page.parent.is_some_and(|parent| parent as usize >= at) {
            return Err(Error::invalid(field("parent"), "is not an earlier page"));
        }
        let bytes: u64 = page.shards.iter().map(|shard| shard.len() as u64).sum();
        let fits = page.shards.iter().all(|shard| shard.len() as u64 == self.header.shard_bytes);
        if page.shards.len() != self.header.shards as usize || !fits {
            let Header { shards, shard_bytes, .. } = *self.header;
            let fault = format!("must be {shards} shards of {shard_bytes} bytes");
            return Err(Error::invalid(field("shards"), fault));
        }
        let ahead_max = self.archive.workers.count() * PAGES_AHEAD_PER_WORKER;
        while !self.ahead.is_empty()
            && (self.ahead.len() >= ahead_max || self.ahead_bytes + bytes > CAPTURE_BYTES_AHEAD_MAX)
        {
            self.take_hashed().await?;
        }
        let (archive, header, claimed) =
            (self.archive.clone(), Arc::clone(&self.header), Arc::clone(&self.claimed));
        let compression = self.compression;
        let work = tokio::spawn(async move {
            let workers = archive.workers.clone();
            workers
                .run(move |coder| hash(coder, &archive, &header.split, compression, &claimed, &page.shards))
                .await
        });
        self.ahead.push_back((bytes, work));
        self.ahead_bytes += bytes;
        self.given.push((page.hash, page.parent));
        Ok(at as u32)
    }

    /// Adds a sequence of pages that were given.
    pub fn sequence(&mut self, sequence: Sequence) {
        self.sequences.push(sequence);
    }

    async fn take_hashed(&mut self) -> Result<(), Error> {
        let Some((bytes, work)) = self.ahead.pop_front() else { return Ok(()) };
        let hashed =
            work.await.map_err(|fault| Error::Short(format!("a page's hashing ended early: {fault}")))??;
        self.ahead_bytes -= bytes;
        let new: Vec<ObjectId> = hashed.reused.iter().map(|(pack, _)| *pack).collect();
        self.intent.add(&self.archive, &new).await?;
        self.reused.extend(hashed.reused);
        self.counts.blobs_reused += hashed.reused_blobs;
        for blob in hashed.blobs {
            self.counts.blobs_new += 1;
            self.counts.decoded_bytes += u64::from(blob.decoded_bytes);
            self.counts.stored_bytes += blob.bytes.len() as u64;
            self.filler.add(blob).await?;
        }
        self.hashed.push(hashed.shards);
        Ok(())
    }

    /// Writes what is left, and then the manifest. If the store does not say that it took it, it may have: then the snapshot is
    /// complete, too.
    pub async fn finish(mut self) -> Result<(Manifest, CaptureCounts), Error> {
        if self.given.is_empty() {
            return Err(Error::invalid("pages", "there are none"));
        }
        while !self.ahead.is_empty() {
            self.take_hashed().await?;
        }
        if self.hashed.len() != self.given.len() {
            return Err(Error::invalid("capture", "an earlier call failed: begin again"));
        }
        let written = self.filler.finish().await?;
        let packs = written.into_iter().chain(self.reused.keys().copied()).collect();
        let pages = self.given.into_iter().zip(self.hashed);
        let pages = pages.map(|((hash, parent), shards)| ManifestPage { hash, parent, shards });
        let manifest = Manifest {
            id: self.id,
            header: Arc::unwrap_or_clone(self.header),
            pages: pages.collect(),
            sequences: self.sequences,
            created_unix_s: self.created_unix_s,
            packs,
            other: self.other,
        };
        write_manifest(&self.archive, &manifest, &self.reused, &self.term).await?;
        self.intent.end(&self.archive).await;
        Ok((manifest, self.counts))
    }
}

/// Writes a manifest when the packs that it reuses are seen to be there, and there is time.
pub(crate) async fn write_manifest(
    archive: &Archive,
    manifest: &Manifest,
    reused: &BTreeMap<ObjectId, u64>,
    term: &Term,
) -> Result<(), Error> {
    let written = manifest.clone();
    let text = Bytes::from(archive.workers.run(move |_| written.to_json()).await??);
    let mut heads = JoinSet::new();
    let mut checked = reused.iter();
    loop {
        let next = if heads.len() < OBJECTS_AT_ONCE { checked.next() } else { None };
        match next {
            Some((pack, bytes)) => drop(heads.spawn(check_pack(archive.clone(), *pack, *bytes))),
            None => match heads.join_next().await {
                Some(done) => {
                    done.map_err(|fault| Error::Short(format!("a check ended early: {fault}")))??
                }
                None => break,
            },
        }
    }
    let left = term.left()?;
    let key = Key::Of(Kind::Manifest, manifest.id);
    let put = tokio::time::timeout(left, archive.store.put_new(key, &[text])).await;
    put.unwrap_or_else(|_| {
        let fault = "no answer before the grace time was over".to_owned();
        Err(term.left().err().unwrap_or(Error::Unreachable { object: key.to_string(), fault }))
    })
}

/// Fails unless a pack is in the store and as long as it was.
async fn check_pack(archive: Archive, pack: ObjectId, bytes: u64) -> Result<(), Error> {
    let key = Key::Of(Kind::Pack, pack);
    let found = archive.store.head(key).await?.bytes;
    if found == bytes {
        return Ok(());
    }
    Err(Error::damaged(key.to_string(), format!("it had {bytes} bytes and has {found}")))
}

/// Cuts a page, and hashes and encodes what is new of it.
fn hash(
    coder: &mut Coder,
    archive: &Archive,
    split: &Split,
    compression: Compression,
    claimed: &Mutex<HashSet<Digest>>,
    shards: &[Bytes],
) -> Hashed {
    let mut hashed = Hashed { shards: Vec::new(), blobs: Vec::new(), reused: Vec::new(), reused_blobs: 0 };
    for shard in shards {
        let parts = split.cut(shard);
        let mut digests = Vec::with_capacity(parts.len());
        for (part, bytes) in parts {
            let digest = Digest::of(&bytes);
            digests.push((part, digest));
            let found = archive.index.lock().find_lasting(&digest);
            if let Some(found) = found.filter(|_| !claimed.lock().contains(&digest)) {
                hashed.reused.push((found.pack, found.pack_bytes));
                hashed.reused_blobs += 1;
            } else if claimed.lock().insert(digest) {
                hashed.blobs.push(coder.encode(compression, digest, &bytes));
            } else {
                hashed.reused_blobs += 1;
            }
        }
        hashed.shards.push(match digests[..] {
            [(Part::K, k), (Part::V, v)] => ShardDigests::KeyValue { k, v },
            _ => ShardDigests::Whole(digests[0].1),
        });
    }
    hashed
}

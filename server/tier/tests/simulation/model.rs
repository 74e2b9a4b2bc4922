//! What the tier has promised so far, as plain tables. Owns: which bytes every extent holds, what is alive, what a flush
//! vouched for. Must not know: the tier, the disk.

use std::collections::{BTreeMap, BTreeSet};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_tier::nvme::simulation::Random;
use turnkv_tier::{ExtentMeta, Location};
use turnkv_transfer::checksum;

/// One page's bytes: a page that is written anew after its owner dropped it has another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Content {
    pub(crate) key: u64,
    pub(crate) version: u32,
    pub(crate) bytes: u32,
    checksum: u64,
}

impl Content {
    fn new(key: u64, version: u32, bytes: u32) -> Content {
        let content = Content { key, version, bytes, checksum: 0 };
        Content { checksum: checksum(&content.payload()), ..content }
    }

    /// Its bytes: every sector is like no other of any page.
    pub(crate) fn payload(self) -> Vec<u8> {
        let mut random = Random::new(self.key << 32 ^ u64::from(self.version));
        let mut bytes = vec![0; self.bytes as usize];
        for sector in bytes.chunks_mut(512) {
            let word = random.draw().to_le_bytes();
            sector.fill(word[0]);
            let head = word.len().min(sector.len());
            sector[..head].copy_from_slice(&word[..head]);
        }
        bytes
    }

    pub(crate) fn meta(self) -> ExtentMeta {
        let mut hash = [3; 32];
        hash[..8].copy_from_slice(&self.key.to_le_bytes());
        ExtentMeta {
            namespace: NamespaceId([7; 32]),
            hash: BlockHash(hash),
            parent: (self.key > 0).then_some(BlockHash([3; 32])),
            shard: (self.key % 3) as u16,
            shards: 3,
            tail_tokens: self.version,
            payload_bytes: self.bytes,
            checksum: self.checksum,
        }
    }

    pub(crate) fn blocks(self) -> u32 {
        1 + self.bytes.div_ceil(4096)
    }
}

/// A page that a flush vouched for.
#[derive(Clone, Debug)]
pub(crate) struct Vouched {
    pub(crate) content: Content,
    /// Where it is or was: a fault of the medium at one of these may take it away.
    pub(crate) places: BTreeSet<Location>,
}

/// The tables.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Extents whose write was acknowledged and that are not forgotten.
    pub(crate) live: BTreeMap<Location, Content>,
    pub(crate) vouched: BTreeMap<u64, Vouched>,
    /// Everything ever given to the tier, acknowledged or not.
    tried: BTreeMap<(u64, u32), Content>,
    versions: BTreeMap<u64, u32>,
    /// Extents may be shorter than their payloads.
    packs: bool,
}

impl Model {
    /// Knows nothing yet. `packs`: extents may be shorter than their payloads.
    pub(crate) fn new(packs: bool) -> Model {
        Model { packs, ..Model::default() }
    }

    /// Blocks that an extent takes at least.
    fn blocks_min(&self, content: Content) -> u32 {
        if self.packs { 2 } else { content.blocks() }
    }

    /// The next version of a page, about to be written.
    pub(crate) fn write(&mut self, key: u64, bytes: u32) -> Content {
        let version = self.versions.entry(key).or_default();
        *version += 1;
        let content = Content::new(key, *version, bytes);
        self.tried.insert((key, content.version), content);
        content
    }

    /// A write was acknowledged.
    pub(crate) fn written(&mut self, at: Location, content: Content) -> Result<(), String> {
        let end = at.block + self.blocks_min(content);
        let neighbours = self.live.iter().filter(|(other, _)| other.segment == at.segment);
        for (other, there) in neighbours {
            if other.block < end && at.block < other.block + self.blocks_min(*there) {
                return Err(format!("{at:?} was given out while {other:?} is alive"));
            }
        }
        if let Some(vouched) = self.vouched.get_mut(&content.key)
            && vouched.content == content
        {
            vouched.places.insert(at);
        }
        self.live.insert(at, content);
        Ok(())
    }

    /// Is a page there in any copy?
    pub(crate) fn holds(&self, key: u64) -> bool {
        self.live.values().any(|content| content.key == key)
    }

    /// The owner gives a page up; its extents.
    pub(crate) fn drop_page(&mut self, key: u64) -> Vec<(Location, Content)> {
        self.vouched.remove(&key);
        let mine = self.live.iter().filter(|(_, content)| content.key == key);
        let mine: Vec<_> = mine.map(|(at, content)| (*at, *content)).collect();
        for (at, _) in &mine {
            self.live.remove(at);
        }
        mine
    }

    /// A flush that was asked for when these were alive was acknowledged.
    pub(crate) fn flushed(&mut self, covered: &[(Location, Content)]) {
        for (at, content) in covered {
            if !self.live.values().any(|live| live == content) {
                continue; // its owner dropped it meanwhile
            }
            let vouched = self
                .vouched
                .entry(content.key)
                .or_insert_with(|| Vouched { content: *content, places: BTreeSet::new() });
            vouched.places.insert(*at);
            let copies = self.live.iter().filter(|(_, live)| *live == content).map(|(at, _)| *at);
            vouched.places.extend(copies);
        }
    }

    /// Are these the bytes and the number of live extents, as the tier's gauges count them?
    pub(crate) fn agrees(&self, (bytes, extents): (u64, u64)) -> bool {
        let sum = |blocks: &dyn Fn(Content) -> u32| -> u64 {
            self.live.values().map(|content| u64::from(blocks(*content)) * 4096).sum()
        };
        let (least, most) = (sum(&|content| self.blocks_min(content)), sum(&|content| content.blocks()));
        (least..=most).contains(&bytes) && extents == self.live.len() as u64
    }

    /// The tier was opened again and found these. `excused`: a fault of the medium hit one of the places.
    pub(crate) fn recovered(
        &mut self,
        found: &[(ExtentMeta, Location)],
        excused: impl Fn(&Vouched) -> bool,
    ) -> Result<(), String> {
        let mut live = BTreeMap::new();
        let mut keys = BTreeMap::new();
        for (meta, at) in found {
            let content = self.known(meta)?;
            if let Some(other) = keys.insert(content.key, *at) {
                return Err(format!("page {} was found at {other:?} and at {at:?}", content.key));
            }
            live.insert(*at, content);
        }
        for (key, vouched) in &self.vouched {
            let there = keys.get(key).and_then(|at| live.get(at));
            // A version that its owner wrote later may have survived, dropped or not.
            let kept = there.is_some_and(|there| there.version >= vouched.content.version);
            if !kept && !excused(vouched) {
                return Err(format!("a flush vouched for {vouched:?}, and what is found is {there:?}"));
            }
        }
        self.vouched
            .retain(|key, vouched| keys.get(key).and_then(|at| live.get(at)) == Some(&vouched.content));
        for (key, vouched) in &mut self.vouched {
            vouched.places.extend(keys.get(key));
        }
        self.live = live;
        Ok(())
    }

    fn known(&self, meta: &ExtentMeta) -> Result<Content, String> {
        let key = meta.hash.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let tried = self.tried.get(&(key, meta.tail_tokens));
        let content = tried.ok_or_else(|| format!("{meta:?} was found and never written"))?;
        if content.meta() != *meta {
            return Err(format!("{meta:?} was found and {:?} was written", content.meta()));
        }
        Ok(*content)
    }
}

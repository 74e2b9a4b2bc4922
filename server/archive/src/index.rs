//! Which blobs there are, in memory. Owns: finding a blob's place by its digest. Must not know: how indexes are read.

use crate::id::{Digest, ObjectId};
use crate::pack::format::{Entry, PackIndex};
use std::collections::{HashMap, HashSet};

/// Where a blob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) pack: ObjectId,
    /// Bytes of the pack's object.
    pub(crate) pack_bytes: u64,
    pub(crate) entry: Entry,
}

/// The blobs of all packs that were read.
#[derive(Default)]
pub(crate) struct Index {
    /// Packs by their number here.
    packs: Vec<Option<PackIndex>>,
    /// Numbers that no pack has.
    free: Vec<u32>,
    numbers: HashMap<ObjectId, u32>,
    /// A pack with a blob whose digest begins so,
    first: HashMap<u64, u32>,
    /// and the others with such a blob.
    more: HashMap<u64, Vec<u32>>,
    blobs: usize,
    /// Packs that there was no room for.
    unread: Vec<ObjectId>,
    /// Packs whose index is damaged.
    damaged: HashSet<ObjectId>,
    /// Packs that will go: nothing new may need them.
    condemned: HashSet<ObjectId>,
}

impl Index {
    /// How many blobs are known, a blob in two packs twice.
    pub(crate) fn blobs(&self) -> usize {
        self.blobs
    }

    /// The packs that are known.
    pub(crate) fn packs(&self) -> HashSet<ObjectId> {
        self.numbers.keys().copied().collect()
    }

    /// Whether a pack need not be read: it was.
    pub(crate) fn knows(&self, pack: &ObjectId) -> bool {
        self.numbers.contains_key(pack)
    }

    /// Packs that there was no room for.
    pub(crate) fn unread(&self) -> &[ObjectId] {
        &self.unread
    }

    /// Remembers that there is no room for these packs.
    pub(crate) fn add_unread(&mut self, packs: &[ObjectId]) {
        self.unread.extend_from_slice(packs);
    }

    /// Begins a new reading of all packs that are not known, also of those whose index was damaged: it may have been put back.
    pub(crate) fn begin_reading(&mut self) {
        self.unread.clear();
        self.damaged.clear();
    }

    /// The first of these packs whose index is damaged.
    pub(crate) fn damaged_of(&self, packs: &[ObjectId]) -> Option<ObjectId> {
        packs.iter().find(|pack| self.damaged.contains(pack)).copied()
    }

    /// Remembers that a pack's index is damaged.
    pub(crate) fn add_damaged(&mut self, pack: ObjectId) {
        self.damaged.insert(pack);
    }

    /// Adds a pack if no more than so many blobs are known then; otherwise only remembers that there is no room for it.
    pub(crate) fn add(&mut self, index: PackIndex, blobs_max: usize) {
        if self.numbers.contains_key(&index.id) {
            return;
        }
        if self.blobs + index.entries.len() > blobs_max {
            self.unread.push(index.id);
            return;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.packs.push(None);
            self.packs.len() as u32 - 1
        });
        self.numbers.insert(index.id, number);
        self.blobs += index.entries.len();
        for entry in &index.entries {
            let short = entry.digest.short();
            match self.first.entry(short) {
                std::collections::hash_map::Entry::Vacant(place) => drop(place.insert(number)),
                std::collections::hash_map::Entry::Occupied(_) => {
                    self.more.entry(short).or_default().push(number)
                }
            }
        }
        self.packs[number as usize] = Some(index);
    }

    /// Forgets a pack.
    pub(crate) fn remove(&mut self, pack: &ObjectId) {
        self.damaged.remove(pack);
        self.condemned.remove(pack);
        let Some(number) = self.numbers.remove(pack) else { return };
        let Some(known) = self.packs.get_mut(number as usize).and_then(Option::take) else { return };
        self.free.push(number);
        self.blobs -= known.entries.len();
        for entry in &known.entries {
            let short = entry.digest.short();
            let others = self.more.get_mut(&short);
            if self.first.get(&short) == Some(&number) {
                match others.and_then(Vec::pop) {
                    Some(other) => drop(self.first.insert(short, other)),
                    None => drop(self.first.remove(&short)),
                }
            } else if let Some(others) = others {
                others.retain(|other| *other != number);
            }
            if self.more.get(&short).is_some_and(Vec::is_empty) {
                self.more.remove(&short);
            }
        }
    }

    /// Nothing new may need this pack.
    pub(crate) fn condemn(&mut self, pack: ObjectId) {
        self.condemned.insert(pack);
    }

    /// Whether nothing new may need a pack.
    pub(crate) fn is_condemned(&self, pack: &ObjectId) -> bool {
        self.condemned.contains(pack)
    }

    /// Where a blob is, rather in a pack that stays.
    pub(crate) fn find(&self, digest: &Digest) -> Option<Found> {
        self.find_lasting(digest).or_else(|| self.search(digest, |_| true))
    }

    /// Where a blob is in a pack that stays.
    pub(crate) fn find_lasting(&self, digest: &Digest) -> Option<Found> {
        self.search(digest, |known| !self.condemned.contains(&known.id))
    }

    fn search(&self, digest: &Digest, wanted: impl Fn(&PackIndex) -> bool) -> Option<Found> {
        let short = digest.short();
        let others = self.more.get(&short).into_iter().flatten();
        self.first.get(&short).into_iter().chain(others).find_map(|number| {
            let known = self.packs.get(*number as usize)?.as_ref().filter(|known| wanted(known))?;
            let entry = *known.find(digest)?;
            Some(Found { pack: known.id, pack_bytes: known.object_bytes, entry })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::BlobCodec;
    use std::collections::BTreeMap;

    fn pack(number: u8, blobs: &[u8]) -> PackIndex {
        let entry = |blob: &u8| Entry {
            digest: Digest([*blob; 32]),
            offset: 0,
            stored_bytes: 1,
            decoded_bytes: 1,
            codec: BlobCodec::Raw,
            checksum: 0,
        };
        PackIndex { id: ObjectId([number; 16]), object_bytes: 1, entries: blobs.iter().map(entry).collect() }
    }

    #[test]
    fn a_blob_is_found_while_any_pack_has_it() {
        let mut index = Index::default();
        for number in 0..4 {
            index.add(pack(number, &[1, 2, number + 10]), 12);
        }
        assert_eq!(index.blobs(), 12);
        index.condemn(ObjectId([0; 16]));
        assert_ne!(index.find(&Digest([1; 32])).unwrap().pack, ObjectId([0; 16]));
        assert!(index.find_lasting(&Digest([10; 32])).is_none());
        assert!(index.find(&Digest([10; 32])).is_some());
        for number in 0..4 {
            assert!(index.find(&Digest([1; 32])).is_some(), "{number}");
            index.remove(&ObjectId([number; 16]));
        }
        assert!(index.find(&Digest([1; 32])).is_none() && index.blobs() == 0);
        assert!(index.first.is_empty() && index.more.is_empty());
        index.add(pack(9, &[1]), 1);
        index.add(pack(8, &[1]), 1);
        assert_eq!(index.unread(), [ObjectId([8; 16])], "there is no room for it");
        assert!(index.packs.len() == 4 && index.find(&Digest([1; 32])).is_some(), "numbers are used again");
    }

    /// Whether the index says of a blob what a plain table of packs says.
    fn check(index: &Index, packs: &BTreeMap<u8, Vec<u8>>, condemned: &HashSet<u8>, blob: u8) {
        let having = |number: &u8| packs.get(number).is_some_and(|blobs| blobs.contains(&blob));
        let with: Vec<u8> = packs.keys().copied().filter(having).collect();
        let found = index.find(&Digest([blob; 32])).map(|found| found.pack.0[0]);
        assert_eq!(found.is_some(), !with.is_empty(), "blob {blob} in {packs:?}");
        assert!(found.is_none_or(|number| with.contains(&number)), "blob {blob} is in pack {found:?}");
        let lasting = index.find_lasting(&Digest([blob; 32])).map(|found| found.pack.0[0]);
        let stay = with.iter().any(|number| !condemned.contains(number));
        assert_eq!(lasting.is_some(), stay, "blob {blob} in {packs:?}, condemned {condemned:?}");
        assert!(lasting.is_none_or(|number| !condemned.contains(&number)));
        assert!(!stay || found.is_some_and(|number| !condemned.contains(&number)), "rather one that stays");
    }

    #[test]
    fn it_knows_what_a_table_of_all_packs_knows_after_every_step() {
        const ROOM: usize = 20;
        turnkv_mutate::each_seed(120, |random| {
            let mut index = Index::default();
            let (mut packs, mut condemned) = (BTreeMap::<u8, Vec<u8>>::new(), HashSet::new());
            for _ in 0..60 {
                let number = random.below(9) as u8;
                match random.below(5) {
                    0 | 1 => {
                        // Blobs whose digests begin alike are told apart by the rest of it.
                        let blobs: Vec<u8> = (0..10).filter(|_| random.one_in(2)).collect();
                        let count: usize = packs.values().map(Vec::len).sum();
                        let fits = count + blobs.len() <= ROOM;
                        let unread = index.unread().len();
                        index.add(pack(number, &blobs), ROOM);
                        let is_new = !packs.contains_key(&number);
                        assert_eq!(index.unread().len() - unread, usize::from(is_new && !fits));
                        if is_new && fits {
                            packs.insert(number, blobs);
                        }
                    }
                    2 => {
                        index.remove(&ObjectId([number; 16]));
                        packs.remove(&number);
                        condemned.remove(&number);
                    }
                    3 => {
                        index.condemn(ObjectId([number; 16]));
                        condemned.insert(number);
                    }
                    _ => index.begin_reading(),
                }
                assert_eq!(index.blobs(), packs.values().map(Vec::len).sum::<usize>());
                assert_eq!(index.packs(), packs.keys().map(|number| ObjectId([*number; 16])).collect());
                (0..10).for_each(|blob| check(&index, &packs, &condemned, blob));
            }
        });
    }
}

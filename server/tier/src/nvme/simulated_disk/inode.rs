//! One file of a simulated disk: what its reader sees, what is on stable storage, and what lies between the
//! two.
//!
//! Owns: both images, the log of what was not synced, damage by sector. Must not know: names, the fault plan.

use super::faults::FaultCounts;
use super::random::Random;
use std::collections::BTreeSet;

/// What a disk writes whole or not at all.
pub(super) const SECTOR: u64 = 512;

/// What was done and not yet synced, in order.
#[derive(Debug)]
enum Change {
    Write {
        offset: u64,
        bytes: Vec<u8>,
        /// A sector that does not hold what its writer meant.
        damaged: Option<u64>,
    },
    Length(u64),
}

#[derive(Debug, Default)]
struct Image {
    bytes: Vec<u8>,
    /// Sectors that do not hold what was last written to them, or that cannot be read.
    damaged: BTreeSet<u64>,
}

impl Image {
    fn write(&mut self, offset: u64, bytes: &[u8], damaged: Option<u64>) {
        let end = offset as usize + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].copy_from_slice(bytes);
        if !self.damaged.is_empty() || damaged.is_some() {
            // A sector that is written in part keeps its damage.
            let whole = offset.div_ceil(SECTOR)..end as u64 / SECTOR;
            self.damaged.retain(|sector| !whole.contains(sector));
            self.damaged.extend(damaged);
        }
    }

    fn set_len(&mut self, len: u64) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; len as usize];
        } else {
            self.bytes.resize(len as usize, 0);
        }
        self.damaged.retain(|sector| sector * SECTOR < len);
    }
}

/// One file.
#[derive(Debug, Default)]
pub(super) struct Inode {
    /// It is written past the host's cache.
    pub(super) direct: bool,
    seen: Image,
    stable: Image,
    unsynced: Vec<Change>,
    /// Sectors that cannot be read until they are written.
    unreadable: BTreeSet<u64>,
}

impl Inode {
    pub(super) fn len(&self) -> u64 {
        self.seen.bytes.len() as u64
    }

    /// Bytes it takes on the disk: a crash may leave the longer of both.
    pub(super) fn allocated(&self) -> u64 {
        self.len().max(self.stable.bytes.len() as u64)
    }

    /// The bytes a reader sees from `offset`, at most `len`.
    pub(super) fn read(&self, offset: u64, len: usize) -> &[u8] {
        let begin = (offset as usize).min(self.seen.bytes.len());
        let end = begin.saturating_add(len).min(self.seen.bytes.len());
        &self.seen.bytes[begin..end]
    }

    pub(super) fn is_unreadable(&self, offset: u64, len: usize) -> bool {
        !self.unreadable.is_empty() && self.unreadable.range(sectors(offset, len)).next().is_some()
    }

    /// Writes into the cache. `damaged`: a sector of it that arrives wrong.
    pub(super) fn write(&mut self, offset: u64, bytes: Vec<u8>, damaged: Option<u64>) {
        if bytes.is_empty() {
            return;
        }
        self.seen.write(offset, &bytes, damaged);
        if !self.unreadable.is_empty() {
            let written = sectors(offset, bytes.len());
            self.unreadable.retain(|sector| !written.contains(sector));
        }
        self.unsynced.push(Change::Write { offset, bytes, damaged });
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len != self.len() {
            self.seen.set_len(len);
            self.unsynced.push(Change::Length(len));
        }
    }

    /// Everything is on stable storage.
    pub(super) fn sync(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::Write { offset, bytes, damaged } => self.stable.write(offset, &bytes, damaged),
                Change::Length(len) => self.stable.set_len(len),
            }
        }
    }

    /// A sync failed: of what it was to bring to stable storage some is there. The rest may be brought there
    /// by a later sync if it was written past the host's cache; or it never will be, because that cache takes
    /// it for clean now.
    pub(super) fn sync_failed(&mut self, random: &mut Random) {
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::Length(len) => self.stable.set_len(len),
                Change::Write { offset, bytes, damaged } if random.coin() => {
                    self.stable.write(offset, &bytes, damaged);
                }
                write if self.direct => self.unsynced.push(write),
                Change::Write { .. } => {}
            }
        }
    }

    /// The power is gone: each unsynced write is kept, dropped or torn, in any order.
    pub(super) fn crash(&mut self, random: &mut Random, counts: &mut FaultCounts) {
        let mut writes = Vec::new();
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::Length(len) if random.coin() => self.stable.set_len(len),
                Change::Length(_) => {}
                Change::Write { offset, bytes, damaged } => writes.push((offset, bytes, damaged)),
            }
        }
        random.shuffle(&mut writes);
        for (offset, bytes, damaged) in writes {
            match random.below(3) {
                0 => {
                    counts.writes_dropped += 1;
                    continue;
                }
                1 => {
                    counts.writes_kept += 1;
                    self.stable_write(offset, &bytes, damaged);
                }
                _ => {
                    counts.writes_torn += 1;
                    self.tear(offset, &bytes, damaged, random);
                }
            }
        }
        let damaged = self.stable.damaged.clone();
        self.seen = Image { bytes: self.stable.bytes.clone(), damaged };
    }

    /// Keeps some sectors of a write.
    fn tear(&mut self, offset: u64, bytes: &[u8], damaged: Option<u64>, random: &mut Random) {
        let mut begin = 0;
        while begin < bytes.len() {
            let sector = (offset + begin as u64) / SECTOR;
            let end = (((sector + 1) * SECTOR - offset) as usize).min(bytes.len());
            if random.coin() {
                let damaged = damaged.filter(|damaged| *damaged == sector);
                self.stable_write(offset + begin as u64, &bytes[begin..end], damaged);
            }
            begin = end;
        }
    }

    /// What was written beyond a length that did not survive is gone with it.
    fn stable_write(&mut self, offset: u64, bytes: &[u8], damaged: Option<u64>) {
        let room = (self.stable.bytes.len() as u64).saturating_sub(offset).min(bytes.len() as u64);
        if room > 0 {
            self.stable.write(offset, &bytes[..room as usize], damaged);
        }
    }

    /// Turns a bit over, wherever the byte lies.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        let (sector, place) = (offset / SECTOR, offset as usize);
        for change in &mut self.unsynced {
            if let Change::Write { offset: from, bytes, damaged } = change
                && let Some(byte) = place.checked_sub(*from as usize).and_then(|at| bytes.get_mut(at))
            {
                *byte ^= 1 << (bit % 8);
                *damaged = Some(sector);
            }
        }
        for image in [&mut self.seen, &mut self.stable] {
            if let Some(byte) = image.bytes.get_mut(place) {
                *byte ^= 1 << (bit % 8);
                image.damaged.insert(sector);
            }
        }
    }

    /// The sectors cannot be read from now on, until they are written.
    pub(super) fn make_unreadable(&mut self, offset: u64, len: usize) {
        for sector in sectors(offset, len) {
            self.unreadable.insert(sector);
            self.seen.damaged.insert(sector);
            self.stable.damaged.insert(sector);
        }
    }

    /// Does a fault of the medium, and not a crash, stand between these bytes and a reader?
    pub(super) fn is_damaged(&self, offset: u64, len: usize) -> bool {
        self.seen.damaged.range(sectors(offset, len)).next().is_some()
    }
}

fn sectors(offset: u64, len: usize) -> std::ops::Range<u64> {
    offset / SECTOR..(offset + len as u64).div_ceil(SECTOR)
}

//! The slot table: what each slot of the slabs holds, in shared memory that outlives the process. Owns: writing it so
//! that at any instant, the last one of a killed process included, each sealed entry names good bytes; reading what
//! another process left. Must not know: why a slot's page comes or goes, who keeps the descriptor meanwhile.
//!
//! ```text
//!           seal: body written, then its seal                void
//!  (nothing) ---------------------------------> sealed --------------> (nothing)
//! ```
//! The order is by release fences: what a process stored before it was killed is there in the order of its stores. An
//! entry is voided before its slot is anybody's to write, so whoever calls does so before the grant leaves.

mod entry;
mod format;

pub use entry::{Geometry, Holder, SlotEntry, Unfit, VERSION as SLOT_TABLE_VERSION};
use format::{
    BODY_AT, ENTRY_BYTES, HEADER_BYTES, HEADER_USED_BYTES, HOLDER_AT, LIBRARY_AT, MAPPED, MAPPED_AT, OTHERS,
    READER_BYTES, READERS_AT, READERS_MAX, SEAL_AT, SLAB_GENERATION_AT, SLAB_WORDS_BYTES,
};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use turnkv_transfer::{HugePages, Region, RegionOptions};

/// What was found of one slab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundEntries {
    /// Which memory of it was made last; none: none ever was.
    pub generation: Option<u32>,
    /// Slots whose entries are sealed.
    pub sealed: Vec<FoundEntry>,
    /// Slots that somebody may be writing.
    pub held: Vec<(u32, Holder)>,
    /// Who may look at slots of it at any time: one for each slot and reader.
    pub mapped: Vec<(u32, Holder)>,
}

/// A sealed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundEntry {
    /// Of which slot.
    pub slot: u32,
    /// What the slot holds.
    pub entry: SlotEntry,
    /// When it was sealed, in the order of the table.
    pub sequence: u64,
    /// When its page was used last, or came there, in the same order.
    pub used: u64,
    /// How often the page was read, as far as was told.
    pub reads: u8,
}

/// A slot table that this process writes.
#[derive(Debug)]
pub struct SlotTable {
    region: Arc<Region>,
    geometry: Geometry,
    /// Names this table in every seal.
    id: u64,
    /// Of what was sealed or used last.
    sequence: u64,
    /// Who has slots mapped, by the bits that stand for them.
    readers: Vec<Option<Holder>>,
}

impl SlotTable {
    /// An empty table. `boot` and `user` say for whom it is; `id` is a number that no other table has.
    ///
    /// # Errors
    /// The system has no memory or descriptor for it.
    pub fn create(geometry: Geometry, boot: [u8; 16], user: u32, id: u64) -> io::Result<SlotTable> {
        let options = RegionOptions {
            bytes: format::table_bytes(&geometry),
            huge_pages: HugePages::Off,
            touch: false,
            lock: false,
            name: "turnkv-slot-table".to_owned(),
        };
        let (region, _) = Region::create(&options)?;
        let table = SlotTable { region, geometry, id, sequence: 0, readers: vec![None; READERS_MAX] };
        let header = format::encode_header(&geometry, boot, user, id);
        let words = header.chunks_exact(8).map(|word| u64::from_le_bytes(format::take(word, 0)));
        for (at, word) in words.enumerate().rev() {
            // The magic last: a table whose header is not whole is none.
            fence(Ordering::Release);
            table.word(at * 8).store(word, Ordering::Relaxed);
        }
        Ok(table)
    }

    /// Bytes of the slabs that a table speaks of which another process left.
    ///
    /// # Errors
    /// Why it is of no use here.
    pub fn slab_bytes_of(fd: BorrowedFd<'_>) -> Result<u64, Unfit> {
        let mut header = [0; HEADER_USED_BYTES];
        let had = read_at(fd, &mut header, 0)?;
        format::decode_slab_bytes(&header[..had])
    }

    /// Takes over the table that another process left, with what it says of each slab that it says anything of.
    ///
    /// # Errors
    /// Why it is of no use here.
    pub fn open(
        fd: OwnedFd,
        geometry: Geometry,
        boot: [u8; 16],
        user: u32,
    ) -> Result<(SlotTable, BTreeMap<u32, FoundEntries>), Unfit> {
        let mut header = [0; HEADER_USED_BYTES];
        let had = read_at(&fd, &mut header, 0)?;
        let id = format::decode_header(&header[..had], &geometry, boot, user)?;
        let bytes = format::table_bytes(&geometry);
        let file = rustix::fs::fstat(&fd).map_err(unreadable)?;
        if (file.st_size as u64) < bytes as u64 {
            return Err(Unfit::Short);
        }
        let region = Region::from_fd(fd, bytes).map_err(|error| Unfit::Io(error.to_string()))?;
        let mut table = SlotTable { region, geometry, id, sequence: 0, readers: Vec::new() };
        table.readers = table.read_readers()?;
        let found = table.read_all()?;
        let orders = found.values().flat_map(|slab| &slab.sealed).map(|entry| entry.sequence.max(entry.used));
        table.sequence = orders.max().unwrap_or(0);
        Ok((table, found))
    }

    /// Names this table, and so the memory that it is of.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Slabs that it can speak of.
    #[must_use]
    pub fn slab_count(&self) -> u32 {
        self.geometry.slab_count
    }

    /// The descriptor, for whoever keeps it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// A slot holds this from now on: its bytes are complete.
    pub fn seal(&mut self, slab: u32, slot: u32, entry: &SlotEntry) {
        let Some(at) = self.entry_at(slab, slot) else { return };
        self.sequence += 1;
        let body = format::encode_entry(entry, self.sequence);
        self.word(at + SEAL_AT).store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, bytes) in body.chunks_exact(8).enumerate() {
            let value = u64::from_le_bytes(format::take(bytes, 0));
            self.word(at + BODY_AT + word * 8).store(value, Ordering::Relaxed);
        }
        fence(Ordering::Release);
        self.word(at + SEAL_AT).store(format::seal_of(&body, self.id, at), Ordering::Relaxed);
    }

    /// A slot holds nothing that counts from now on. Called before anybody may write to it.
    pub fn void(&mut self, slab: u32, slot: u32) {
        let Some(at) = self.entry_at(slab, slot) else { return };
        self.word(at + SEAL_AT).store(0, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// The page in a slot was used, and has been read so often. Cheap: one store.
    pub fn touch(&mut self, slab: u32, slot: u32, reads: u8) {
        if self.entry_at(slab, slot).is_none() {
            return;
        }
        self.sequence += 1;
        let at = format::use_at(&self.geometry, slab, slot);
        self.word(at).store(format::encode_use(self.sequence, reads), Ordering::Relaxed);
    }

    /// A slab is about to have memory of this generation. Called before anybody hears of it.
    pub fn begin_slab(&mut self, slab: u32, generation: u32) {
        if slab >= self.geometry.slab_count {
            return;
        }
        let at = format::slab_at(slab) + SLAB_GENERATION_AT;
        self.word(at).store(format::encode_generation(generation), Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Somebody may write a slot from now on, or nobody any more. Called before whoever it is hears of the slot.
    pub fn hold(&mut self, slab: u32, slot: u32, holder: Option<Holder>) {
        let Some(at) = self.entry_at(slab, slot) else { return };
        let (word, library) = holder.map_or((0, 0), Holder::words);
        let complement = if holder.is_some() { !word } else { 0 };
        self.word(at + LIBRARY_AT).store(library, Ordering::Relaxed);
        self.word(at + LIBRARY_AT + 8).store(!library, Ordering::Relaxed);
        // A process of whom only the library is there was not told of the slot.
        self.word(at + HOLDER_AT).store(word, Ordering::Relaxed);
        self.word(at + HOLDER_AT + 8).store(complement, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// These may look at a slot at any time from now on, and nobody else. Called before whoever is new among them hears of the
    /// slot.
    pub fn map(&mut self, slab: u32, slot: u32, readers: impl Iterator<Item = Holder>) {
        let Some(at) = self.entry_at(slab, slot) else { return };
        let word = readers.fold(0, |word, reader| word | self.bit_of(reader));
        let complement = if word == 0 { 0 } else { !word };
        self.word(at + MAPPED_AT).store(word, Ordering::Relaxed);
        self.word(at + MAPPED_AT + 8).store(complement, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// A reader has no slot mapped any more: its bit may stand for another one.
    pub fn forget(&mut self, reader: Holder) {
        if let Some(number) = self.readers.iter().position(|known| *known == Some(reader)) {
            self.readers[number] = None;
        }
    }

    /// Those who have slots mapped.
    pub fn readers(&self) -> impl Iterator<Item = Holder> + '_ {
        self.readers.iter().copied().flatten()
    }

    /// The bit that stands for a reader: a new one is named in the header first.
    fn bit_of(&mut self, reader: Holder) -> u64 {
        let known = self.readers.iter().position(|known| *known == Some(reader));
        let place = || self.readers.iter().position(Option::is_none);
        let Some(number) = known.or_else(place).filter(|_| reader != Holder::Unknown) else { return OTHERS };
        if known.is_none() {
            let (at, (word, library)) = (READERS_AT + number * READER_BYTES, reader.words());
            for (offset, value) in [(16, library), (24, !library), (0, word), (8, !word)] {
                self.word(at + offset).store(value, Ordering::Relaxed);
            }
            fence(Ordering::Release);
            self.readers[number] = Some(reader);
        }
        1 << number
    }

    /// Processes may look at slots of a slab at any time from now on, or none do any more.
    pub fn map_slab(&mut self, slab: u32, mapped: bool) {
        if slab >= self.geometry.slab_count {
            return;
        }
        let (word, complement) = if mapped { (MAPPED, !MAPPED) } else { (0, 0) };
        self.word(format::slab_at(slab)).store(word, Ordering::Relaxed);
        self.word(format::slab_at(slab) + 8).store(complement, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    fn entry_at(&self, slab: u32, slot: u32) -> Option<usize> {
        let inside = slab < self.geometry.slab_count && slot < self.geometry.stride;
        inside.then(|| format::entry_at(&self.geometry, slab, slot))
    }

    /// A word of the table.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.region.len(), "a word lies inside the table");
        // SAFETY: the word lies inside the region (checked above), which is mapped as long as `self` has it and begins on a page, so
        // the word is aligned. Every access to it in this process is atomic (this function is the only way to the memory); what
        // other processes do to it is as defined for atomics as any of their stores.
        unsafe { AtomicU64::from_ptr(self.region.as_ptr().add(at).cast()) }
    }

    /// Reads what is written of slabs and of their entries, passing over memory that was never touched: to look at it would take
    /// it.
    fn read_all(&self) -> Result<BTreeMap<u32, FoundEntries>, Unfit> {
        let (mut found, says_who) = self.read_slabs()?;
        let mut buffer = vec![0; ENTRY_BYTES * ENTRIES_PER_READ];
        let (first, end) = (
            format::entries_at(&self.geometry),
            format::entry_at(&self.geometry, self.geometry.slab_count, 0),
        );
        let mut at = first;
        while let Some(data) = next_data(self.fd(), at, end)? {
            at = first + (data - first) / ENTRY_BYTES * ENTRY_BYTES;
            let wanted = (end - at).min(buffer.len());
            let had = read_at(self.fd(), &mut buffer[..wanted], at)? / ENTRY_BYTES * ENTRY_BYTES;
            if had == 0 {
                return Err(Unfit::Short);
            }
            for (entry, bytes) in buffer[..had].chunks_exact(ENTRY_BYTES).enumerate() {
                if bytes.iter().any(|byte| *byte != 0) {
                    self.read_entry(bytes, at + entry * ENTRY_BYTES, &says_who, &mut found);
                }
            }
            at += had;
        }
        Ok(found)
    }

    /// What is said of slabs, and of which of them the entries say who has their slots mapped.
    fn read_slabs(&self) -> Result<(BTreeMap<u32, FoundEntries>, BTreeSet<u32>), Unfit> {
        let mut bytes = vec![0; self.geometry.slab_count as usize * SLAB_WORDS_BYTES];
        if read_at(self.fd(), &mut bytes, format::slab_at(0))? < bytes.len() {
            return Err(Unfit::Short);
        }
        let (mut found, mut says_who) = (BTreeMap::<u32, FoundEntries>::new(), BTreeSet::new());
        for (slab, words) in (0..).zip(bytes.chunks_exact(SLAB_WORDS_BYTES)) {
            if words.iter().all(|byte| *byte == 0) {
                continue;
            }
            let this = found.entry(slab).or_default();
            this.generation = format::decode_generation(words)?;
            let (word, complement) =
                (u64::from_le_bytes(format::take(words, 0)), u64::from_le_bytes(format::take(words, 8)));
            match (word, complement) {
                (0, 0) => {}
                _ if (word, complement) == (MAPPED, !MAPPED) => drop(says_who.insert(slab)),
                // A damaged word: some process looks at some slot.
                _ => this.mapped.push((0, Holder::Unknown)),
            }
        }
        Ok((found, says_who))
    }

    /// Takes note of one entry that is not empty.
    fn read_entry(
        &self,
        bytes: &[u8],
        place: usize,
        says_who: &BTreeSet<u32>,
        found: &mut BTreeMap<u32, FoundEntries>,
    ) {
        let (slab, slot) = format::slot_at(&self.geometry, place);
        let this = found.entry(slab).or_default();
        if let Some((entry, sequence)) = format::decode_entry(bytes, self.id, place) {
            let word = self.word(format::use_at(&self.geometry, slab, slot)).load(Ordering::Relaxed);
            let (used, reads) = format::decode_use(word);
            this.sealed.push(FoundEntry { slot, entry, sequence, used: used.max(sequence), reads });
        }
        this.held.extend(format::decode_holder(bytes).map(|holder| (slot, holder)));
        // What an entry says of readers counts as long as its slab's word says that there are any.
        let mapped = if says_who.contains(&slab) { format::decode_mapped(bytes) } else { Some(0) };
        this.mapped.extend(self.readers_of(mapped).map(|reader| (slot, reader)));
    }
}

impl SlotTable {
    /// Those whom the header names.
    fn read_readers(&self) -> Result<Vec<Option<Holder>>, Unfit> {
        let mut names = [0; READERS_MAX * READER_BYTES];
        read_at(self.fd(), &mut names, READERS_AT)?;
        Ok(names.chunks_exact(READER_BYTES).map(format::decode_reader).collect())
    }

    /// Those for whom the bits of a word stand; of a word that is none, somebody.
    fn readers_of(&self, word: Option<u64>) -> impl Iterator<Item = Holder> + '_ {
        let word = word.unwrap_or(OTHERS);
        let bits = (0..u64::BITS as usize).filter(move |bit| word >> bit & 1 == 1);
        bits.map(|bit| self.readers.get(bit).copied().flatten().unwrap_or(Holder::Unknown))
    }
}

/// Entries that are read at a time.
const ENTRIES_PER_READ: usize = 1024;

const _: () = assert!(HEADER_BYTES.is_multiple_of(8) && ENTRY_BYTES.is_multiple_of(8));

/// Where the next written byte is, from `at` on and before `end`.
fn next_data(fd: BorrowedFd<'_>, at: usize, end: usize) -> Result<Option<usize>, Unfit> {
    if at >= end {
        return Ok(None);
    }
    match rustix::fs::seek(fd, SeekFrom::Data(at as u64)) {
        Ok(data) => Ok(Some(data as usize).filter(|data| *data < end)),
        // NXIO: nothing was written from there on.
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(unreadable(errno)),
    }
}

/// Reads as much as there is, up to the buffer's size.
fn read_at(fd: impl std::os::fd::AsFd, buffer: &mut [u8], at: usize) -> Result<usize, Unfit> {
    let mut had = 0;
    while had < buffer.len() {
        match rustix::io::pread(&fd, &mut buffer[had..], (at + had) as u64) {
            Ok(0) => break,
            Ok(more) => had += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(unreadable(errno)),
        }
    }
    Ok(had)
}

fn unreadable(errno: Errno) -> Unfit {
    Unfit::Io(io::Error::from(errno).to_string())
}

#[cfg(test)]
mod tests;

//! A table says what was written to it, at every moment, and nothing else whatever became of its bytes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use turnkv_proto::{BlockHash, NamespaceId};

const BOOT: [u8; 16] = [3; 16];
const USER: u32 = 1000;
const ID: u64 = 0x1234_5678_9ABC_DEF0;

fn geometry() -> Geometry {
    Geometry::new(64 << 10, 3)
}

fn entry(number: u8, generation: u32) -> SlotEntry {
    SlotEntry {
        namespace: NamespaceId([number; 32]),
        hash: BlockHash([number.wrapping_add(1); 32]),
        parent: number.is_multiple_of(2).then_some(BlockHash([number.wrapping_add(2); 32])),
        shard: u16::from(number % 4),
        shards: 4,
        tail_tokens: u32::from(number),
        bytes: 4096 + u32::from(number),
        checksum: u64::from(number) << 40,
        generation,
    }
}

fn table() -> SlotTable {
    SlotTable::create(geometry(), BOOT, USER, ID).unwrap()
}

fn again(table: &SlotTable) -> OwnedFd {
    table.fd().try_clone_to_owned().unwrap()
}

fn read(table: &SlotTable) -> Result<Vec<FoundEntries>, Unfit> {
    SlotTable::open(again(table), geometry(), BOOT, USER).map(|(_, found)| of_each(found))
}

fn of_each(mut found: BTreeMap<u32, FoundEntries>) -> Vec<FoundEntries> {
    (0..3).map(|slab| found.remove(&slab).unwrap_or_default()).collect()
}

fn reader(number: u32) -> Holder {
    Holder::Process { pid: 100 + number, began: 9, library: u64::from(number) << 40 }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Seal(u32, u32, u8),
    Void(u32, u32),
    Hold(u32, u32, Option<u32>),
    /// A slot, and the readers that have it mapped, as bits of a word.
    Map(u32, u32, u8),
    /// A slot that is used, and how often it was read.
    Touch(u32, u32, u8),
    /// A slab that begins with memory of a generation.
    Begin(u32, u32),
}

fn arb_step() -> impl Strategy<Value = Step> {
    let place = || (0u32..3, 0u32..16);
    prop_oneof![
        (place(), any::<u8>()).prop_map(|((slab, slot), number)| Step::Seal(slab, slot, number)),
        place().prop_map(|(slab, slot)| Step::Void(slab, slot)),
        (place(), proptest::option::of(1u32..9)).prop_map(|((slab, slot), pid)| Step::Hold(slab, slot, pid)),
        (place(), 0u8..16).prop_map(|((slab, slot), readers)| Step::Map(slab, slot, readers)),
        (place(), 0u8..128).prop_map(|((slab, slot), reads)| Step::Touch(slab, slot, reads)),
        (0u32..3, any::<u32>()).prop_map(|(slab, generation)| Step::Begin(slab, generation)),
    ]
}

#[derive(Default)]
struct Model {
    sealed: BTreeMap<(u32, u32), SlotEntry>,
    held: BTreeMap<(u32, u32), Holder>,
    mapped: BTreeMap<(u32, u32), Vec<Holder>>,
    /// When each slot was sealed or used last, and its reads.
    used: BTreeMap<(u32, u32), (usize, u8)>,
    generations: BTreeMap<u32, u32>,
    steps: usize,
}

impl Model {
    fn step(&mut self, table: &mut SlotTable, step: Step) {
        self.steps += 1;
        match step {
            Step::Touch(slab, slot, reads) => {
                table.touch(slab, slot, reads);
                self.used.insert((slab, slot), (self.steps, reads));
            }
            Step::Begin(slab, generation) => {
                table.begin_slab(slab, generation);
                self.generations.insert(slab, generation);
            }
            Step::Seal(slab, slot, number) => {
                let reads = self.used.get(&(slab, slot)).map_or(0, |(_, reads)| *reads);
                self.used.insert((slab, slot), (self.steps, reads));
                table.seal(slab, slot, &entry(number, 7));
                self.sealed.insert((slab, slot), entry(number, 7));
            }
            Step::Void(slab, slot) => {
                table.void(slab, slot);
                self.sealed.remove(&(slab, slot));
            }
            Step::Hold(slab, slot, pid) => {
                let holder = pid.map(|pid| Holder::Process { pid, began: 5, library: u64::from(pid) << 50 });
                table.hold(slab, slot, holder);
                self.held.remove(&(slab, slot));
                self.held.extend(holder.map(|holder| ((slab, slot), holder)));
            }
            Step::Map(slab, slot, readers) => {
                let readers: Vec<Holder> = (0..4).filter(|bit| readers >> bit & 1 == 1).map(reader).collect();
                table.map(slab, slot, readers.iter().copied());
                self.mapped.remove(&(slab, slot));
                if !readers.is_empty() {
                    self.mapped.insert((slab, slot), readers);
                }
                table.map_slab(slab, self.mapped.keys().any(|(of, _)| *of == slab));
            }
        }
    }

    fn check(&self, found: &[FoundEntries]) {
        let of = |slab: usize| {
            let sealed = found[slab].sealed.iter().map(move |found| ((slab as u32, found.slot), found.entry));
            let held = found[slab].held.iter().map(move |(slot, holder)| ((slab as u32, *slot), *holder));
            (sealed, held)
        };
        let sealed: BTreeMap<_, _> = (0..3).flat_map(|slab| of(slab).0).collect();
        let held: BTreeMap<_, _> = (0..3).flat_map(|slab| of(slab).1).collect();
        assert_eq!((sealed, held), (self.sealed.clone(), self.held.clone()));
        let mut mapped: BTreeMap<(u32, u32), Vec<Holder>> = BTreeMap::new();
        for (slab, found) in (0..).zip(found) {
            for (slot, reader) in &found.mapped {
                mapped.entry((slab, *slot)).or_default().push(*reader);
            }
        }
        mapped.values_mut().for_each(|readers| readers.sort_unstable());
        assert_eq!(mapped, self.mapped);
        let generations = (0..).zip(found).filter_map(|(slab, found)| Some((slab, found.generation?)));
        assert_eq!(generations.collect::<BTreeMap<u32, u32>>(), self.generations);
        let of_slab = |(slab, found): (u32, &FoundEntries)| {
            found.sealed.iter().map(|one| (one.used, (slab, one.slot), one.reads)).collect::<Vec<_>>()
        };
        let mut order: Vec<_> = (0..).zip(found).flat_map(of_slab).collect();
        order.sort_unstable();
        let order: Vec<_> = order.into_iter().map(|(_, slot, reads)| (slot, reads)).collect();
        let mut expected: Vec<_> = self.sealed.keys().map(|slot| (self.used[slot], *slot)).collect();
        expected.sort_unstable();
        let expected: Vec<_> = expected.into_iter().map(|((_, reads), slot)| (slot, reads)).collect();
        assert_eq!(order, expected, "slots by when they were used");
    }
}

proptest! {
    #[test]
    fn after_every_step_the_next_process_would_find_what_was_written(steps in proptest::collection::vec(arb_step(), 1..40)) {
        let (mut table, mut model) = (table(), Model::default());
        for step in steps {
            model.step(&mut table, step);
            model.check(&read(&table).unwrap());
        }
        // The next process goes on with it, and the one after that finds what both wrote.
        let (mut next, found) = SlotTable::open(again(&table), geometry(), BOOT, USER).unwrap();
        model.check(&of_each(found));
        model.step(&mut next, Step::Seal(2, 15, 99));
        model.check(&read(&next).unwrap());
        let latest = read(&next).unwrap()[2].sealed.iter().map(|found| found.sequence).max();
        prop_assert!(read(&next).unwrap().iter().flat_map(|slab| &slab.sealed).all(|other| Some(other.sequence) <= latest));
    }

    #[test]
    fn whatever_becomes_of_its_bytes_nothing_is_found_that_was_not_written(
        flips in proptest::collection::vec((0usize..4, 0usize..ENTRY_BYTES * 8), 1..6),
    ) {
        let mut table = table();
        for slot in 0..4 {
            table.seal(1, slot, &entry(slot as u8, 2));
        }
        for (slot, bit) in flips {
            let at = format::entry_at(&geometry(), 1, slot as u32) + bit / 8;
            let mut byte = [0];
            rustix::io::pread(table.fd(), &mut byte, at as u64).unwrap();
            rustix::io::pwrite(table.fd(), &[byte[0] ^ 1 << (bit % 8)], at as u64).unwrap();
        }
        for found in &read(&table).unwrap()[1].sealed {
            prop_assert_eq!(found.entry, entry(found.slot as u8, 2));
        }
    }

    #[test]
    fn a_header_with_a_turned_bit_is_refused(bit in 0usize..HEADER_USED_BYTES * 8) {
        let table = table();
        let mut byte = [0];
        rustix::io::pread(table.fd(), &mut byte, (bit / 8) as u64).unwrap();
        rustix::io::pwrite(table.fd(), &[byte[0] ^ 1 << (bit % 8)], (bit / 8) as u64).unwrap();
        prop_assert!(read(&table).is_err());
    }
}

#[test]
fn an_entry_counts_only_at_its_place_of_its_table() {
    let mut table = table();
    table.seal(0, 1, &entry(4, 0));
    let mut bytes = [0; ENTRY_BYTES];
    rustix::io::pread(table.fd(), &mut bytes, format::entry_at(&geometry(), 0, 1) as u64).unwrap();
    rustix::io::pwrite(table.fd(), &bytes, format::entry_at(&geometry(), 0, 2) as u64).unwrap();
    let other = SlotTable::create(geometry(), BOOT, USER, ID + 1).unwrap();
    rustix::io::pwrite(other.fd(), &bytes, format::entry_at(&geometry(), 0, 1) as u64).unwrap();
    assert_eq!(read(&table).unwrap()[0].sealed.len(), 1);
    assert_eq!(read(&other).unwrap()[0].sealed.len(), 0);
}

#[test]
fn a_damaged_generation_is_no_table_and_a_damaged_use_is_none() {
    let mut table = table();
    table.begin_slab(1, 7);
    table.seal(1, 3, &entry(4, 7));
    let sealed = read(&table).unwrap()[1].sealed[0].used;
    table.touch(1, 3, 9);
    let found = read(&table).unwrap()[1].sealed[0];
    assert!(found.used > sealed && found.reads == 9, "{found:?}");
    let flip = |at: usize| {
        let mut byte = [0];
        rustix::io::pread(table.fd(), &mut byte, at as u64).unwrap();
        rustix::io::pwrite(table.fd(), &[byte[0] ^ 4], at as u64).unwrap();
    };
    flip(format::use_at(&geometry(), 1, 3) + 3);
    let found = read(&table).unwrap()[1].sealed[0];
    assert_eq!((found.used, found.reads), (sealed, 0), "as if it had not been used");
    flip(format::slab_at(1) + SLAB_GENERATION_AT + 5);
    assert_eq!(read(&table).unwrap_err(), Unfit::Damaged);
}

#[test]
fn what_does_not_fit_says_so() {
    let table = table();
    let open =
        |geometry, boot, user| SlotTable::open(again(&table), geometry, boot, user).map(|_| ()).unwrap_err();
    assert_eq!(SlotTable::slab_bytes_of(table.fd()), Ok(64 << 10));
    assert_eq!(open(geometry(), [4; 16], USER), Unfit::Boot);
    assert_eq!(open(geometry(), BOOT, USER + 1), Unfit::User { user: USER });
    let found = Unfit::Geometry { slab_bytes: 64 << 10 };
    assert_eq!(open(Geometry::new(64 << 10, 4), BOOT, USER), found);
    assert_eq!(open(Geometry::new(128 << 10, 3), BOOT, USER), found);
    rustix::io::pwrite(table.fd(), &1u32.to_le_bytes(), 8).unwrap();
    assert_eq!(open(geometry(), BOOT, USER), Unfit::Version { version: 1 });
    rustix::io::pwrite(table.fd(), b"x", 0).unwrap();
    assert_eq!(open(geometry(), BOOT, USER), Unfit::NoTable);
    assert_eq!(SlotTable::slab_bytes_of(table.fd()), Err(Unfit::NoTable));
}

#[test]
fn a_table_that_is_cut_short_or_could_shrink_is_refused() {
    let whole = table();
    let mut bytes = vec![0; format::table_bytes(&geometry())];
    rustix::io::pread(whole.fd(), &mut bytes, 0).unwrap();
    for kept in [0, 40, HEADER_BYTES, bytes.len() - 1] {
        let fd = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&fd, &bytes[..kept], 0).unwrap();
        assert_eq!(
            SlotTable::open(fd, geometry(), BOOT, USER).map(|_| ()).unwrap_err(),
            Unfit::Short,
            "{kept}"
        );
    }
    let fd = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&fd, &bytes, 0).unwrap();
    let refused = SlotTable::open(fd, geometry(), BOOT, USER).map(|_| ()).unwrap_err();
    assert!(matches!(refused, Unfit::Io(_)), "{refused}");
}

#[test]
fn what_is_never_touched_takes_no_memory_and_places_outside_are_nobodys() {
    let large = Geometry::new(1 << 30, 16);
    let mut table = SlotTable::create(large, BOOT, USER, ID).unwrap();
    table.seal(15, 77, &entry(1, 0));
    table.seal(16, 0, &entry(1, 0));
    table.void(0, large.stride);
    let (_, found) = SlotTable::open(again(&table), large, BOOT, USER).unwrap();
    assert_eq!(found.values().map(|slab| slab.sealed.len()).sum::<usize>(), 1);
    let taken = rustix::fs::fstat(table.fd()).unwrap().st_blocks * 512;
    assert!(taken <= 16 << 10, "{taken} bytes are taken");
}

/// The tables of docs/reference/slot-table.md are the offsets here.
#[test]
fn the_documented_offsets_are_these() {
    let doc = include_str!("../../../../../docs/reference/slot-table.md");
    let header = [
        (format::MAGIC_AT, "magic `TURNKVST`"),
        (format::VERSION_AT, "format version"),
        (format::ENTRY_BYTES_AT, "bytes of an entry"),
        (format::SLAB_BYTES_AT, "bytes of a slab"),
        (format::SLAB_COUNT_AT, "slabs that it can speak of"),
        (format::STRIDE_AT, "stride"),
        (format::BOOT_AT, "boot id"),
        (format::USER_AT, "user of the server"),
        (format::TABLE_ID_AT, "table id"),
        (format::CHECK_AT, "CRC-64/NVME of bytes 0..64"),
        (format::READERS_AT, "readers"),
    ];
    let entry = [
        (format::SEAL_AT, "seal"),
        (format::NAMESPACE_AT, "namespace"),
        (format::HASH_AT, "block hash"),
        (format::PARENT_AT, "block hash of the page before it"),
        (format::CHECKSUM_AT, "CRC-64/NVME of the shard's bytes"),
        (format::SEQUENCE_AT, "sequence"),
        (format::PAGE_BYTES_AT, "bytes of the shard"),
        (format::TAIL_TOKENS_AT, "tokens of a partial tail"),
        (format::GENERATION_AT, "generation"),
        (format::SHARD_AT, "shard"),
        (format::SHARDS_AT, "number of shards"),
        (format::HAS_PARENT_AT, "1: there is a page before it"),
        (format::MAPPED_AT, "mapped"),
        (format::LIBRARY_AT, "library"),
        (format::HOLDER_AT, "holder"),
    ];
    let slab = [(0, "mapped"), (8, "complement"), (format::SLAB_GENERATION_AT, "generation")];
    for (name, fields) in [("header", &header[..]), ("slab", &slab[..]), ("entry", &entry[..])] {
        let (_, table) = doc.split_once(&format!("<!-- offsets: {name} -->")).unwrap();
        let rows: Vec<&str> = table.lines().skip(3).take_while(|line| line.starts_with('|')).collect();
        for (at, field) in fields {
            let fits = |row: &&&str| row.starts_with(&format!("| {at} |")) && row.contains(field);
            assert!(rows.iter().filter(fits).count() == 1, "{name}: {field} at {at}");
        }
    }
    let sizes = [
        format!("{ENTRY_BYTES} bytes a slot"),
        format!("{SLAB_WORDS_BYTES} bytes a slab"),
        format!("{} bytes a slot", format::USE_BYTES),
    ];
    assert!(sizes.iter().all(|size| doc.contains(size)) && doc.contains("bytes 8..144"));
    assert_eq!((format::BODY_AT, format::BODY_AT + format::BODY_WORDS * 8), (8, 144));
}

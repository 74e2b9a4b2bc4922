//! The catalog: what comes back, what stays away, what is set aside; and that no failure of its disk outlasts the failure.

use super::pins::SavedPin;
use super::rows::Written;
use super::sessions::Change;
use super::tables::{CatalogTable, NAMESPACES, PINS};
use super::*;
use crate::clock::Clock;
use parking_lot::Mutex;
use redb::backends::InMemoryBackend;
use redb::{Builder, Database, DatabaseError, StorageBackend};
use rustix::io::Errno;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;
use turnkv_pool::{NamespaceIndex, PinRecord, SessionRecord};
use turnkv_proto::{BlockHash, CheckedSpec, NamespaceId, SessionId, Spec};
use turnkv_tier::nvme::{SegmentNote, TierId};

pub(super) fn spec(model: &str) -> CheckedSpec {
    Spec::opaque(model, 16, 4096).check().unwrap()
}

pub(super) fn record(turn: u32) -> SessionRecord {
    SessionRecord {
        ns: NamespaceIndex(3, 0),
        session: name("chat"),
        turn,
        base: None,
        hashes: vec![BlockHash([1; 32]), BlockHash([2; 32])],
        tail_tokens: 5,
        ttl_ms: 9,
        idle_ms: 0,
        priority: 2,
        protected_ms: 7,
    }
}

pub(super) fn name(session: &str) -> SessionId {
    SessionId::parse(session).unwrap()
}

/// A file in memory that outlives the databases on it, and a disk that can be told to fail.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: Mutex<Arc<InMemoryBackend>>,
    /// Writes and flushes that fail from now on.
    failures: Mutex<u32>,
    errno: Errno,
}

impl Disk {
    pub(crate) fn new(errno: Errno) -> Disk {
        let bytes = Mutex::new(Arc::new(InMemoryBackend::new()));
        Disk(Arc::new(Inner { bytes, failures: Mutex::new(0), errno }))
    }

    /// So many writes and flushes fail.
    pub(crate) fn fail(&self, times: u32) {
        *self.0.failures.lock() = times;
    }

    /// Everything on it turns to nonsense.
    pub(crate) fn spoil(&self) {
        let len = self.bytes().len().unwrap();
        self.bytes().write(0, &vec![0x11; len as usize]).unwrap();
    }

    /// What is on it now, on another: as a killed process leaves it.
    pub(super) fn copy(&self) -> Disk {
        let copy = Disk::new(self.0.errno);
        let (from, to) = (self.bytes(), copy.bytes());
        let mut bytes = vec![0; from.len().unwrap() as usize];
        from.read(0, &mut bytes).unwrap();
        to.set_len(bytes.len() as u64).unwrap();
        to.write(0, &bytes).unwrap();
        copy
    }

    /// So many of its bits turn over.
    pub(super) fn flip(&self, random: &mut turnkv_mutate::Random, times: usize) {
        let bytes = self.bytes();
        for _ in 0..times {
            let (at, mut byte) = (random.below(bytes.len().unwrap() as usize) as u64, [0]);
            bytes.read(at, &mut byte).unwrap();
            bytes.write(at, &[byte[0] ^ 1 << random.below(8)]).unwrap();
        }
    }

    fn bytes(&self) -> Arc<InMemoryBackend> {
        Arc::clone(&self.0.bytes.lock())
    }

    fn changed(&self) -> io::Result<Arc<InMemoryBackend>> {
        let mut failures = self.0.failures.lock();
        if *failures > 0 {
            *failures -= 1;
            return Err(self.0.errno.into());
        }
        Ok(self.bytes())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.bytes().len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.bytes().read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changed()?.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.changed()?.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.changed()?.write(offset, data)
    }
}

impl CatalogPlace for Disk {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        builder.create_with_backend(self.clone())
    }

    fn set_aside(&self) -> io::Result<String> {
        *self.0.bytes.lock() = Arc::new(InMemoryBackend::new());
        Ok("elsewhere".to_owned())
    }

    fn bytes(&self) -> u64 {
        0
    }
}

pub(super) fn on(disk: &Disk) -> Catalog {
    Catalog::open_with(Box::new(disk.clone()), Owner::any(), Clock::system()).unwrap()
}

/// Writes sessions whose lists are short: nothing is shared.
pub(super) fn put(catalog: &Catalog, changes: &[Change]) -> Result<Written, CatalogError> {
    catalog.put_sessions(changes, &ListSource { chunks: &|_, _| Vec::new(), chunks_max: 0 })
}

pub(super) fn sessions(catalog: &Catalog, spec: &CheckedSpec) -> Vec<SessionRecord> {
    let mut found = Vec::new();
    let look = |saved: &SavedRows| {
        saved.for_each_of(&spec.id(), |session| {
            found.push(session.into_record(NamespaceIndex(3, 0)));
            Ok(())
        })
    };
    catalog.saved_rows(look).unwrap();
    found
}

/// Writes a pin, named by its last page, that holds for so long; 0: it has ended.
fn put_pin(
    catalog: &Catalog,
    spec: &CheckedSpec,
    hashes: &[BlockHash],
    ends_in_ms: u64,
) -> Result<Written, CatalogError> {
    let record = PinRecord { base: None, hashes: hashes.to_vec(), ends_in_ms };
    let change = (spec.id(), *hashes.last().unwrap(), (ends_in_ms > 0).then_some(record));
    catalog.put_pins(&[change], &ListSource { chunks: &|_, _| Vec::new(), chunks_max: 0 })
}

fn pins(catalog: &Catalog, spec: &CheckedSpec) -> Vec<SavedPin> {
    let mut found = Vec::new();
    let look = |saved: &SavedRows| {
        saved.for_each_pin_of(&spec.id(), |pin| {
            found.push(pin);
            Ok(())
        })
    };
    catalog.saved_rows(look).unwrap();
    found
}

#[test]
fn namespaces_sessions_and_pins_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let spec = spec("m");
    {
        let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
        catalog.put_namespace(&spec);
        put(&catalog, &[(spec.id(), name("chat"), Some(record(1)))]).unwrap();
        put(&catalog, &[(spec.id(), name("chat"), Some(record(4)))]).unwrap();
        put_pin(&catalog, &spec, &[BlockHash([7; 32])], 60_000).unwrap();
        put_pin(&catalog, &spec, &[BlockHash([8; 32])], 60_000).unwrap();
        put_pin(&catalog, &spec, &[BlockHash([8; 32])], 0).unwrap();
    }
    let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    let loaded = catalog.load().unwrap();
    assert_eq!(loaded.namespaces.iter().map(CheckedSpec::id).collect::<Vec<_>>(), [spec.id()]);
    assert_eq!(sessions(&catalog, &spec), [record(4)]);
    let pins: Vec<_> = pins(&catalog, &spec).into_iter().map(|pin| (pin.pin, pin.hashes)).collect();
    let kept = BlockHash([7; 32]);
    assert_eq!((pins, loaded.ids), (vec![(kept, vec![kept])], vec![spec.id()]));
    assert!(catalog.load().is_none(), "once");
    assert_eq!(catalog.waiting_len(), 0);
}

#[test]
fn a_removed_session_stays_removed() {
    let catalog = on(&Disk::new(Errno::IO));
    put(&catalog, &[(spec("m").id(), name("chat"), Some(record(1)))]).unwrap();
    put(&catalog, &[(spec("m").id(), name("chat"), None)]).unwrap();
    assert!(sessions(&catalog, &spec("m")).is_empty());
}

#[test]
fn damaged_catalogs_are_set_aside_and_a_few_kept() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..5 {
        std::fs::write(dir.path().join("catalog.redb"), [0x5a; 100_000]).unwrap();
        let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
        assert!(catalog.load().unwrap().namespaces.is_empty());
        assert_eq!((catalog.set_aside(), catalog.trouble()), (1, None));
    }
    let mut files: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let kept = ["catalog.redb", "catalog.redb.damaged", "catalog.redb.damaged.1", "catalog.redb.damaged.2"];
    assert_eq!(files, kept);
}

#[test]
fn a_catalog_that_another_server_has_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let first = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    first.put_namespace(&spec("m"));
    assert!(Catalog::open(dir.path(), Owner::any(), Clock::system()).is_err());
    first.put_namespace(&spec("n"));
    assert_eq!(first.load().unwrap().namespaces.len(), 2);
    assert!(!dir.path().join("catalog.redb.damaged").exists());
}

#[test]
fn marks_are_a_set() {
    let catalog = on(&Disk::new(Errno::IO));
    for _ in 0..100 {
        catalog.mark(NamespaceIndex(0, 0), name("a"));
    }
    assert_eq!(catalog.take_marked().len(), 1);
    assert!(catalog.take_marked().is_empty());
}

/// One failed write used to disable the catalog until the server was started again.
#[test]
fn a_write_that_fails_once_is_tried_on_a_database_that_was_opened_anew() {
    for errno in [Errno::NOSPC, Errno::IO] {
        let disk = Disk::new(errno);
        let catalog = on(&disk);
        catalog.put_namespace(&spec("before"));
        disk.fail(1);
        put(&catalog, &[(spec("before").id(), name("chat"), Some(record(1)))]).unwrap();
        catalog.put_namespace(&spec("after"));
        assert_eq!((catalog.trouble(), catalog.set_aside(), catalog.waiting_len()), (None, 0, 0));
        let loaded = on(&disk).load().unwrap();
        let sessions = sessions(&on(&disk), &spec("before"));
        assert_eq!((loaded.namespaces.len(), sessions.len()), (2, 1), "{errno:?}");
    }
}

#[test]
fn what_a_full_disk_refuses_waits_is_said_and_is_written_when_there_is_room() {
    let disk = Disk::new(Errno::NOSPC);
    let catalog = on(&disk);
    catalog.put_namespace(&spec("before"));
    disk.fail(u32::MAX);
    catalog.put_namespace(&spec("during"));
    assert!(put_pin(&catalog, &spec("during"), &[BlockHash([7; 32])], 60_000).is_err());
    assert!(catalog.mark_pin(NamespaceIndex(3, 0), BlockHash([7; 32])));
    assert!(put(&catalog, &[(spec("during").id(), name("chat"), Some(record(1)))]).is_err());
    assert_eq!(catalog.waiting_len(), 2);
    let trouble = catalog.trouble().unwrap();
    assert!(trouble.contains("No space left") && trouble.contains("make room"), "{trouble}");
    disk.fail(0);
    catalog.flush_namespaces();
    assert_eq!(catalog.waiting_len(), 2, "it rests before it is tried again");
    std::thread::sleep(Duration::from_millis(crate::limits::CATALOG_RETRY_MS + 50));
    catalog.flush_namespaces();
    put(&catalog, &[(spec("during").id(), name("chat"), Some(record(1)))]).unwrap();
    assert_eq!(catalog.take_marked_pins(10), [(NamespaceIndex(3, 0), BlockHash([7; 32]))]);
    put_pin(&catalog, &spec("during"), &[BlockHash([7; 32])], 60_000).unwrap();
    assert_eq!((catalog.waiting_len(), catalog.trouble(), catalog.set_aside()), (0, None, 0));
    let loaded = on(&disk).load().unwrap();
    let sessions = sessions(&on(&disk), &spec("during"));
    let found = (loaded.namespaces.len(), pins(&on(&disk), &spec("during")).len(), sessions.len());
    assert_eq!(found, (2, 1, 1), "nothing that was saved before is lost, nothing that waited is");
}

#[test]
fn a_disk_that_is_full_at_start_stops_no_start_and_what_it_has_comes_later() {
    let disk = Disk::new(Errno::NOSPC);
    on(&disk).put_namespace(&spec("before"));
    disk.fail(u32::MAX);
    let catalog = on(&disk);
    assert!(catalog.load().is_none() && catalog.trouble().is_some());
    catalog.put_namespace(&spec("during"));
    disk.fail(0);
    std::thread::sleep(Duration::from_millis(crate::limits::CATALOG_RETRY_MS + 50));
    assert_eq!(catalog.load().unwrap().namespaces.len(), 1);
    catalog.flush_namespaces();
    assert_eq!(on(&disk).load().unwrap().namespaces.len(), 2);
}

#[test]
fn one_that_is_damaged_while_the_server_runs_is_written_anew() {
    let disk = Disk::new(Errno::IO);
    let catalog = on(&disk);
    assert!(catalog.load().is_some());
    catalog.put_namespace(&spec("a"));
    catalog.put_namespace(&spec("b"));
    disk.spoil();
    disk.fail(1);
    catalog.put_namespace(&spec("c"));
    catalog.flush_namespaces();
    assert!(catalog.take_rebuilt() && !catalog.take_rebuilt(), "sessions are to be marked again, once");
    assert_eq!((catalog.set_aside(), catalog.waiting_len(), catalog.trouble()), (1, 0, None));
    assert_eq!(on(&disk).load().unwrap().namespaces.len(), 3);
}

#[test]
fn notes_of_segments_come_back_the_latest_of_each_and_rows_that_do_not_check_are_left_out() {
    let disk = Disk::new(Errno::IO);
    let catalog = on(&disk);
    let note = |segment, dead: &[u8]| SegmentNote {
        segment,
        nonce: [3; 16],
        upto: 9,
        dead: dead.to_vec(),
        leaving: vec![1],
    };
    catalog.put_segment_notes(&[note(7, &[1]), note(300, &[2])]).unwrap();
    catalog.put_segment_notes(&[note(7, &[5])]).unwrap();
    catalog.put_segment_notes(&[]).unwrap();
    drop(catalog); // two at once on one file are never
    assert_eq!(on(&disk).segment_notes().unwrap(), [note(7, &[5]), note(300, &[2])]);
    let database = disk.open(&Builder::new()).unwrap();
    let write = database.begin_write().unwrap();
    {
        let mut table = write.open_table(redb::TableDefinition::<&[u8], &[u8]>::new("segments")).unwrap();
        table.insert([0u8, 1].as_slice(), [0xFF; 9].as_slice()).unwrap();
        table.insert([0u8, 1, 2].as_slice(), [].as_slice()).unwrap();
    }
    write.commit().unwrap();
    drop(database);
    assert_eq!(on(&disk).segment_notes().unwrap().len(), 2);
}

#[test]
fn all_rows_of_a_namespace_that_is_forgotten_go_in_bounded_transactions() {
    let disk = Disk::new(Errno::IO);
    let catalog = on(&disk);
    let (gone, kept) = (spec("gone"), spec("kept"));
    for spec in [&gone, &kept] {
        catalog.put_namespace(spec);
        let row = |at: u32| (spec.id(), name(&format!("s{at}")), Some(record(at)));
        put(&catalog, &(0..1500).map(row).collect::<Vec<_>>()).unwrap();
        put_pin(&catalog, spec, &[BlockHash([7; 32])], 60_000).unwrap();
    }
    catalog.forget_namespace(gone.id());
    catalog.flush_namespaces();
    let loaded = on(&disk).load().unwrap();
    assert_eq!(loaded.ids, [kept.id()]);
    let (sessions, pins) = (sessions(&on(&disk), &kept), pins(&on(&disk), &kept));
    assert_eq!((loaded.namespaces.len(), sessions.len(), pins.len()), (1, 1500, 1));
    catalog.put_namespace(&gone);
    catalog.forget_namespace(gone.id());
    catalog.put_namespace(&gone); // opened again before its old rows are gone
    catalog.flush_namespaces();
    assert_eq!(on(&disk).load().unwrap().namespaces.len(), 2);
    assert_eq!(catalog.waiting_len(), 0);
}

#[test]
fn pins_that_wait_are_bounded_and_the_caller_is_told() {
    let catalog = on(&Disk::new(Errno::NOSPC));
    let pin = |at: u32| {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&at.to_le_bytes());
        catalog.mark_pin(NamespaceIndex(0, 0), BlockHash(hash))
    };
    let max = crate::limits::CATALOG_PINS_WAITING_MAX as u32;
    assert!((0..max).all(pin));
    assert!(!pin(max) && pin(0));
    assert_eq!(catalog.take_marked_pins(10).len(), 10);
    assert!(pin(max) && catalog.waiting_len() == max as usize - 9);
}

/// Rows that do not check are skipped; whatever is in them, all others come back.
#[test]
fn damaged_rows_cost_themselves_and_nothing_else() {
    let (damaged, kept) = (spec("damaged"), spec("kept"));
    turnkv_mutate::each_seed(60, |random| {
        let disk = Disk::new(Errno::IO);
        let catalog = on(&disk);
        for spec in [&damaged, &kept] {
            catalog.put_namespace(spec);
            put_pin(&catalog, spec, &[BlockHash([7; 32]), BlockHash([8; 32])], 60_000).unwrap();
        }
        for (table, key_bytes) in [(NAMESPACES, 32), (PINS, 64)] {
            catalog
                .write(|write| damage_rows(write, table, key_bytes, &damaged.id(), random.clone()))
                .unwrap();
        }
        drop(catalog);
        let catalog = on(&disk);
        let loaded = catalog.load().unwrap();
        assert_eq!((catalog.set_aside(), catalog.trouble()), (0, None), "a row is not a file");
        assert!(loaded.namespaces.iter().any(|spec| spec.id() == kept.id()));
        assert!(pins(&catalog, &kept).iter().any(|pin| pin.hashes.len() == 2));
        pins(&catalog, &damaged);
        loaded.ids.iter().filter(|id| **id != kept.id()).for_each(|id| catalog.forget_namespace(*id));
        catalog.flush_namespaces();
        assert_eq!(on(&disk).load().unwrap().namespaces.len(), 1);
    });
}

/// Damages the rows of one namespace in a table.
pub(super) fn damage_rows(
    write: &redb::WriteTransaction,
    table: CatalogTable,
    key_bytes: usize,
    of: &NamespaceId,
    mut random: turnkv_mutate::Random,
) -> Result<(), CatalogError> {
    use redb::ReadableTable;
    let mut table = write.open_table(table)?;
    let mut rows = Vec::new();
    for row in table.range(of.0.as_slice()..)? {
        let (key, value) = row?;
        if key.value().starts_with(&of.0) {
            rows.push((key.value().to_vec(), value.value().to_vec()));
        }
    }
    for (key, value) in rows {
        table.remove(key.as_slice())?;
        let value = match random.below(2) {
            0 => turnkv_mutate::mutate_message(&mut random, &value),
            _ => turnkv_mutate::mutate_bytes(&mut random, &value),
        };
        // Keys of any length, of this namespace or of none, never of the other one.
        let mut key = turnkv_mutate::mutate_bytes(&mut random, &key);
        key.truncate(key_bytes + random.below(40));
        let foreign = [b"!", key.as_slice()].concat();
        let key = if random.one_in(2) { [&of.0, &key[..key.len().min(32)]].concat() } else { foreign };
        table.insert(key.as_slice(), value.as_slice())?;
    }
    Ok(())
}

#[test]
fn one_of_another_tier_is_refused_and_one_of_a_tier_that_is_gone_becomes_a_new_ones() {
    let (disk, dir) = (Disk::new(Errno::IO), tempfile::tempdir().unwrap());
    let owner = |id, is_new| Owner { id: TierId([id; 16]), path: dir.path().join("tier"), is_new };
    let open = |owner| Catalog::open_with(Box::new(disk.clone()), owner, Clock::system());
    open(owner(1, true)).unwrap().put_namespace(&spec("a"));
    let refused = open(owner(2, false)).err().unwrap();
    assert!(refused.advice().unwrap().contains("state_dir of its own"), "{refused}");
    let kept = open(owner(1, false)).unwrap();
    assert_eq!((kept.set_aside(), kept.load().unwrap().namespaces.len()), (0, 1), "it is as it was");
    drop(kept);
    let taken = open(owner(2, true)).unwrap();
    assert_eq!(taken.load().unwrap().namespaces.len(), 1, "what is in it stays");
    drop(taken);
    assert!(open(owner(1, false)).is_err() && open(owner(2, false)).is_ok());
    let moved = Owner { path: dir.path().join("elsewhere"), ..owner(2, false) };
    assert!(open(moved).is_ok(), "the same tier, mounted elsewhere");
}

#[test]
fn what_a_catalog_takes_on_its_disk_is_what_the_system_counts() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    catalog.put_namespace(&spec("a"));
    let file = std::fs::metadata(dir.path().join("catalog.redb")).unwrap();
    assert_eq!(catalog.bytes(), file.blocks() * 512);
    assert!(catalog.bytes() < file.len(), "its file has holes");
}

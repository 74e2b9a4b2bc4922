//! Lists in the catalog: shared by sessions, gone with the last one, bounded; and rows of older servers.

use super::SavedChunk;
use crate::catalog::pins::{PinChange, PinRow as OldPin};
use crate::catalog::sessions::{Change, SessionRow};
use crate::catalog::tables::{LISTS, PINS, SESSIONS};
use crate::catalog::tests::{Disk, damage_rows, on};
use crate::catalog::{Catalog, CatalogError, ListSource, Owner, SavedRows};
use crate::clock::Clock;
use prost::Message;
use rustix::io::Errno;
use std::cell::Cell;
use turnkv_pool::{LIST_CHUNK_PAGES, ListChunk, NamespaceIndex, PinRecord, SessionRecord};
use turnkv_proto::{BlockHash, NamespaceId, SessionId, pack_hashes};

const NS: NamespaceId = NamespaceId([9; 32]);
const CHUNK: usize = LIST_CHUNK_PAGES as usize;

fn hash(at: usize) -> BlockHash {
    let mut bytes = [5; 32];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    BlockHash(bytes)
}

fn name(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

/// A session with the first `pages` of the one list that there is.
fn session(named: &str, pages: usize) -> Change {
    let base = pages - pages % CHUNK;
    let record = SessionRecord {
        ns: NamespaceIndex(0, 0),
        session: name(named),
        turn: 1,
        base: (base > 0).then(|| hash(base - 1)),
        hashes: (base..pages).map(hash).collect(),
        tail_tokens: 0,
        ttl_ms: 1,
        idle_ms: 0,
        priority: 0,
        protected_ms: 0,
    };
    (NS, name(named), Some(record))
}

/// A pin of the first `pages` of the same list.
fn pin(pages: usize) -> PinChange {
    let base = pages - pages % CHUNK;
    let record = PinRecord {
        base: (base > 0).then(|| hash(base - 1)),
        hashes: (base..pages).map(hash).collect(),
        ends_in_ms: 60_000,
    };
    (NS, hash(pages - 1), Some(record))
}

/// Pages that each saved pin names.
fn pinned(catalog: &Catalog) -> Vec<usize> {
    let look = |saved: &SavedRows| {
        let mut found = Vec::new();
        saved.for_each_pin_of(&NS, |pin| {
            assert!(pin.for_ms > 0 && pin.for_ms <= 60_000);
            found.push(pin.hashes.len() + listed(saved, pin.base)?);
            Ok(())
        })?;
        Ok(found)
    };
    catalog.saved_rows(look).unwrap()
}

/// Pages of the chunks up to the one that ends with a page.
fn listed(saved: &SavedRows, base: Option<BlockHash>) -> Result<usize, CatalogError> {
    let chunks = base.map(|base| saved.chunks_back(&NS, &base, |_| false)).transpose()?.unwrap_or_default();
    assert!(chunks.last().is_none_or(|(_, first)| first.before.is_none()), "a row's chunks are there");
    Ok(chunks.iter().map(|(_, chunk)| chunk.hashes.len()).sum())
}

/// The chunk of that list that ends with a page, and the one before it.
fn chunks(last: &BlockHash) -> Vec<ListChunk> {
    let at = u64::from_le_bytes(last.0[..8].try_into().unwrap()) as usize + 1;
    assert!(at.is_multiple_of(CHUNK), "a chunk is asked for by its last page");
    let chunk = |end: usize| ListChunk {
        before: end.checked_sub(CHUNK + 1).map(hash),
        hashes: (end - CHUNK..end).map(hash).collect(),
    };
    [Some(at), at.checked_sub(CHUNK).filter(|end| *end > 0)].into_iter().flatten().map(chunk).collect()
}

/// Pages that a saved session names, by its row and the chunks it hangs on.
fn pages(catalog: &Catalog, named: &str) -> usize {
    let look = |saved: &SavedRows| {
        let mut pages = 0;
        saved.for_each_of(&NS, |session| {
            if session.session == name(named) {
                pages += session.hashes.len() + listed(saved, session.base)?;
            }
            Ok(())
        })?;
        Ok(pages)
    };
    catalog.saved_rows(look).unwrap()
}

#[test]
fn sessions_share_chunks_and_the_last_one_takes_them_along() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    let asked = Cell::new(0);
    let source = ListSource {
        chunks: &|_, last| {
            asked.set(asked.get() + 1);
            chunks(last)
        },
        chunks_max: 1000,
    };
    let put = |changes: &[Change]| catalog.put_sessions(changes, &source).unwrap();
    let all: Vec<Change> = (0..100).map(|at| session(&format!("s{at}"), 10 * CHUNK + 3)).collect();
    assert_eq!(put(&all).changes, 100);
    assert_eq!((catalog.list_chunks(), asked.get()), (10, 5), "each chunk is read and saved once");
    assert_eq!(pages(&catalog, "s7"), 10 * CHUNK + 3);
    put(&[session("s0", 12 * CHUNK), session("s1", 4 * CHUNK + 1), session("s2", 5)]);
    assert_eq!(catalog.list_chunks(), 12);
    assert_eq!(
        (pages(&catalog, "s0"), pages(&catalog, "s1"), pages(&catalog, "s2")),
        (12 * CHUNK, 4 * CHUNK + 1, 5)
    );
    // Nothing changes when a session is saved again.
    put(&[session("s0", 12 * CHUNK)]);
    put(&(3..100).map(|at| (NS, name(&format!("s{at}")), None)).collect::<Vec<_>>());
    assert_eq!(catalog.list_chunks(), 12, "the longest one needs them all");
    put(&[(NS, name("s0"), None)]);
    assert_eq!(catalog.list_chunks(), 4);
    put(&[(NS, name("s1"), None), (NS, name("s2"), None), (NS, name("s2"), None)]);
    assert_eq!(catalog.list_chunks(), 0);
}

/// A pin's row held its whole prefix once: 2 MiB each for the longest, in one transaction together.
#[test]
fn pins_share_their_chunks_with_sessions_and_with_one_another() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    let source = ListSource { chunks: &|_, last| chunks(last), chunks_max: 1000 };
    catalog.put_sessions(&[session("s", 10 * CHUNK)], &source).unwrap();
    let pins: Vec<PinChange> = (9 * CHUNK..12 * CHUNK).map(pin).collect();
    assert_eq!(catalog.put_pins(&pins, &source).unwrap().changes, pins.len());
    assert_eq!(catalog.list_chunks(), 11);
    let mut found = pinned(&catalog);
    found.sort_unstable();
    assert_eq!(found, (9 * CHUNK..12 * CHUNK).collect::<Vec<_>>());
    let ended: Vec<PinChange> = pins.iter().map(|(ns, pin, _)| (*ns, *pin, None)).collect();
    catalog.put_pins(&ended, &source).unwrap();
    assert_eq!((catalog.list_chunks(), pinned(&catalog)), (10, vec![]), "the session needs its own still");
    catalog.put_sessions(&[(NS, name("s"), None)], &source).unwrap();
    assert_eq!(catalog.list_chunks(), 0);
}

#[test]
fn a_pin_whose_list_finds_no_room_is_not_saved_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    let source = ListSource { chunks: &|_, last| chunks(last), chunks_max: 4 };
    let put = |change| catalog.put_pins(&[change], &source).unwrap();
    assert_eq!(put(pin(4 * CHUNK + 3)).unlisted, 0);
    assert_eq!(put(pin(9 * CHUNK)).unlisted, 1);
    assert_eq!((pinned(&catalog), catalog.list_chunks()), (vec![4 * CHUNK + 3], 4));
}

#[test]
fn pins_of_older_servers_are_read_and_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    let hashes: Vec<BlockHash> = (0..1000).map(hash).collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let old = OldPin {
        hashes: pack_hashes(&hashes),
        ends_unix_ms: now.as_millis() as u64 + 50_000,
        ..OldPin::default()
    };
    let key = [NS.0.as_slice(), &hash(999).0].concat();
    let write = |write: &redb::WriteTransaction| {
        write.open_table(PINS)?.insert(key.as_slice(), old.encode_to_vec().as_slice())?;
        Ok(())
    };
    catalog.write(write).unwrap();
    assert_eq!(pinned(&catalog), [1000]);
    let source = ListSource { chunks: &|_, last| chunks(last), chunks_max: 100 };
    catalog.put_pins(&[pin(1000)], &source).unwrap();
    assert_eq!((pinned(&catalog), catalog.list_chunks()), (vec![1000], 1000 / CHUNK as u64));
}

#[test]
fn a_list_that_finds_no_room_costs_its_session_the_list_and_nobody_else_anything() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    let source = ListSource { chunks: &|_, last| chunks(last), chunks_max: 4 };
    let put = |change| catalog.put_sessions(&[change], &source).unwrap();
    assert_eq!(put(session("short", 3 * CHUNK + 1)).unlisted, 0);
    assert_eq!(put(session("long", 9 * CHUNK + 1)).unlisted, 1);
    assert_eq!((pages(&catalog, "short"), pages(&catalog, "long")), (3 * CHUNK + 1, 0));
    assert_eq!(put(session("long", 4 * CHUNK + 2)).unlisted, 0, "what fits is saved");
    assert_eq!((pages(&catalog, "long"), catalog.list_chunks()), (4 * CHUNK + 2, 4));
}

#[test]
fn a_session_whose_pages_went_meanwhile_keeps_its_old_row() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    let whole = ListSource { chunks: &|_, last| chunks(last), chunks_max: 100 };
    catalog.put_sessions(&[session("s", 2 * CHUNK)], &whole).unwrap();
    let gone = ListSource { chunks: &|_, _| Vec::new(), chunks_max: 100 };
    let written = catalog.put_sessions(&[session("s", 5 * CHUNK), session("t", 2 * CHUNK)], &gone).unwrap();
    assert_eq!((written.changes, written.again), (2, vec![0]), "what is saved already need not be read");
    assert_eq!((pages(&catalog, "s"), pages(&catalog, "t")), (2 * CHUNK, 2 * CHUNK));
}

#[test]
fn one_transaction_writes_no_more_than_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    let source = ListSource { chunks: &|_, last| chunks(last), chunks_max: u64::MAX };
    let changes: Vec<Change> = (0..50).map(|at| session(&format!("s{at}"), (at + 1) * 100 * CHUNK)).collect();
    let first = catalog.put_sessions(&changes, &source).unwrap().changes;
    assert!((5..20).contains(&first), "{first} sessions with 100 new chunks each in one transaction");
    let mut left = &changes[first..];
    while !left.is_empty() {
        left = &left[catalog.put_sessions(left, &source).unwrap().changes..];
    }
    assert_eq!(catalog.list_chunks(), 5_000);
}

/// Older servers wrote a session's whole list into its row.
#[test]
fn rows_of_older_servers_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path(), Owner::any(), Clock::system()).unwrap();
    let hashes: Vec<BlockHash> = (0..1000).map(hash).collect();
    let old = SessionRow { turn: 4, hashes: pack_hashes(&hashes), ttl_ms: 7, ..SessionRow::default() };
    let key = [NS.0.as_slice(), b"old"].concat();
    let write = |write: &redb::WriteTransaction| {
        write.open_table(SESSIONS)?.insert(key.as_slice(), old.encode_to_vec().as_slice())?;
        Ok(())
    };
    catalog.write(write).unwrap();
    assert_eq!(pages(&catalog, "old"), 1000);
    let source = ListSource { chunks: &|_, last| chunks(last), chunks_max: 100 };
    catalog.put_sessions(&[session("old", 1000)], &source).unwrap();
    assert_eq!((pages(&catalog, "old"), catalog.list_chunks()), (1000, 1000 / CHUNK as u64));
}

/// Rows of sessions and of lists, damaged in every way: chunks that name others, and one another. What does not check costs its own
/// session its list, and no walk goes round for ever.
#[test]
fn damaged_rows_of_lists_cost_their_own_sessions_and_nothing_else() {
    const DAMAGED: NamespaceId = NamespaceId([8; 32]);
    let source = ListSource { chunks: &|_, last| chunks(last), chunks_max: 1000 };
    let of = |ns: NamespaceId, at: usize| {
        let (_, name, record) = session(&format!("s{at}"), at * CHUNK + 7);
        (ns, name, record)
    };
    turnkv_mutate::each_seed(60, |random| {
        let disk = Disk::new(Errno::IO);
        let catalog = on(&disk);
        let all: Vec<Change> = [NS, DAMAGED].iter().flat_map(|ns| (1..6).map(|at| of(*ns, at))).collect();
        assert_eq!(catalog.put_sessions(&all, &source).unwrap().changes, 10);
        for (table, key_bytes) in [(SESSIONS, 34), (LISTS, 64)] {
            let damage = |write: &redb::WriteTransaction| {
                damage_rows(write, table, key_bytes, &DAMAGED, random.clone())
            };
            catalog.write(damage).unwrap();
            random.number();
        }
        catalog.write(|write| entangle(write, &DAMAGED, random.clone())).unwrap();
        drop(catalog);

        let catalog = on(&disk);
        assert_eq!((catalog.set_aside(), catalog.trouble()), (0, None), "a row is not a file");
        let walk = |saved: &SavedRows| {
            saved.for_each_of(&DAMAGED, |session| {
                let Some(base) = session.base else { return Ok(()) };
                let walked = saved.chunks_back(&DAMAGED, &base, |_| false)?;
                assert!(walked.len() <= 10, "{} chunks of 5", walked.len());
                Ok(())
            })
        };
        catalog.saved_rows(walk).unwrap();
        // They are written over and go, however they look.
        let again: Vec<Change> = (1..6).map(|at| of(DAMAGED, at)).collect();
        assert_eq!(catalog.put_sessions(&again, &source).unwrap().changes, 5);
        let gone: Vec<Change> = (1..6).map(|at| (DAMAGED, name(&format!("s{at}")), None)).collect();
        assert_eq!(catalog.put_sessions(&gone, &source).unwrap().changes, 5);
        for at in 1..6 {
            assert_eq!(pages(&catalog, &format!("s{at}")), at * CHUNK + 7, "session {at} is whole");
        }
    });
}

/// Has some chunks name others as those before them.
fn entangle(
    write: &redb::WriteTransaction,
    of: &NamespaceId,
    mut random: turnkv_mutate::Random,
) -> Result<(), CatalogError> {
    use redb::ReadableTable;
    let mut table = write.open_table(LISTS)?;
    let mut rows = Vec::new();
    for row in table.range(of.0.as_slice()..)? {
        let (key, value) = row?;
        if let (true, Ok(saved)) = (key.value().starts_with(&of.0), SavedChunk::decode(value.value())) {
            rows.push((key.value().to_vec(), saved));
        }
    }
    for _ in 0..3 {
        let (Some((key, saved)), Some((other, _))) = (random.pick(&rows), random.pick(&rows)) else { break };
        let saved = SavedChunk { before: other[32..].to_vec(), ..saved.clone() };
        table.insert(key.as_slice(), saved.encode_to_vec().as_slice())?;
    }
    Ok(())
}

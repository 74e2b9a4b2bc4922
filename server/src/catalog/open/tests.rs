//! Opening a catalog whose file was damaged.

use crate::catalog::tests::{Disk, name, on, put, record, sessions, spec};
use rustix::io::Errno;

const SESSIONS: usize = 40;
const FLIPS: usize = 20;

/// One transaction after another; the last of them are what an older root of the database lacks.
#[test]
fn a_damaged_catalog_gives_all_that_was_saved_or_is_set_aside() {
    let (disk, spec) = (Disk::new(Errno::IO), spec("a"));
    let catalog = on(&disk);
    catalog.put_namespace(&spec);
    for at in 0..SESSIONS {
        put(&catalog, &[(spec.id(), name(&format!("s{at}")), Some(record(1)))]).unwrap();
    }
    let mut noticed = 0;
    turnkv_mutate::each_seed(100, |random| {
        let damaged = disk.copy();
        damaged.flip(random, FLIPS);
        let catalog = on(&damaged);
        let found = (catalog.load().unwrap().namespaces.len(), sessions(&catalog, &spec).len());
        let expected = if catalog.set_aside() == 0 { (1, SESSIONS) } else { (0, 0) };
        assert_eq!(found, expected, "what is missing is missing without a word");
        noticed += catalog.set_aside();
    });
    assert!(noticed > 0, "damage that nobody notices proves nothing");
}

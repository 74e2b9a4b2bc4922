//! What becomes of names whose rows are written batch by batch: each is written, or marked again, and none is forgotten.

use super::*;
use crate::config;
use std::cell::RefCell;
use std::collections::BTreeSet;
use turnkv_mutate::each_seed;

const NS: NamespaceIndex = NamespaceIndex(0, 0);

#[test]
fn every_name_is_written_or_marked_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("turnkv.toml");
    std::fs::write(&file, "[dram]\nbytes = \"16MiB\"\nlock = false\n").unwrap();
    let engine = Engine::start(config::load(Some(&file)).unwrap(), |_| None, None).unwrap();
    let most = CATALOG_SESSIONS_PER_BATCH * CATALOG_BATCHES_PER_FLUSH;
    let mut failed = 0;
    each_seed(200, |random| {
        let names: Vec<Name<usize>> = (0..random.below(most + 100)).map(|at| (NS, at)).collect();
        let marked = RefCell::new(BTreeSet::new());
        let (mut written, mut gone) = (BTreeSet::new(), BTreeSet::new());
        let fails_at = random.below(12);
        let mut batches = 0;
        let write = |some: &[Name<usize>]| {
            batches += 1;
            assert!(!some.is_empty() && some.len() <= CATALOG_SESSIONS_PER_BATCH);
            if batches > fails_at {
                return Err(CatalogError::Resting(String::new()));
            }
            // Some are of namespaces that are gone; a transaction may be full before the last one.
            let positions: Vec<usize> = (0..some.len()).filter(|_| !random.one_in(5)).collect();
            let changes = if random.one_in(3) { random.below(positions.len() + 1) } else { positions.len() };
            let again: Vec<usize> = (0..changes).filter(|_| random.one_in(10)).collect();
            let upto = positions.get(changes).copied().unwrap_or(some.len());
            gone.extend((0..upto).filter(|at| !positions.contains(at)).map(|at| some[at].1));
            written.extend((0..changes).filter(|at| !again.contains(at)).map(|at| some[positions[at]].1));
            Ok((positions, Written { changes, again, unlisted: 0 }))
        };
        let saved =
            engine.save(&names, Ok(()), |(_, name)| assert!(marked.borrow_mut().insert(*name)), write);
        failed += u32::from(saved.is_err());
        let marked = marked.into_inner();
        for (_, name) in &names {
            let places = [written.contains(name), gone.contains(name), marked.contains(name)];
            assert_eq!(places.iter().filter(|is| **is).count(), 1, "{name} of {}: {places:?}", names.len());
        }
    });
    assert!((10..190).contains(&failed), "{failed} of 200 failed: this proves little");
}

#[test]
fn what_went_wrong_before_leaves_all_of_it_marked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("turnkv.toml");
    std::fs::write(&file, "[dram]\nbytes = \"16MiB\"\nlock = false\n").unwrap();
    let engine = Engine::start(config::load(Some(&file)).unwrap(), |_| None, None).unwrap();
    let names: Vec<Name<usize>> = (0..10).map(|at| (NS, at)).collect();
    let marked = RefCell::new(0);
    let so_far = Err(CatalogError::Resting("a moment ago".to_owned()));
    let saved = engine.save(&names, so_far, |_| *marked.borrow_mut() += 1, |_| panic!("nothing is written"));
    assert!(saved.is_err());
    assert_eq!(marked.into_inner(), 10);
}

//! Who waits for which page, against a plain list of the same: everybody is told once, in time, and nothing is remembered of
//! those who left.

use super::*;
use std::collections::BTreeSet;
use turnkv_mutate::each_seed;

fn page(at: usize) -> PageKey {
    PageKey { index: at as u32, generation: 1 }
}

/// A wait as a list of what is missing.
struct Plain {
    id: u64,
    missing: BTreeSet<usize>,
    whole: bool,
    told: oneshot::Receiver<Durability>,
}

impl Plain {
    fn is_told(&mut self, outcome: Durability) -> bool {
        self.told.try_recv() == Ok(outcome)
    }
}

/// After every step those are told, and no others, whose pages are all there, or one of whose pages is lost.
#[test]
fn everybody_is_told_once_of_the_last_page_or_of_the_first_that_is_lost() {
    let mut told = 0;
    each_seed(2_000, |random| {
        let (mut waits, mut plain) = (DurableWaits::default(), Vec::<Plain>::new());
        for _ in 0..60 {
            match random.below(6) {
                0 => {
                    let (id, told) = waits.begin();
                    plain.push(Plain { id, missing: BTreeSet::new(), whole: false, told });
                }
                1 if !plain.is_empty() => {
                    let at = random.below(plain.len());
                    let wait = &mut plain[at];
                    if !wait.whole {
                        let pages: Vec<usize> = (0..8).filter(|page| !wait.missing.contains(page)).collect();
                        let some = &pages[..random.below(pages.len() + 1)];
                        wait.missing.extend(some);
                        wait.whole = random.below(2) == 0;
                        let keys: Vec<PageKey> = some.iter().map(|at| page(*at)).collect();
                        waits.add(wait.id, &keys, wait.whole);
                        if wait.whole && wait.missing.is_empty() {
                            assert!(plain.remove(at).is_told(Ok(())));
                            told += 1;
                        }
                    }
                }
                2 if !plain.is_empty() => waits.end(plain.swap_remove(random.below(plain.len())).id),
                3 => (0..8).for_each(|at| waits.prune(page(at))),
                _ => {
                    let at = random.below(8);
                    let outcome = if random.below(4) == 0 { Err(NotDurable::Lost) } else { Ok(()) };
                    waits.settle(page(at), outcome);
                    plain.retain_mut(|wait| {
                        let was_missing = wait.missing.remove(&at);
                        let over = was_missing && (outcome.is_err() || wait.whole && wait.missing.is_empty());
                        assert!(!over || wait.is_told(outcome), "it is not told, or of something else");
                        told += u32::from(over);
                        !over
                    });
                }
            }
            assert_eq!(waits.len(), plain.len());
            assert!(plain.iter_mut().all(|wait| wait.told.try_recv().is_err()), "one is told too early");
        }
        plain.iter().for_each(|wait| waits.end(wait.id));
        (0..8).for_each(|at| waits.prune(page(at)));
        assert!(waits.pages.is_empty() && waits.waits.is_empty(), "something is remembered for ever");
    });
    assert!(told > 2_000, "only {told} were told: this proves little");
}

#[test]
fn pages_that_are_waited_for_are_handed_out_once_each_in_slices() {
    let mut waits = DurableWaits::default();
    let (id, _told) = waits.begin();
    let pages: Vec<PageKey> = (0..10).map(page).collect();
    waits.add(id, &pages, true);
    let (mut from, mut seen) = (None, Vec::new());
    loop {
        let some = waits.waited_for(from, 3);
        from = some.last().copied();
        seen.extend(some.iter().copied());
        if some.len() < 3 {
            break;
        }
    }
    assert_eq!(seen, pages);
}

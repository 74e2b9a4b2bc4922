//! W-TinyLFU: newcomers pass a small window, then must be read more often than the page they would replace.
//! Owns: the window, the main part, an aging sketch of reads. Must not know: tiers.

use crate::eviction::policy::eviction_policy::{EvictionPolicy, row};
use crate::index::arena::Pages;
use crate::index::list_id::{ListId, Position};
use crate::index::lists::PageList;
use crate::limits::{SKETCH_COUNTERS_MAX, SKETCH_COUNTERS_MIN, VICTIM_MOVES_MAX};
use turnkv_proto::BlockHash;

/// Share of a list's pages in the window, and share of the rest that is protected, percent.
const WINDOW_PERCENT: u64 = 1;
const PROTECTED_PERCENT: u64 = 80;
/// Which part a page is in, as its mark says.
const WINDOW: u32 = 0;
const PROBATION: u32 = 1;
const PROTECTED: u32 = 2;
/// Reads in the sketch, for each counter, after which all counts are halved.
const SAMPLES_PER_COUNTER: usize = 10;

/// The policy. `Entry::run` is the part a page is in.
#[derive(Default)]
pub(crate) struct TinyLfu {
    parts: Vec<[PageList; 3]>,
    sketch: Sketch,
}

/// How often hashes were seen lately: four counters a hash, the least of which is nearest.
#[derive(Default)]
struct Sketch {
    counters: Vec<u8>,
    samples: usize,
}

impl Sketch {
    fn slots(&self, hash: &BlockHash) -> [usize; 4] {
        let word =
            |at: usize| u32::from_le_bytes([hash.0[at], hash.0[at + 1], hash.0[at + 2], hash.0[at + 3]]);
        let mask = self.counters.len() - 1;
        let mix = (u64::from(word(0)) | u64::from(word(4)) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [0, 16, 32, 40].map(|shift| (mix.rotate_left(shift) >> 20) as usize & mask)
    }

    fn add(&mut self, hash: &BlockHash, pages: usize) {
        let wanted = (4 * pages).next_power_of_two().clamp(SKETCH_COUNTERS_MIN, SKETCH_COUNTERS_MAX);
        if self.counters.len() < wanted {
            // A larger sketch starts empty: counts cannot be moved between sizes.
            (self.counters, self.samples) = (vec![0; wanted], 0);
        }
        for slot in self.slots(hash) {
            self.counters[slot] = self.counters[slot].saturating_add(1);
        }
        self.samples += 1;
        if self.samples >= SAMPLES_PER_COUNTER * self.counters.len() / 4 {
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
            self.samples = 0;
        }
    }

    fn count(&self, hash: &BlockHash) -> u8 {
        if self.counters.is_empty() {
            return 0;
        }
        self.slots(hash).map(|slot| self.counters[slot]).into_iter().min().unwrap_or(0)
    }
}

impl TinyLfu {
    fn move_to(parts: &mut [PageList; 3], pages: &mut Pages, page: u32, part: u32) {
        parts[pages[page].run as usize].remove(pages, page);
        pages[page].run = part;
        parts[part as usize].push_hot(pages, page);
    }
}

impl EvictionPolicy for TinyLfu {
    fn insert(&mut self, pages: &mut Pages, list: ListId, page: u32, at: Position) {
        if pages[page].run > PROTECTED {
            pages[page].run = WINDOW;
            let all = pages.len() as usize;
            self.sketch.add(&pages[page].hash, all);
        }
        let part = &mut row(&mut self.parts, list)[pages[page].run as usize];
        match at {
            Position::Hot => part.push_hot(pages, page),
            Position::Cold => part.push_cold(pages, page),
            Position::ColderThan(other) if pages[other].run == pages[page].run => {
                part.push_colder_than(pages, page, other);
            }
            Position::ColderThan(_) => part.push_hot(pages, page),
        }
    }

    fn touch(&mut self, pages: &mut Pages, page: u32) {
        let Some(list) = pages[page].list() else { return };
        let part = pages[page].run;
        TinyLfu::move_to(row(&mut self.parts, list), pages, page, part);
    }

    fn remove(&mut self, pages: &mut Pages, list: ListId, page: u32) {
        row(&mut self.parts, list)[pages[page].run as usize].remove(pages, page);
    }

    fn victim(&mut self, pages: &mut Pages, list: ListId) -> (Option<u32>, u64) {
        let parts = row(&mut self.parts, list);
        let all: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
        let mut moves = 0;
        while moves < VICTIM_MOVES_MAX
            && u64::from(parts[PROTECTED as usize].len) * 10_000
                > all * PROTECTED_PERCENT * (100 - WINDOW_PERCENT)
            && let Some(page) = parts[PROTECTED as usize].coldest()
        {
            TinyLfu::move_to(parts, pages, page, PROBATION);
            moves += 1;
        }
        while u64::from(parts[WINDOW as usize].len) * 100 > all * WINDOW_PERCENT
            && let Some(newcomer) = parts[WINDOW as usize].coldest()
        {
            let Some(old) = parts[PROBATION as usize].coldest() else {
                TinyLfu::move_to(parts, pages, newcomer, PROBATION);
                moves += 1;
                continue; // once: there is one now
            };
            if self.sketch.count(&pages[newcomer].hash) <= self.sketch.count(&pages[old].hash) {
                return (Some(newcomer), moves);
            }
            TinyLfu::move_to(parts, pages, newcomer, PROBATION);
            return (Some(old), moves + 1);
        }
        let coldest = [PROBATION, PROTECTED, WINDOW].iter().find_map(|part| parts[*part as usize].coldest());
        (coldest, moves)
    }

    fn order(&self, pages: &Pages, list: ListId) -> Vec<u32> {
        self.parts.get(list.row()).into_iter().flatten().flat_map(|part| part.pages(pages)).collect()
    }

    fn hit(&mut self, pages: &mut Pages, page: u32) {
        let all = pages.len() as usize;
        self.sketch.add(&pages[page].hash, all);
        if pages[page].run != PROBATION {
            return;
        }
        match pages[page].list() {
            Some(list) => TinyLfu::move_to(row(&mut self.parts, list), pages, page, PROTECTED),
            None => pages[page].run = PROTECTED,
        }
    }
}

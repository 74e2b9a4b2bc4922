//! Pages that a good share of all references goes to: the block that every prompt begins with, mostly.
//! Owns: finding them, with bounded memory. Must not know: distances.
//!
//! Whether a sample by hash has such a page decides on points of the curve, so these few are followed one by
//! one instead. References are looked at now and then, at random, and counted by Misra and Gries: a page with
//! more than one in `CANDIDATES_MAX` of them is always among the candidates.

use crate::limits::{CURVE_HOT_CANDIDATES_MAX, CURVE_HOT_PAGES_MAX, CURVE_SAMPLES_MAX};
use crate::numbers::{Reader, Writer};

/// One reference in so many is looked at, on average.
const LOOK_EVERY: u64 = 32;
/// Looks after which counts are halved.
const LOOKS_MAX: u32 = 8192;
/// A hot page has at least one in so many references.
const SHARE: u32 = 100;
/// Looks that must have met a page before its share means anything.
const LOOKS_MIN: u32 = 12;
/// A page stays hot until it has fewer than one in so many references.
const SHARE_LEAST: f64 = 400.0;

/// A page that is followed by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct HotPage {
    pub(super) key: u64,
    /// The place in the stack that it was used at.
    pub(super) place: u32,
    /// References, aged as all others are.
    pub(super) references: f64,
}

/// The hot pages and those that may become it.
#[derive(Default)]
pub(super) struct Hot {
    pub(super) pages: Vec<HotPage>,
    /// One bit a key's last six bits: most keys need no further look.
    filter: u64,
    candidates: Vec<(u64, u32)>,
    looks: u32,
    skip: u64,
    dice: u64,
}

impl Hot {
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        if self.filter >> (key & 63) & 1 == 0 {
            return None;
        }
        self.pages.iter().position(|page| page.key == key)
    }

    /// Takes note of a reference to a page that is not hot. True: it should be from now on.
    pub(super) fn note(&mut self, key: u64) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        // The gaps are drawn: prompts have a rhythm of their own, and a fixed gap would always meet the same
        // depth.
        self.dice = self.dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.skip = (self.dice >> 33) % (2 * LOOK_EVERY);
        self.looks += 1;
        let count = self.count(key);
        if self.looks >= LOOKS_MAX {
            self.looks /= 2;
            self.candidates.iter_mut().for_each(|(_, count)| *count /= 2);
            self.candidates.retain(|(_, count)| *count > 0);
        }
        count >= LOOKS_MIN && count * SHARE >= self.looks && self.pages.len() < CURVE_HOT_PAGES_MAX
    }

    fn count(&mut self, key: u64) -> u32 {
        if let Some((_, count)) = self.candidates.iter_mut().find(|(known, _)| *known == key) {
            *count += 1;
            return *count;
        }
        if self.candidates.len() < CURVE_HOT_CANDIDATES_MAX {
            self.candidates.push((key, 1));
            return 1;
        }
        self.candidates.iter_mut().for_each(|(_, count)| *count -= 1);
        self.candidates.retain(|(_, count)| *count > 0);
        0
    }

    pub(super) fn add(&mut self, key: u64, place: u32) {
        self.candidates.retain(|(known, _)| *known != key);
        self.pages.push(HotPage { key, place, references: 1.0 });
        self.filter |= 1 << (key & 63);
    }

    /// Ages the pages' references, and lets those go that are hot no more.
    pub(super) fn age(&mut self, factor: f64, references: f64) {
        self.pages.iter_mut().for_each(|page| page.references *= factor);
        self.pages.retain(|page| page.references * SHARE_LEAST >= references);
        self.filter = self.pages.iter().fold(0, |filter, page| filter | 1 << (page.key & 63));
    }

    /// Writes the pages, each with how many keys are below its place, and those that may become it.
    pub(super) fn write(&self, below: impl Fn(u32) -> usize, into: &mut Writer) {
        into.count(self.pages.len());
        for page in &self.pages {
            into.u64(page.key);
            into.count(below(page.place));
            into.f64(page.references);
        }
        into.count(self.candidates.len());
        for (key, count) in &self.candidates {
            into.u64(*key);
            into.u32(*count);
        }
        into.u32(self.looks);
        into.u64(self.skip);
        into.u64(self.dice);
    }

    /// The same as they were written, in a stack without gaps. None: they are not of this form.
    pub(super) fn read(from: &mut Reader<'_>) -> Option<Hot> {
        let mut hot = Hot::default();
        for _ in 0..from.count(CURVE_HOT_PAGES_MAX)? {
            let (key, place, references) =
                (from.u64()?, from.count(CURVE_SAMPLES_MAX as usize)? as u32, from.f64()?);
            if references < 0.0 || hot.find(key).is_some() {
                return None;
            }
            hot.add(key, place);
            hot.pages.last_mut()?.references = references;
        }
        for _ in 0..from.count(CURVE_HOT_CANDIDATES_MAX)? {
            hot.candidates.push((from.u64()?, from.count(LOOKS_MAX as usize)? as u32));
        }
        hot.looks = from.count(LOOKS_MAX as usize)? as u32;
        (hot.skip, hot.dice) = (from.u64()? % (2 * LOOK_EVERY), from.u64()?);
        Some(hot)
    }

    pub(super) fn bytes(&self) -> usize {
        self.candidates.capacity() * 16 + self.pages.capacity() * size_of::<HotPage>()
    }
}

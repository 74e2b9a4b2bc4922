//! A curve that goes on in another process. Owns: what of it is written, and that what is read is a curve. Must not know: where it is
//! kept meanwhile.
//!
//! Who asked last, and was declined, is not written: a turn that asks again after a restart counts once more.

use super::histogram::Histogram;
use super::hot::Hot;
use super::stack::Stack;
use super::{Curve, NONE, Sample};
use crate::ids::Now;
use crate::limits::CURVE_SAMPLES_MAX;
use crate::numbers::{Reader, Writer};

impl Curve {
    /// Writes what was counted.
    pub(crate) fn write(&self, into: &mut Writer) {
        into.u64(self.threshold);
        into.u32(self.step);
        into.f64(self.window_ms);
        for histogram in [&self.found, &self.stored, &self.declined, &self.followed] {
            histogram.write(into);
        }
        self.hot.write(|place| self.stack.below(place), into);
        into.count(self.samples.len());
        for key in self.stack.keys() {
            into.u64(key);
            into.u32(self.samples.get(&key).map_or(0, |sample| sample.step));
        }
    }

    /// Goes on from what was written. None: that is no curve, and nothing changes.
    pub(crate) fn read(&mut self, from: &mut Reader<'_>, now: Now) -> Option<()> {
        let mut read = Curve::new(super::CurveTuning::default());
        (read.threshold, read.step, read.window_ms) = (from.u64()?, from.u32()?, from.f64()?);
        for histogram in [&mut read.found, &mut read.stored, &mut read.declined, &mut read.followed] {
            *histogram = Histogram::read(from)?;
        }
        read.hot = Hot::read(from)?;
        for _ in 0..from.count(CURVE_SAMPLES_MAX as usize)? {
            let (key, step) = (from.u64()?, from.u32()?);
            let is_new = !read.samples.contains_key(&key) && read.hot.find(key).is_none();
            if !is_new || key > read.threshold || step > read.step {
                return None;
            }
            let place = place_for(&mut read.stack, key);
            read.samples.insert(key, Sample { place, asker: 0, declined: NONE, step });
        }
        let top = read.stack.next();
        read.hot.pages.iter_mut().for_each(|page| page.place = page.place.min(top));
        if read.window_ms < 0.0 || read.check().is_err() {
            return None;
        }
        (read.samples_max, read.half_life_ms, read.aged) = (self.samples_max, self.half_life_ms, Some(now));
        read.shrink();
        *self = read;
        Some(())
    }
}

/// The next place of a stack without gaps.
fn place_for(stack: &mut Stack, key: u64) -> u32 {
    if stack.is_full() {
        stack.compact(|_, _| {});
    }
    stack.push(key)
}

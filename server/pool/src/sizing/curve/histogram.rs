//! Distances counted by size. Owns: the buckets, eight to a doubling, and reading a share of them.
//! Must not know: where distances come from.

use crate::numbers::{Reader, Writer};

/// Buckets in one doubling: a bucket is at most an eighth wide.
const PER_DOUBLING: usize = 8;
/// The largest distance told apart, in doublings of pages: 2^40 pages are more than any pool has.
const DOUBLINGS: usize = 40;
/// Buckets in all.
pub(super) const BUCKETS: usize = DOUBLINGS * PER_DOUBLING;
/// The bucket of references that no size finds: the page was never seen before.
pub(super) const NEVER: u16 = u16::MAX - 1;

const _: () = assert!(BUCKETS < NEVER as usize, "buckets and marks are one number");

/// References of one kind: how many, how many of them were looked at, and at what distance those were.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    /// References, every one counted.
    pub(super) references: f64,
    /// Weight of those with a known distance, or known to have none.
    pub(super) weight: f64,
    /// Weight by distance; empty before the first.
    buckets: Vec<f64>,
}

impl Histogram {
    pub(super) fn add(&mut self, bucket: u16, weight: f64) {
        self.weight += weight;
        if bucket != NEVER {
            if self.buckets.is_empty() {
                self.buckets.resize(BUCKETS, 0.0);
            }
            self.buckets[usize::from(bucket)] += weight;
        }
    }

    /// Takes back what was added, as far as it is still there.
    pub(super) fn take_back(&mut self, bucket: u16, weight: f64) {
        self.weight = (self.weight - weight).max(0.0);
        if let Some(bucket) = self.buckets.get_mut(usize::from(bucket)) {
            *bucket = (*bucket - weight).max(0.0);
        }
    }

    pub(super) fn scale(&mut self, factor: f64) {
        self.references *= factor;
        self.weight *= factor;
        self.buckets.iter_mut().for_each(|bucket| *bucket *= factor);
    }

    /// References at each distance: those looked at stand for all.
    pub(super) fn spread(&self, into: &mut [f64]) {
        if self.weight > 0.0 {
            let each = self.references / self.weight;
            into.iter_mut().zip(&self.buckets).for_each(|(sum, bucket)| *sum += bucket * each);
        }
    }

    pub(super) fn write(&self, into: &mut Writer) {
        into.f64(self.references);
        into.f64(self.weight);
        let filled = self.buckets.iter().enumerate().filter(|(_, weight)| **weight > 0.0);
        into.count(filled.clone().count());
        for (bucket, weight) in filled {
            into.count(bucket);
            into.f64(*weight);
        }
    }

    /// References as they were written. None: they are not of this form.
    pub(super) fn read(from: &mut Reader<'_>) -> Option<Histogram> {
        let (references, weight) = (from.f64()?, from.f64()?);
        let mut histogram = Histogram { references, weight, buckets: Vec::new() };
        for _ in 0..from.count(BUCKETS)? {
            histogram.buckets.resize(BUCKETS, 0.0);
            let (bucket, weight) = (from.count(BUCKETS - 1)?, from.f64()?);
            histogram.buckets[bucket] = weight;
        }
        (references >= 0.0 && weight >= 0.0 && histogram.is_sound()).then_some(histogram)
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.capacity() * 8
    }

    /// The weights add up.
    pub(super) fn is_sound(&self) -> bool {
        let sum: f64 = self.buckets.iter().sum();
        self.buckets.iter().all(|bucket| *bucket >= 0.0) && sum <= self.weight * (1.0 + 1e-6) + 1e-6
    }
}

/// The bucket of a distance in pages, from 1.
pub(super) fn bucket_of(pages: u64) -> u16 {
    let pages = pages.clamp(1, (1 << (DOUBLINGS - 3)) - 1);
    if pages < PER_DOUBLING as u64 {
        return pages as u16;
    }
    let doubling = pages.ilog2() as usize;
    let part = (pages >> (doubling - 3)) as usize - PER_DOUBLING;
    ((doubling - 2) * PER_DOUBLING + part) as u16
}

/// The least distance of a bucket.
pub(super) fn least_of(bucket: usize) -> u64 {
    if bucket < PER_DOUBLING {
        return bucket as u64;
    }
    let (doubling, part) = (bucket / PER_DOUBLING + 2, bucket % PER_DOUBLING);
    ((PER_DOUBLING + part) as u64) << (doubling - 3)
}

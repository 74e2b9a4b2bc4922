//! A curve as it is read. Owns: hit ratio at a size, from the distances counted so far.
//! Must not know: how they were sampled.

use super::Curve;
use super::histogram::{BUCKETS, least_of};
use crate::ids::Now;

/// The share of all hits after which a curve counts as flat.
const NEARLY_ALL: f64 = 0.99;

/// What share of the pages that turns need would be found at every size, if the namespace had that much for
/// itself and the least recently used page went first.
#[derive(Clone, Debug, PartialEq)]
pub struct MissRatioCurve {
    /// Bytes that a page takes, all shards.
    pub page_bytes: u64,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Pages that turns needed: found, or computed. Old ones count less.
    pub references: f64,
    /// Of these, pages found.
    pub found: f64,
    /// Milliseconds that the references are of, old ones counting less in the same way.
    pub window_ms: f64,
    /// Share of pages that are followed.
    pub rate: f64,
    /// Pages that are followed.
    pub samples: u64,
    /// Pages that are followed because a large share of references goes to them.
    pub hot: u64,
    /// References by distance.
    buckets: Vec<f64>,
}

impl MissRatioCurve {
    /// The share of references that so many bytes would find, from 0 to 1.
    pub fn hit_ratio(&self, bytes: u64) -> f64 {
        let pages = (bytes / self.page_bytes.max(1)) as f64;
        let mut hits = 0.0;
        for (at, references) in self.buckets.iter().enumerate() {
            let (least, next) = (least_of(at) as f64, least_of(at + 1) as f64);
            if pages < least {
                break;
            }
            hits += references * ((pages + 1.0 - least) / (next - least)).min(1.0);
        }
        share(hits, self.references)
    }

    /// The share that any size would find: the rest was never seen before.
    pub fn hit_ratio_max(&self) -> f64 {
        share(self.buckets.iter().sum(), self.references)
    }

    /// The least size that finds all there is to find; 0 if that is nothing.
    pub fn bytes_max(&self) -> u64 {
        let last = self.buckets.iter().rposition(|references| *references > 0.0);
        last.map_or(0, |last| (least_of(last + 1) - 1).saturating_mul(self.page_bytes))
    }

    /// Where the curve bends: the size farthest above the straight line from nothing to the size that finds
    /// nearly all there is to find. Up to it a byte buys more than bytes do on average, beyond it less. 0:
    /// there is nothing to find.
    pub fn knee_bytes(&self) -> u64 {
        let enough = NEARLY_ALL * self.hit_ratio_max();
        let bytes_of = |bucket: usize| (least_of(bucket + 1) - 1).saturating_mul(self.page_bytes);
        let all: f64 = self.buckets.iter().sum();
        let (mut hits, mut points) = (0.0, Vec::new());
        for (bucket, references) in self.buckets.iter().enumerate() {
            hits += references;
            points.push((bytes_of(bucket), share(hits, self.references)));
            if all <= 0.0 || points[bucket].1 >= enough {
                break;
            }
        }
        let Some((bytes, ratio)) = points.last().copied().filter(|_| all > 0.0) else { return 0 };
        let above = |point: &(u64, f64)| point.1 / ratio - point.0 as f64 / bytes.max(1) as f64;
        let knee = points.iter().max_by(|one, other| above(one).total_cmp(&above(other)));
        knee.map_or(0, |(bytes, _)| *bytes)
    }

    /// The share that was found, at the pool's own size and by its own policy.
    pub fn found_ratio(&self) -> f64 {
        share(self.found, self.references)
    }

    /// Pages that turns need in a second.
    pub fn references_per_s(&self) -> f64 {
        share(self.references * 1000.0, self.window_ms)
    }
}

impl Curve {
    /// The curve as it stands.
    pub(crate) fn view(&self, page_bytes: u64, page_tokens: u32, now: Now) -> MissRatioCurve {
        let mut buckets = vec![0.0; BUCKETS];
        for histogram in [&self.found, &self.stored, &self.declined, &self.followed] {
            histogram.spread(&mut buckets);
        }
        let hot_found = self.followed.weight.min(self.followed.references);
        let since = now.saturating_sub(self.aged.unwrap_or(now));
        MissRatioCurve {
            page_bytes,
            page_tokens,
            references: self.references(),
            found: self.found.references + hot_found,
            window_ms: self.window_ms + since as f64,
            rate: self.rate(),
            samples: self.samples.len() as u64,
            hot: self.hot.pages.len() as u64,
            buckets,
        }
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).max(0.0) } else { 0.0 }
}

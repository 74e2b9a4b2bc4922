//! Thinning: more was found on NVMe at a start than the index may hold. Owns: which of it is kept. Must not
//! know: the pool, segments.
//!
//! A page cannot be read without those before it, so it counts as written when the last that hangs on it was:
//! what is kept is whole prefixes.

use crate::nvme::adoption::{latest, parents_first, whole_pages};
use crate::nvme::strangers::Stranger;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use turnkv_proto::NamespaceId;

/// What had to go.
pub(crate) struct Thinned {
    /// Every extent that went.
    pub(super) extents: Vec<Stranger>,
    /// Pages that a reader could have reached.
    pub(super) pages: u64,
}

/// The least of two pages is kept rather than the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct KeepRank {
    written: Reverse<u64>,
    depth: u32,
    family: u32,
    page: u32,
}

/// The pages of one namespace that a reader could reach.
struct Reachable {
    /// The extents of page `p` are those from `p * shards` on.
    extents: Vec<u32>,
    shards: usize,
}

/// Leaves at most `pages_max` pages. What goes first no reader could reach, or a later copy replaced; then
/// those go on which nothing was written for longest, tails before heads.
pub(crate) fn thin(families: &mut BTreeMap<NamespaceId, Vec<Stranger>>, pages_max: usize) -> Thinned {
    let mut ranks = Vec::new();
    let reachable: Vec<Reachable> =
        (0..).zip(families.values()).map(|(family, found)| reachable(family, found, &mut ranks)).collect();
    let pages = ranks.len().saturating_sub(pages_max) as u64;
    if pages > 0 {
        ranks.select_nth_unstable(pages_max);
        ranks.truncate(pages_max);
    }
    let mut kept: Vec<Vec<bool>> = families.values().map(|found| vec![false; found.len()]).collect();
    for rank in ranks {
        let Reachable { extents, shards } = &reachable[rank.family as usize];
        let first = rank.page as usize * shards;
        for at in &extents[first..first + shards] {
            kept[rank.family as usize][*at as usize] = true;
        }
    }
    let mut extents = Vec::new();
    for (found, kept) in families.values_mut().zip(kept) {
        let mut kept = kept.into_iter();
        extents.extend(found.extract_if(.., |_| kept.next() == Some(false)));
    }
    Thinned { extents, pages }
}

fn reachable(family: u32, found: &[Stranger], ranks: &mut Vec<KeepRank>) -> Reachable {
    let shards = found.first().map_or(1, |stranger| usize::from(stranger.shards.max(1)));
    let sorted = latest(found, |_| true);
    let pages = whole_pages(&sorted, found, shards);
    let shards_of = |page: usize| &sorted[pages[page].first..pages[page].first + shards];
    let order = parents_first(&pages);
    let written = |page: usize| shards_of(page).iter().map(|at| found[*at as usize].sequence).max();
    let mut written: Vec<u64> = (0..pages.len()).map(|page| written(page).unwrap_or(0)).collect();
    for page in order.iter().rev() {
        if let Some(parent) = pages[*page].parent {
            written[parent] = written[parent].max(written[*page]);
        }
    }
    let mut depths: Vec<Option<u32>> = vec![None; pages.len()];
    let mut extents = Vec::new();
    for page in order {
        let root = found[sorted[pages[page].first] as usize].parent.is_none();
        let above = pages[page].parent.map_or(root.then_some(0), |parent| depths[parent]);
        let Some(depth) = above.map(|above| above.saturating_add(1)) else { continue };
        depths[page] = Some(depth);
        let rank = KeepRank {
            written: Reverse(written[page]),
            depth,
            family,
            page: (extents.len() / shards) as u32,
        };
        ranks.push(rank);
        extents.extend_from_slice(shards_of(page));
    }
    Reachable { extents, shards }
}

#[cfg(test)]
mod tests;

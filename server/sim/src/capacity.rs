//! Sizes as people write them. Owns: `1%`, `550`, `64GiB` and what they are in pages. Must not know: pools.

use crate::limits::TIER_PAGES_MAX;
use std::fmt;
use std::str::FromStr;

#[cfg(test)]
mod tests;

/// A size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// A share of the blocks of the trace that differ, in percent.
    Percent(f64),
    /// So many blocks.
    Blocks(u64),
    /// So many bytes; the model says how many a token has.
    Bytes(u64),
}

/// A size that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no size: write 5% (of the trace's unique blocks), 550 (blocks) or 64GiB (with --bytes-per-token)"
)]
pub struct CapacityError(String);

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

impl Capacity {
    /// Pages that fit, rounded down as a pool would; what is more than nothing gives at least one.
    pub fn pages(&self, unique_blocks: u64, block_tokens: u32, bytes_per_token: u64) -> u64 {
        let pages = match *self {
            Capacity::Percent(percent) => (unique_blocks as f64 * percent / 100.0 + 1e-9) as u64,
            Capacity::Blocks(blocks) => blocks,
            Capacity::Bytes(bytes) => bytes / (u64::from(block_tokens) * bytes_per_token).max(1),
        };
        pages.clamp(u64::from(!self.is_zero()), TIER_PAGES_MAX)
    }

    /// Whether it is nothing at all.
    pub fn is_zero(&self) -> bool {
        matches!(self, Capacity::Blocks(0) | Capacity::Bytes(0)) || *self == Capacity::Percent(0.0)
    }
}

impl FromStr for Capacity {
    type Err = CapacityError;

    fn from_str(text: &str) -> Result<Capacity, CapacityError> {
        let bad = || CapacityError(text.to_owned());
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| bad())?;
            return if (0.0..=1e6).contains(&percent) { Ok(Capacity::Percent(percent)) } else { Err(bad()) };
        }
        if let Some((unit, shift)) = UNITS.iter().find(|(unit, _)| text.ends_with(unit)) {
            let count: f64 = text[..text.len() - unit.len()].trim().parse().map_err(|_| bad())?;
            let bytes = count * (1u64 << shift) as f64;
            return if (0.0..9e18).contains(&bytes) { Ok(Capacity::Bytes(bytes as u64)) } else { Err(bad()) };
        }
        text.parse().map(Capacity::Blocks).map_err(|_| bad())
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Capacity::Percent(percent) => write!(f, "{percent}%"),
            Capacity::Blocks(blocks) => write!(f, "{blocks}"),
            Capacity::Bytes(bytes) => {
                let fits = |(_, shift): &&(&str, u32)| *bytes >= 1 << shift && bytes % (1u64 << shift) == 0;
                match UNITS.iter().find(fits) {
                    Some((unit, shift)) => write!(f, "{}{unit}", bytes >> shift),
                    None => write!(f, "{bytes}B"),
                }
            }
        }
    }
}

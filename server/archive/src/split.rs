//! Which bytes of a shard are K and which are V. Owns: cutting shards into parts, and joining them again. Must not know: digests.

use crate::error::Error;
use crate::limits::{BLOB_BYTES_MAX, SPLIT_RANGES_MAX};
use bytes::Bytes;

/// How a shard's bytes are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// The layout hides K and V: a shard is one blob.
    Whole,
    /// K and V are these ranges, as offset and bytes, in this order: together every byte of the shard once.
    KeyValue {
        /// Of K.
        k: Vec<(u32, u32)>,
        /// Of V.
        v: Vec<(u32, u32)>,
    },
}

/// Which part of a shard a blob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// All of it.
    Whole,
    /// K.
    K,
    /// V.
    V,
}

impl Part {
    /// Its name in manifests and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Part::Whole => "kv",
            Part::K => "k",
            Part::V => "v",
        }
    }
}

impl Split {
    /// Of a shard whose layers follow one another, each with all its K before all its V; none if that does not come out even.
    #[must_use]
    pub fn by_layers(layers: u32, shard_bytes: u64) -> Option<Split> {
        let pieces = layers.checked_mul(2).filter(|pieces| *pieces > 0)?;
        let shard_bytes = u32::try_from(shard_bytes).ok()?;
        if shard_bytes == 0 || !shard_bytes.is_multiple_of(pieces) {
            return None;
        }
        let bytes = shard_bytes / pieces;
        let every_second =
            |first: u32| (first..pieces).step_by(2).map(|piece| (piece * bytes, bytes)).collect();
        Some(Split::KeyValue { k: every_second(0), v: every_second(1) })
    }

    /// Fails unless every byte of a shard is in exactly one range.
    pub(crate) fn check(&self, shard_bytes: u64) -> Result<(), Error> {
        let Split::KeyValue { k, v } = self else { return Ok(()) };
        for (name, ranges) in [("turnkv.split.k", k), ("turnkv.split.v", v)] {
            if ranges.is_empty() || ranges.len() > SPLIT_RANGES_MAX {
                let fault = format!("{} ranges; there must be 1 to {SPLIT_RANGES_MAX}", ranges.len());
                return Err(Error::invalid(name, fault));
            }
        }
        let mut all: Vec<(u32, u32)> = k.iter().chain(v).copied().collect();
        all.sort_unstable();
        let mut end = 0;
        for (offset, bytes) in all {
            if u64::from(offset) != end || bytes == 0 {
                let fault =
                    format!("byte {end} of a shard is in none of the ranges, or in two, or a range is empty");
                return Err(Error::invalid("turnkv.split", fault));
            }
            end += u64::from(bytes);
        }
        if end != shard_bytes {
            return Err(Error::invalid(
                "turnkv.split",
                format!("its ranges end at {end} of {shard_bytes} bytes"),
            ));
        }
        Ok(())
    }

    /// The parts that a shard has, with their bytes.
    pub(crate) fn parts(&self, shard_bytes: u64) -> Vec<(Part, u32)> {
        let sum = |ranges: &[(u32, u32)]| ranges.iter().map(|(_, bytes)| bytes).sum();
        match self {
            Split::Whole => vec![(Part::Whole, shard_bytes.min(BLOB_BYTES_MAX) as u32)],
            Split::KeyValue { k, v } => vec![(Part::K, sum(k)), (Part::V, sum(v))],
        }
    }

    /// Cuts a shard that [`Split::check`] was made for.
    pub(crate) fn cut(&self, shard: &Bytes) -> Vec<(Part, Bytes)> {
        let gather = |ranges: &[(u32, u32)]| match ranges {
            [(offset, bytes)] => shard.slice(*offset as usize..(*offset + *bytes) as usize),
            _ => {
                let pieces =
                    ranges.iter().map(|(offset, bytes)| &shard[*offset as usize..][..*bytes as usize]);
                Bytes::from(pieces.collect::<Vec<_>>().concat())
            }
        };
        match self {
            Split::Whole => vec![(Part::Whole, shard.clone())],
            Split::KeyValue { k, v } => vec![(Part::K, gather(k)), (Part::V, gather(v))],
        }
    }

    /// The shard that was cut into these parts, in the order of [`Split::parts`] and as long.
    pub(crate) fn join(&self, shard_bytes: u64, mut parts: Vec<Bytes>) -> Bytes {
        let Split::KeyValue { k, v } = self else { return parts.pop().unwrap_or_default() };
        let mut shard = vec![0; shard_bytes as usize];
        for (ranges, part) in [k, v].into_iter().zip(parts) {
            let mut at = 0;
            for (offset, bytes) in ranges {
                let bytes = *bytes as usize;
                shard[*offset as usize..][..bytes].copy_from_slice(&part[at..at + bytes]);
                at += bytes;
            }
        }
        Bytes::from(shard)
    }
}

#[cfg(test)]
mod tests;

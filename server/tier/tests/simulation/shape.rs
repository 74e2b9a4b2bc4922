//! What kind of run a seed is: how large the tier and its disk are, and what goes wrong how often.

use crate::run::SEGMENT;
use std::time::Duration;
use turnkv_tier::nvme::simulation::{Fault, FaultPlan, Random};
use turnkv_tier::nvme::{Codec, Packing};

pub(crate) struct Shape {
    pub(crate) segments: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) space_changes: bool,
    pub(crate) plan: FaultPlan,
    pub(crate) packing: Packing,
}

impl Shape {
    /// What a seed stands for. How pages are packed follows from its number, so that what seeds found before is found still.
    pub(crate) fn new(seed: u64, random: &mut Random) -> Shape {
        let segments = 5 + random.below(4);
        let meanwhile = [0, 100_000, 300_000][random.index(3)];
        let mut plan = FaultPlan { slow: Duration::from_millis(50), meanwhile, ..FaultPlan::default() };
        let mut space_changes = false;
        let kind = random.below(8);
        let rates: &[(Fault, u32)] = match kind {
            0 => &[],
            1 => &[(Fault::Short, 20_000), (Fault::Interrupted, 20_000), (Fault::Slow, 50_000)],
            2 => &[(Fault::ReadError, 3_000), (Fault::Latent, 3_000)],
            3 => &[(Fault::FlippedRead, 3_000), (Fault::FlippedWrite, 3_000), (Fault::Rot, 3_000)],
            4 => &[(Fault::WriteError, 2_000), (Fault::SyncError, 4_000)],
            5 => &[(Fault::NoSpace, 4_000), (Fault::NoDescriptor, 20_000)],
            6 => &[(Fault::Stuck, 3_000), (Fault::Slow, 100_000)],
            _ => &EVERYTHING,
        };
        plan.rates.extend(rates.iter().copied());
        if random.coin() {
            plan.rates.insert(Fault::PowerCut, 2_000);
        }
        if kind == 5 || kind == 7 {
            space_changes = random.coin();
        }
        let disk_bytes = segments * SEGMENT + (64 << 10);
        let codec = [None, Some(Codec::Codebook), Some(Codec::Huffman), Some(Codec::Zstd)][seed as usize % 4];
        let packing = codec.map_or(Packing::Off, Packing::Always);
        Shape { segments, disk_bytes, space_changes, plan, packing }
    }
}

const EVERYTHING: [(Fault, u32); 12] = [
    (Fault::ReadError, 500),
    (Fault::Latent, 500),
    (Fault::WriteError, 200),
    (Fault::SyncError, 500),
    (Fault::NoSpace, 500),
    (Fault::NoDescriptor, 2_000),
    (Fault::Short, 10_000),
    (Fault::Interrupted, 10_000),
    (Fault::FlippedRead, 500),
    (Fault::FlippedWrite, 500),
    (Fault::Rot, 500),
    (Fault::Slow, 20_000),
];

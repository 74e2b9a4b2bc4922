//! What a seed stands for: sizes, how much goes wrong, and what kind of it. Must not know: how a run goes.

use std::time::Duration;
use turnkv::simulation::{Fault, FaultPlan, Random, Shape};
use turnkv_proto::Spec;

/// One run, as its seed says.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    pub(crate) shape: Shape,
    pub(crate) specs: Vec<Spec>,
    pub(crate) clients: usize,
    /// What goes wrong with the pages' disk, and with the catalog's.
    pub(crate) pages: FaultPlan,
    pub(crate) catalog: FaultPlan,
    /// Bytes of the pages' disk.
    pub(crate) disk_bytes: u64,
    /// Ends of a life in a million steps: killed, out of power, clean.
    pub(crate) ends: [u32; 3],
    /// Power is cut in the middle of an operation of a disk.
    pub(crate) cuts: bool,
    /// A server may be started with other sizes than the last one had.
    pub(crate) resizes: bool,
    /// Page memory grows and shrinks while a server runs.
    pub(crate) breathes: bool,
    /// Some pages have more shards, and a call moves now one of them, now several.
    pub(crate) wide: bool,
}

/// Seeds that found something once: every test run plays them, too, with the sizes they had. What else is changed in what a
/// seed draws makes other runs of them.
pub(crate) const KEPT: [u64; 9] = [849, 926, 3865, 5643, 6940, 8814, 9952, 15_066, 16_082];
/// The same, with all that is drawn now: notes of extents that were lost, taken for those in their place.
pub(crate) const KEPT_WIDE: [u64; 3] = [806, 5237, 8464];
/// A disk that never fills.
pub(crate) const AMPLE_BYTES: u64 = 1 << 30;

/// Makes the chance of new sizes another one than that of everything else.
const RESIZES: u64 = 0x512E;
/// The same of how many shards a call moves.
const WIDTHS: u64 = 0x51DE;
/// And whether page memory changes while a server runs.
const BREATHES: u64 = 0xB4EA;
/// And how pages are made smaller on their way to the disk.
const CODECS: u64 = 0x5ACC;

impl Plan {
    /// The plan of a seed.
    pub(crate) fn of(seed: u64, steps: u64) -> Plan {
        let mut random = Random::new(seed ^ 0x5EED);
        let (shape, specs) = (shape(&mut random), specs(&mut random));
        let mut plan = Plan {
            seed,
            steps,
            clients: 1 + random.index(5),
            pages: FaultPlan::calm(seed),
            catalog: FaultPlan::calm(seed ^ 0xCA7A),
            disk_bytes: AMPLE_BYTES,
            ends: [6_000, 6_000, 4_000].map(|most| [0, 0, random.below(most) as u32][random.index(3)]),
            cuts: random.coin(),
            resizes: !KEPT.contains(&seed) && Random::new(seed ^ RESIZES).coin(),
            breathes: !KEPT.contains(&seed)
                && !KEPT_WIDE.contains(&seed)
                && Random::new(seed ^ BREATHES).coin(),
            wide: !KEPT.contains(&seed) && Random::new(seed ^ WIDTHS).coin(),
            shape,
            specs,
        };
        if !KEPT.contains(&seed) {
            plan.shape.codec = Random::new(seed ^ CODECS).index(4) as u8;
        }
        if plan.wide {
            plan.specs[0].tp_size = [2, 4][plan.widths().index(2)];
        }
        plan.pages.slow = Duration::from_millis(50 + random.below(3_000));
        match random.below(8) {
            0 | 1 => {}
            2 => plan.disturb(&mut random, &[Fault::Short, Fault::Interrupted, Fault::Slow]),
            3 => {
                plan.disk_bytes = plan.shape.nvme_bytes * (30 + random.below(90)) / 100;
                plan.disturb(&mut random, &[Fault::NoSpace, Fault::Short]);
            }
            4 => plan.disturb(&mut random, &[Fault::ReadError, Fault::Latent, Fault::FlippedRead]),
            5 => plan.disturb(&mut random, &[Fault::Rot, Fault::FlippedWrite, Fault::Latent]),
            6 => plan.disturb(
                &mut random,
                &[Fault::WriteError, Fault::SyncError, Fault::NoDescriptor, Fault::Stuck],
            ),
            _ => plan.disturb(
                &mut random,
                &Fault::ALL.map(|fault| if fault == Fault::PowerCut { Fault::Short } else { fault }),
            ),
        }
        plan
    }

    /// What chooses new sizes.
    pub(crate) fn resizing(&self) -> Random {
        Random::new(self.seed ^ RESIZES << 16)
    }

    /// What chooses when page memory changes.
    pub(crate) fn breathing(&self) -> Random {
        Random::new(self.seed ^ BREATHES << 16)
    }

    /// What chooses how many shards a call moves.
    pub(crate) fn widths(&self) -> Random {
        Random::new(self.seed ^ WIDTHS << 16)
    }

    /// Other sizes for the next server: no smaller than a configuration may make them.
    pub(crate) fn resize(&mut self, random: &mut Random) {
        self.shape.dram_bytes = dram_bytes(self.shape.slab_bytes, random);
        if self.shape.nvme_bytes > 0 {
            self.shape.nvme_bytes = nvme_bytes(self.shape.segment_bytes, random);
        }
        self.shape.codec = (self.shape.codec + 1) % 4;
    }

    /// Can reads of pages fail again when they are made again? One that goes on after a part of it is another.
    pub(crate) fn reads_fail_for_good(&self) -> bool {
        [Fault::Latent, Fault::Short].iter().any(|fault| self.pages.rates.contains_key(fault))
    }

    fn disturb(&mut self, random: &mut Random, faults: &[Fault]) {
        for fault in faults {
            let most = match fault {
                Fault::WriteError | Fault::SyncError | Fault::Stuck => 8_000,
                Fault::ReadError | Fault::Latent | Fault::FlippedRead | Fault::NoDescriptor => 60_000,
                _ => 30_000,
            };
            if random.below(3) > 0 {
                self.pages.rates.insert(*fault, random.below(most) as u32);
            }
            if random.below(4) == 0 && *fault != Fault::Stuck {
                self.catalog.rates.insert(*fault, random.below(most / 2) as u32);
            }
        }
    }
}

fn shape(random: &mut Random) -> Shape {
    let slab_bytes = 64 << 10;
    let segment_bytes = [64 << 10, 128 << 10][random.index(2)];
    Shape {
        dram_bytes: dram_bytes(slab_bytes, random),
        slab_bytes,
        nvme_bytes: if random.below(12) == 0 { 0 } else { nvme_bytes(segment_bytes, random) },
        segment_bytes,
        inflight_bytes: 1 << 20,
        codec: 0,
        queue_ops: 16_384,
        admit_reused: random.below(6) == 0,
        write_bytes_per_day: if random.below(8) == 0 { segment_bytes * (1 + random.below(16)) } else { 0 },
        lease_ms: 200 + random.below(2_000),
        lease_grace_ms: 100 + random.below(500),
        client_slots_percent: [30, 50, 100][random.index(3)],
        pages_max: [1 << 12, 64][random.index(2)],
        sessions_max: [1_000, 6][random.index(2)],
        namespaces_max: [8, 2][random.index(2)],
        leases_max: [64, 8][random.index(2)],
        session_ttl_ms: [86_400_000, 5_000][random.index(2)],
        policy: [0, 0, 0, 1, 2, 3, 4, 5][random.index(8)],
    }
}

fn dram_bytes(slab_bytes: u64, random: &mut Random) -> u64 {
    slab_bytes * (1 + random.below(5))
}

fn nvme_bytes(segment_bytes: u64, random: &mut Random) -> u64 {
    segment_bytes * (4 + random.below(9))
}

fn specs(random: &mut Random) -> Vec<Spec> {
    let sizes = [4096, 4096, 3000, 8192, 12_000];
    let spec = |at: u64, random: &mut Random| {
        let bytes = sizes[random.index(sizes.len())];
        let tenant = ["", "a", "b"][random.index(3)];
        let shards = if random.below(4) == 0 { 2 } else { 1 };
        Spec::opaque(format!("model {at}"), 16, bytes).with_tenant(tenant).with_tp_size(shards)
    };
    (0..1 + random.below(3)).map(|at| spec(at, random)).collect()
}

//! What can go wrong with a simulated disk, how often, and what did. Owns: plain data, and the choice of a
//! fault for an operation. Must not know: files, what a fault does.

use super::random::Random;
use std::collections::BTreeMap;
use std::time::Duration;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A read fails (EIO), and the next one of the same bytes does not fail so.
    ReadError,
    /// A read fails, and every later one of that sector until it is written again (EIO).
    Latent,
    /// A write fails (EIO) after some of its bytes.
    WriteError,
    /// A sync of a file or of the folder fails (EIO); what was to be synced may be lost at a crash, whatever
    /// is synced later.
    SyncError,
    /// A write, or the space of a file, is refused (ENOSPC).
    NoSpace,
    /// The process has no descriptor left for a file (EMFILE).
    NoDescriptor,
    /// A read or write does only a part of its work.
    Short,
    /// A call is interrupted before it did anything (EINTR).
    Interrupted,
    /// A bit of what is read is wrong in memory, and right on the disk.
    FlippedRead,
    /// A bit of what is written arrives wrong.
    FlippedWrite,
    /// A bit of what is written turns over later, at rest.
    Rot,
    /// An operation of the engine takes the plan's `slow` longer.
    Slow,
    /// An operation of the engine does not end before the power is cut.
    Stuck,
    /// The power is cut in this operation: nothing works until [`super::SimulatedDisk::crash`].
    PowerCut,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Fault; 14] = [
        Fault::ReadError,
        Fault::Latent,
        Fault::WriteError,
        Fault::SyncError,
        Fault::NoSpace,
        Fault::NoDescriptor,
        Fault::Short,
        Fault::Interrupted,
        Fault::FlippedRead,
        Fault::FlippedWrite,
        Fault::Rot,
        Fault::Slow,
        Fault::Stuck,
        Fault::PowerCut,
    ];

    /// Can it happen to such a call?
    fn suits(self, call: Call) -> bool {
        match self {
            Fault::ReadError | Fault::Latent | Fault::FlippedRead => call == Call::Read,
            Fault::WriteError | Fault::FlippedWrite | Fault::Rot => call == Call::Write,
            Fault::SyncError => call == Call::Sync,
            Fault::NoSpace => matches!(call, Call::Write | Call::Allocate),
            Fault::NoDescriptor => call == Call::Open,
            Fault::Short => matches!(call, Call::Read | Call::Write),
            Fault::Interrupted => matches!(call, Call::Read | Call::Write),
            Fault::Slow | Fault::Stuck => call == Call::Start,
            Fault::PowerCut => call != Call::Start,
        }
    }
}

/// One kind of call to a disk. Each is one operation of the fault plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Open,
    Name,
    Read,
    Write,
    Sync,
    Allocate,
    /// The engine starts an operation; no call to the disk yet.
    Start,
}

/// What is to go wrong, and when.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// How many times in a million calls that it suits each fault happens.
    pub rates: BTreeMap<Fault, u32>,
    /// Faults at a given operation of the disk (the first is 1), or at the first after it that they suit.
    pub at: Vec<(u64, Fault)>,
    /// How much longer a slow operation takes.
    pub slow: Duration,
    /// In how many of a million calls another thread of the tier does something in the middle of it.
    pub meanwhile: u32,
}

impl FaultPlan {
    /// Nothing goes wrong, but what was not synced is drawn from this seed at a crash.
    pub fn calm(seed: u64) -> FaultPlan {
        FaultPlan { seed, slow: Duration::from_millis(50), meanwhile: 100_000, ..FaultPlan::default() }
    }

    /// The same with a rate for one fault.
    #[must_use]
    pub fn with(mut self, fault: Fault, per_million: u32) -> FaultPlan {
        self.rates.insert(fault, per_million);
        self
    }

    /// The fault that this call suffers.
    pub(super) fn draw(&mut self, operation: u64, call: Call, random: &mut Random) -> Option<Fault> {
        let due = self.at.iter().position(|(at, fault)| *at <= operation && fault.suits(call));
        if let Some(due) = due {
            return Some(self.at.remove(due).1);
        }
        let suiting = self.rates.iter().filter(|(fault, _)| fault.suits(call));
        suiting.filter(|(_, rate)| random.happens(**rate)).map(|(fault, _)| *fault).last()
    }
}

/// A fault that was injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Which.
    pub fault: Fault,
    /// In which operation of the disk.
    pub operation: u64,
    /// On which file, if it was one, by its name then.
    pub name: Option<String>,
    /// Where in it the operation began.
    pub offset: u64,
}

/// What was really injected, and what crashes did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Faults by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// Times the power was lost.
    pub crashes: u64,
    /// Times the process was killed, with the power on.
    pub kills: u64,
    /// Unsynced writes that a crash kept whole.
    pub writes_kept: u64,
    /// Unsynced writes that a crash dropped.
    pub writes_dropped: u64,
    /// Unsynced writes of which a crash kept some sectors.
    pub writes_torn: u64,
    /// Names made, deleted or changed, and not synced, that a crash undid.
    pub names_dropped: u64,
}

impl FaultCounts {
    /// Adds another run's counts.
    pub fn add(&mut self, other: &FaultCounts) {
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        self.crashes += other.crashes;
        self.kills += other.kills;
        self.writes_kept += other.writes_kept;
        self.writes_dropped += other.writes_dropped;
        self.writes_torn += other.writes_torn;
        self.names_dropped += other.names_dropped;
    }
}

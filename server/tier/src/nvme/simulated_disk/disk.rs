//! The simulated disk: a folder of files in memory with a volatile cache, which fails as its plan says.
//!
//! Owns: names, files, capacity, time, faults, the crash. Must not know: what is in the files.
//!
//! Whoever opens it works in one life of it. A crash or a kill ends that life: every handle of it fails from
//! then on, so a tier that is still in memory cannot touch what its successor reads.

use super::faults::{Call, Fault, FaultCounts, FaultPlan, Hit};
use super::inode::{Inode, SECTOR};
use super::random::Random;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Hits kept until they are asked for.
const HITS_MAX: usize = 4096;

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimulatedDisk {
    pub(super) shared: Arc<DiskMemory>,
    /// The life this handle works in; none for whoever runs the simulation, whose handle outlives them all.
    life: Option<u64>,
}

#[derive(Debug)]
pub(super) struct DiskMemory {
    state: Mutex<DiskState>,
    /// What an engine that wants a descriptor gets: it holds nothing and takes everything.
    pub(super) null: OwnedFd,
    begun: Instant,
}

/// What the other threads of a tier would do in the middle of a call; it is given a number to choose by.
#[derive(Clone)]
struct Others(Arc<dyn Fn(u64) + Send + Sync>);

impl std::fmt::Debug for Others {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Others")
    }
}

#[derive(Debug)]
enum NameChange {
    Made(String, u64),
    Removed(String),
    Renamed(String, String, u64),
}

#[derive(Debug)]
pub(super) struct DiskState {
    plan: FaultPlan,
    counts: FaultCounts,
    hits: VecDeque<Hit>,
    pub(super) random: Random,
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) names: BTreeMap<String, u64>,
    stable_names: BTreeMap<String, u64>,
    unsynced_names: Vec<NameChange>,
    next_inode: u64,
    capacity_bytes: u64,
    operations: u64,
    life: u64,
    off: bool,
    elapsed: Duration,
    others: Option<Others>,
    /// They act now: not again in what they call.
    acting: bool,
    /// Reads that failed, by file and offset: the next one there does not.
    failed_reads: BTreeSet<(u64, u64)>,
    /// Folds every call and its outcome: two runs that agree in it did the same.
    trace: u64,
}

/// What an operation of the engine has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nvme) enum Fate {
    /// Not before this time.
    At(Instant),
    /// For the power to be cut.
    Stuck,
}

impl SimulatedDisk {
    /// An empty disk of so many bytes.
    pub fn new(plan: FaultPlan, capacity_bytes: u64) -> std::io::Result<SimulatedDisk> {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
        let state = DiskState {
            random: Random::new(plan.seed),
            plan,
            counts: FaultCounts::default(),
            hits: VecDeque::new(),
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            stable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            next_inode: 1,
            capacity_bytes,
            operations: 0,
            life: 0,
            off: false,
            elapsed: Duration::ZERO,
            others: None,
            acting: false,
            failed_reads: BTreeSet::new(),
            trace: 0,
        };
        let shared = DiskMemory { state: Mutex::new(state), null, begun: Instant::now() };
        Ok(SimulatedDisk { shared: Arc::new(shared), life: None })
    }

    /// The power is lost: what was not synced is kept, dropped or torn, every handle is dead, and the power
    /// is back.
    pub fn crash(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        state.crash_names();
        for inode in state.inodes.values_mut() {
            inode.crash(&mut state.random, &mut state.counts);
        }
        state.counts.crashes += 1;
        state.next_life();
    }

    /// The process is killed and the power stays: every handle is dead, nothing written is lost.
    pub fn kill(&self) {
        let mut state = self.lock();
        state.counts.kills += 1;
        state.next_life();
    }

    /// Cuts the power now: nothing works until [`SimulatedDisk::crash`].
    pub fn cut_power(&self) {
        self.lock().off = true;
    }

    /// Is the power cut, so that nothing that is said now was heard?
    pub fn is_off(&self) -> bool {
        self.lock().off
    }

    /// Another plan from now on. Operations keep their numbers; the seed of the first plan stays.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.lock().plan = plan;
    }

    /// The disk has so many bytes from now on; fewer than are taken is possible.
    pub fn set_capacity(&self, bytes: u64) {
        self.lock().capacity_bytes = bytes;
    }

    /// Bytes its files take.
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes()
    }

    /// Calls so far, as fault plans count them.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// What went wrong so far.
    pub fn counts(&self) -> FaultCounts {
        self.lock().counts.clone()
    }

    /// The faults that were injected since the last call, oldest first; the latest of them if there were very
    /// many.
    pub fn take_hits(&self) -> Vec<Hit> {
        self.lock().hits.drain(..).collect()
    }

    /// A number that two runs share only if they made the same calls with the same outcomes.
    pub fn trace(&self) -> u64 {
        self.lock().trace
    }

    /// Simulated time.
    pub fn now(&self) -> Instant {
        self.shared.begun + self.lock().elapsed
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        let mut state = self.lock();
        state.elapsed = state.elapsed.saturating_add(by);
    }

    /// Does a fault of the medium (rot, a sector that cannot be read), and not a crash, hit these bytes of a
    /// file?
    pub fn is_damaged(&self, name: &str, offset: u64, len: usize) -> bool {
        let state = self.lock();
        let inode = state.names.get(name).and_then(|inode| state.inodes.get(inode));
        inode.is_some_and(|inode| inode.is_damaged(offset, len))
    }

    /// Turns a bit of a file over.
    pub fn flip(&self, name: &str, offset: u64, bit: u8) {
        if let Some(inode) = self.lock().named(name) {
            inode.flip(offset, bit);
        }
    }

    /// Makes a file's sectors unreadable until they are written again.
    pub fn make_unreadable(&self, name: &str, offset: u64, len: usize) {
        if let Some(inode) = self.lock().named(name) {
            inode.make_unreadable(offset, len);
        }
    }

    /// The names of its files, in order.
    pub fn names(&self) -> Vec<String> {
        self.lock().names.keys().cloned().collect()
    }

    /// Who acts in the middle of calls, where the plan says so.
    pub(in crate::nvme) fn set_others(&self, act: impl Fn(u64) + Send + Sync + 'static) {
        self.lock().others = Some(Others(Arc::new(act)));
    }

    /// A handle that works in the life of now.
    pub(crate) fn join(&self) -> SimulatedDisk {
        SimulatedDisk { shared: Arc::clone(&self.shared), life: Some(self.life.unwrap_or(self.lock().life)) }
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), Errno> {
        let mut state = self.begin(Call::Name, None)?.0;
        state.names.remove(name).ok_or(Errno::NOENT)?;
        state.unsynced_names.push(NameChange::Removed(name.to_owned()));
        Ok(())
    }

    pub(crate) fn rename(&self, old: &str, new: &str) -> Result<(), Errno> {
        let mut state = self.begin(Call::Name, None)?.0;
        let number = state.names.remove(old).ok_or(Errno::NOENT)?;
        state.names.insert(new.to_owned(), number);
        state.unsynced_names.push(NameChange::Renamed(old.to_owned(), new.to_owned(), number));
        Ok(())
    }

    /// The folder is synced: what was made, deleted and renamed is on stable storage.
    pub fn sync(&self) -> Result<(), Errno> {
        let (mut state, fault) = self.begin(Call::Sync, None)?;
        match fault {
            Some(_) => return Err(Errno::IO),
            None => state.unsynced_names.clear(),
        }
        state.stable_names = state.names.clone();
        state.drop_nameless();
        Ok(())
    }

    /// 16 bytes of the seed.
    pub(crate) fn random(&self) -> [u8; 16] {
        let random = &mut self.lock().random;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&random.draw().to_le_bytes());
        bytes[8..].copy_from_slice(&random.draw().to_le_bytes());
        bytes
    }

    /// What an operation that the engine starts now has to wait for.
    pub(in crate::nvme) fn start(&self) -> Fate {
        let Ok((state, fault)) = self.begin(Call::Start, None) else { return Fate::At(self.now()) };
        let now = self.shared.begun + state.elapsed;
        match fault {
            Some(Fault::Stuck) => Fate::Stuck,
            Some(_) => Fate::At(now + state.plan.slow),
            None => Fate::At(now),
        }
    }

    /// May an operation that waits for this go on?
    pub(in crate::nvme) fn is_due(&self, fate: Fate) -> bool {
        match fate {
            Fate::At(at) => self.now() >= at,
            Fate::Stuck => self.is_dead(),
        }
    }

    /// Does nothing work through this handle any more?
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead_in(&self.lock())
    }

    pub(super) fn is_dead_in(&self, state: &DiskState) -> bool {
        state.off || self.life.is_some_and(|life| life != state.life)
    }

    /// An index of so many things, by the seed.
    pub(in crate::nvme) fn choose(&self, len: usize) -> usize {
        self.lock().random.index(len)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.shared.state.lock()
    }

    fn let_others_act(&self) {
        let mut state = self.lock();
        let rate = state.plan.meanwhile;
        if self.is_dead_in(&state) || state.acting || !state.random.happens(rate) {
            return;
        }
        let (number, others) = (state.random.draw(), state.others.clone());
        state.acting = true;
        drop(state);
        if let Some(Others(act)) = others {
            act(number);
        }
        self.lock().acting = false;
    }

    /// Counts a call and says what goes wrong with it; EIO when the power is cut, EMFILE when no descriptor
    /// is left. `place`: the file and the offset in it.
    pub(super) fn begin(
        &self,
        call: Call,
        place: Option<(u64, u64)>,
    ) -> Result<(MutexGuard<'_, DiskState>, Option<Fault>), Errno> {
        if call != Call::Start {
            self.let_others_act();
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        if self.is_dead_in(state) {
            return Err(Errno::IO);
        }
        state.operations += 1;
        let drawn = state.plan.draw(state.operations, call, &mut state.random);
        let failed = call == Call::Read && place.is_some_and(|place| state.failed_reads.remove(&place));
        let fault = drawn.filter(|fault| !(failed && *fault == Fault::ReadError));
        if fault == Some(Fault::ReadError) {
            state.failed_reads.extend(place);
        }
        state.note(call as u64 | fault.map_or(0, |fault| fault as u64 + 1) << 8);
        if let Some(fault) = fault {
            state.hit(fault, place);
        }
        match fault {
            Some(Fault::PowerCut) => {
                state.off = true;
                // A write may have been on its way; it is not known to anybody whether it arrived.
                if call != Call::Write { Err(Errno::IO) } else { Ok((guard, fault)) }
            }
            Some(Fault::NoDescriptor) => Err(Errno::MFILE),
            Some(Fault::Interrupted) => Err(Errno::INTR),
            fault => Ok((guard, fault)),
        }
    }
}

impl DiskState {
    /// Adds to the trace.
    pub(super) fn note(&mut self, word: u64) {
        self.trace = (self.trace ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(17);
    }

    fn hit(&mut self, fault: Fault, place: Option<(u64, u64)>) {
        *self.counts.faults.entry(fault).or_default() += 1;
        let name_of =
            |number| self.names.iter().find(|(_, named)| **named == number).map(|(name, _)| name.clone());
        let (name, offset) = place.map_or((None, 0), |(number, offset)| (name_of(number), offset));
        if self.hits.len() == HITS_MAX {
            self.hits.pop_front();
        }
        self.hits.push_back(Hit { fault, operation: self.operations, name, offset });
    }

    /// Is there space for a file of so many bytes that takes `now` bytes?
    pub(super) fn has_room(&self, now: u64, bytes: u64) -> bool {
        bytes <= now || self.used_bytes() - now + bytes <= self.capacity_bytes
    }

    fn used_bytes(&self) -> u64 {
        self.inodes.values().map(|inode| inode.allocated().next_multiple_of(SECTOR)).sum()
    }

    pub(super) fn make(&mut self, name: &str) -> u64 {
        let number = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(number, Inode::default());
        self.names.insert(name.to_owned(), number);
        self.unsynced_names.push(NameChange::Made(name.to_owned(), number));
        number
    }

    fn named(&mut self, name: &str) -> Option<&mut Inode> {
        self.inodes.get_mut(self.names.get(name)?)
    }

    fn crash_names(&mut self) {
        for change in std::mem::take(&mut self.unsynced_names) {
            if self.random.coin() {
                self.counts.names_dropped += 1;
                continue;
            }
            match change {
                NameChange::Made(name, number) => drop(self.stable_names.insert(name, number)),
                NameChange::Removed(name) => drop(self.stable_names.remove(&name)),
                NameChange::Renamed(old, new, number) => {
                    self.stable_names.remove(&old);
                    self.stable_names.insert(new, number);
                }
            }
        }
        self.names = self.stable_names.clone();
    }

    fn next_life(&mut self) {
        self.life += 1;
        self.off = false;
        self.drop_nameless();
    }

    /// Frees files without a name, and without one that a crash could give back. Whoever still has one open
    /// finds it gone, which only the dead do.
    fn drop_nameless(&mut self) {
        let DiskState { inodes, names, stable_names, unsynced_names, .. } = self;
        let unsynced = unsynced_names.iter().filter_map(|change| match change {
            NameChange::Made(_, number) | NameChange::Renamed(_, _, number) => Some(*number),
            NameChange::Removed(_) => None,
        });
        let named: BTreeSet<u64> =
            names.values().chain(stable_names.values()).copied().chain(unsynced).collect();
        inodes.retain(|number, _| named.contains(number));
    }
}

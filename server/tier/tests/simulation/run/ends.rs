//! The end of a tier's life, and the beginning of the next one. Owns: what must be there then, and why a start may be refused.

use super::{Answer, Op, Outcome, Run, SEGMENT, SLOTS};
use crate::model::Vouched;
use turnkv_tier::Location;
use turnkv_tier::nvme::NvmeTier;
use turnkv_tier::nvme::simulation::{Fault, FaultPlan, Hit, SimulatedDisk};

/// Blocks at the end of a segment where its footer is.
const FOOTER_BLOCKS: u64 = 4;
/// Starts that may fail in a row for a reason before the faults are taken away.
const OPENS_MAX: usize = 8;

impl Run {
    pub(super) fn restart(&mut self) -> Result<(), String> {
        match self.random.below(4) {
            0 => {
                self.tell(|| "kill".to_owned());
                self.disk.kill();
            }
            1 => return self.shut_down(),
            _ => return self.lose_power(),
        }
        self.leave()?;
        self.open()
    }

    pub(super) fn lose_power(&mut self) -> Result<(), String> {
        self.outcome.vouched_at_crashes += self.model.vouched.len() as u64;
        self.tell(|| "the power is cut".to_owned());
        self.disk.cut_power();
        self.leave()?;
        self.disk.crash();
        self.open()
    }

    /// Ends the tier; everything it accepted must be answered.
    fn leave(&mut self) -> Result<(), String> {
        if self.tier()?.poisoned().is_some() {
            self.outcome.poisoned += 1;
        }
        self.tier = None;
        self.pass = None;
        // What is answered now is answered by a process that is gone.
        let events = self.events.lock().map(|mut events| std::mem::take(&mut *events));
        for (number, ..) in events.map_err(|error| error.to_string())? {
            if self.ops.remove(&number).is_none() {
                return Err(format!("operation {number} was answered twice"));
            }
        }
        if let Some(number) = self.ops.keys().next() {
            return Err(format!("operation {number} was never answered"));
        }
        self.free_slots = (0..SLOTS).collect();
        Ok(())
    }

    fn shut_down(&mut self) -> Result<(), String> {
        self.tell(|| "shutdown".to_owned());
        let ended = self.tier()?.shutdown();
        self.settle()?;
        if self.disk.is_off() {
            return self.lose_power();
        }
        match ended {
            Ok(()) => {
                let all: Vec<_> = self.model.live.iter().map(|(at, content)| (*at, *content)).collect();
                self.model.flushed(&all);
            }
            Err(error) => self.excuse("the shutdown", &error)?,
        }
        if self.suffered.contains(&Fault::Stuck) {
            self.ops.clear(); // what is stuck is never answered, and its process is gone
        }
        self.leave()?;
        self.disk.kill();
        self.open()
    }

    pub(super) fn open(&mut self) -> Result<(), String> {
        for attempt in 0.. {
            self.disk.take_hits();
            if attempt == OPENS_MAX {
                self.disk.set_plan(FaultPlan::calm(0));
                self.disk.set_capacity(self.shape.disk_bytes.max(2 * self.config.capacity_bytes));
            }
            let opened = NvmeTier::open_simulated(self.config.clone(), &self.disk);
            let hits = self.disk.take_hits();
            match opened {
                // Whatever was read, the power was cut meanwhile.
                _ if self.disk.is_off() => {
                    drop(opened);
                    self.disk.crash();
                }
                Ok((tier, recovered, report)) => {
                    self.tier = Some(tier);
                    self.suffered = hits.iter().map(|hit| hit.fault).collect();
                    self.tell(|| format!("opened: {report:?}, {hits:?}"));
                    let found: Vec<_> = recovered.into_iter().map(|found| (found.meta, found.at)).collect();
                    let disk = self.disk.clone();
                    self.model.recovered(&found, |vouched| excused(&disk, &hits, vouched))?;
                    return Ok(());
                }
                Err(error) => {
                    self.tell(|| format!("refused: {error}, {hits:?}"));
                    self.may_refuse(&error.to_string(), &hits, attempt)?;
                }
            }
        }
        Err("it is never opened".to_owned())
    }

    /// A start may be refused when a write fails or there is no space or descriptor, never because of what cannot be read.
    fn may_refuse(&self, error: &str, hits: &[Hit], attempt: usize) -> Result<(), String> {
        let reasons = [Fault::WriteError, Fault::SyncError, Fault::NoSpace, Fault::NoDescriptor];
        let hit = hits.iter().any(|hit| reasons.contains(&hit.fault));
        let copies = ["superblock", "superblock.2"];
        let lost = copies.iter().all(|name| self.disk.is_damaged(name, 0, 4096) || hits_on(hits, name));
        if attempt < OPENS_MAX && (hit || lost || self.shape.space_changes) {
            return Ok(());
        }
        Err(format!("the start is refused: {error}, after {hits:?}"))
    }

    /// The last crash, and a life without faults after it: whatever is there then is read.
    pub(super) fn end(mut self) -> Result<Outcome, String> {
        self.lose_power()?;
        self.disk.set_plan(FaultPlan::calm(0));
        self.disk.set_capacity(2 * self.config.capacity_bytes);
        self.restart_calmly()?;
        let live: Vec<_> = self.model.live.iter().map(|(at, content)| (*at, *content)).collect();
        for (at, content) in live {
            let slot = self.free_slots.pop().ok_or("no slot is free")?;
            let (number, done) = self.promise(Answer::Read);
            self.ops.insert(number, Op::Read { at, content, slot });
            let target = self.slot(slot, content.bytes);
            self.tier()?.read(at, content.bytes, content.meta().checksum, target, done);
            self.run_dry()?;
        }
        self.flush();
        self.run_dry()?;
        self.check()?;
        self.tier()?.shutdown().map_err(|error| format!("a calm shutdown: {error}"))?;
        self.settle()?;
        self.leave()?;
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.counts = self.disk.counts();
        outcome.trace = self.disk.trace();
        Ok(outcome)
    }

    fn restart_calmly(&mut self) -> Result<(), String> {
        self.disk.kill();
        self.leave()?;
        self.open()
    }

    fn run_dry(&mut self) -> Result<(), String> {
        while self.advance()? {}
        self.settle()
    }
}

fn hits_on(hits: &[Hit], name: &str) -> bool {
    hits.iter().any(|hit| hit.name.as_deref() == Some(name))
}

fn file_of(at: &Location) -> String {
    format!("segment-{:06}.kv", at.segment)
}

/// Does a fault make what is read of a file other than what is there?
fn bends(hit: &Hit, name: &str) -> bool {
    let bent = matches!(hit.fault, Fault::ReadError | Fault::Latent | Fault::FlippedRead);
    bent && hit.name.as_deref() == Some(name)
}

/// Has a fault of the medium hit a page: its bytes, or what says that its segment counts?
fn excused(disk: &SimulatedDisk, hits: &[Hit], vouched: &Vouched) -> bool {
    vouched.places.iter().any(|at| {
        let name = file_of(at);
        let header = u64::from(at.block) * 4096;
        disk.is_damaged(&name, 0, 4096)
            || disk.is_damaged(&name, header, vouched.content.blocks() as usize * 4096)
            || disk.is_damaged(&name, SEGMENT - FOOTER_BLOCKS * 4096, FOOTER_BLOCKS as usize * 4096)
            || hits.iter().any(|hit| bends(hit, &name))
    })
}

//! What the tier answers, held against the model. Owns: which answers are right, and which a fault excuses.

use super::{Answer, Op, Run, SLOT};
use crate::model::Content;
use std::sync::Arc;
use turnkv_tier::nvme::simulation::Fault;
use turnkv_tier::{Done, Location, TierError};
use turnkv_transfer::Slot;

impl Run {
    pub(super) fn promise<T: Send + 'static>(
        &mut self,
        answer: impl FnOnce(Result<T, TierError>) -> Answer + Send + 'static,
    ) -> (u64, Done<T>) {
        self.next_op += 1;
        let number = self.next_op;
        let (events, disk) = (Arc::clone(&self.events), self.disk.clone());
        let done = move |result| {
            if let Ok(mut events) = events.lock() {
                events.push((number, answer(result), !disk.is_off()));
            }
        };
        (number, Box::new(done))
    }

    pub(super) fn slot(&self, number: usize, bytes: u32) -> Slot {
        self.region.slot(number * SLOT, bytes as usize).expect("a slot is as large as the largest page")
    }

    pub(super) fn note_hits(&mut self) {
        let hits = self.disk.take_hits();
        for hit in &hits {
            self.tell(|| format!("{hit:?}"));
        }
        self.suffered.extend(hits.iter().map(|hit| hit.fault));
    }

    pub(super) fn settle(&mut self) -> Result<(), String> {
        self.note_hits();
        let events = self.events.lock().map(|mut events| std::mem::take(&mut *events));
        for (number, answer, heard) in events.map_err(|error| error.to_string())? {
            let Some(op) = self.ops.remove(&number) else {
                return Err(format!("operation {number} was answered twice"));
            };
            match (op, answer) {
                (Op::Write { content, moved_from, slot }, Answer::Written(result)) => {
                    self.free_slots.push(slot);
                    if heard {
                        self.write_ended(content, moved_from, result)?;
                    }
                }
                (Op::Read { at, content, slot }, Answer::Read(result)) => {
                    let same = self.slot(slot, content.bytes).page().to_vec() == content.payload();
                    self.free_slots.push(slot);
                    if result.is_ok() && !same {
                        return Err(format!("a read of {content:?} at {at:?} gave other bytes"));
                    }
                    if heard {
                        self.read_ended(at, content, result)?;
                    }
                }
                (Op::Flush { covered }, Answer::Flushed(result)) if heard => {
                    self.tell(|| format!("flushed {number}: {result:?}"));
                    match result {
                        Ok(()) => self.model.flushed(&covered),
                        Err(error) => self.excuse("a flush", &error)?,
                    }
                }
                (Op::Flush { .. }, _) => {}
                _ => return Err(format!("operation {number} was answered as another kind")),
            }
        }
        Ok(())
    }

    fn write_ended(
        &mut self,
        content: Content,
        moved_from: Option<Location>,
        result: Result<Location, TierError>,
    ) -> Result<(), String> {
        self.tell(|| format!("written {content:?}: {result:?}"));
        let at = match result {
            Ok(at) => at,
            Err(TierError::Full) => return Ok(()),
            Err(error) => return self.excuse("a write", &error),
        };
        self.outcome.writes += 1;
        self.model.written(at, content)?;
        let Some(old) = moved_from else { return Ok(()) };
        let tier = self.tier.as_ref().ok_or("there is no tier")?;
        if self.model.live.get(&old) == Some(&content) {
            self.model.live.remove(&old);
            tier.forget(old, content.bytes);
        } else {
            // Its owner dropped it while it moved.
            self.model.live.remove(&at);
            tier.forget(at, content.bytes);
        }
        Ok(())
    }

    fn read_ended(
        &mut self,
        at: Location,
        content: Content,
        result: Result<(), TierError>,
    ) -> Result<(), String> {
        self.outcome.reads += 1;
        let Err(error) = result else { return Ok(()) };
        match error {
            TierError::Stale(_) => Err(format!("{content:?} at {at:?} was alive when it was read: {error}")),
            TierError::Checksum(_) if !self.medium_failed() => {
                Err(format!("{content:?} at {at:?} does not verify, and no fault hit it"))
            }
            _ => {
                if !self.medium_failed() {
                    self.excuse("a read", &error)?;
                }
                if self.model.live.get(&at) == Some(&content) {
                    self.forget_page(content.key); // as the pool does
                }
                Ok(())
            }
        }
    }

    /// May an operation fail so, after the faults there were?
    pub(super) fn excuse(&self, what: &str, error: &TierError) -> Result<(), String> {
        let harmless = [Fault::Short, Fault::Interrupted, Fault::Slow];
        if self.suffered.iter().any(|fault| !harmless.contains(fault)) {
            return Ok(());
        }
        Err(format!("{what} failed without a fault: {error}"))
    }

    /// Has a fault of the medium, or on the way to it, changed or hidden bytes?
    pub(super) fn medium_failed(&self) -> bool {
        let faults = [Fault::ReadError, Fault::Latent, Fault::FlippedRead, Fault::FlippedWrite, Fault::Rot];
        self.outcome_counts_any(&faults)
    }

    fn outcome_counts_any(&self, faults: &[Fault]) -> bool {
        let counts = self.disk.counts();
        faults.iter().any(|fault| counts.faults.contains_key(fault))
    }

    pub(super) fn check(&mut self) -> Result<(), String> {
        let tier = self.tier()?;
        let usage = tier.usage();
        let room = self.config.capacity_bytes;
        if usage.used_bytes > usage.capacity_bytes || usage.capacity_bytes > room {
            return Err(format!("the gauges do not fit one another: {usage:?}"));
        }
        let taken = self.disk.used_bytes();
        if taken > room + (64 << 10) {
            return Err(format!("{taken} bytes are taken, {room} are configured"));
        }
        let alive = (usage.live_bytes, usage.live_extents);
        if !self.model.agrees(alive) {
            return Err(format!(
                "alive are {alive:?} says the tier, {} pages says the model",
                self.model.live.len()
            ));
        }
        if let Some(why) = tier.poisoned() {
            let poison = [Fault::WriteError, Fault::SyncError, Fault::PowerCut];
            if !poison.iter().any(|fault| self.suffered.contains(fault)) {
                return Err(format!("out of service after {:?}: {why}", self.suffered));
            }
        }
        Ok(())
    }
}

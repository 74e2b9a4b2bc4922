//! Memory of a device that NICs read and write themselves. Owns: which NICs take it, making it beside the calls, why a device's pages
//! go through memory of this host instead. Must not know: for which call it is lent, how much of it may be.
//!
//! ```text
//! a call of a device --all NICs take it--> some at rest ----------------------------> directly
//!        |                                 \--none: made beside the call--in time---> directly
//!        |                                                             \--too late--> at rest, for the next call
//!        \--no NIC, refused before, turned off, failed a moment ago, being made----> through memory of this host
//! ```
//! What a NIC refused once it is not offered again for as long as it is open: registering would fail in every call. What may pass (a
//! device without room, a transfer that failed) is tried again after a pause.

use super::memory::{Memory, Reach};
use super::pause::Pause;
use crate::config::DeviceMemoryChoice;
use crate::limits::{DEVICE_MEMORY_PAUSE_MAX, DEVICE_MEMORY_PAUSE_MIN};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use turnkv_transfer::device::{Device, DeviceErrorKind, WeakDevice};
use turnkv_transfer::fabric::{Domain, RegisterError};

/// How pages of a device cross a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceWay {
    /// NICs read and write memory of the device, which they know by a dma-buf.
    Direct,
    /// Through memory of this host, and why.
    ThroughHost(String),
}

/// What is known of lending memory of devices.
#[derive(Debug)]
pub(super) struct DirectMemory {
    choice: DeviceMemoryChoice,
    state: Mutex<DirectState>,
    /// One owner, and one more for each call that has some lent.
    lent: Arc<()>,
}

#[derive(Debug)]
struct DirectState {
    refusals: Vec<DirectRefusal>,
    pause: Pause,
    /// What the pause is for.
    paused_for: String,
    making: bool,
    last: Option<DeviceWay>,
}

/// A device's memory and a NIC that do not go together.
#[derive(Debug)]
struct DirectRefusal {
    device: WeakDevice,
    number: u32,
    domain: Weak<dyn Domain>,
    why: String,
}

/// The right to make some: one call at a time has it, so that a burst of calls makes no more than one of them needs.
#[derive(Debug)]
pub(super) struct Making(Arc<DirectMemory>);

impl DirectMemory {
    pub(super) fn new(choice: DeviceMemoryChoice) -> Arc<DirectMemory> {
        let pause = Pause::within(DEVICE_MEMORY_PAUSE_MIN, DEVICE_MEMORY_PAUSE_MAX);
        let (refusals, paused_for) = (Vec::new(), String::new());
        let state = DirectState { refusals, pause, paused_for, making: false, last: None };
        Arc::new(DirectMemory { choice, state: Mutex::new(state), lent: Arc::default() })
    }

    /// The NICs that a device's memory would be lent to.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(super) fn admit(&self, device: &Device, reaches: &[Reach]) -> Result<Vec<Reach>, String> {
        if self.choice == DeviceMemoryChoice::Host {
            return Err("device_memory is \"host\"".to_owned());
        }
        let nics: Vec<Reach> = reaches.iter().filter(|reach| reach.is_slow).cloned().collect();
        if nics.is_empty() {
            return Err("no rail goes over a NIC".to_owned());
        }
        let mut state = self.state.lock();
        state.refusals.retain(|refusal| !refusal.device.is_gone() && refusal.domain.strong_count() > 0);
        let refused = state
            .refusals
            .iter()
            .find(|refusal| refusal.device.is(device) && nics.iter().any(|nic| nic.number == refusal.number));
        match refused {
            Some(refusal) => Err(refusal.why.clone()),
            None if state.pause.goes_on() => Err(state.paused_for.clone()),
            None => Ok(nics),
        }
    }

    /// Begins to make some; none: another call does.
    pub(super) fn begin_making(self: &Arc<Self>) -> Option<Making> {
        let making = std::mem::replace(&mut self.state.lock().making, true);
        (!making).then(|| Making(Arc::clone(self)))
    }

    /// Has these NICs know memory at rest, or so many bytes of the device that are taken for it. Takes as long as that takes.
    pub(super) fn make(
        &self,
        device: &Device,
        nics: &[Reach],
        rest: Option<Arc<Memory>>,
        bytes: usize,
    ) -> Option<Arc<Memory>> {
        let memory = match rest {
            Some(memory) => memory,
            None => match device.export(bytes) {
                Ok(buffer) => Arc::new(Memory::of_device(device, buffer)),
                Err(error) if error.kind == DeviceErrorKind::NoMemory => {
                    self.pause(&error.message);
                    return None;
                }
                Err(error) => {
                    self.refuse(device, nics, &error.message);
                    return None;
                }
            },
        };
        for nic in nics {
            match memory.register_or_say(nic) {
                Ok(()) => {}
                // Other memory takes up the room: that passes.
                Err(RegisterError::Full(_)) => return None,
                Err(why) => {
                    self.refuse(device, std::slice::from_ref(nic), &format!("NIC {}: {why}", nic.name));
                    return None;
                }
            }
        }
        Some(memory)
    }

    /// A call came back otherwise than it should. If memory of a device was lent, that may be why: a NIC can know such memory and not
    /// get at it, where the host's PCIe lets it not. The next calls do without.
    pub(super) fn doubt(&self) {
        if Arc::strong_count(&self.lent) > 1 {
            self.pause("a transfer of it failed a moment ago");
        }
    }

    /// Counts as lent as long as this is kept.
    pub(super) fn lend(&self) -> Arc<()> {
        Arc::clone(&self.lent)
    }

    /// Takes note of the way that a call's pages go.
    pub(super) fn note(&self, way: DeviceWay) {
        self.state.lock().last = Some(way);
    }

    /// The way of the last call.
    pub(super) fn last(&self) -> Option<DeviceWay> {
        self.state.lock().last.clone()
    }

    fn pause(&self, why: &str) {
        let mut state = self.state.lock();
        state.pause.begin();
        if state.paused_for != why {
            tracing::info!(why, "a device's pages go through memory of this host for a while");
            why.clone_into(&mut state.paused_for);
        }
    }

    fn refuse(&self, device: &Device, nics: &[Reach], why: &str) {
        tracing::info!(why, "a device's pages do not go directly: they go through memory of this host");
        let refusal = |nic: &Reach| DirectRefusal {
            device: device.downgrade(),
            number: nic.number,
            domain: nic.downgrade(),
            why: why.to_owned(),
        };
        self.state.lock().refusals.extend(nics.iter().map(refusal));
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.0.state.lock().making = false;
    }
}

#[cfg(test)]
mod tests;

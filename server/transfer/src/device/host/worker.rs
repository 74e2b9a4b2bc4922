//! The thread of one stream. Owns: running its calls one after another. Must not know: what may be enqueued.

use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use super::kernels;
use super::machine::{Call, Machine};
use crate::device::driver::{CopyRequest, Kernel};
use crate::limits::HOST_LOOK;
use crate::shared;

/// Runs a stream's calls until it is ended and they are done, or the device breaks.
pub(super) fn run(machine: &Machine, stream: u64, calls: &Receiver<Call>) {
    let mut chance = machine.options.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    while let Ok(call) = calls.recv() {
        pause(machine.options.delay_max, &mut chance);
        let checksums = matches!(call, Call::Kernel(Kernel::Checksum { .. }));
        if !machine.control.may_go_on(stream, checksums) {
            return;
        }
        match call {
            // SAFETY: `copy` and `copy_batch` of the driver enqueue these, whose callers promised that both ranges
            // stay valid and apart until an event behind them has passed.
            Call::Copies(requests) => requests.iter().for_each(|request| unsafe { copy(request) }),
            // SAFETY: whoever launched it promised that the tables and what they name stay valid until an
            // event behind it.
            Call::Kernel(kernel) => unsafe { kernels::run(&kernel) },
            Call::Record(event, number) => {
                let mut events = machine.events.lock();
                if let Some(state) = events.get_mut(&event) {
                    state.passed = state.passed.max(number);
                    if state.ended && state.passed == state.recorded {
                        events.remove(&event);
                    }
                }
                machine.passed.notify_all();
            }
            Call::Wait(event, number) => {
                let mut events = machine.events.lock();
                while events.get(&event).is_some_and(|state| state.passed < number)
                    && !machine.control.is_over()
                {
                    machine.passed.wait_for(&mut events, HOST_LOOK);
                }
            }
        }
    }
}

/// Copies as a GPU does, beside whoever writes the same slot.
///
/// # Safety
/// Both ranges are valid memory, and apart.
unsafe fn copy(request: &CopyRequest) {
    let source = std::ptr::with_exposed_provenance::<u8>(request.source as usize);
    let target = std::ptr::with_exposed_provenance_mut::<u8>(request.target as usize);
    // SAFETY: the caller's promise.
    unsafe { shared::copy(source, target, request.bytes) };
}

fn pause(most: Duration, chance: &mut u64) {
    if most.is_zero() {
        return;
    }
    *chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX).max(1);
    thread::sleep(Duration::from_micros((*chance >> 33) % micros));
}

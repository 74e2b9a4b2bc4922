//! A host device punishes what a GPU punishes.

use std::time::{Duration, Instant};

use super::*;

struct Rig {
    driver: HostDriver,
    control: HostControl,
}

fn rig(options: HostOptions) -> Rig {
    let control = options.control.clone();
    Rig { driver: HostDriver::new(HostOptions { strict: true, ..options }), control }
}

impl Rig {
    fn copy(&self, source: u64, target: u64, bytes: usize, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: strict devices refuse what they do not know, and keep what was given back.
        unsafe { self.driver.copy(CopyRequest { target, source, bytes }, stream) }
    }

    fn record(&self, stream: Stream) -> Event {
        let event = self.driver.new_event().unwrap();
        // SAFETY: both are the driver's.
        unsafe { self.driver.record(event, stream).unwrap() };
        event
    }

    fn wait_passed(&self, event: Event) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.driver.passed(event).unwrap() {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_micros(100));
        }
    }
}

#[test]
fn memory_that_is_not_the_devices_breaks_it() {
    let rig = rig(HostOptions::default());
    let stream = rig.driver.new_stream(Priority::Low).unwrap();
    let device = rig.driver.allocate(4096).unwrap();
    let host = [0u8; 64];
    let refused = rig.copy(host.as_ptr().expose_provenance() as u64, device, 64, stream).unwrap_err();
    assert_eq!(refused.kind, DeviceErrorKind::Broken);
    assert_eq!(rig.driver.allocate(1).unwrap_err().kind, DeviceErrorKind::Broken, "and it stays so");
    assert_eq!(rig.control.faults().len(), 1);
}

#[test]
fn freed_memory_breaks_it_and_freeing_what_is_in_use_is_a_fault() {
    let rig = rig(HostOptions::default());
    let stream = rig.driver.new_stream(Priority::Low).unwrap();
    let (one, other) = (rig.driver.allocate(4096).unwrap(), rig.driver.allocate(4096).unwrap());
    rig.control.hold(stream);
    rig.copy(one, other, 4096, stream).unwrap();
    // SAFETY: that it is in use is the fault that this test is about; the device keeps the memory.
    unsafe { rig.driver.free(other).unwrap() };
    assert!(rig.control.faults()[0].contains("while a stream uses it"), "{:?}", rig.control.faults());
    assert_eq!(rig.copy(one, other, 8, stream).unwrap_err().kind, DeviceErrorKind::Broken);
}

#[test]
fn events_order_streams_and_what_they_do_not_order_is_a_fault() {
    let rig = rig(HostOptions { delay_max: Duration::from_millis(1), ..HostOptions::default() });
    let (first, second) =
        (rig.driver.new_stream(Priority::Low).unwrap(), rig.driver.new_stream(Priority::High).unwrap());
    let memory = rig.driver.allocate(3 * 4096).unwrap();
    let (a, b, c) = (memory, memory + 4096, memory + 8192);
    rig.copy(a, b, 4096, first).unwrap();
    let event = rig.record(first);
    // SAFETY: both are the driver's.
    unsafe { rig.driver.wait(second, event).unwrap() };
    rig.copy(b, c, 4096, second).unwrap();
    assert_eq!(rig.control.faults(), Vec::<String>::new(), "ordered by the event");
    rig.wait_passed(rig.record(second));
    rig.copy(c, a, 4096, first).unwrap();
    assert_eq!(rig.control.faults(), Vec::<String>::new(), "ordered by the host, which saw the first end");
    rig.copy(a, b, 64, second).unwrap();
    assert_eq!(
        rig.control.faults().len(),
        1,
        "one stream writes what the other reads, and nothing orders them"
    );
}

#[test]
fn memory_and_pinning_have_limits() {
    let rig = rig(HostOptions { memory_bytes: 1 << 20, pinned_bytes: 8192, ..HostOptions::default() });
    let refused = rig.driver.allocate(2 << 20).unwrap_err();
    assert_eq!(refused.kind, DeviceErrorKind::NoMemory);
    let taken = rig.driver.allocate(1 << 20).unwrap();
    assert_eq!(rig.driver.memory().unwrap().free_bytes, 0);
    // SAFETY: it was just taken, and nothing uses it.
    unsafe { rig.driver.free(taken).unwrap() };
    assert_eq!(rig.driver.memory().unwrap().free_bytes, 1 << 20);
    rig.driver.allocate_pinned(8192).unwrap();
    assert_eq!(rig.driver.allocate_pinned(1).unwrap_err().kind, DeviceErrorKind::NoMemory);
}

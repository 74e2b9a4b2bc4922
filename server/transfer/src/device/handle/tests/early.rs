//! What is told as failed never lands afterwards: errors between two calls, copies that are taken back, streams that hang.

use super::*;
use crate::limits::{STEP_CALLS_MAX, STREAM_CALLS_MAX};

/// Bytes that no page here has.
const OTHERS: u8 = 0xEE;

/// Pages in slots, and an engine's memory that others' bytes are in.
fn rig(options: HostOptions) -> Rig {
    let registers = options.registers;
    let rig = Rig::new(options, 24);
    let rig = if registers { rig.registered() } else { rig };
    for page in 0..24 {
        rig.region.slot(page * PAGE, PAGE).unwrap().claim().unwrap().fill(&pattern(page as u64 + 100, PAGE));
        rig.write(page, &[OTHERS; PAGE]);
    }
    rig
}

/// Staging memory that a few pages fill: the lane's thread waits for room while the streams are held.
fn staged() -> HostOptions {
    let device = DeviceOptions { staging_bytes: 1 << 20, ..DeviceOptions::default() };
    HostOptions { device, registers: false, ..strict() }
}

/// Lets a while pass in which a flight may end.
fn ends_soon(flight: &Flight) -> bool {
    (0..40).any(|_| {
        thread::sleep(Duration::from_millis(2));
        flight.is_done()
    })
}

fn all(rig: &Rig) -> Vec<Vec<u8>> {
    (0..24).map(|page| rig.read(page)).collect()
}

fn quiet(rig: &Rig) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while rig.device.stats().flights > 0 {
        assert!(Instant::now() < deadline, "copies are under way for ever");
        thread::sleep(Duration::from_millis(2));
    }
    thread::sleep(Duration::from_millis(30));
}

/// A call that fails, in any way: an error is told only when nothing of the reload can land any more.
#[test]
fn an_error_is_told_only_when_nothing_lands_any_more() {
    let kinds = [DeviceErrorKind::Invalid, DeviceErrorKind::NoMemory, DeviceErrorKind::Broken];
    for kind in kinds {
        for call in 0..16 {
            let registers = call % 2 == 0;
            let rig = rig(HostOptions { registers, ..staged() });
            rig.control.hold_all();
            rig.control.fail_after(call, kind);
            let flight = rig.device.drain(rig.pages(0..6, 4 << 10), None, 3, true).unwrap();
            let told = ends_soon(&flight) && wait(flight.landed()).is_err();
            let before = told.then(|| all(&rig));
            rig.control.let_go();
            quiet(&rig);
            let landed = wait(flight.landed());
            let after = all(&rig);
            if let Some(before) = before {
                assert!(before == after, "{kind:?} at call {call}: bytes landed after the error was told");
            }
            if let Ok(landed) = landed {
                let expected: Vec<u64> = (100..106).map(|page| checksum(&pattern(page, PAGE))).collect();
                assert_eq!(landed.checksums, expected, "{kind:?} at call {call}");
                assert!((0..6).all(|page| after[page] == pattern(page as u64 + 100, PAGE)));
            }
            rig.assert_no_faults();
        }
    }
}

/// The link has work before any table of checksums is made: what fails behind the first copies leaves them in their slots.
#[test]
fn an_offload_begins_with_copies_and_not_with_checksums() {
    let device = DeviceOptions { chunk_bytes: PAGE, ..DeviceOptions::default() };
    let rig = Rig::new(HostOptions { device, ..strict() }, 8).registered();
    rig.control.fail_after(1, DeviceErrorKind::NoMemory);
    let failed = wait(rig.device.fill(rig.pages(0..8, PAGE), None).unwrap().landed());
    assert_eq!(failed.expect_err("a call fails").kind, DeviceErrorKind::NoMemory);
    let first = rig.region.slot(0, PAGE).unwrap();
    let mut bytes = vec![0; PAGE];
    first.page().copy_to(0, &mut bytes);
    assert!(bytes == pattern(0, PAGE), "the first page was not copied by the first call");
    rig.assert_no_faults();
}

#[test]
fn one_lanes_trouble_does_not_end_the_others_flights() {
    for call in 0..4 {
        let rig = rig(strict());
        rig.control.hold_all();
        let reload = rig.device.drain(rig.pages(0..6, 4 << 10), None, 3, false).unwrap();
        wait(reload.enqueued()).unwrap();
        rig.control.fail_after(call, DeviceErrorKind::NoMemory);
        let offload = rig.device.fill(rig.pages(6..8, 4 << 10), None).unwrap();
        assert!(!ends_soon(&reload), "told while its copies wait in the stream (call {call})");
        rig.control.let_go();
        assert!(wait(reload.landed()).is_ok());
        wait(offload.landed()).ok();
        assert!(rig.read(5) == pattern(105, PAGE));
        rig.assert_no_faults();
    }
}

#[test]
fn what_is_taken_back_before_it_began_never_lands_and_what_began_is_waited_for() {
    let rig = rig(staged());
    rig.control.hold_all();
    let begun = rig.device.drain(rig.pages(0..12, PAGE), None, 0, true).unwrap();
    assert!(!ends_soon(&begun), "its bytes do not fit the staging memory");
    let waiting = rig.device.drain(rig.pages(12..24, PAGE), None, 0, true).unwrap();
    let safe = Arc::new(Mutex::new(None));
    let told = Arc::clone(&safe);
    waiting.abandon(Box::new(move |is_safe| *told.lock() = Some(is_safe)));
    waiting.cancel();
    assert_eq!(wait(waiting.landed()).unwrap_err().kind, DeviceErrorKind::Cancelled);
    assert_eq!(*safe.lock(), Some(true), "its memory is its owner's again");
    begun.cancel();
    assert!(!ends_soon(&begun), "its copies wait in the stream, and it is told as ended");
    rig.control.let_go();
    assert_eq!(wait(begun.landed()).unwrap_err().kind, DeviceErrorKind::Cancelled);
    let before = all(&rig);
    assert!(before[11] == [OTHERS; PAGE], "more was enqueued after it was taken back");
    quiet(&rig);
    assert!(before == all(&rig) && before[12..].iter().all(|page| page == &[OTHERS; PAGE]));
    wait(rig.device.drain(rig.pages(0..24, PAGE), None, 0, true).unwrap().landed()).unwrap();
    rig.assert_no_faults();
}

/// Time alone says nothing of what a device still writes to.
#[test]
fn a_reload_on_a_device_that_hangs_does_not_end_before_the_device_does() {
    let device = DeviceOptions { stuck_after: Duration::from_millis(100), ..DeviceOptions::default() };
    let rig = rig(HostOptions { device, ..strict() });
    rig.control.hold_all();
    let flight = rig.device.drain(rig.pages(0..6, 4 << 10), None, 3, true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while rig.device.check().is_ok() {
        assert!(Instant::now() < deadline, "the device still counts as well");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!ends_soon(&flight), "told as failed, and its copies may land at any time");
    assert!(rig.device.drain(rig.pages(6..7, PAGE), None, 0, true).is_err(), "no more is begun");
    rig.control.let_go();
    wait(flight.landed()).unwrap();
    assert!(rig.read(5) == pattern(105, PAGE));
    assert_eq!(rig.device.stats().quarantined_bytes, 0);
    rig.assert_no_faults();
}

#[test]
fn what_never_began_on_a_device_that_broke_is_safe() {
    let rig = rig(staged());
    rig.control.hold_all();
    let begun = rig.device.drain(rig.pages(0..12, PAGE), None, 0, true).unwrap();
    let waiting = rig.device.drain(rig.pages(12..24, PAGE), None, 0, true).unwrap();
    let safe = Arc::new(Mutex::new(Vec::new()));
    for (number, flight) in [&begun, &waiting].into_iter().enumerate() {
        let told = Arc::clone(&safe);
        flight.abandon(Box::new(move |is_safe| told.lock().push((number, is_safe))));
    }
    thread::sleep(Duration::from_millis(20));
    rig.control.break_device("fell off the bus");
    assert!(wait(begun.landed()).is_err() && wait(waiting.landed()).is_err());
    assert_eq!(*safe.lock(), [(0, false), (1, true)]);
}

/// A driver whose queue is full keeps the thread that calls, and with it locks that an engine's launches need.
#[test]
fn a_stream_that_does_not_go_on_is_given_a_bounded_number_of_calls() {
    for (copy, piece) in [(CopyChoice::Engine, 768), (CopyChoice::Batch, 192)] {
        let device = DeviceOptions { copy, ..DeviceOptions::default() };
        let rig = rig(HostOptions { device, ..strict() });
        rig.control.hold_all();
        let before = rig.control.calls();
        let flight = rig.device.drain(rig.pages(0..24, piece), None, PAGE / piece, true).unwrap();
        assert!(!ends_soon(&flight));
        let given = rig.control.calls() - before;
        let most = (STREAM_CALLS_MAX + STREAM_CALLS_MAX / STEP_CALLS_MAX) as u64;
        assert!(given <= most && given > 0, "{given} calls of {most} wait in the stream");
        flight.cancel();
        rig.control.let_go();
        assert_eq!(wait(flight.landed()).unwrap_err().kind, DeviceErrorKind::Cancelled);
        wait(rig.device.drain(rig.pages(0..24, piece), None, PAGE / piece, true).unwrap().landed()).unwrap();
        assert!(rig.read(23) == pattern(123, PAGE));
        rig.assert_no_faults();
    }
}

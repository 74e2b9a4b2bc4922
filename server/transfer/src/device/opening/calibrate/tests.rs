//! What is made of measured times, that measuring ends in time, and that it is done once.

use super::*;
use crate::device::host::{HostDriver, HostOptions};

const MICROSECOND: Duration = Duration::from_micros(1);

/// The bound found where a kernel and the engines take so many microseconds for pieces of a size.
fn found(times: impl Fn(usize) -> Option<(u32, u32)>) -> Option<usize> {
    let times = |bytes| Ok(times(bytes).map(|(kernel, engine)| (MICROSECOND * kernel, MICROSECOND * engine)));
    largest_faster(times).unwrap()
}

#[test]
fn a_kernel_copies_what_it_is_clearly_faster_with() {
    let crossing = |bytes: usize| Some((40 + bytes as u32 / 256, 100 + bytes as u32 / 1024));
    assert_eq!(found(crossing), Some(16 << 10), "64 + 40 against 116; at 32 KiB 168 against 132");
    assert_eq!(found(|_| Some((95, 100))), Some(0), "what is hardly faster is not worth the processors");
    assert_eq!(found(|_| Some((10, 100))), Some(CALIBRATION_PIECE_BYTES_MAX), "no further than was measured");
    let once_slower = |bytes| Some(if bytes == 4096 { (100, 100) } else { (10, 100) });
    assert_eq!(found(once_slower), Some(2048), "and no further than where it first was not");
}

#[test]
fn a_time_that_is_up_leaves_what_was_found_or_what_is_usual() {
    assert_eq!(found(|bytes| (bytes < 8192).then_some((1, 100))), Some(4096));
    assert_eq!(found(|_| None), None);
}

fn host(options: HostOptions) -> Arc<dyn Driver> {
    Arc::new(HostDriver::new(HostOptions { strict: true, ..options }))
}

#[test]
fn a_device_is_measured_once_and_one_without_a_name_never() {
    let options = HostOptions { speed_key: Some("measured once".to_owned()), ..HostOptions::default() };
    let control = options.control.clone();
    let driver = host(options);
    let began = Instant::now();
    let measured = speeds(&driver, 16).unwrap();
    assert!(
        began.elapsed() < CALIBRATION_MAX * 20,
        "{:?}: a slow machine, but a bounded time",
        began.elapsed()
    );
    let calls = control.calls();
    assert!(calls > 0);
    assert_eq!(speeds(&driver, 16), Ok(measured));
    assert_eq!(control.calls(), calls, "remembered");
    speeds(&driver, 8).unwrap();
    assert!(control.calls() > calls, "fewer blocks are another speed");
    assert_eq!(control.faults(), Vec::<String>::new());
    assert_eq!(driver.memory().unwrap().free_bytes, driver.memory().unwrap().total_bytes, "nothing is kept");

    let unnamed = HostOptions::default();
    let control = unnamed.control.clone();
    assert_eq!(speeds(&host(unnamed), 16), Ok(Speeds::default()));
    assert_eq!(control.calls(), 0);
}

#[test]
fn what_cannot_be_measured_gets_what_is_usual_and_a_broken_device_is_told() {
    let key = |name: &str| Some(name.to_owned());
    let full = HostOptions { speed_key: key("full"), memory_bytes: 1 << 20, ..HostOptions::default() };
    assert_eq!(speeds(&host(full), 16), Ok(Speeds::default()));
    let without = HostOptions { speed_key: key("no batches"), batches: false, ..HostOptions::default() };
    speeds(&host(without), 16).unwrap();
    let broken = HostOptions { speed_key: key("broken"), ..HostOptions::default() };
    broken.control.fail_after(5, DeviceErrorKind::Broken);
    assert_eq!(speeds(&host(broken), 16).unwrap_err().kind, DeviceErrorKind::Broken);
}

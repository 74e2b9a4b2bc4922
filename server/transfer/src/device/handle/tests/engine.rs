//! What an engine does with its streams meanwhile: captures of graphs, and streams of ours.

use super::*;

/// An event recorded in a capture is an error everywhere else for ever, and with it the device.
#[test]
fn a_stream_that_is_captured_is_neither_marked_nor_held_up() {
    let rig = Rig::new(strict(), 4).registered();
    let flight = rig.device.drain(rig.pages(0..2, PAGE), None, 1, true).unwrap();
    wait(flight.enqueued()).unwrap();
    rig.control.begin_capture(rig.engine);
    let refused = [rig.device.mark(rig.engine).map(drop), flight.wait_layer(0, rig.engine)];
    for refused in refused {
        let refused = refused.expect_err("the stream is captured");
        assert_eq!(refused.kind, DeviceErrorKind::Invalid, "{refused}");
        assert!(refused.message.contains("graph"), "{refused}");
    }
    rig.device.check().unwrap();
    rig.control.end_capture(rig.engine);
    flight.wait_layer(0, rig.engine).unwrap();
    let mark = rig.device.mark(rig.engine).unwrap();
    wait(rig.device.fill(rig.pages(2..4, PAGE), Some(mark)).unwrap().landed()).unwrap();
    wait(flight.landed()).unwrap();
    rig.assert_no_faults();
}

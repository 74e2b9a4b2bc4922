//! No caller chooses how long others wait: while one client sends each verb at its largest legal size, over and over, another one's
//! cheap calls are answered, and no hold of the lock is longer than its bound.

use anyhow::{Result, ensure};
use std::time::Duration;
use turnkv_proto::limits::HASHES_PER_CALL_MAX;
use turnkv_tests::heavy::{Heavy, REQUESTS, SESSION_REQUESTS, Size, setup};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::server::{Server, Setup};

/// How long each request is sent.
const TIME: Duration = Duration::from_millis(700);
/// What a cheap call may take beside it, of a debug build on a machine that others use as well.
const WAIT_MAX: Duration = Duration::from_millis(400);
/// What is sent of a debug build: a session that one call names, and more sessions than one slice lists.
const SIZE: Size = Size { pages: HASHES_PER_CALL_MAX, sessions: 3_000 };
/// Steps that the pool promises to take at most under one hold (its `limits::STEPS_PER_CALL_MAX`).
const STEPS_PER_CALL_MAX: f64 = 24.0 * 1024.0;

#[test]
fn nobody_waits_long_for_anothers_largest_request() -> Result<()> {
    let metrics = free_address()?;
    let server = Server::start(Setup { metrics: Some(metrics.to_string()), ..setup(SIZE, 0) })?;
    let mut heavy = Heavy::new(&server, SIZE)?;
    for request in REQUESTS.iter().chain(SESSION_REQUESTS) {
        let waits = heavy.beside_a_clock(*request, TIME)?;
        println!("{}: {waits:?}", request.0);
        ensure!(waits.p99 < WAIT_MAX, "another client waits while {} is sent: {waits:?}", request.0);
        let steps = value(&get(metrics, "/metrics")?.1, "turnkv_pool_largest_call_steps")?;
        ensure!(steps <= STEPS_PER_CALL_MAX, "{}: {steps} steps under one hold", request.0);
    }
    Ok(())
}

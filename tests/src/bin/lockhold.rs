//! How long others wait while one client sends each verb at its largest legal size: a table of p50, p99 and the longest, for a
//! release build. `lockhold [SECONDS]`; `TURNKV_SERVER` names the server's binary.
#![allow(clippy::print_stdout, reason = "the table is the product")]

use anyhow::Result;
use std::time::Duration;
use turnkv_tests::heavy::{Heavy, NVME_REQUESTS, REQUESTS, Request, SESSION_REQUESTS, Size, setup};
use turnkv_tests::server::Server;

/// The longest session, and as many sessions as a list has.
const SIZE: Size = Size { pages: 131_072, sessions: 10_000 };
/// NVMe for what waits for it.
const NVME_MIB: u64 = 2048;

fn main() -> Result<()> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(2.0), |text| text.parse())?;
    println!("a lookup of one page, while another client sends");
    println!("{:20} {:>8} {:>10} {:>10} {:>10}", "", "calls", "p50 us", "p99 us", "max us");
    let requests: Vec<Request> = REQUESTS.iter().chain(SESSION_REQUESTS).copied().collect();
    measure(0, &requests, seconds)?;
    println!("with NVMe");
    measure(NVME_MIB, NVME_REQUESTS, seconds)
}

fn measure(nvme_mib: u64, requests: &[Request], seconds: f64) -> Result<()> {
    let server = Server::start(setup(SIZE, nvme_mib))?;
    let mut heavy = Heavy::new(&server, SIZE)?;
    for request in requests {
        match heavy.beside_a_clock(*request, Duration::from_secs_f64(seconds)) {
            Ok(waits) => {
                let (p50, p99, max) = (waits.p50.as_micros(), waits.p99.as_micros(), waits.max.as_micros());
                println!("{:20} {:>8} {p50:>10} {p99:>10} {max:>10}", request.0, waits.calls);
            }
            Err(error) => println!("{:20} {error:#}", request.0),
        }
    }
    Ok(())
}

//! One client over a network that takes all it can get: another one, and those of the host, are served, and what it has in flight
//! stays within its share.

use anyhow::{Result, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::proxy::{Fault, Proxy};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 1 << 20;
const MIB: f64 = (1 << 20) as f64;
/// Busy machines get much of it.
const SOON: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn a_greedy_client_has_its_share_in_flight_and_no_more() -> Result<()> {
    let (http, tcp) = (free_address()?, free_address()?);
    let limits = "remote_client_inflight_bytes = \"4MiB\"\nremote_inflight_bytes = \"8MiB\"\n".to_owned();
    let (metrics, door) = (Some(http.to_string()), Some(tcp.to_string()));
    let server =
        Server::start(Setup { dram_mib: 256, nvme_mib: 0, metrics, tcp: door, limits, ..Setup::default() })?;
    let slow = Fault::Slow(64 << 10, Duration::from_millis(10));
    let proxy = Proxy::to(tcp, move |_| (slow, Fault::None))?;
    let greedy = User::connect(&format!("tcp://{}", proxy.address()), DataPlane::Framed, PAGE).await?;
    let greedy = Arc::new(greedy);
    let hogs: Vec<_> = (0..6u64)
        .map(|hog| {
            let greedy = Arc::clone(&greedy);
            tokio::spawn(async move {
                let options =
                    OffloadOptions { deadline: Some(Duration::from_secs(5)), ..OffloadOptions::default() };
                greedy.offload(&options, &chain(hog, 16)).await
            })
        })
        .collect();
    let inflight = |whose: &str| value(&get(http, "/metrics")?.1, &format!("turnkv_remote_{whose}_bytes"));
    let began = Instant::now();
    while inflight("client_inflight")? < 3.0 * MIB {
        ensure!(began.elapsed() < SOON, "it has {} bytes in flight", inflight("client_inflight")?);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let began = Instant::now();
    let other = User::connect(&format!("tcp://{tcp}"), DataPlane::Framed, PAGE).await?;
    ensure!(other.offload(&OffloadOptions::default(), &chain(100, 8)).await?.stored == 8);
    ensure!(other.reload(&chain(100, 8)).await?.pages == 8);
    let local = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    ensure!(local.offload(&OffloadOptions::default(), &chain(200, 8)).await?.stored == 8);
    ensure!(local.reload(&chain(100, 8)).await?.pages == 8);
    ensure!(began.elapsed() < SOON, "others wait for it: {:?}", began.elapsed());
    for _ in 0..20 {
        let (own, all) = (inflight("client_inflight")?, inflight("inflight")?);
        ensure!(own <= 4.0 * MIB && all <= 8.0 * MIB, "{own} of one, {all} of all");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let page = get(http, "/metrics")?.1;
    ensure!(value(&page, "turnkv_remote_waits_total")? > 0.0, "nobody waited");
    ensure!(value(&page, "turnkv_remote_client_inflight_limit_bytes")? == 4.0 * MIB);
    for hog in hogs {
        // Slow as its network is, that some of it came too late is no matter.
        drop(hog.await?);
    }
    Ok(())
}

//! Connections that die with nobody told, as where a firewall or a NAT forgets them: new ones are well at once.

use anyhow::{Result, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use turnkv_client::{Client, ClientConfig, DataPlane, OffloadOptions, ReloadOptions};
use turnkv_proto::limits::RAILS_MAX;
use turnkv_tests::counts;
use turnkv_tests::http::free_address;
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::proxy::{Fault, Proxy};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::limits::FRAMED_STALL;

const PAGE: u64 = 1 << 20;
const PAGES: usize = 24;
const CALL: Duration = Duration::from_secs(2);
/// Calls at a time, each with a connection of its own.
const CALLS: usize = 16;
/// Busy machines get much of it.
const SLACK: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_died_cost_one_call_and_not_one_each() -> Result<()> {
    let tcp = free_address()?;
    let server = Server::start(Setup { dram_mib: 128, tcp: Some(tcp.to_string()), ..Setup::default() })?;
    let proxy = Proxy::to(tcp, |_| (Fault::None, Fault::None))?;
    let address = format!("tcp://{}", proxy.address());
    let (data_plane, call_ms) = (DataPlane::Framed, CALL.as_millis() as u64);
    let client = Client::new(ClientConfig { data_plane, call_ms, ..ClientConfig::at(address) })?;
    let namespace = client.open_namespace(namespace("test-model", PAGE)).await?;
    let user = Arc::new(User { client, namespace });
    let hashes = chain(1, PAGES);
    let offload = OffloadOptions { deadline: Some(SLACK), ..OffloadOptions::default() };
    ensure!(user.offload(&offload, &hashes).await?.stored == PAGES);
    let patient = ReloadOptions { deadline: Some(4 * SLACK), ..ReloadOptions::default() };
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let (user, patient, hashes) = (Arc::clone(&user), patient.clone(), hashes.clone());
        calls.spawn(async move { user.reload_with(&patient, &hashes).await });
    }
    while let Some(done) = calls.join_next().await {
        ensure!(done??.pages == PAGES);
    }
    let state = user.client.state();
    ensure!(state.data_rails == RAILS_MAX, "{state:?}");
    proxy.freeze();
    let (began, mut failed) = (Instant::now(), Vec::new());
    // One call finds out that the first kind died; those of its time that follow find out that the rails did.
    let most = FRAMED_STALL + 2 * CALL + SLACK;
    loop {
        match user.reload_with(&ReloadOptions::default(), &hashes).await {
            Ok(report) if report.pages == PAGES => break,
            other => failed.push((began.elapsed(), format!("{other:?}"))),
        }
        ensure!(began.elapsed() < most, "it does not go on: {failed:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("{:.1?} until all is well, {} calls failed", began.elapsed(), failed.len());
    counts::slots_are_back(&server, FRAMED_STALL + SLACK).await
}

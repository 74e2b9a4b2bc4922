//! What an operator sees of a running server: /metrics, /healthz, `turnkv status`, `turnkv config`, the standard health
//! service, and a drain.

use anyhow::{Result, ensure};
use std::process::Command;
use turnkv_client::{DataPlane, Decline, OffloadOptions, PinFor};
use turnkv_tests::child::Running;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 64 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_health_say_what_happened() -> Result<()> {
    let http = free_address()?;
    let server = Server::start(Setup { metrics: Some(http.to_string()), ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let hashes = chain(5, 12);
    user.offload(&OffloadOptions::default(), &hashes).await?;
    user.offload(&OffloadOptions::default(), &hashes).await?;
    user.reload(&hashes).await?;
    user.reload(&chain(6, 3)).await?;
    user.settle().await?;
    let (status, page) = get(http, "/metrics")?;
    ensure!(status == 200);
    let expected = [
        ("turnkv_offload_stored_pages_total", 12.0),
        ("turnkv_offload_present_pages_total", 12.0),
        ("turnkv_offload_declined_pages_total", 0.0),
        ("turnkv_reload_hit_pages_total{tier=\"dram\"}", 12.0),
        ("turnkv_reload_hit_tokens_total", 12.0 * 16.0),
        ("turnkv_reload_misses_total{cause=\"absent\"}", 1.0),
        ("turnkv_tier_pages{tier=\"dram\"}", 12.0),
        ("turnkv_tier_pages{tier=\"nvme\"}", 12.0),
        ("turnkv_tier_used_bytes{tier=\"dram\"}", 12.0 * PAGE as f64),
        ("turnkv_nvme_written_bytes_total", 12.0 * PAGE as f64),
        ("turnkv_pool_dirty_bytes", 0.0),
        ("turnkv_pool_namespaces", 1.0),
        ("turnkv_nvme_poisoned_devices", 0.0),
    ];
    for (series, wanted) in expected {
        let found = value(&page, series)?;
        ensure!(found == wanted, "{series}: {found}, not {wanted}");
    }
    ensure!(value(&page, "turnkv_rpc_call_seconds_count{door=\"local\",verb=\"begin_offload\"}")? >= 2.0);
    ensure!(get(http, "/healthz")? == (200, "ok\n".to_owned()));
    ensure!(get(http, "/nothing")?.0 == 404);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_declines_offloads_and_still_serves() -> Result<()> {
    let http = free_address()?;
    let server = Server::start(Setup { metrics: Some(http.to_string()), ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let hashes = chain(5, 12);
    user.offload(&OffloadOptions::default(), &hashes).await?;
    user.client.drain().await?;
    let report = user.offload(&OffloadOptions::default(), &chain(6, 3)).await?;
    ensure!(report.declined == 3 && report.first_decline == Some(Decline::Draining), "{report:?}");
    ensure!(user.reload(&hashes).await?.pages == 12, "what is there is served to the end");
    let (status, said) = get(http, "/healthz")?;
    ensure!(status == 503 && said.starts_with("draining") && said.contains("--undo"), "{status}: {said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_can_be_taken_back() -> Result<()> {
    let http = free_address()?;
    let server = Server::start(Setup { metrics: Some(http.to_string()), ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    ensure!(!user.client.resume().await?, "there is none");
    user.client.drain().await?;
    ensure!(user.client.resume().await?);
    ensure!(get(http, "/healthz")? == (200, "ok\n".to_owned()));
    ensure!(user.offload(&OffloadOptions::default(), &chain(6, 3)).await?.stored == 3);
    // The same from the command line.
    let run = |undo: &[&str]| -> Result<String> {
        let address = server.address();
        let output =
            Command::new(server_binary()?).args(["drain", "--address", &address]).args(undo).output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    };
    ensure!(run(&[])?.starts_with("draining"));
    ensure!(get(http, "/healthz")?.0 == 503);
    ensure!(user.offload(&OffloadOptions::default(), &chain(7, 3)).await?.declined == 3);
    ensure!(run(&["--undo"])?.contains("taken back"));
    ensure!(user.offload(&OffloadOptions::default(), &chain(7, 3)).await?.stored == 3);
    Ok(())
}

/// A server that leaves late removes its own sockets, not those of the one that came after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_leaving_server_leaves_its_successors_sockets() -> Result<()> {
    let mut old = Server::start(Setup { nvme_mib: 0, ..Setup::default() })?;
    for socket in [old.socket(), old.local_socket()] {
        std::fs::remove_file(socket)?; // as a cleaner of temporary files may
    }
    let config = old.socket().with_file_name("turnkv.toml");
    let mut new = Running::start(Command::new(server_binary()?).args(["serve", "--config"]).arg(config))?;
    let began = std::time::Instant::now();
    while !(old.socket().exists() && old.local_socket().exists()) {
        ensure!(began.elapsed() < std::time::Duration::from_secs(30), "the successor does not come");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let ended = old.terminate();
    let there = old.socket().exists() && old.local_socket().exists();
    let served = User::connect(&old.address(), DataPlane::Shm, PAGE).await.map(drop);
    new.kill()?;
    new.wait()?;
    ended?;
    ensure!(there, "the leaving server removed them");
    served
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_answer() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(5, 12)).await?;
    let run = |arguments: &[&str]| -> Result<(bool, String, String)> {
        let output = Command::new(server_binary()?).args(arguments).output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((output.status.success(), text(output.stdout), text(output.stderr)))
    };
    let (good, text, _) = run(&["status", "--address", &server.address(), "--interval-ms", "50"])?;
    ensure!(good && text.contains("12 pages") && text.contains("nvme") && text.contains("MiB"), "{text}");
    ensure!(text.contains("0 B by 0 pins and 0 sessions"), "{text}");
    user.namespace.pin(&chain(5, 3), PinFor::ms(60_000)).await?;
    let (_, text, _) = run(&["status", "--address", &server.address(), "--interval-ms", "50"])?;
    ensure!(
        text.contains("192.0 KiB by 1 pins and 0 sessions") && text.contains("192.0 KiB of its 8.0 MiB"),
        "{text}"
    );
    let (good, json, _) = run(&["status", "--address", &server.address(), "--json", "--interval-ms", "1"])?;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    ensure!(good && json["offloaded_pages"] == 12 && json["pins"] == 1, "{json}");
    let (good, _, why) = run(&["status", "--address", "unix:/nonexistent.sock"])?;
    ensure!(!good && why.contains("no server answers"), "{why}");
    let (good, _, why) = run(&["config", "--config", "/nonexistent.toml"])?;
    ensure!(!good && why.contains("/nonexistent.toml"), "{why}");
    let (good, text, _) = run(&["config"])?;
    ensure!(good && text.contains("[dram]") && text.contains("lease_ms = 10000"), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_over_tcp_with_the_standard_health_service() -> Result<()> {
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };
    let tcp = free_address()?;
    let server = Server::start(Setup { tcp: Some(tcp.to_string()), ..Setup::default() })?;
    let user = User::connect(&format!("http://{tcp}"), DataPlane::Auto, PAGE).await?;
    let hashes = chain(9, 20);
    ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.stored == 20);
    ensure!(user.reload(&hashes).await?.pages == 20);
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{tcp}"))?.connect().await?;
    let request = HealthCheckRequest { service: "turnkv.v1.Pool".into() };
    let health = HealthClient::new(channel).check(request).await?.into_inner();
    ensure!(health.status() == ServingStatus::Serving, "{health:?}\n{}", server.log());
    Ok(())
}

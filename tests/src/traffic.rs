//! Traffic of every kind on a server of its own, and the metrics page that it leaves. Must not know: what is asked of the page.

use crate::http::{free_address, get};
use crate::pages::chain;
use crate::server::{Server, Setup};
use crate::user::User;
use anyhow::{Result, ensure};
use std::time::Duration;
use turnkv_client::{DataPlane, EndTurn, EngineState, OffloadOptions, PinFor, TierKind};

/// Bytes of a page of it.
pub const PAGE: u64 = 64 << 10;

/// A server after some traffic of every kind, and its metrics page.
///
/// # Errors
/// The server is not there, or a call failed.
pub async fn page_after_traffic() -> Result<(Server, String)> {
    let http = free_address()?;
    // An archive that nobody reaches: its series are there all the same.
    let place = "place = \"s3://none\"\nendpoint = \"http://127.0.0.1:1\"\nregion = \"none\"";
    let archive = format!("[archive]\n{place}\nsessions = \"asked\"\nretries_max = 0\n");
    // A cluster of one, likewise.
    let tcp = free_address()?;
    let member = format!("{{ id = \"one\", endpoint = \"tcp://{tcp}\" }}");
    let events = format!("[events]\npublish = \"{}\"\n", free_address()?);
    let sections = format!("{archive}[cluster]\nid = \"one\"\nmembers = [{member}]\n{events}");
    let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| (name, "none".to_owned()));
    let (metrics, tcp) = (Some(http.to_string()), Some(tcp.to_string()));
    let setup = Setup { metrics, tcp, sections, environment: keys.to_vec(), ..Setup::default() };
    let server = Server::start(setup)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let hashes = chain(1, 16);
    let durable = OffloadOptions { durable: true, ..OffloadOptions::default() };
    user.namespace.begin_turn_at("s", "gpu-0").await?;
    user.offload(&durable, &hashes).await?;
    let end =
        EndTurn { hashes: hashes.clone(), priority: 2, expected_return_ms: 60_000, ..EndTurn::default() };
    user.namespace.end_turn("s", &end).await?;
    user.namespace.report_prefill(1_000, Duration::from_secs(2)).await?;
    user.reload(&hashes).await?;
    user.settle().await?;
    user.client.evict(None, Some(TierKind::Dram)).await?;
    user.reload(&hashes).await?;
    user.reload(&chain(2, 3)).await?;
    user.namespace.pin(&hashes[..4], PinFor::ms(0)).await?;
    user.namespace.begin_turn("running").await?;
    let engine = EngineState { name: "gpu-0".to_owned(), ..EngineState::default() };
    user.namespace.route(Some("s"), &[], &[engine]).await?;
    let inline = User::connect(&server.address(), DataPlane::Inline, PAGE).await?;
    inline.offload(&OffloadOptions::default(), &chain(3, 2)).await?;
    inline.reload(&chain(3, 2)).await?;
    user.settle().await?;
    let (status, page) = get(http, "/metrics")?;
    ensure!(status == 200, "{page}");
    Ok((server, page))
}

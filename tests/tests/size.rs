//! `turnkv size` and `turnkv record` as an operator runs them: a live pool's curve and advice, a trace's, and a recording that plays back
//! to the hits that were seen.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions, ReloadOptions};
use turnkv_proto::wire::admin_client::AdminClient;
use turnkv_proto::wire::{RecordRequest, RecordedCall, SizeAdviceRequest};
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 64 << 10;
/// Calls that are more than a queue and a connection's buffers hold, with a hundred blocks each.
const ASKED: u64 = 7_200;
/// Sessions, turns of each, pages that a turn adds.
const SESSIONS: u64 = 12;
const TURNS: usize = 4;
const ADDED: usize = 5;

fn turnkv(arguments: &[&str]) -> Result<Output> {
    Ok(Command::new(server_binary()?).args(arguments).output()?)
}

fn json(output: &Output) -> Result<Value> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("no {name} in {value}"))
}

/// A turn as an engine drives it: look up, reload what is there, offload the rest, end the turn. Returns the pages found.
async fn turn(user: &User, session: Option<&str>, hashes: &[BlockHash]) -> Result<usize> {
    let name = session.map(str::to_owned);
    if let Some(session) = session {
        user.namespace.begin_turn(session).await?;
    }
    let present = user.namespace.lookup(hashes).await?;
    let mut found = 0;
    if present > 0 {
        let options = ReloadOptions { session: name.clone(), ..ReloadOptions::default() };
        found = user.reload_with(&options, &hashes[..present]).await?.pages;
    }
    if found < hashes.len() {
        let parent = found.checked_sub(1).map(|at| hashes[at]);
        let options = OffloadOptions { session: name, parent, ..OffloadOptions::default() };
        let report = user.offload(&options, &hashes[found..]).await?;
        ensure!(report.declined == 0, "{report:?}");
    }
    if let Some(session) = session {
        let end = EndTurn { hashes: hashes.to_vec(), ..EndTurn::default() };
        user.namespace.end_turn(session, &end).await?;
    }
    Ok(found)
}

/// Sessions in turn, each sending all it has and some pages more; half of them without names. Returns pages found and sent.
async fn traffic(user: &User) -> Result<(usize, usize)> {
    let (mut found, mut sent) = (0, 0);
    for number in 1..=TURNS {
        for session in 0..SESSIONS {
            let name = format!("session-{session}");
            let name = (session % 2 == 0).then_some(name.as_str());
            let hashes = chain(session, number * ADDED);
            found += turn(user, name, &hashes).await?;
            sent += hashes.len();
        }
    }
    Ok((found, sent))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_pool_says_what_more_memory_would_buy() -> Result<()> {
    let http = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let setup = Setup { nvme_mib: 0, dram_mib: 64, metrics: Some(http.to_string()), ..Setup::default() };
    let server = Server::start(setup)?;
    let address = server.address();
    let user = User::connect(&address, DataPlane::Shm, PAGE).await?;
    let (found, sent) = traffic(&user).await?;
    user.namespace.report_prefill(10_000, Duration::from_secs(5)).await?;

    let folder = tempfile::tempdir()?;
    let plot = folder.path().join("size.svg").display().to_string();
    let said =
        json(&turnkv(&["size", "--address", &address, "--json", "--plot", &plot, "--gpu-price", "4"])?)?;
    let said = &said[0];
    ensure!(number(said, "references")? == sent as f64, "{sent} pages were sent: {said}");
    ensure!(
        (number(said, "found_ratio")? - found as f64 / sent as f64).abs() < 1e-9,
        "{found} were found: {said}"
    );
    ensure!((number(said, "hit_ratio_max")? - found as f64 / sent as f64).abs() < 1e-9, "all fits: {said}");
    ensure!(
        number(said, "sample_ratio")? == 1.0 && number(said, "prefill_tokens_per_s")? == 2000.0,
        "{said}"
    );
    // A page comes back when the other sessions have sent theirs: 12 times 5 to 15 pages lie between.
    let ratio_at = |pages: u64| -> Result<f64> {
        let sizes = said["sizes"].as_array().context("no sizes")?;
        let size = sizes.iter().find(|size| size["bytes"] == pages * PAGE).context("no such size")?;
        number(size, "hit_ratio")
    };
    ensure!(ratio_at(32)? == 0.0 && ratio_at(64)? > 0.0 && ratio_at(128)? > ratio_at(64)?, "{said}");
    ensure!(said["purchases"].as_array().is_some_and(|all| all.len() >= 7), "{said}");
    ensure!(std::fs::read_to_string(&plot)?.starts_with("<svg"));

    let text = String::from_utf8(turnkv(&["size", "--server", &address])?.stdout)?;
    for part in ["knee ", "buying", "advice   large enough", "+64.0 GiB DRAM", "256.0 GiB NVMe"] {
        ensure!(text.contains(part), "no {part:?} in:\n{text}");
    }
    let page = metrics_page(http)?;
    for series in
        ["turnkv_curve_hit_ratio{namespace=", "turnkv_curve_found_ratio{", "turnkv_curve_knee_bytes{"]
    {
        ensure!(page.contains(series), "no {series} in:\n{page}");
    }
    Ok(())
}

fn metrics_page(address: std::net::SocketAddr) -> Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address)?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: turnkv\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

#[test]
fn a_trace_says_the_same_as_its_exact_curve() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let trace = folder.path().join("trace.jsonl.gz").display().to_string();
    let generated =
        turnkv(&["simulate", "--generate", "agentic", "--dram", "550", "--policy", "lru", "--save", &trace])?;
    ensure!(generated.status.success());
    let arguments =
        ["size", "--trace", &trace, "--bytes-per-token", "131072", "--dram", "550", "--exact", "--json"];
    let said = json(&turnkv(&arguments)?)?;
    let said = &said[0];
    ensure!(number(said, "error_points")? < 2.0, "{said}");
    ensure!(
        number(said, "page_bytes")? == 512.0 * 131_072.0
            && number(said, "dram_bytes")? == 550.0 * 512.0 * 131_072.0
    );
    ensure!((number(said, "hit_ratio")? - 0.433).abs() < 0.02, "the published figure of 550 blocks: {said}");
    ensure!((number(said, "hit_ratio_max")? - 0.534).abs() < 0.02, "the published infinite figure: {said}");
    ensure!(number(said, "knee_bytes")? > 0.0);
    Ok(())
}

#[test]
fn bad_input_is_said_in_one_line() -> Result<()> {
    let cases: [(&[&str], &str); 5] = [
        (&["size", "--address", "unix:/nonexistent.sock"], "no server answers"),
        (&["size", "--trace", "/nonexistent"], "--bytes-per-token"),
        (&["size", "--trace", "/nonexistent", "--bytes-per-token", "1"], "cannot open"),
        (&["size", "--gpu-price=-1"], "no number from 0"),
        (
            &["record", "/nonexistent/t.gz", "--namespace", "xyz", "--address", "unix:/nonexistent.sock"],
            "no server answers",
        ),
    ];
    for (arguments, wanted) in cases {
        let output = turnkv(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && said.contains(wanted), "{arguments:?} said {said:?}");
    }
    // A variable that is set for other commands is not in the way of a trace; without one it names the server.
    for (arguments, wanted) in [
        (&["size", "--trace", "/nonexistent", "--bytes-per-token", "1"][..], "cannot open"),
        (&["size"], "no server answers at unix:/nonexistent.sock"),
    ] {
        let mut command = Command::new(server_binary()?);
        let output = command.args(arguments).env("TURNKV_ADDRESS", "unix:/nonexistent.sock").output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(said.contains(wanted), "{arguments:?} said {said:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_plays_back_to_the_hits_that_were_seen() -> Result<()> {
    let server = Server::start(Setup { nvme_mib: 0, dram_mib: 64, ..Setup::default() })?;
    let address = server.address();
    let user = User::connect(&address, DataPlane::Shm, PAGE).await?;
    let folder = tempfile::tempdir()?;
    let trace = folder.path().join("live.jsonl.gz");
    let recording = start_recording(&address, &trace).await?;
    let (found, sent) = traffic(&user).await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let pid = rustix::process::Pid::from_raw(recording.id().try_into()?).context("pid 0")?;
    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    let output = recording.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success() && said.contains(" 0 calls dropped, 0 left out"), "{said}");
    ensure!(said.starts_with(&format!("{} requests", SESSIONS as usize * TURNS)), "{said}");

    let path = trace.display().to_string();
    let rows = json(&turnkv(&["simulate", &path, "--policy", "lru", "--dram", "1000", "--json", "-"])?)?;
    ensure!(number(&rows[0], "blocks")? == sent as f64, "{sent} pages were sent: {rows}");
    let hits = number(&rows[0], "hit_percent")? * sent as f64 / 100.0;
    ensure!((hits - found as f64).abs() < 0.01, "{found} pages were found, {hits} when played back");
    let curve = json(&turnkv(&["size", "--trace", &path, "--bytes-per-token", "4096", "--json"])?)?;
    ensure!((number(&curve[0], "hit_ratio_max")? - found as f64 / sent as f64).abs() < 1e-9, "{curve}");
    let text = std::fs::read(&trace)?;
    let first = chain(0, 1)[0];
    ensure!(!text.windows(8).any(|bytes| bytes == &first.0[..8]), "no hash of the pool is in the file");
    Ok(())
}

/// Starts `turnkv record` and waits until the server has a recording: a second one is refused then.
async fn start_recording(address: &str, trace: &Path) -> Result<Child> {
    let child = Command::new(server_binary()?)
        .args(["record", "--address", address])
        .arg(trace)
        .stdout(Stdio::piped())
        .spawn()?;
    for _ in 0..500 {
        if std::fs::metadata(trace).is_ok() {
            return Ok(child);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    anyhow::bail!("the recording did not begin")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_recording_at_a_time_and_one_that_nobody_reads_is_bounded() -> Result<()> {
    let server = Server::start(Setup { nvme_mib: 0, dram_mib: 64, ..Setup::default() })?;
    let uri = server.address();
    let channel = tonic::transport::Endpoint::from_shared(uri.clone())?.connect().await?;
    let mut admin = AdminClient::new(channel);
    let refused = admin.record(RecordRequest::default()).await;
    ensure!(refused.is_err_and(|status| status.message().contains("no namespace is open")));
    let user = User::connect(&uri, DataPlane::Shm, 4096).await?;
    let mut unread = admin.record(RecordRequest::default()).await?.into_inner();
    ensure!(unread.message().await?.context("a first message")?.page_tokens == 16);
    let second = admin.record(RecordRequest::default()).await;
    ensure!(second.is_err_and(|status| status.message().contains("one recording at a time")));
    // Nobody reads: the pool goes on, and what does not fit is counted.
    let hashes = chain(3, 100);
    // Several at a time: on a busy machine it is over before the pool ends a connection that nobody reads.
    for _ in 0..ASKED / 4 {
        let ask = || user.reload(&hashes);
        let asked = tokio::try_join!(ask(), ask(), ask(), ask())?;
        ensure!(asked.0.pages + asked.1.pages + asked.2.pages + asked.3.pages == 0);
    }
    let read = read_all(&mut unread).await?;
    user.reload(&hashes[..1]).await?;
    let told = unread.message().await?.context("the recording goes on")?.dropped;
    ensure!(told > 0 && read as u64 + told >= ASKED, "{read} calls read, {told} said to be dropped");
    drop(unread);
    let mut again = None;
    for _ in 0..200 {
        user.reload(&hashes[..1]).await?;
        if let Ok(stream) = admin.record(RecordRequest::default()).await {
            again = Some(stream.into_inner());
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    ensure!(again.is_some(), "the recording that was dropped made room");
    drop(again);
    user.client.open_namespace(namespace("another", PAGE)).await?;
    let which = admin.record(RecordRequest::default()).await;
    ensure!(which.is_err_and(|status| status.message().contains("2 namespaces are open: name one of")));
    let bad = SizeAdviceRequest { gpu_price_per_hour: f64::NAN, ..Default::default() };
    ensure!(admin.size_advice(bad).await.is_err_and(|status| status.message().contains("numbers from 0")));
    Ok(())
}

/// Reads what is there; returns how many calls.
async fn read_all(stream: &mut tonic::Streaming<RecordedCall>) -> Result<usize> {
    let mut calls = 0;
    while let Ok(message) = tokio::time::timeout(Duration::from_millis(500), stream.message()).await {
        message?.context("the recording ended")?;
        calls += 1;
    }
    Ok(calls)
}

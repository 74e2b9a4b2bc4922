//! TLS at the TCP port: who has no right certificate is refused in words, at both ends, and nothing of it stays; who has one is
//! served on, whatever others send and while the files change.

use anyhow::{Context, Result, bail, ensure};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use turnkv_client::{Error, ErrorKind, NamespaceSpec, OffloadOptions, TlsConfig};
use turnkv_tests::certs::{Authority, Certs, SERVER_NAME, Valid};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::secured::{PAGE, Place, SEEN_MAX, calling, client, is_gone, setup, user};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::workspace::server_binary;

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_says_who_may_do_what() -> Result<()> {
    let place = Place::start()?;
    let engine = place.engine().await?;
    engine.offload(&OffloadOptions::default(), &chain(1, 8)).await?;
    ensure!(engine.reload(&chain(1, 8)).await?.pages == 8);
    let denied = |error: Error| {
        ensure!(error.kind == ErrorKind::PermissionDenied, "{error:?}");
        Ok(error.message)
    };
    let other = NamespaceSpec { tenant: "other".to_owned(), ..namespace("test-model", PAGE) };
    denied(engine.client.open_namespace(other).await.err().context("another tenant's")?)?;
    let why = denied(engine.client.stats().await.err().context("an operator's verb")?)?;
    ensure!(why.contains("operator") && why.contains("engine/acme"), "{why}");
    let nobody = place.user(place.certs.client(&["spiffe://elsewhere/x"])?, "acme").await;
    let why = denied(nobody.err().context("granted nothing")?)?;
    ensure!(why.contains("granted is nothing"), "{why}");
    let operator = client(&place.address(), place.certs.client(&["turnkv://operator"])?)?;
    ensure!(operator.stats().await?.notes.is_empty(), "nothing to note");
    let days = place.series("turnkv_tls_expires_seconds")? / 86_400.0;
    ensure!(days > 365.0, "{days} days");
    ensure!(place.series("turnkv_tls_insecure_servers")? == 0.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_travel_over_rails_under_tls() -> Result<()> {
    let place = Place::start()?;
    let engine = place.engine().await?;
    let hashes = chain(9, 40);
    ensure!(engine.offload(&OffloadOptions::default(), &hashes).await?.stored == 40);
    ensure!(engine.reload(&hashes).await?.pages == 40, "and every byte is as it left");
    ensure!(engine.client.state().data_rails >= 1, "{:?}", engine.client.state());
    ensure!(place.series("turnkv_remote_rail_connections{fabric=\"framed\"}")? >= 1.0);
    // Of another tenant's client not even the number is of use: its pages would travel to both.
    let other = place.user(place.certs.client(&["turnkv://engine/other"])?, "other").await?;
    ensure!(other.reload(&hashes).await?.pages == 0, "a tenant's pages are its own");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wrong_certificate_is_refused_in_words_and_others_are_served() -> Result<()> {
    let place = Place::start()?;
    let engine = place.engine().await?;
    let (certs, foreign) = (&place.certs, Authority::new()?);
    let uris = ["turnkv://engine/acme"];
    let cases = [
        ("no_certificate", certs.stranger(), "was shown none"),
        ("time", certs.client_of(&certs.authority, &uris, Valid::Before)?, "out of its time"),
        (
            "time",
            certs.client_of(&certs.authority, &uris, Valid::Later)?,
            "refuses this client's certificate",
        ),
        ("authority", certs.client_of(&foreign, &uris, Valid::Now)?, "no authority that it knows"),
    ];
    for (reason, tls, words) in cases {
        let before = place.refused(reason)?;
        let error = place.user(tls, "acme").await.err().context("it was let in")?;
        ensure!(error.kind == ErrorKind::Unavailable && error.message.contains(words), "{reason}: {error:?}");
        place.counts(reason, before + 1.0).await?;
        engine.offload(&OffloadOptions::default(), &chain(2, 1)).await?;
    }
    certs.write("foreign.pem", &foreign.pem())?;
    let good = certs.client(&uris)?;
    let wrong_ca = TlsConfig { ca: Some(certs.path("foreign.pem")), ..good.clone() };
    let wrong_name = TlsConfig { server_name: Some("elsewhere.test".to_owned()), ..good.clone() };
    let missing = TlsConfig { ca: Some(certs.path("missing.pem")), ..good };
    for (tls, words) in
        [(wrong_ca, "not signed by an authority"), (wrong_name, "for another name"), (missing, "cannot read")]
    {
        let error = place.user(tls, "acme").await.err().context("it trusted the server")?;
        ensure!(error.kind == ErrorKind::Unavailable && error.message.contains(words), "{words}: {error:?}");
    }
    let log = place.server.log();
    for said in ["showed no certificate", "out of its time", "no authority of tls.client_ca"] {
        ensure!(log.contains(said), "{said} is not in {log}");
    }
    ensure!(!log.contains("PRIVATE KEY"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_removed_takes_its_connections_with_it() -> Result<()> {
    let place = Place::start()?;
    let (certs, other) = (&place.certs, Authority::new()?);
    certs.write("ca.pem", &format!("{}{}", certs.authority.pem(), other.pem()))?;
    certs.write("server-ca.pem", &certs.authority.pem())?;
    let of_other = certs.client_of(&other, &["turnkv://engine/acme"], Valid::Now)?;
    let until = Instant::now() + SEEN_MAX;
    let removed = loop {
        match place.user(of_other.clone(), "acme").await {
            Ok(user) => break user,
            Err(error) if Instant::now() > until => {
                bail!("the second authority is not taken over: {error:?}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (stays, staying) = calling(place.engine().await?, &stop);
    let (_, going) = calling(removed, &stop);
    tokio::time::sleep(Duration::from_millis(200)).await;
    ensure!(!going.is_finished(), "both are served");
    certs.write("ca.pem", &certs.authority.pem())?;
    let ended = tokio::time::timeout(SEEN_MAX, going).await.context("its connection goes on")??;
    let ended = ended.context("it stopped by itself")?;
    ensure!(is_gone(&ended), "{ended:?}");
    for door in ["grpc_tcp", "framed"] {
        let series = format!("turnkv_door_ended_total{{door=\"{door}\",cause=\"certificate\"}}");
        ensure!(place.series(&series)? >= 1.0, "{door}");
    }
    let refused = place.user(of_other, "acme").await.err().context("a new connection of it is taken")?;
    ensure!(refused.message.contains("no authority that it knows"), "{refused:?}");
    let before = stays.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensure!(stays.load(Ordering::Relaxed) > before, "the other one is served on");
    stop.store(true, Ordering::Relaxed);
    ensure!(staying.await?.is_none(), "and lost no call");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_change_under_load_and_no_call_is_lost() -> Result<()> {
    let place = Place::start()?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = Vec::new();
    for _ in 0..4 {
        callers.push(calling(place.engine().await?, &stop));
    }
    let reloads = |result: &str| place.series(&format!("turnkv_tls_reloads_total{{result=\"{result}\"}}"));
    let wait_for = async |result: &str, count: f64| -> Result<()> {
        let until = Instant::now() + SEEN_MAX;
        while reloads(result)? < count {
            ensure!(Instant::now() < until, "{result}: {} of {count}", reloads(result)?);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    for change in 1..=3 {
        place.certs.renew()?;
        wait_for("done", f64::from(change)).await?;
        place.engine().await?.reload(&chain(3, 1)).await?; // a new connection, with the new certificate
    }
    place.certs.write("server-key.pem", "no key\n")?;
    wait_for("kept", 1.0).await?;
    place.engine().await?.reload(&chain(3, 1)).await?; // with the one before
    ensure!(place.server.log().contains("the old ones stay in force"), "{}", place.server.log());
    place.certs.renew()?;
    wait_for("done", 4.0).await?;
    stop.store(true, Ordering::Relaxed);
    for (answered, caller) in callers {
        let lost = caller.await?;
        ensure!(lost.is_none() && answered.load(Ordering::Relaxed) > 20, "{lost:?}");
    }
    Ok(())
}

fn turnkv(arguments: &[&str], tls: Option<&TlsConfig>) -> Result<Output> {
    let mut command = Command::new(server_binary()?);
    command.args(arguments);
    let path = |path: &Option<std::path::PathBuf>| path.clone().unwrap_or_default();
    if let Some(tls) = tls {
        command.env("TURNKV_TLS_CA", path(&tls.ca)).env("TURNKV_TLS_CERT", path(&tls.cert));
        command.env("TURNKV_TLS_KEY", path(&tls.key));
        command.env("TURNKV_TLS_SERVER_NAME", tls.server_name.as_deref().unwrap_or_default());
    }
    Ok(command.output()?)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[test]
fn a_server_does_not_start_with_what_protects_nobody() -> Result<()> {
    let certs = Certs::new()?;
    let (old, old_key) = certs.authority.issue(&[SERVER_NAME], &[], Valid::Before)?;
    certs.write("old.pem", &old)?;
    certs.write("old-key.pem", &old_key)?;
    let (client, client_key) = certs.authority.issue(&[], &[], Valid::Now)?;
    certs.write("client.pem", &client)?;
    certs.write("client-key.pem", &client_key)?;
    let (good, path) = (certs.section(), certs.path("turnkv.toml"));
    let cases = [
        (String::new(), "0.0.0.0", "is not the loopback"),
        (good.replace("server.pem", "old.pem").replace("server-key", "old-key"), "127.0.0.1", "expired"),
        (good.replace("server-key", "old-key"), "127.0.0.1", "is not that of the certificate"),
        (good.replace("server.pem", "missing.pem"), "127.0.0.1", "cannot read"),
        (
            good.replace("server.pem", "client.pem").replace("server-key", "client-key"),
            "127.0.0.1",
            "lacks serverAuth",
        ),
        (good.replace("ca.pem", "server-key.pem"), "127.0.0.1", "no certificate of an authority"),
    ];
    for (section, host, words) in cases {
        let port = free_address()?.port();
        let socket = certs.path("t.sock").display().to_string();
        let text = format!(
            "listen = \"unix:{socket}\"\ntcp = \"{host}:{port}\"\n[dram]\nbytes = \"16MiB\"\n{section}"
        );
        std::fs::write(&path, text)?;
        let output = turnkv(&["serve", "--config", &path.display().to_string()], None)?;
        let said = said(&output);
        ensure!(!output.status.success() && said.contains(words), "{words}: {said}");
        ensure!(!said.contains("report this"), "it says what to do: {said}");
        ensure!(!said.contains("page memory is ready"), "it says so before it takes memory: {said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_tcp_off_the_loopback_is_said_wherever_somebody_looks() -> Result<()> {
    let (port, metrics) = (free_address()?.port(), free_address()?);
    let setup = Setup {
        tcp: Some(format!("0.0.0.0:{port}")),
        ..setup(metrics, metrics, "[tls]\ninsecure = true\n".to_owned())
    };
    let server = Server::start(setup)?;
    let address = format!("http://127.0.0.1:{port}");
    user(&address, TlsConfig::default(), "acme").await?;
    let refused =
        client(&address, TlsConfig::default())?.stats().await.err().context("plain TCP is no operator")?;
    ensure!(refused.kind == ErrorKind::PermissionDenied, "{refused:?}");
    let status = said(&turnkv(&["status", "--address", &server.address()], None)?);
    // Over a network it is no operator's command, and says so: it reached the server.
    let over_tcp = said(&turnkv(&["status", "--address", &format!("tcp://127.0.0.1:{port}")], None)?);
    ensure!(over_tcp.contains("needs the role operator"), "{over_tcp}");
    let words = format!("plain TCP is open at 0.0.0.0:{port} (insecure = true)");
    ensure!(status.contains(&words) && server.log().contains(&words), "{status}");
    ensure!(value(&get(metrics, "/metrics")?.1, "turnkv_tls_insecure_servers")? == 1.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_to_try_with_are_made_once_and_work() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let made = tempfile::tempdir()?;
    let dir = made.path().join("certs");
    let text = dir.display().to_string();
    let first = turnkv(
        &["certs", &text, "--server", "127.0.0.1", "pool.test", "--engine", "acme", "--operator"],
        None,
    )?;
    ensure!(first.status.success(), "{}", said(&first));
    for file in std::fs::read_dir(&dir)? {
        let file = file?;
        ensure!(file.metadata()?.permissions().mode() & 0o777 == 0o600, "{:?}", file.file_name());
    }
    let authority = std::fs::read(dir.join("ca.pem"))?;
    let again = turnkv(&["certs", &text, "--operator"], None)?;
    ensure!(!again.status.success() && said(&again).contains("nothing is overwritten"), "{}", said(&again));
    let more = turnkv(&["certs", &text, "--engine", "*", "a b"], None)?;
    ensure!(more.status.success() && dir.join("engine-a%20b.pem").exists(), "{}", said(&more));
    ensure!(std::fs::read(dir.join("ca.pem"))? == authority, "the authority stays");

    let at = |name: &str| dir.join(name);
    let file = |name: &str| at(name).display().to_string();
    let section = format!(
        "[tls]\ncert = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\n",
        file("server.pem"),
        file("server-key.pem"),
        file("ca.pem")
    );
    let (tcp, metrics) = (free_address()?, free_address()?);
    let _server = Server::start(setup(tcp, metrics, section))?;
    let of = |name: &str| TlsConfig {
        ca: Some(at("ca.pem")),
        cert: Some(at(&format!("{name}.pem"))),
        key: Some(at(&format!("{name}-key.pem"))),
        server_name: None,
    };
    let address = format!("tls://{tcp}");
    user(&address, of("engine-acme"), "acme").await?;
    user(&address, of("engine-all"), "whoever").await?;
    user(&address, of("engine-a%20b"), "a b").await?;
    let status =
        |tls: &TlsConfig| turnkv(&["status", "--interval-ms", "1", "--address", &address], Some(tls));
    let shown = status(&of("operator"))?;
    ensure!(shown.status.success() && said(&shown).contains("turnkv"), "{}", said(&shown));
    let denied = said(&status(&of("engine-acme"))?);
    ensure!(denied.contains("needs the role operator"), "{denied}");
    let stranger = said(&status(&TlsConfig { cert: None, key: None, ..of("operator") })?);
    ensure!(stranger.contains("was shown none") && stranger.contains("TURNKV_TLS_CERT"), "{stranger}");
    Ok(())
}

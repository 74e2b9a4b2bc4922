//! The catalog and the namespaces: a start needs neither to be as they were left. Whatever a configuration or a disk did to
//! them, the server comes up, and pages on NVMe are served as soon as their namespace is opened.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::Duration;
use turnkv_client::{DataPlane, EndTurn, ErrorKind, OffloadOptions};
use turnkv_tests::http::{free_address, get_soon, value};
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 64 << 10;
const PAGES: usize = 16;
const NAMESPACES_MAX: usize = 1024;

fn durable() -> OffloadOptions {
    OffloadOptions { durable: true, wait: Duration::from_secs(20), ..OffloadOptions::default() }
}

async fn user(server: &Server, page_bytes: u64) -> Result<User> {
    User::connect(&server.address(), DataPlane::Shm, page_bytes).await
}

async fn store(user: &User, seed: u64) -> Result<()> {
    let report = user.offload(&durable(), &chain(seed, PAGES)).await?;
    ensure!(report.durable && report.stored == PAGES, "{report:?}");
    Ok(())
}

async fn served(user: &User, seed: u64, server: &Server) -> Result<()> {
    let report = user.reload(&chain(seed, PAGES)).await?;
    ensure!(report.pages == PAGES, "{report:?}\n{}", server.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_namespace_more_than_the_limit_is_no_wall_and_stops_no_start() -> Result<()> {
    let mut server = Server::start(Setup::default())?;
    let first = user(&server, PAGE).await?;
    store(&first, 1).await?;
    for at in 1..NAMESPACES_MAX + 10 {
        first.client.open_namespace(namespace(&format!("model {at}"), PAGE)).await.context("no wall")?;
    }
    ensure!(first.client.stats().await?.namespaces == NAMESPACES_MAX as u64);
    served(&first, 1, &server).await?; // what holds pages is not what makes way for empty ones
    server.terminate()?;
    server.restart()?;
    let first = user(&server, PAGE).await?;
    served(&first, 1, &server).await?;
    ensure!(first.client.stats().await?.namespaces == NAMESPACES_MAX as u64);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_limit_with_all_in_use_a_call_is_refused_and_nothing_else() -> Result<()> {
    let limits = "namespaces_max = 2\n".to_owned();
    let mut server = Server::start(Setup { limits, ..Setup::default() })?;
    let user = user(&server, PAGE).await?;
    let other = user.client.open_namespace(namespace("other", PAGE)).await?;
    let other = User { client: user.client.clone(), namespace: other };
    for (user, seed) in [(&user, 1), (&other, 2)] {
        store(user, seed).await?;
    }
    for _ in 0..2 {
        let refused = user.client.open_namespace(namespace("third", PAGE)).await;
        let error = refused.err().context("both are in use")?;
        ensure!(error.kind == ErrorKind::Limit && error.to_string().contains("namespaces_max"), "{error}");
        server.kill()?;
        server.restart()?;
        served(&user, 1, &server).await?;
        served(&other, 2, &server).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slab_smaller_than_a_known_page_stops_no_start_and_costs_no_page() -> Result<()> {
    let large = 1536 << 10;
    let setup =
        |slab: &str| Setup { nvme_mib: 512, dram: format!("slab_bytes = \"{slab}\"\n"), ..Setup::default() };
    let mut server = Server::start(setup("2MiB"))?;
    let (small_pages, large_pages) = (user(&server, PAGE).await?, user(&server, large).await?);
    store(&small_pages, 1).await?;
    for page in 0..PAGES {
        large_pages.offload(&durable(), &chain(100 + page as u64, 1)).await?;
    }
    server.terminate()?;
    server.restart_with(setup("1MiB"))?;
    served(&small_pages, 1, &server).await?;
    ensure!(server.log().contains("a saved namespace is not opened"), "it is said: {}", server.log());
    let error = user(&server, large).await.err().context("it fits no slab")?;
    ensure!(error.to_string().contains("slab_bytes"), "{error:#}");
    server.terminate()?;
    server.restart_with(setup("2MiB"))?;
    for page in 0..PAGES {
        let report = large_pages.reload(&chain(100 + page as u64, 1)).await?;
        ensure!(report.pages == 1, "page {page} is lost: {}", server.log());
    }
    served(&small_pages, 1, &server).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_catalog_that_is_gone_or_damaged_costs_no_page() -> Result<()> {
    let mut server = Server::start(Setup::default())?;
    let user = user(&server, PAGE).await?;
    store(&user, 1).await?;
    store(&user, 2).await?;
    let catalog = server.nvme_dir().join("catalog.redb");
    let damage: [&dyn Fn() -> std::io::Result<()>; 5] = [
        &|| std::fs::remove_file(&catalog),
        &|| std::fs::write(&catalog, [0x5a; 100_000]),
        &|| std::fs::File::options().write(true).open(&catalog)?.set_len(5_000),
        &|| std::fs::remove_file(&catalog).and_then(|()| std::fs::create_dir(&catalog)),
        &|| {
            let mut bytes = std::fs::read(&catalog)?;
            bytes.iter_mut().skip(64).step_by(97).for_each(|byte| *byte ^= 0x10);
            std::fs::write(&catalog, bytes)
        },
    ];
    for (at, damage) in damage.iter().enumerate() {
        server.terminate()?;
        damage()?;
        server.restart().with_context(|| format!("damage {at}"))?;
        served(&user, 1, &server).await?;
        served(&user, 2, &server).await?;
    }
    ensure!(!server.log().contains("panicked"), "damage is one plain line: {}", server.log());
    let aside = std::fs::read_dir(server.nvme_dir())?.filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().contains("damaged"))
    });
    ensure!((1..=3).contains(&aside.count()), "a few are kept, not all");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_catalog_cut_to_nothing_is_begun_anew_and_that_is_said() -> Result<()> {
    let http = free_address()?;
    let mut server = Server::start(Setup { metrics: Some(http.to_string()), ..Setup::default() })?;
    store(&user(&server, PAGE).await?, 1).await?;
    let anew = |server: &Server| {
        anyhow::Ok((
            value(&get_soon(http, "/metrics")?.1, "turnkv_catalog_set_aside_total")?,
            server.log().contains("the catalog cannot be read"),
        ))
    };
    ensure!(anew(&server)? == (0.0, false), "the first one replaces none");
    server.kill()?;
    let file = server.nvme_dir().join("catalog.redb");
    std::fs::OpenOptions::new().write(true).open(&file)?.set_len(0).context("the catalog")?;
    server.restart()?;
    ensure!(anew(&server)? == (1.0, true), "{}", server.log());
    served(&user(&server, PAGE).await?, 1, &server).await
}

/// A server on a tier in a folder, with its catalog elsewhere.
fn beside(base: &Path, tier: &str) -> Setup {
    let nvme = format!("state_dir = \"{}\"\n", base.join("state").display());
    Setup { nvme_dir: Some(base.join(tier)), nvme, ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_catalog_is_of_one_tier_and_another_one_is_refused_with_both_named() -> Result<()> {
    let base = tempfile::tempdir()?;
    let mut server = Server::start(beside(base.path(), "a"))?;
    let kept = user(&server, PAGE).await?;
    store(&kept, 1).await?;
    kept.namespace.begin_turn("s").await?;
    let end = EndTurn { hashes: chain(1, PAGES), ..EndTurn::default() };
    kept.namespace.end_turn("s", &end).await?;
    drop(kept);
    server.terminate()?;
    let own = Setup { nvme_dir: Some(base.path().join("b")), ..Setup::default() };
    let mut other = Server::start(own)?;
    store(&user(&other, PAGE).await?, 2).await?;
    other.terminate()?;
    // One that holds pages, one that was never there.
    for tier in ["b", "c"] {
        let refused = server.restart_with(beside(base.path(), tier));
        let text = refused.err().context("it started on another tier")?.to_string();
        let said = text.lines().rev().take(3).collect::<String>();
        let (a, b) = (base.path().join("a"), base.path().join(tier));
        for part in [&*a.to_string_lossy(), &b.to_string_lossy(), "state_dir of its own"] {
            ensure!(said.contains(part), "{part} is not in: {text}");
        }
    }
    server.restart_with(beside(base.path(), "a"))?;
    let back = user(&server, PAGE).await?;
    served(&back, 1, &server).await?;
    let turn = back.namespace.begin_turn("s").await?;
    ensure!(turn.pages == PAGES, "its list is as it was: {turn:?}");
    drop(back);
    server.terminate()?;
    // The same folder begun anew, as after a change of the disk: it starts, and says whose the catalog was.
    std::fs::remove_dir_all(base.path().join("a"))?;
    server.restart_with(beside(base.path(), "a"))?;
    ensure!(server.log().contains("the catalog was of the NVMe tier"), "{}", server.log());
    store(&user(&server, PAGE).await?, 3).await?;
    server.kill()?;
    server.restart()?;
    served(&user(&server, PAGE).await?, 3, &server).await
}

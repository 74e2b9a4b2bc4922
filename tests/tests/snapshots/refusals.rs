//! What does not fit, is not there or is too much is refused with its reason, and nothing else is harmed.

use crate::support::{BUSY, Keeper, PAGE, Shelf, converse, is_refused, sessions, user};
use anyhow::{Context, Result, ensure};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, Dtype, NamespaceSpec, OffloadOptions};
use turnkv_proto::{ErrorKind, pack_hashes, wire};
use turnkv_tests::http::free_address;
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use wire::create_snapshot_request::What;

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_another_namespace_is_refused_and_the_field_named() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server()?;
    let (user, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    converse(&user, "talk", &chain(21, 5)).await?;
    let made = keeper.session(&user, "talk").await?;
    let own = namespace("test-model", PAGE);
    let others = [
        (
            NamespaceSpec { model: "other".to_owned(), ..own.clone() },
            "model is \"test-model\" in the snapshot",
        ),
        (NamespaceSpec { page_tokens: 32, ..own.clone() }, "page_tokens is 16 in the snapshot and 32"),
        (NamespaceSpec { opaque_shard_bytes: PAGE / 2, ..own.clone() }, "opaque_shard_bytes is 65536"),
        (own.clone().with_tp_size(2), "tp_size is 1 in the snapshot and 2"),
        (own.clone().with_salt([1]), "salt is "),
        (NamespaceSpec { dtype: Dtype::Bf16, ..own.clone() }, "dtype is \"u8\" in the snapshot and \"bf16\""),
    ];
    for (spec, words) in others {
        let id = spec.clone().check()?.id().0.to_vec();
        let wish =
            wire::RestoreSnapshotRequest { namespace: id.clone().into(), ..keeper.wish(&made.snapshot) };
        is_refused(keeper.restore(wish.clone()).await, ErrorKind::NamespaceUnknown, &["is not open"])?;
        user.client.open_namespace(spec).await?;
        is_refused(keeper.restore(wish).await, ErrorKind::Invalid, &["namespace: ", words])?;
    }
    let own_id = user.namespace.id().0.to_vec();
    let wish = wire::RestoreSnapshotRequest {
        namespace: own_id.into(),
        session: "again".to_owned(),
        ..keeper.wish(&made.snapshot)
    };
    keeper.restore(wish.clone()).await?;
    is_refused(keeper.restore(wish).await, ErrorKind::Invalid, &["session: again is there already"])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_said() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server()?;
    let (user, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let session = |name: &str| What::Session(name.to_owned());
    is_refused(keeper.create(&user, session("nobody")).await, ErrorKind::SessionUnknown, &[])?;
    user.namespace.begin_turn("empty").await?;
    is_refused(keeper.create(&user, session("empty")).await, ErrorKind::Invalid, &["nothing to capture"])?;
    let prefix = wire::SnapshotPrefix { hashes: pack_hashes(&chain(1, 3)).into(), name: "p".to_owned() };
    is_refused(
        keeper.create(&user, What::Prefix(prefix)).await,
        ErrorKind::Invalid,
        &["nothing to capture"],
    )?;
    is_refused(keeper.create(&user, What::Everything(false)).await, ErrorKind::Invalid, &["name what"])?;
    let nobody = "0".repeat(32);
    is_refused(keeper.describe(&nobody, "").await, ErrorKind::Invalid, &[&nobody, "is not there"])?;
    is_refused(keeper.restore(keeper.wish(&nobody)).await, ErrorKind::Invalid, &["is not there"])?;
    is_refused(keeper.restore(keeper.wish("x")).await, ErrorKind::Invalid, &["32 lowercase"])?;
    is_refused(keeper.delete(&nobody).await, ErrorKind::Invalid, &["is not there"])?;
    converse(&user, "talk", &chain(2, 4)).await?;
    let few = vec![wire::SequenceTokens { sequence: "talk".to_owned(), tokens: vec![1; 63] }];
    let made = keeper.create_with(&user, session("talk"), few).await;
    is_refused(made, ErrorKind::Invalid, &["63 ids", "64 tokens"])?;
    let made = keeper.session(&user, "talk").await?;
    is_refused(keeper.describe(&made.snapshot, "walk").await, ErrorKind::Invalid, &["none called \"walk\""])?;
    let wish = wire::RestoreSnapshotRequest { sequence: "walk".to_owned(), ..keeper.wish(&made.snapshot) };
    is_refused(keeper.restore(wish).await, ErrorKind::Invalid, &["none called \"walk\""])?;
    ensure!(sessions(&user).await? == ["empty", "talk"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_an_archive_says_so() -> Result<()> {
    let server = Server::start(Setup { nvme_mib: 0, ..Setup::default() })?;
    let (user, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    converse(&user, "talk", &chain(2, 4)).await?;
    let words = ["set archive.place"];
    is_refused(keeper.create(&user, What::Session("talk".to_owned())).await, ErrorKind::Invalid, &words)?;
    is_refused(keeper.list().await, ErrorKind::Invalid, &words)
}

/// An engine of one tenant sees, and harms, nothing of another's archive, whatever names it knows.
#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_snapshot_is_not_there() -> Result<()> {
    let shelf = Shelf::new()?;
    let tcp = free_address()?;
    let me = rustix::process::getuid().as_raw();
    let mut setup = Setup { tcp: Some(tcp.to_string()), nvme_mib: 0, ..shelf.setup("") };
    setup.sections += &format!("[access]\nplain = \"operator\"\n[access.users]\n{me} = \"engine/a\"\n");
    let server = Server::start(setup)?;
    let of = |tenant: &str| namespace("shared", PAGE).with_tenant(tenant);
    let mut operator = User::connect(&format!("http://{tcp}"), DataPlane::Inline, PAGE).await?;
    let mut all = Keeper::connect(&format!("http://{tcp}")).await?;
    let mut made = Vec::new();
    for tenant in ["a", "b"] {
        operator.namespace = operator.client.open_namespace(of(tenant)).await?;
        converse(&operator, "talk", &chain(5, 6)).await?;
        made.push(all.session(&operator, "talk").await?);
    }
    let mut engine = Keeper::connect(&server.address()).await?;
    engine.tenant = "a".to_owned();
    ensure!(engine.list().await?.total == 1, "its own only");
    engine.describe(&made[0].snapshot, "").await?;
    let other = &made[1].snapshot;
    is_refused(engine.describe(other, "").await, ErrorKind::Invalid, &["is not there"])?;
    is_refused(engine.restore(engine.wish(other)).await, ErrorKind::Invalid, &["is not there"])?;
    is_refused(engine.delete(other).await, ErrorKind::Invalid, &["is not there"])?;
    engine.tenant = "b".to_owned();
    let denied = ErrorKind::PermissionDenied;
    is_refused(engine.list().await, denied, &["another tenant"])?;
    is_refused(engine.restore(engine.wish(other)).await, denied, &["another tenant"])?;
    is_refused(engine.delete(other).await, denied, &["another tenant"])?;
    is_refused(engine.collect().await, denied, &["another tenant"])?;
    engine.tenant = "a".to_owned();
    let export = wire::ExportSnapshotRequest { tenant: "a".to_owned(), ..Default::default() };
    is_refused(engine.client.clone().export(export).await, denied, &["role operator"])?;
    all.tenant = "b".to_owned();
    ensure!(all.verify(other).await?.faults_found == 0, "an operator reaches it, and it is whole");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn more_operations_than_may_run_are_refused() -> Result<()> {
    let shelf = Shelf::new()?;
    // A store that takes connections and never answers keeps an operation for as long as one request may take.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let endpoint = format!("http://{}", silent.local_addr()?);
    let setup = s3(&shelf, &endpoint, "operations_max = 1\nrequest_ms = 4000\nretries_max = 0\n");
    let server = Server::start(setup)?;
    let (user, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    converse(&user, "talk", &chain(7, 8)).await?;
    let talk = || What::Session("talk".to_owned());
    let slow = {
        let (keeper, namespace) = (keeper.clone(), user.namespace.id().0.to_vec());
        tokio::spawn(async move {
            let request = wire::CreateSnapshotRequest {
                namespace: namespace.into(),
                what: Some(talk()),
                tokens: Vec::new(),
            };
            let mut answers = keeper.client.clone().create(request).await?.into_inner();
            while answers.message().await?.is_some() {}
            Ok::<(), tonic::Status>(())
        })
    };
    // It has the turn by then, and for seconds more.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let began = Instant::now();
    loop {
        let refused = keeper.create(&user, talk()).await;
        let words = refused.as_ref().err().map(|status| status.message().to_owned()).unwrap_or_default();
        if words.contains("archive.operations_max") {
            is_refused(refused, BUSY, &["1 snapshot operations", "try again later"])?;
            break;
        }
        ensure!(began.elapsed() < Duration::from_secs(10), "never refused: {words}");
    }
    // No turn waits for the store.
    for turn in 0..50 {
        let began = Instant::now();
        ensure!(user.namespace.lookup(&chain(7, 8)).await? == 8);
        ensure!(user.reload(&chain(7, 8)).await?.pages == 8);
        ensure!(began.elapsed() < Duration::from_secs(2), "turn {turn} took {:?}", began.elapsed());
    }
    is_refused(slow.await?, BUSY, &["unreachable", "try again later"])?;
    drop(silent);
    Ok(())
}

/// A setup whose archive is in a bucket at this address.
fn s3(shelf: &Shelf, endpoint: &str, keys: &str) -> Setup {
    let sections = format!(
        "[archive]\nplace = \"s3://bucket/some/prefix\"\nendpoint = \"{endpoint}\"\nregion = \"r\"\n{keys}"
    );
    let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let environment = keys.map(|key| (key, "trial".to_owned())).to_vec();
    Setup { sections, environment, ..shelf.setup("") }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_there_declines_and_harms_nothing() -> Result<()> {
    let shelf = Shelf::new()?;
    let file = shelf.exports().join("a-file");
    std::fs::write(&file, b"no directory")?;
    let nobody = format!("http://{}", free_address()?);
    let in_a_file = format!("[archive]\nplace = \"{}/archive\"\n", file.display());
    let nowhere = "[archive]\nplace = \"/proc/turnkv-archive\"\n".to_owned();
    for setup in [
        s3(&shelf, &nobody, "request_ms = 1000\nretries_max = 0\n"),
        Setup { sections: in_a_file, ..shelf.setup("") },
        Setup { sections: nowhere, ..shelf.setup("") },
    ] {
        let server = Server::start(setup)?;
        let (user, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
        converse(&user, "talk", &chain(7, 8)).await?;
        let made = keeper.create(&user, What::Session("talk".to_owned())).await;
        let status = made.err().context("a snapshot nowhere")?;
        let error = turnkv_proto::Error::from_status(&status).context("an error of ours")?;
        ensure!(matches!(error.kind, ErrorKind::Busy { .. } | ErrorKind::Internal), "{error:?}");
        ensure!(error.message.contains("store"), "{error:?}");
        ensure!(keeper.list().await.is_err());
        ensure!(user.reload(&chain(7, 8)).await?.pages == 8);
        ensure!(user.offload(&OffloadOptions::default(), &chain(8, 3)).await?.stored == 3);
        ensure!(user.client.stats().await?.leases == 0);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_without_room_says_so_and_makes_no_session() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server()?;
    let (first, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    converse(&first, "talk", &chain(9, 400)).await?;
    let made = keeper.session(&first, "talk").await?;
    drop(server);
    // 400 pages of 64 KiB are 25 MiB.
    let server = Server::start(Setup { dram_mib: 16, nvme_mib: 0, ..shelf.setup("") })?;
    let (second, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    is_refused(keeper.restore(keeper.wish(&made.snapshot)).await, ErrorKind::Limit, &["room"])?;
    ensure!(sessions(&second).await?.is_empty());
    ensure!(second.client.stats().await?.leases == 0);
    ensure!(second.offload(&OffloadOptions::default(), &chain(10, 3)).await?.stored == 3, "it goes on");
    Ok(())
}

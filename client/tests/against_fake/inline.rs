//! The same verbs with pages in gRPC streams, and the session verbs.

use crate::fake::{Fake, PAGE_BYTES, chain, eventually_async, open, spec};
use std::sync::atomic::Ordering;
use std::time::Duration;
use turnkv_client::{
    BlockHash, Client, ClientConfig, DataPlane, Decline, EndTurn, EngineState, ErrorKind, MissCause,
    OffloadOptions, PageSource, PageTarget, PinFor, ReloadOptions,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_in_comes_out() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Inline).await;
    let (hashes, pages) = chain(7, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    let options = OffloadOptions { durable: true, ..OffloadOptions::default() };
    let report = namespace.offload(&options, &hashes[..6], &sources[..6]).await.unwrap();
    assert_eq!((report.stored, report.declined, report.durable), (6, 0, true));
    fake.core.script.no_space.store(1, Ordering::SeqCst);
    let report = namespace.offload(&options, &hashes, &sources).await.unwrap();
    assert_eq!((report.present, report.first_decline), (6, Some(Decline::NoSpace)));
    fake.core.script.covered_max.store(4, Ordering::SeqCst);
    let mut back = vec![vec![0; PAGE_BYTES]; 7];
    let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
    let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await.unwrap();
    assert_eq!((report.pages, report.miss), (6, Some(MissCause::Absent)));
    assert_eq!(back[..6], pages[..6]);
    assert_eq!(namespace.lookup(&hashes).await.unwrap(), 6);
    assert_eq!(fake.core.accepted.load(Ordering::SeqCst), 0, "nothing went to the local socket");
    let error = namespace.lease(&ReloadOptions::default(), &hashes).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_on_the_way_is_a_miss() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Inline).await;
    let (hashes, pages) = chain(2, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
    fake.core.slot(fake.core.pool.lock().unwrap().pages[&hashes[1]].0).claim().unwrap().fill_at(9, b"x");
    let mut back = vec![vec![0; PAGE_BYTES]; 2];
    let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
    let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await.unwrap();
    assert_eq!((report.pages, report.miss), (1, Some(MissCause::Checksum)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_local_socket_auto_goes_inline() {
    let fake = Fake::start();
    std::fs::remove_file(fake.dir.join("turnkv.sock.local")).unwrap();
    let (_client, namespace) = open(&fake, DataPlane::Auto).await;
    let (hashes, pages) = chain(1, 1);
    let report = namespace
        .offload(&OffloadOptions::default(), &hashes, &[PageSource::Bytes(&pages[0])])
        .await
        .unwrap();
    assert_eq!(report.stored, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offload_dropped_half_way_leaves_no_lease() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Inline).await;
    let (hashes, pages) = chain(8, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    for polls in 1..200 {
        if crate::cancel::drop_after(polls, namespace.offload(&OffloadOptions::default(), &hashes, &sources))
            .await
        {
            break;
        }
        eventually_async("the lease ends", || fake.leases() == 0).await;
    }
    assert_eq!(namespace.lookup(&hashes).await.unwrap(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_speak_plainly() {
    let mut fake = Fake::start();
    let (client, namespace) = open(&fake, DataPlane::Inline).await;
    fake.restart(true); // and the namespace is opened again by itself
    let begun = namespace.begin_turn("agent 1").await.unwrap();
    assert_eq!((begun.turn, begun.pages, begun.dram, begun.tail), (1, 5, 4, Some((BlockHash([9; 32]), 3))));
    assert_eq!(fake.core.opens.load(Ordering::SeqCst), 2);
    let end = EndTurn { keep: 5, hashes: chain(2, 1).0, ..EndTurn::default() };
    assert_eq!(namespace.end_turn("agent 1", &end).await.unwrap(), 7);
    assert_eq!(namespace.supersede("agent 1", 3).await.unwrap(), 3);
    namespace.close("agent 1").await.unwrap();
    assert_eq!(namespace.fork("a", "b", None).await.unwrap_err().kind, ErrorKind::SessionUnknown);
    assert_eq!(namespace.fork("a", "b", Some(0)).await.unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(namespace.begin_turn("").await.unwrap_err().kind, ErrorKind::Invalid);
    let busy = namespace.prefetch("agent 1").await.unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Busy { retry_after_ms: 40 });
    let detail = namespace.describe_session("agent 1").await.unwrap();
    assert_eq!((detail.info.pages, detail.dram_pages, detail.engine.as_deref()), (5, 4, Some("gpu-3")));
    let pinned = namespace.pin(&chain(2, 1).0, PinFor::ms(0)).await.unwrap();
    assert_eq!((pinned.pages, pinned.pin, pinned.ends_in_ms), (2, BlockHash([8; 32]), 60_000));
    assert!(namespace.unpin(&pinned.pin).await.unwrap());
    assert!(!namespace.unpin(&BlockHash([7; 32])).await.unwrap());
    let engine = |name: &str| EngineState { name: name.to_owned(), used_pages: 3, ..EngineState::default() };
    let route = namespace.route(Some("agent 1"), &[], &[engine("a"), engine("b")]).await.unwrap();
    let names: Vec<&str> = route.choices.iter().map(|choice| choice.name.as_str()).collect();
    assert_eq!((names, route.choices[0].held_pages, route.pool_pages), (vec!["b", "a"], 3, 6));
    let listed = client.sessions(None, 0).await.unwrap();
    assert_eq!((listed.total, listed.sessions[0].turn), (7, 2));
    assert_eq!(client.stats().await.unwrap_err().kind, ErrorKind::Internal, "the fake serves no Admin");
}

#[tokio::test]
async fn a_host_that_is_not_there_is_unavailable() {
    let config = ClientConfig { connect_ms: 50, call_ms: 500, ..ClientConfig::at("http://127.0.0.1:1") };
    let client = Client::new(config).unwrap();
    let begun = std::time::Instant::now();
    assert_eq!(client.open_namespace(spec()).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert!(begun.elapsed() < Duration::from_millis(500));
}

//! Calls that move several shards of their pages: counted in whole pages, on both data planes.

use crate::fake::{Fake, PAGE_BYTES, SLOTS, eventually_async, spec};
use std::sync::atomic::Ordering;
use turnkv_client::{
    BlockHash, Client, ClientConfig, DataPlane, Decline, ErrorKind, MissCause, Namespace, OffloadOptions,
    PageSource, PageTarget, ReloadOptions,
};

/// Shards of a page here.
const WHOLE: u16 = 4;
const PLANES: [DataPlane; 2] = [DataPlane::Shm, DataPlane::Inline];

async fn open(fake: &Fake, plane: DataPlane) -> (Client, Namespace) {
    let client = Client::new(ClientConfig { data_plane: plane, ..fake.config() }).unwrap();
    let namespace = client.open_namespace(spec().with_tp_size(WHOLE.into())).await.unwrap();
    (client, namespace)
}

fn chain(pages: usize) -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::new();
    for page in 0..pages {
        hashes.push(BlockHash::chain(hashes.last(), &[7, page as u32]));
    }
    hashes
}

/// What the shards of some pages hold, position by position.
fn bytes(pages: usize, first: u16, count: u16) -> Vec<Vec<u8>> {
    let shard = |page: usize, shard: u16| {
        (0..PAGE_BYTES).map(|at| (at * 7 + page * 13 + usize::from(shard) * 101) as u8).collect()
    };
    (0..pages).flat_map(|page| (first..first + count).map(move |at| shard(page, at))).collect()
}

async fn offload(
    namespace: &Namespace,
    pages: usize,
    shard: u16,
    shards: u16,
) -> turnkv_client::Result<turnkv_client::OffloadReport> {
    let (bytes, options) =
        (bytes(pages, shard, shards.max(1)), OffloadOptions { shard, shards, ..Default::default() });
    let sources: Vec<PageSource<'_>> = bytes.iter().map(|page| PageSource::Bytes(page)).collect();
    namespace.offload(&options, &chain(pages), &sources).await
}

async fn reload(
    namespace: &Namespace,
    pages: usize,
    shard: u16,
    shards: u16,
) -> (turnkv_client::ReloadReport, Vec<Vec<u8>>) {
    let options = ReloadOptions { shard, shards, ..Default::default() };
    let mut back = vec![vec![0xee; PAGE_BYTES]; pages * usize::from(shards.max(1))];
    let mut targets: Vec<PageTarget<'_>> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
    (namespace.reload(&options, &chain(pages), &mut targets).await.unwrap(), back)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_went_in_two_parts_comes_out_in_one_or_four() {
    for plane in PLANES {
        let fake = Fake::start();
        let (_client, namespace) = open(&fake, plane).await;
        for first in [0, 2] {
            let report = offload(&namespace, 5, first, 2).await.unwrap();
            assert_eq!((report.stored, report.present, report.declined), (5, 0, 0), "whole pages");
        }
        let again = offload(&namespace, 6, 1, 3).await.unwrap();
        assert_eq!((again.stored, again.present), (1, 5));
        let (report, back) = reload(&namespace, 5, 0, 4).await;
        assert_eq!((report.pages, report.miss), (5, None));
        assert_eq!(report.from_nvme, 5, "a part of each came from there");
        assert_eq!(back, bytes(5, 0, 4));
        for shard in 0..WHOLE {
            let (report, back) = reload(&namespace, 5, shard, 0).await;
            assert_eq!((report.pages, report.from_dram + report.from_nvme), (5, 5));
            assert_eq!(back, bytes(5, shard, 1), "0 is one");
        }
        let (report, _) = reload(&namespace, 6, 0, 4).await;
        assert_eq!((report.pages, report.miss), (5, Some(MissCause::Absent)), "page 5 lacks a shard");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_over_all_shards_takes_the_frames_of_one_over_one() {
    for plane in PLANES {
        let begun = |fake: &Fake| fake.core.begun.load(Ordering::SeqCst);
        let pages = SLOTS / usize::from(WHOLE);
        let (one, all) = (Fake::start(), Fake::start());
        let (_client, narrow) = open(&one, plane).await;
        let (_other, wide) = open(&all, plane).await;
        assert_eq!(offload(&narrow, pages, 0, 1).await.unwrap().stored, pages);
        assert_eq!(offload(&wide, pages, 0, WHOLE).await.unwrap().stored, pages);
        assert_eq!(reload(&narrow, pages, 0, 1).await.0.pages, pages);
        assert_eq!(reload(&wide, pages, 0, WHOLE).await.0.pages, pages);
        assert_eq!((begun(&one), begun(&all)), (2, 2), "one offload and one reload");
        assert_eq!(all.core.pool.lock().unwrap().committed, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_which_a_shard_finds_no_room_is_not_stored() {
    for plane in PLANES {
        let fake = Fake::start();
        let (_client, namespace) = open(&fake, plane).await;
        // 64 slots: 21 pages of three shards, and one of a 22nd, which is given back.
        let report = offload(&namespace, 30, 0, 3).await.unwrap();
        assert_eq!((report.stored, report.declined, report.first_decline), (21, 9, Some(Decline::NoSpace)));
        assert_eq!(fake.core.pool.lock().unwrap().pages.len(), 63);
        eventually_async("leases end", || fake.leases() == 0).await;
        let nothing = offload(&namespace, 22, 0, 3).await.unwrap();
        assert_eq!((nothing.stored, nothing.present, nothing.declined), (0, 21, 1));
        eventually_async("what was granted in vain is given back", || fake.leases() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_that_end_in_the_middle_of_a_page_are_asked_for_again_from_its_beginning() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    offload(&namespace, 6, 0, 4).await.unwrap();
    fake.core.script.covered_max.store(10, Ordering::SeqCst);
    let (report, back) = reload(&namespace, 6, 0, 4).await;
    assert_eq!((report.pages, report.miss), (6, None));
    assert_eq!(back, bytes(6, 0, 4));
    fake.core.script.covered_max.store(3, Ordering::SeqCst);
    let (report, _) = reload(&namespace, 6, 0, 4).await;
    assert_eq!((report.pages, report.miss), (0, Some(MissCause::Busy)), "not asked for for ever");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_does_not_verify_is_a_miss_of_its_page() {
    for plane in PLANES {
        let fake = Fake::start();
        let (_client, namespace) = open(&fake, plane).await;
        offload(&namespace, 3, 0, 4).await.unwrap();
        let mut name = chain(3)[1];
        name.0[0] ^= 2;
        fake.core.slot(fake.core.pool.lock().unwrap().pages[&name].0).claim().unwrap().fill_at(77, b"x");
        let (report, _) = reload(&namespace, 3, 0, 4).await;
        assert_eq!((report.pages, report.miss), (1, Some(MissCause::Checksum)));
        if plane == DataPlane::Shm {
            eventually_async("told by its position", || fake.core.pool.lock().unwrap().corrupt == [6]).await;
        }
        assert_eq!(reload(&namespace, 3, 0, 2).await.0.pages, 3, "the others are well");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_on_whole_pages_by_their_positions() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    offload(&namespace, 2, 0, 4).await.unwrap();
    offload(&namespace, 3, 0, 2).await.unwrap();
    let options = ReloadOptions { shards: 4, ..ReloadOptions::default() };
    let lease = namespace.lease(&options, &chain(3)).await.unwrap();
    assert_eq!((lease.len(), lease.miss()), (8, Some(MissCause::Absent)), "page 2 has two of four");
    for (position, expected) in bytes(2, 0, 4).iter().enumerate() {
        assert_eq!(lease.page(position).map(|page| page.to_vec()).as_deref(), Some(&expected[..]));
        assert!(lease.verify(position));
    }
    lease.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_make_no_sense_are_refused_in_one_sentence() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let hashes = chain(2);
    let bytes = bytes(2, 0, 4);
    let refused = async |shard: u16, shards: u16, given: usize| {
        let sources: Vec<PageSource<'_>> =
            bytes[..given].iter().map(|page| PageSource::Bytes(page)).collect();
        let options = OffloadOptions { shard, shards, ..Default::default() };
        let error = namespace.offload(&options, &hashes, &sources).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        error.to_string()
    };
    let text = refused(0, 4, 2).await;
    assert!(
        text.contains("2 pieces of memory for 2 hashes: with 4 shards of each page moved it takes 8"),
        "{text}"
    );
    let text = refused(0, 0, 4).await;
    assert!(text.contains("4 pages for 2 hashes"), "{text}");
    let text = refused(2, 3, 6).await;
    assert!(text.contains("3 shards from shard 2 on, of a namespace with 4 shards"), "{text}");
    let text = refused(u16::MAX, u16::MAX, 8).await;
    assert!(text.contains("of a namespace with 4 shards"), "{text}");
    let wide = ReloadOptions { shard: 3, shards: 2, ..Default::default() };
    assert_eq!(namespace.lease(&wide, &hashes).await.unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(fake.core.begun.load(Ordering::SeqCst), 0);
}

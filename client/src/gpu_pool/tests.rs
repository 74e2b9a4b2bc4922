//! The pool against a plain map, and what must not happen to pages that somebody uses.

use super::*;
use turnkv_transfer::device::{DeviceBuffer, DeviceOptions, HostControl, HostOptions, Priority, SlotPage};
use turnkv_transfer::{HugePages, Region, RegionOptions};

const PAGE: usize = 4096;
const PLACES: usize = 12;
const ENGINE_PAGES: usize = 16;

struct Rig {
    pool: GpuPagePool,
    device: Device,
    control: HostControl,
    /// The engine's own pages.
    blocks: Arc<DeviceBuffer>,
    window: Arc<Region>,
}

fn rig(seed: u64) -> Rig {
    let control = HostControl::default();
    let delay_max = std::time::Duration::from_micros(100);
    let device = DeviceOptions { staging_bytes: 1 << 20, ..DeviceOptions::default() };
    let options = HostOptions {
        strict: true,
        control: control.clone(),
        delay_max,
        seed,
        device,
        ..HostOptions::default()
    };
    let device = Device::host(options).unwrap();
    let pool = GpuPagePool::new(&device, PAGE, PLACES).unwrap();
    let blocks = device.allocate(ENGINE_PAGES * PAGE).unwrap();
    let options = RegionOptions {
        bytes: PAGE,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "test".to_owned(),
    };
    let (window, _) = Region::create(&options).unwrap();
    Rig { pool, device, control, blocks, window }
}

impl Rig {
    fn block(&self, block: usize) -> DevicePlan {
        // In two pieces, the second half first in memory, so that an order that is mixed up shows.
        let at = block * PAGE;
        self.blocks.plan(&[(at + PAGE / 2, PAGE / 2), (at, PAGE / 2)]).unwrap()
    }

    async fn write(&self, plan: &DevicePlan, bytes: &[u8]) {
        let slot = self.window.slot(0, PAGE).unwrap();
        slot.claim().unwrap().fill(bytes);
        let page = vec![SlotPage { slot: slot.into(), plan: plan.clone() }];
        self.device.drain(page, None, 0, false).unwrap().landed().await.unwrap();
    }

    async fn read(&self, plan: &DevicePlan) -> Vec<u8> {
        let slot = self.window.slot(0, PAGE).unwrap();
        let page = vec![SlotPage { slot: slot.clone().into(), plan: plan.clone() }];
        self.device.fill(page, None).unwrap().landed().await.unwrap();
        slot.page().to_vec()
    }

    async fn put(&self, hashes: &[BlockHash]) -> usize {
        self.put_behind(None, hashes).await
    }

    async fn put_behind(&self, parent: Option<&BlockHash>, hashes: &[BlockHash]) -> usize {
        let mut plans = Vec::new();
        for (block, hash) in hashes.iter().enumerate() {
            self.write(&self.block(block), &bytes(hash)).await;
            plans.push(self.block(block));
        }
        self.pool.put(parent, hashes, &plans, None).await.unwrap()
    }

    /// Gets pages, and checks that those that came are right and that nothing else was touched.
    async fn get(&self, hashes: &[BlockHash]) -> usize {
        let plans: Vec<DevicePlan> = (0..hashes.len()).map(|block| self.block(block)).collect();
        for plan in &plans {
            self.write(plan, &[0xEE; PAGE]).await;
        }
        let hit = self.pool.get(hashes, &plans, DeviceOrder::default()).await.unwrap();
        hit.finished().await.unwrap();
        for (number, (hash, plan)) in hashes.iter().zip(&plans).enumerate() {
            let expected = if number < hit.pages() { bytes(hash) } else { vec![0xEE; PAGE] };
            assert!(self.read(plan).await == expected, "page {number} of {}", hit.pages());
        }
        hit.pages()
    }

    fn check(&self) {
        self.pool.inner.index.lock().check();
        assert_eq!(self.control.faults(), Vec::<String>::new());
    }
}

fn bytes(hash: &BlockHash) -> Vec<u8> {
    (0..PAGE).map(|at| hash.0[at % 32] ^ (at / 32) as u8).collect()
}

/// A conversation's pages: the first `shared` of them are everybody's.
fn chain(conversation: u32, shared: usize, pages: usize) -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::new();
    for page in 0..pages {
        let owner = if page < shared { 0 } else { conversation };
        hashes.push(BlockHash::chain(hashes.last(), &[owner, page as u32]));
    }
    hashes
}

#[tokio::test]
async fn what_comes_out_is_what_went_in_whatever_gave_way() {
    for seed in 1..=3u64 {
        let rig = rig(seed);
        let mut state = seed;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut hits, mut views) = (0, Vec::new());
        for _ in 0..150 {
            let hashes = chain(next(5) as u32 + 1, 2, next(8) as usize + 1);
            match next(8) {
                0..=2 => {
                    let kept = rig.put(&hashes).await;
                    assert!(kept <= hashes.len() && kept <= PLACES);
                    assert!(
                        kept == hashes.len() || !views.is_empty(),
                        "only views keep a page from giving way"
                    );
                }
                3..=5 => hits += rig.get(&hashes).await,
                6 => rig.pool.retire(&hashes),
                _ if views.len() < 3 => views.extend(rig.pool.view(&hashes[0])),
                _ => views.clear(),
            }
            rig.check();
        }
        let stats = rig.pool.stats();
        assert!(hits > 100 && stats.evicted > 20, "a test of nothing: {hits} {stats:?}");
        assert_eq!(stats.hits, hits as u64);
    }
}

#[tokio::test]
async fn the_session_that_waited_longest_goes_tail_first_and_shared_pages_last() {
    let rig = rig(1);
    let (old, young) = (chain(1, 2, 6), chain(2, 2, 6));
    assert_eq!((rig.put(&old).await, rig.put(&young).await), (6, 6));
    assert_eq!(rig.pool.stats().pages, 10, "two pages are shared");
    assert_eq!(rig.put(&chain(3, 0, 5)).await, 5);
    assert_eq!((rig.pool.lookup(&old), rig.pool.lookup(&young)), (3, 6), "the older one gave its tail");
    rig.get(&old).await;
    assert_eq!(rig.put(&chain(4, 0, 4)).await, 4);
    assert_eq!(
        (rig.pool.lookup(&old), rig.pool.lookup(&young)),
        (3, 2),
        "it was used, now the other one goes"
    );
    rig.pool.retire(&chain(4, 0, 4));
    assert_eq!(rig.put(&chain(5, 0, 3)).await, 3);
    assert_eq!(rig.pool.lookup(&chain(4, 0, 4)), 1, "what will not go on goes first");
    assert_eq!(rig.pool.lookup(&old), 3);
    rig.check();
}

#[tokio::test]
async fn a_page_that_is_looked_at_stays_and_is_where_the_view_says() {
    let rig = rig(2);
    let seen = chain(1, 0, 2);
    rig.put(&seen).await;
    let view = rig.pool.view(&seen[1]).unwrap();
    assert_eq!(view.layer(3, 8).unwrap(), (view.address() + 3 * 512, 512));
    assert!(view.layer(8, 8).is_err() && view.layer(0, 3).is_err());
    for conversation in 10..20 {
        rig.put(&chain(conversation, 0, 5)).await;
    }
    assert_eq!(rig.pool.lookup(&seen), 2, "neither it nor what it hangs on gave way");
    let engine = rig.device.driver().new_stream(Priority::Low).unwrap();
    rig.control.hold(engine);
    rig.device.mark(engine).unwrap();
    view.end_after(engine).unwrap();
    for conversation in 20..30 {
        rig.put(&chain(conversation, 0, 5)).await;
    }
    assert_eq!(rig.pool.lookup(&seen), 2, "the engine's work on it is not done");
    rig.control.let_go();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while rig.pool.stats().pinned > 0 {
        assert!(std::time::Instant::now() < deadline, "the view never ended");
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    rig.put(&chain(40, 0, 12)).await;
    assert_eq!(rig.pool.lookup(&seen), 0);
    rig.check();
}

/// A tail of two rows of 256 bytes, to which a third is added; a fork that uses it as it was keeps it.
#[tokio::test]
async fn a_tail_grows_in_place_or_as_a_copy_where_it_is_used() {
    let rig = rig(3);
    let hashes = chain(1, 0, 3);
    let [tail, longer, whole] = [hashes[0], hashes[1], hashes[2]];
    rig.write(&rig.block(0), &bytes(&whole)).await;
    let part =
        |from: usize, to: usize| rig.blocks.page(PAGE, PAGE, std::slice::from_ref(&(from..to))).unwrap();
    rig.write(&part(0, PAGE), &bytes(&whole)).await;
    assert_eq!(rig.pool.put(None, &[tail], &[part(0, 512)], None).await.unwrap(), 1);
    let rows = rig.blocks.plan(&[(PAGE + 512, 256)]).unwrap();
    assert!(rig.pool.append(&tail, longer, &[(512, 256)], &rows, None).await.unwrap());
    assert_eq!((rig.pool.lookup(&[tail]), rig.pool.lookup(&[longer])), (0, 1), "in place: the name changed");
    assert_eq!(rig.pool.stats().pages, 1);
    let order = DeviceOrder::default();
    let all = rig.pool.get(&[longer], &[part(0, PAGE)], order).await.unwrap();
    assert_eq!(all.pages(), 0, "a page of three rows is no whole page");
    let view = rig.pool.view(&longer).unwrap();
    let rest = rig.blocks.plan(&[(PAGE + 768, PAGE - 768)]).unwrap();
    assert!(rig.pool.append(&longer, whole, &[(768, PAGE - 768)], &rest, None).await.unwrap());
    assert_eq!((rig.pool.lookup(&[longer]), rig.pool.lookup(&[whole])), (1, 1), "a copy: it is looked at");
    drop(view);
    assert_eq!(rig.get(&[whole]).await, 1, "row by row, the page that was meant");
    assert!(!rig.pool.append(&tail, chain(9, 0, 1)[0], &[(0, 8)], &rows, None).await.is_ok_and(|done| done));
    assert!(rig.pool.append(&whole, tail, &[(PAGE - 8, 16)], &rows, None).await.is_err(), "past the end");
    rig.check();
}

#[tokio::test]
async fn a_pool_that_does_not_fit_is_refused_before_anything_moves() {
    let rig = rig(4);
    let free = rig.device.memory().unwrap().free_bytes;
    let error = GpuPagePool::new(&rig.device, PAGE, (free as usize) / PAGE + 1).unwrap_err();
    assert!(error.kind == ErrorKind::Device && error.message.contains("are free"), "{error:?}");
    assert!(GpuPagePool::new(&rig.device, 0, 1).is_err_and(|error| error.kind == ErrorKind::Invalid));
    assert!(GpuPagePool::new(&rig.device, PAGE, 0).is_err());
    assert_eq!(rig.device.memory().unwrap().free_bytes, free);
    let short = rig.pool.put(None, &chain(1, 0, 2), &[rig.block(0)], None).await;
    assert!(short.is_err_and(|error| error.kind == ErrorKind::Invalid));
}

/// A page that hangs on nothing that is here is found by nobody.
#[tokio::test]
async fn what_new_pages_hang_on_does_not_give_way_for_them() {
    let rig = rig(5);
    let hashes = chain(1, 0, PLACES + 2);
    assert_eq!(rig.put(&hashes[..2]).await, 2);
    let kept = rig.put_behind(Some(&hashes[1]), &hashes[2..]).await;
    assert_eq!((kept, rig.pool.lookup(&hashes)), (PLACES - 2, PLACES), "as many as fit behind it");
    assert_eq!(rig.get(&hashes[..PLACES]).await, PLACES);
    assert_eq!(rig.put_behind(Some(&hashes[PLACES - 1]), &hashes[PLACES..]).await, 0);
    assert_eq!((rig.pool.lookup(&hashes), rig.pool.stats().pinned), (PLACES, 0));
    rig.check();
}

/// Both add to the page as it was before: whichever is told that it did has its bytes, and no one else's.
#[tokio::test]
async fn two_that_add_to_one_tail_at_once_never_see_each_others_bytes() {
    for seed in 10..13 {
        let rig = rig(seed);
        let [tail, one, other] = chain(1, 0, 3)[..] else { unreachable!() };
        rig.write(&rig.block(0), &bytes(&tail)).await;
        let part = |block: usize, parts: &[Range<usize>]| rig.blocks.page(block * PAGE, PAGE, parts).unwrap();
        let whole = std::slice::from_ref(&(0..PAGE));
        for (block, hash) in [tail, one, other].iter().enumerate() {
            rig.write(&part(block, whole), &bytes(hash)).await;
        }
        let head = part(0, std::slice::from_ref(&(0..512)));
        assert_eq!(rig.pool.put(None, &[tail], &[head], None).await.unwrap(), 1);
        let rest = |block: usize| rig.blocks.plan(&[(block * PAGE + 512, PAGE - 512)]).unwrap();
        let (rows, of_one, of_other) = ([(512, PAGE - 512)], rest(1), rest(2));
        let (first, second) = tokio::join!(
            rig.pool.append(&tail, one, &rows, &of_one, None),
            rig.pool.append(&tail, other, &rows, &of_other, None)
        );
        let (first, second) = (first.unwrap(), second.unwrap());
        assert!(first || second, "one of them has its page");
        for (hash, is_here) in [(one, first), (other, second)] {
            assert_eq!(rig.pool.lookup(&[hash]) == 1, is_here);
            let target = part(5, whole);
            let hit =
                rig.pool.get(&[hash], std::slice::from_ref(&target), DeviceOrder::default()).await.unwrap();
            assert_eq!(hit.finished().await.unwrap(), usize::from(is_here));
            let mut expected = bytes(&tail)[..512].to_vec();
            expected.extend(&bytes(&hash)[512..]);
            assert!(!is_here || rig.read(&target).await == expected, "seed {seed}: {first} {second}");
        }
        assert_eq!(rig.pool.stats().pinned, 0);
        rig.check();
    }
}

/// A page of some rows has those, and a target that wants others gets nothing of it.
#[tokio::test]
async fn a_page_that_is_filled_in_part_serves_what_it_has() {
    let rig = rig(6);
    let hashes = chain(1, 0, 2);
    let part = |block: usize, parts: &[(usize, usize)]| {
        let parts: Vec<Range<usize>> = parts.iter().map(|(from, to)| *from..*to).collect();
        rig.blocks.page(block * PAGE, PAGE, &parts).unwrap()
    };
    rig.write(&part(0, &[(0, PAGE)]), &bytes(&hashes[0])).await;
    let held = [(256, 512), (1024, 2048), (2048, 2304)];
    assert_eq!(rig.pool.put(None, &hashes[..1], &[part(0, &held)], None).await.unwrap(), 1);
    let table: [(&[(usize, usize)], bool); 7] = [
        (&held, true),
        (&[(256, 512)], true),
        (&[(1100, 2300)], true),
        (&[(255, 512)], false),
        (&[(256, 513)], false),
        (&[(512, 1024)], false),
        (&[(300, 400), (2304, 2305)], false),
    ];
    for (wanted, is_here) in table {
        let target = part(3, wanted);
        let hit = rig.pool.get(&hashes[..1], &[target], DeviceOrder::default()).await.unwrap();
        assert_eq!(hit.finished().await.unwrap(), usize::from(is_here), "{wanted:?}");
    }
    assert!(rig.pool.view(&hashes[1]).is_none());
    for pieces in [&[(0, 0)][..], &[(PAGE, 1)], &[(usize::MAX, 2)], &[(0, 8), (PAGE - 7, 8)]] {
        let rows = rig.blocks.plan(&[(0, 8)]).unwrap();
        let refused = rig.pool.append(&hashes[0], hashes[1], pieces, &rows, None).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid, "{pieces:?}");
    }
    rig.check();
}

//! Memory of a host device, lent to NICs that are played: bytes, whose it is, why it is not lent, what becomes of it.

use super::super::memory::Reach;
use super::super::staging::{Staged, StagingRoom};
use super::super::tests::PlayedNic;
use super::DeviceWay;
use crate::config::DeviceMemoryChoice;
use crate::deadline::Deadline;
use crate::device::FillTarget;
use crate::limits::{QUARANTINED_BYTES_MAX, STAGING_BYTES_MAX};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use turnkv_transfer::device::{
    Device, DeviceBuffer, DeviceErrorKind, HostControl, HostOptions, PageSlot, SlotPage,
};
use turnkv_transfer::fabric::RailOffers;
use turnkv_transfer::fabric::framed::FramedDomain;
use turnkv_transfer::limits::EXPORT_STEP_BYTES;
use turnkv_transfer::{HugePages, Region, RegionOptions};

const PAGE: usize = 64 << 10;
const PIECE: usize = 4 << 10;
const FRAMED: u32 = 7;
const NIC: u32 = 8;

struct Rig {
    device: Device,
    control: HostControl,
    room: Arc<StagingRoom>,
    nics: Vec<Arc<PlayedNic>>,
    reaches: Vec<Reach>,
    _framed: Arc<FramedDomain>,
}

impl Rig {
    fn new(nics: Vec<PlayedNic>) -> Rig {
        let options = HostOptions { strict: true, ..HostOptions::default() };
        let (control, framed) = (options.control.clone(), FramedDomain::new());
        let nics: Vec<Arc<PlayedNic>> = nics.into_iter().map(Arc::new).collect();
        let reach = |(number, nic): (u32, &Arc<PlayedNic>)| {
            Reach::nic(number, &(Arc::clone(nic) as Arc<dyn RailOffers>))
        };
        let mut reaches: Vec<Reach> = (NIC..).zip(&nics).map(reach).collect();
        reaches.push(Reach::framed(FRAMED, &framed));
        let (device, room) = (Device::host(options).unwrap(), StagingRoom::new(DeviceMemoryChoice::Auto));
        Rig { device, control, room, nics, reaches, _framed: framed }
    }

    fn one() -> Rig {
        Rig::new(vec![PlayedNic::default()])
    }

    async fn lend(&self, bytes: usize) -> Staged {
        let soon = Deadline::after(Duration::from_secs(10));
        self.room.lend(Some(&self.device), &self.reaches, bytes, soon).await.unwrap()
    }

    /// Memory of the device, however long that takes on a busy machine.
    async fn lend_direct(&self, bytes: usize) -> Staged {
        let began = Instant::now();
        loop {
            let staged = self.lend(bytes).await;
            if staged.is_direct() {
                return staged;
            }
            let why = self.why_not();
            assert!(
                why.contains("is being made known") && began.elapsed() < Duration::from_secs(30),
                "{why}"
            );
            staged.answered();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Memory of the host for a call of a device, once it is known why it is not the device's.
    async fn lend_host(&self, room: &Arc<StagingRoom>, device: &Device) -> (Staged, String) {
        let soon = Deadline::after(Duration::from_secs(30));
        loop {
            let staged = room.lend(Some(device), &self.reaches, 1, soon).await.unwrap();
            let Some(DeviceWay::ThroughHost(why)) = room.device_way() else { panic!("it is lent") };
            assert!(!staged.is_direct() && staged.slot(0, PAGE).is_ok());
            if !why.contains("is being made known") {
                return (staged, why);
            }
            staged.answered();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn has_room(&self, bytes: usize) -> bool {
        let soon = Deadline::after(Duration::from_millis(20));
        self.room.lend(None, &self.reaches, bytes, soon).await.is_ok()
    }

    fn why_not(&self) -> String {
        match self.room.device_way() {
            Some(DeviceWay::ThroughHost(why)) => why,
            way => panic!("{way:?}"),
        }
    }

    fn free_bytes(&self) -> u64 {
        self.device.memory().unwrap().free_bytes
    }
}

fn domains(staged: &Staged) -> Vec<u32> {
    staged.region().keys.iter().map(|key| key.domain).collect()
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..PAGE).map(|at| (at * 7 + seed * 31 + at / 251) as u8).collect()
}

/// An engine's page, in pieces, and a way to look at it.
struct Engine {
    memory: Arc<DeviceBuffer>,
    window: Arc<Region>,
}

impl Engine {
    fn new(device: &Device, pages: usize) -> Engine {
        let options = RegionOptions {
            bytes: PAGE,
            huge_pages: HugePages::Off,
            touch: false,
            lock: false,
            name: "test".to_owned(),
        };
        let (window, _) = Region::create(&options).unwrap();
        Engine { memory: device.allocate(pages * PAGE).unwrap(), window }
    }

    fn page(&self, slot: PageSlot, page: usize) -> SlotPage {
        let pages = self.memory.len() / PAGE;
        let pieces: Vec<_> = (0..PAGE / PIECE).map(|piece| ((piece * pages + page) * PIECE, PIECE)).collect();
        SlotPage { slot, plan: self.memory.plan(&pieces).unwrap() }
    }

    async fn put(&self, device: &Device, page: usize, bytes: &[u8]) {
        let slot = self.window.slot(0, PAGE).unwrap();
        slot.claim().unwrap().fill(bytes);
        let there = device.drain(vec![self.page(slot.into(), page)], None, 0, false).unwrap();
        there.landed().await.unwrap();
    }

    async fn get(&self, device: &Device, page: usize) -> Vec<u8> {
        let slot = self.window.slot(0, PAGE).unwrap();
        let flight = device.fill(vec![self.page(slot.clone().into(), page)], None).unwrap();
        flight.landed().await.unwrap();
        slot.page().to_vec()
    }
}

#[tokio::test]
async fn pages_go_between_a_device_and_a_nic_and_no_memory_of_the_host_knows_of_them() {
    let rig = Rig::one();
    let engine = Engine::new(&rig.device, 4);
    for page in 0..4 {
        engine.put(&rig.device, page, &pattern(page)).await;
    }
    let (before, nic) = (rig.device.stats(), &rig.nics[0]);
    let staged = rig.lend_direct(4 * PAGE).await;
    assert!(staged.slot(0, PAGE).is_err(), "no CPU may look there");
    assert_eq!((domains(&staged), rig.room.device_way()), (vec![NIC], Some(DeviceWay::Direct)));
    let pages = |staged: &Staged| -> Vec<SlotPage> {
        (0..4).map(|page| engine.page(staged.page(page * PAGE, PAGE).unwrap(), page)).collect()
    };
    rig.device.fill(pages(&staged), None).unwrap().landed().await.unwrap();
    for page in 0..4 {
        assert!(nic.read(0, page * PAGE, PAGE) == pattern(page), "page {page} as the NIC sends it");
        nic.write(0, page * PAGE, &pattern(10 + page));
    }
    let kept = staged.kept();
    rig.device.drain(pages(&kept), None, 0, true).unwrap().landed().await.unwrap();
    drop(kept);
    let after = rig.device.stats();
    assert_eq!(after.lent_bytes, 8 * PAGE as u64);
    assert_eq!((after.direct_bytes, after.staged_bytes), (before.direct_bytes, before.staged_bytes));
    for page in 0..4 {
        assert!(
            engine.get(&rig.device, page).await == pattern(10 + page),
            "page {page} as the NIC brought it"
        );
    }
    assert_eq!((rig.control.faults(), rig.control.flushes()), (vec![], 1));
    let region = rig.lend_direct(4 * PAGE).await.region();
    assert_eq!(
        (region.keys.len(), nic.asked_devices.load(Ordering::Relaxed)),
        (1, 1),
        "it is known as it was"
    );
}

#[tokio::test]
async fn what_a_nic_refuses_goes_through_memory_of_the_host_and_it_is_asked_once() {
    let rig = Rig::new(vec![PlayedNic::default(), PlayedNic::default()]);
    let free = rig.free_bytes();
    rig.nics[1].refuses_devices.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let (staged, why) = rig.lend_host(&rig.room, &rig.device).await;
        assert!(domains(&staged).contains(&FRAMED), "{:?}", domains(&staged));
        assert!(why.contains("NIC played: the engine cannot reach memory of this kind"), "{why}");
        staged.answered();
    }
    assert_eq!(rig.nics[1].asked_devices.load(Ordering::Relaxed), 1);
    assert_eq!(rig.free_bytes(), free, "the device has it back");
    assert_eq!(rig.nics[0].lent_devices(), 0, "the one that took it, too");
    // Another device, or that NIC gone: it is tried.
    let other = Device::host(HostOptions::default()).unwrap();
    drop(rig.lend_host(&rig.room, &other).await);
    assert_eq!(rig.nics[1].asked_devices.load(Ordering::Relaxed), 2);
    let rig = Rig { reaches: rig.reaches[..1].to_vec(), ..rig };
    drop(rig.lend_direct(1).await);
}

#[tokio::test]
async fn why_a_device_goes_through_memory_of_the_host_is_told() {
    let rig = Rig::one();
    let soon = Deadline::after(Duration::from_secs(60));
    assert_eq!(rig.room.device_way(), None, "nobody asked");
    let framed = &rig.reaches[1..];
    assert!(!rig.room.lend(Some(&rig.device), framed, 1, soon).await.unwrap().is_direct());
    assert!(rig.why_not().contains("no rail goes over a NIC"), "{}", rig.why_not());
    rig.control.refuse_export(DeviceErrorKind::Unsupported, "no dma-bufs here");
    assert_eq!(rig.lend_host(&rig.room, &rig.device).await.1, "no dma-bufs here");
    // One that has no room is asked again after a pause.
    let small = Device::host(HostOptions { memory_bytes: 80 << 20, ..HostOptions::default() }).unwrap();
    let engine = small.allocate(small.memory().unwrap().free_bytes as usize).unwrap();
    let (staged, why) = rig.lend_host(&rig.room, &small).await;
    assert!(why.contains("0 of 83886080 are free: ask for less, or leave the engine less"), "{why}");
    drop((staged, engine));
    let began = Instant::now();
    while !rig.room.lend(Some(&small), &rig.reaches, 1, soon).await.unwrap().is_direct() {
        assert!(began.elapsed() < Duration::from_secs(30), "{}", rig.why_not());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let off = StagingRoom::new(DeviceMemoryChoice::Host);
    assert_eq!(rig.lend_host(&off, &rig.device).await.1, "device_memory is \"host\"");
}

/// A NIC that is slow to know memory is waited for a short while only.
#[tokio::test]
async fn a_call_goes_otherwise_while_memory_of_the_device_is_made_known() {
    let rig = Rig::new(vec![PlayedNic { takes_ms: 1500, ..PlayedNic::default() }]);
    let began = Instant::now();
    let first = rig.lend(1).await;
    assert!(!first.is_direct() && began.elapsed() < Duration::from_millis(1400));
    let second = rig.lend(1).await;
    assert!(!second.is_direct(), "another call makes some");
    assert!(rig.why_not().contains("is being made known"), "{}", rig.why_not());
    first.answered();
    second.answered();
    let began = Instant::now();
    while !rig.lend(1).await.is_direct() {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", rig.room.device_way());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(rig.nics[0].asked_devices.load(Ordering::Relaxed), 1, "by one call");
}

#[tokio::test]
async fn a_dropped_call_takes_it_back_and_what_is_used_is_lent_to_nobody() {
    let rig = Rig::one();
    let nic = &rig.nics[0];
    drop(rig.lend_direct(1).await);
    assert_eq!(nic.lent_devices(), 0, "no NIC touches it any more");
    let staged = rig.lend_direct(1).await;
    assert_eq!(nic.asked_devices.load(Ordering::Relaxed), 2);
    let (filling, name) = (staged.begin_use(), staged.region());
    drop(staged);
    let free = rig.free_bytes();
    let other = rig.lend_direct(1).await;
    assert!(other.region() != name, "not what the device still fills");
    assert!(rig.free_bytes() < free, "it is other memory");
    assert!(!rig.has_room(STAGING_BYTES_MAX - EXPORT_STEP_BYTES).await, "and takes up its room");
    other.answered();
    drop(filling);
    assert!(rig.has_room(STAGING_BYTES_MAX).await);
    // What a lost device may still use is never used again.
    let staged = rig.lend_direct(1).await;
    let mut filling = staged.begin_use();
    let free = rig.free_bytes();
    filling.lose();
    drop((filling, staged));
    assert!(!rig.has_room(STAGING_BYTES_MAX).await && rig.free_bytes() == free);
}

#[tokio::test]
async fn what_a_nic_keeps_stays_the_devices_until_it_lets_go() {
    let rig = Rig::new(vec![PlayedNic { keeps: true.into(), ..PlayedNic::default() }]);
    let free = rig.free_bytes();
    drop(rig.lend_direct(QUARANTINED_BYTES_MAX).await);
    assert_eq!(rig.room.quarantined_bytes(), QUARANTINED_BYTES_MAX);
    assert_eq!(rig.room.overfull().into_iter().collect::<Vec<_>>(), [NIC], "its rails are better ended");
    assert!(!rig.has_room(STAGING_BYTES_MAX).await);
    assert_eq!(rig.free_bytes(), free - QUARANTINED_BYTES_MAX as u64);
    rig.nics[0].kept.lock().clear();
    assert_eq!((rig.room.quarantined_bytes(), rig.free_bytes()), (0, free));
}

#[tokio::test]
async fn a_device_that_is_gone_or_a_call_that_failed_leaves_the_others_well() {
    let mut rig = Rig::one();
    rig.lend_direct(1).await.answered();
    rig.room.doubt(); // nothing of it is lent: something else failed
    let staged = rig.lend_direct(1).await;
    rig.room.doubt();
    drop(staged);
    let next = rig.lend(1).await;
    assert!(!next.is_direct() && rig.why_not().contains("failed a moment ago"), "{}", rig.why_not());
    drop(next);
    rig.device = Device::host(HostOptions::default()).unwrap();
    assert_eq!(rig.room.quarantined_bytes(), 0);
    assert_eq!(rig.nics[0].lent_devices(), 0, "what the other device had is known to no NIC");
}

#[tokio::test]
async fn no_more_of_a_device_and_the_host_is_lent_together_than_may_be() {
    let rig = Rig::one();
    let mut lent = vec![rig.lend_direct(STAGING_BYTES_MAX / 4).await];
    let soon = || Deadline::after(Duration::from_millis(500));
    lent.push(rig.room.lend(None, &rig.reaches, STAGING_BYTES_MAX / 4, soon()).await.unwrap());
    while let Ok(more) = rig.room.lend(Some(&rig.device), &rig.reaches, 1, soon()).await {
        lent.push(more);
    }
    let bytes: u64 = lent.iter().map(|staged| staged.region().bytes).sum();
    assert_eq!(bytes, STAGING_BYTES_MAX as u64);
    assert!(lent.iter().filter(|staged| staged.is_direct()).count() > 1);
    lent.into_iter().for_each(Staged::answered);
    assert!(rig.has_room(STAGING_BYTES_MAX).await, "all of it came back");
}

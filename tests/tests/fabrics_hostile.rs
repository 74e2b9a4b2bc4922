//! What no client of ours says to a server over a NIC: keys that nobody was given, ends of rails that go in the middle of a call. What
//! was promised holds: nothing wrong is kept, nothing is touched that was not lent, every slot is back. Where it runs: see `fabrics.rs`.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use turnkv_proto::wire::{self, Verb};
use turnkv_proto::{BlockHash, pack_hashes};
use turnkv_tests::fabric::{Rig, SOON, choice, fabric, provider, with_fabric};
use turnkv_tests::local::Local;
use turnkv_tests::pages::{bytes, chain, namespace};
use turnkv_tests::server::Setup;
use turnkv_transfer::fabric::nics::{NicOptions, open_client};
use turnkv_transfer::fabric::{
    Access, Engine, HostMemory, RailAddress, RailOffers, RegionKey, Target, TargetMemory,
};
use turnkv_transfer::{HugePages, Region, RegionOptions, checksum};

const PAGE: usize = 1 << 20;
const PAGES: usize = 24;
const DOMAIN: u32 = 5;

/// A client by hand: a control connection, memory that is lent, and a rail.
struct ByHand {
    control: Local,
    nic: Arc<dyn RailOffers>,
    memory: Arc<Region>,
    key: RegionKey,
    rail: Option<(u64, Arc<dyn Target>)>,
}

impl ByHand {
    fn connect(tcp: SocketAddr) -> Result<ByHand> {
        let ns = namespace("test-model", PAGE as u64).check()?.id().0.to_vec();
        let control = Local::over_network(tcp, ns.into())?;
        let engine = if fabric() == Engine::Verbs { Engine::Verbs } else { Engine::Libfabric };
        let providers = Some(provider().to_owned()).filter(|name| !name.is_empty());
        let options = NicOptions {
            engines: vec![engine],
            providers: providers.into_iter().collect(),
            source: Some(tcp.ip()),
            ..NicOptions::default()
        };
        let nic = open_client(&options, engine, None)?;
        let options = RegionOptions {
            bytes: PAGE * PAGES,
            huge_pages: HugePages::Off,
            touch: true,
            lock: false,
            name: "by-hand".to_owned(),
        };
        let (memory, _) = Region::create(&options)?;
        let lent = TargetMemory::Host(Arc::clone(&memory) as Arc<dyn HostMemory>);
        let key = nic.register(lent, Access::ReadWrite)?;
        Ok(ByHand { control, nic, memory, key, rail: None })
    }

    /// Opens a rail; gives those of the one before that the server has not.
    fn open_rail(&mut self) -> Result<Vec<u64>> {
        let held: Vec<u64> = self.rail.iter().map(|(number, _)| *number).collect();
        let offer = self.nic.offer()?;
        let fabric = if fabric() == Engine::Verbs { wire::Fabric::Verbs } else { wire::Fabric::Libfabric };
        let address = offer.address().as_bytes().to_vec().into();
        let offers = vec![wire::RailOffer { fabric: fabric.into(), domain: DOMAIN, address }];
        let ask = wire::OpenRailRequest { client: self.control.client, offers, held, names_framed: false };
        let reply: wire::OpenRailReply = self.control.ask(Verb::OpenRail, &ask)?;
        ensure!(reply.taken == 1, "{reply:?}");
        let address = RailAddress::new(reply.address.to_vec()).context("a short address")?;
        self.rail = Some((reply.rail, offer.connect(&address)?));
        Ok(reply.lost)
    }

    /// Puts the true bytes of these pages into the lent memory.
    fn fill(&self, hashes: &[BlockHash]) -> Result<Vec<u64>> {
        let fill = |(at, hash): (usize, &BlockHash)| {
            let page = bytes(hash, PAGE);
            self.memory.slot(at * PAGE, PAGE).context("it fits")?.claim()?.fill(&page);
            Ok(checksum(&page))
        };
        hashes.iter().enumerate().map(fill).collect()
    }

    /// Whether the lent memory has the true bytes of these pages.
    fn has(&self, hashes: &[BlockHash]) -> Result<bool> {
        for (at, hash) in hashes.iter().enumerate() {
            let slot = self.memory.slot(at * PAGE, PAGE).context("it fits")?;
            if slot.page().to_vec() != bytes(hash, PAGE) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn regions(&self, key: u64) -> Vec<wire::RemoteRegion> {
        let keys = vec![wire::RemoteKey { domain: DOMAIN, key, base: self.key.base }];
        vec![wire::RemoteRegion { keys, bytes: self.key.bytes }]
    }

    fn pages(checksums: &[u64]) -> Vec<wire::RemotePage> {
        let span = |at: usize| wire::RemoteSpan { region: 0, offset: (at * PAGE) as u64, bytes: PAGE as u32 };
        let page = |(at, checksum): (usize, &u64)| wire::RemotePage {
            position: at as u32,
            checksum: *checksum,
            spans: vec![span(at)],
            ..Default::default()
        };
        checksums.iter().enumerate().map(page).collect()
    }

    /// Offers pages by this key; says how many were kept.
    fn offload(&self, hashes: &[BlockHash], checksums: &[u64], key: u64) -> Result<usize> {
        let begin = wire::BeginOffloadRequest {
            namespace: self.control.ns.clone(),
            hashes: pack_hashes(hashes).into(),
            client: self.control.client,
            ..Default::default()
        };
        let (regions, pages) = (self.regions(key), ByHand::pages(checksums));
        let ask = wire::RemoteOffloadRequest { begin: Some(begin), regions, pages };
        let reply: wire::RemoteOffloadReply = self.control.ask(Verb::RemoteOffload, &ask)?;
        let dropped = reply.commit.map_or(hashes.len(), |commit| commit.dropped.len());
        Ok(hashes.len() - dropped)
    }

    /// Wants pages by this key; says how many are there.
    fn reload(&self, hashes: &[BlockHash], key: u64) -> Result<usize> {
        let begin = wire::BeginReloadRequest {
            namespace: self.control.ns.clone(),
            hashes: pack_hashes(hashes).into(),
            client: self.control.client,
            ..Default::default()
        };
        let (regions, pages) = (self.regions(key), ByHand::pages(&vec![0; hashes.len()]));
        let ask = wire::RemoteReloadRequest {
            begin: Some(begin),
            regions,
            pages,
            verify: false,
            carry_bytes_max: 0,
        };
        let replies: Vec<wire::BeginReloadReply> = self.control.ask_all(Verb::RemoteReload, &ask)?;
        let pages = replies.into_iter().flat_map(|reply| reply.pages);
        Ok(pages.filter(|page| page.miss() == wire::MissCause::Unspecified).count())
    }
}

#[test]
fn a_key_that_nobody_was_given_reaches_nothing() -> Result<()> {
    with_fabric("a_key_that_nobody_was_given_reaches_nothing", async {
        let rig = Rig::with_nics(Setup { dram_mib: 128, nvme_mib: 0, ..Setup::default() })?;
        let user = rig.connect(choice(), PAGE as u64).await?;
        let mut hand = ByHand::connect(rig.tcp)?;
        ensure!(hand.open_rail()?.is_empty());
        let hashes = chain(1, 4);
        let checksums = hand.fill(&hashes)?;
        ensure!(
            hand.offload(&hashes, &checksums, hand.key.key ^ 0x5a5a)? == 0,
            "bytes that nobody lent were kept"
        );
        rig.slots_are_back().await?;
        ensure!(user.reload(&hashes).await?.pages == 0);
        // The rail is dead at the server, which the client learns by comparing.
        let lost = hand.open_rail()?;
        ensure!(lost.len() == 1, "{lost:?}");
        ensure!(hand.offload(&hashes, &checksums, hand.key.key)? == 4, "the next rail works");
        ensure!(user.reload(&hashes).await?.pages == 4, "whoever asks gets the true bytes");
        let others = chain(2, 4);
        hand.fill(&others)?;
        ensure!(hand.reload(&hashes, hand.key.key ^ 0x5a5a).is_err(), "it was written where nobody lent");
        ensure!(hand.has(&others)?, "memory is as it was");
        rig.slots_are_back().await?;
        hand.open_rail()?;
        ensure!(hand.reload(&hashes, hand.key.key)? == 4);
        ensure!(hand.has(&hashes)?);
        rig.slots_are_back().await
    })
}

#[test]
fn an_end_that_goes_in_the_middle_holds_nothing() -> Result<()> {
    with_fabric("an_end_that_goes_in_the_middle_holds_nothing", async {
        let rig = Rig::with_nics(Setup { dram_mib: 128, nvme_mib: 0, ..Setup::default() })?;
        let user = rig.connect(choice(), PAGE as u64).await?;
        for round in 0..3u64 {
            let mut hand = ByHand::connect(rig.tcp)?;
            hand.open_rail()?;
            let hashes = chain(10 + round, PAGES);
            let checksums = hand.fill(&hashes)?;
            let (_, rail) = hand.rail.take().context("a rail")?;
            let before = rig.moved(fabric(), "read")?;
            let key = hand.key.key;
            let call = {
                let (hashes, checksums) = (hashes.clone(), checksums.clone());
                let call = move || (hand.offload(&hashes, &checksums, key), hand);
                std::thread::Builder::new().name("call".to_owned()).spawn(call)?
            };
            let began = Instant::now();
            while rig.moved(fabric(), "read")? == before && !call.is_finished() {
                ensure!(began.elapsed() < SOON, "nothing moves");
            }
            rail.close();
            let (kept, mut hand) = call.join().map_err(|_| anyhow::anyhow!("the call's thread"))?;
            let kept = kept?;
            rig.slots_are_back().await?;
            let there = user.reload(&hashes).await?; // checks every byte
            ensure!(there.pages == kept, "{} pages are there, {kept} were kept", there.pages);
            hand.open_rail()?;
            ensure!(hand.reload(&hashes[..kept], key)? == kept);
            ensure!(hand.has(&hashes[..kept])?);
        }
        rig.slots_are_back().await
    })
}

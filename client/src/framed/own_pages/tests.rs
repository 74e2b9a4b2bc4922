//! Pages that are lent as they are, to a server's end of a rail: what was taken in stays as it was found.

use super::*;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;
use turnkv_transfer::fabric::framed::{FramedInitiator, FramedStream, FramedTarget};
use turnkv_transfer::fabric::{CompletionQueue, Initiator, Op, Operation, Outcome, RemoteSpan};
use turnkv_transfer::{HugePages, Region, RegionOptions, checksum};

const PAGE: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

fn region(pages: usize) -> Arc<Region> {
    let options = RegionOptions {
        bytes: pages * PAGE,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "test".to_owned(),
    };
    Region::create(&options).unwrap().0
}

fn page(of: &Arc<Region>, number: usize) -> PageMemory {
    PageMemory::new(Arc::new(of.slot(number * PAGE, PAGE).unwrap()))
}

/// A server's end of a rail, and what it sends.
struct Server {
    rail: FramedInitiator,
    completions: Arc<CompletionQueue>,
    slab: Arc<Region>,
}

impl Server {
    /// Writes a page full of a byte to the place of a number; whether it was let.
    fn write(&self, key: RegionKey, number: usize, byte: u8) -> bool {
        let slot = self.slab.slot(0, PAGE).unwrap();
        slot.claim().unwrap().fill(&[byte; PAGE]);
        let there = RemoteSpan::new(key, (number * PAGE) as u64, PAGE as u32).unwrap();
        self.rail.post(Operation::write(slot, there, Op(1)).unwrap()).unwrap();
        let mut taken = Vec::new();
        assert!(self.completions.poll(&mut taken, PATIENCE) == 1);
        taken[0].outcome == Outcome::Done
    }
}

fn connected(domain: &Arc<FramedDomain>) -> (Server, FramedTarget) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = FramedStream::plain(listener.accept().unwrap().0).unwrap();
    let completions = CompletionQueue::new(8);
    let rail = FramedInitiator::open(server, &completions, PATIENCE).unwrap();
    let target = FramedTarget::open(FramedStream::plain(client).unwrap(), domain, PATIENCE).unwrap();
    (Server { rail, completions, slab: region(1) }, target)
}

/// A server, or a network that held its write back, comes once more when the page was looked at.
#[test]
fn a_page_that_was_taken_in_is_not_written_any_more() {
    let (domain, memory) = (FramedDomain::new(), region(3));
    let (server, _target) = connected(&domain);
    let pages = (0..3).map(|number| page(&memory, number)).collect();
    let own = OwnPages::lend(&domain, 7, pages, Access::Write).unwrap();
    let key = own.key;
    assert_eq!(own.region().keys[0].domain, 7);
    assert_eq!(own.region().bytes, 3 * PAGE as u64);
    assert!(server.write(key, 0, 1) && server.write(key, 1, 2) && server.write(key, 1, 3));
    assert_eq!(own.take_in(0), checksum(&[1; PAGE]));
    assert!(!server.write(key, 0, 9), "it was taken in");
    assert_eq!(own.checksum(0), checksum(&[1; PAGE]));
    assert!(server.write(key, 1, 4), "it was not looked at yet");
    assert_eq!(own.take_in(1), checksum(&[4; PAGE]));
    drop(own);
    assert!(!server.write(key, 2, 9), "nothing is lent any more");
    assert_eq!(page(&memory, 2).checksum(), checksum(&[0; PAGE]));
    assert_eq!((domain.registrations(), Arc::strong_count(&memory)), (0, 1));
}

#[test]
fn pages_of_several_sizes_are_not_lent() {
    let (domain, memory) = (FramedDomain::new(), region(2));
    let half = PageMemory::new(Arc::new(memory.slot(PAGE, PAGE / 2).unwrap()));
    assert!(OwnPages::lend(&domain, 0, vec![page(&memory, 0), half], Access::Write).is_none());
    assert!(OwnPages::lend(&domain, 0, Vec::new(), Access::Write).is_none());
    assert_eq!(domain.registrations(), 0);
}

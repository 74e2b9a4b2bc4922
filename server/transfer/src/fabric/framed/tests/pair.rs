//! Connected pairs. Owns: how the tests' connections come to be.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fabric::conformance::{Ends, Rail, region};
use crate::fabric::framed::wire::{Asked, HEADER_BYTES, Range, Reply, Request};
use crate::fabric::framed::{FramedDomain, FramedInitiator, FramedStream, FramedTarget};
use crate::fabric::{
    Access, Cause, Completed, CompletionQueue, Direction, Domain, HostMemory, Initiator, Op, Operation,
    Outcome, RegionKey, RemoteSpan, Target, TargetMemory,
};
use crate::limits::FRAMED_STALL;
use crate::region::Region;

/// How long anything may take before it counts as lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Two ends of a TCP connection over the loopback.
pub(in crate::fabric::framed) fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// Rails over plain TCP.
pub(super) struct OverTcp {
    pub(super) stall: Duration,
}

impl OverTcp {
    pub(super) const USUAL: Self = Self { stall: FRAMED_STALL };
}

impl Ends for OverTcp {
    type Client = Arc<FramedDomain>;

    fn client(&self) -> Self::Client {
        FramedDomain::new()
    }

    fn domain(client: &Self::Client) -> &dyn Domain {
        &**client
    }

    fn rail(&self, client: &Self::Client, completions: &Arc<CompletionQueue>) -> Rail {
        let (here, there) = tcp();
        let initiator = FramedInitiator::open(FramedStream::plain(here).unwrap(), completions, self.stall);
        let target = FramedTarget::open(FramedStream::plain(there).unwrap(), client, self.stall);
        Rail { initiator: Arc::new(initiator.unwrap()), target: Arc::new(target.unwrap()) }
    }

    fn attach(&self, _: &Arc<Region>) {}
}

/// Repeatable choices.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    /// Flips bits, cuts bytes out and puts some in, at one to four places; gives how many.
    pub(super) fn mutate(&mut self, stream: &mut Vec<u8>) -> usize {
        let places = 1 + self.below(4);
        for _ in 0..places {
            let at = self.below(stream.len());
            match self.below(3) {
                0 => stream[at] ^= 1 << self.below(8),
                1 => {
                    stream.remove(at);
                }
                _ => stream.insert(at, self.below(256) as u8),
            }
        }
        places
    }
}

/// A peer that a test plays itself.
pub(super) struct Played(pub(super) TcpStream);

impl Played {
    pub(super) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub(super) fn send(&self, bytes: &[u8]) {
        (&self.0).write_all(bytes).unwrap();
    }

    /// As [`Played::send`], to a peer that may have hung up.
    pub(super) fn try_send(&self, bytes: &[u8]) -> bool {
        (&self.0).write_all(bytes).is_ok()
    }

    /// As [`Played::receive`], from a peer that may have hung up.
    pub(super) fn try_receive(&self, bytes: usize) -> bool {
        (&self.0).read_exact(&mut vec![0; bytes]).is_ok()
    }

    pub(super) fn receive(&self, bytes: usize) -> Vec<u8> {
        let mut received = vec![0; bytes];
        (&self.0).read_exact(&mut received).unwrap();
        received
    }

    pub(super) fn header(&self) -> [u8; HEADER_BYTES] {
        self.receive(HEADER_BYTES).try_into().unwrap()
    }

    pub(super) fn request(&self) -> Request {
        Request::decode(&self.header()).unwrap()
    }

    pub(super) fn reply(&self) -> Reply {
        Reply::decode(&self.header()).unwrap()
    }

    /// Everything that still comes until the peer hangs up.
    pub(super) fn until_end(&self) -> usize {
        let (mut total, mut bytes) = (0, vec![0; 1 << 16]);
        loop {
            match (&self.0).read(&mut bytes) {
                Ok(0) => return total,
                Ok(count) => total += count,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return total,
                Err(error) => panic!("the peer does not hang up: {error}"),
            }
        }
    }
}

/// An initiator whose target a test plays, with a slab.
pub(super) struct Alone {
    pub(super) initiator: FramedInitiator,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) peer: Played,
    pub(super) slab: Arc<Region>,
}

/// What the played target would have lent.
pub(super) const KEY: RegionKey = RegionKey { key: 7, base: 0, bytes: 1 << 40 };

impl Alone {
    pub(super) fn new(bytes: usize, stall: Duration) -> Self {
        let (here, there) = tcp();
        let queue = CompletionQueue::new(128);
        let initiator = FramedInitiator::open(FramedStream::plain(here).unwrap(), &queue, stall).unwrap();
        Self { initiator, queue, peer: Played::new(there), slab: region(bytes) }
    }

    pub(super) fn post(&self, direction: Direction, bytes: usize, op: u64) {
        assert!(self.try_post(direction, bytes, op), "the rail has ended, or is full");
    }

    /// As [`Alone::post`], on a rail that may have ended.
    pub(super) fn try_post(&self, direction: Direction, bytes: usize, op: u64) -> bool {
        let remote = RemoteSpan::new(KEY, 0, bytes as u32).unwrap();
        let local = self.slab.slot(0, bytes).unwrap();
        let operation = match direction {
            Direction::Read => Operation::read(remote, local, Op(op)),
            Direction::Write => Operation::write(local, remote, Op(op)),
        };
        self.initiator.post(operation.unwrap()).is_ok()
    }

    /// The next completions, of which there must be so many.
    pub(super) fn completed(&self, count: usize) -> Vec<Completed> {
        let mut taken = Vec::new();
        while taken.len() < count {
            assert!(self.queue.poll(&mut taken, PATIENCE) > 0, "{} of {count} completed", taken.len());
        }
        assert_eq!(taken.len(), count);
        taken
    }

    /// Why the initiator ended.
    pub(super) fn death(&self) -> Cause {
        sooner_or_later(|| self.initiator.death())
    }

    /// The only completion, and that no more can come.
    pub(super) fn only(&self) -> Outcome {
        let outcome = self.completed(1).remove(0).outcome;
        assert_eq!(self.queue.admitted(), 0);
        outcome
    }
}

/// A target whose server a test plays, with memory that is lent.
pub(super) struct Lender {
    pub(super) target: FramedTarget,
    pub(super) domain: Arc<FramedDomain>,
    pub(super) peer: Played,
    pub(super) memory: Arc<Region>,
    pub(super) key: RegionKey,
}

impl Lender {
    pub(super) fn new(bytes: usize, stall: Duration) -> Self {
        let (here, there) = tcp();
        let (domain, memory) = (FramedDomain::new(), region(bytes));
        let owner: Arc<dyn HostMemory> = Arc::<Region>::clone(&memory);
        let key = domain.register(TargetMemory::Host(owner), Access::ReadWrite).unwrap();
        let target = FramedTarget::open(FramedStream::plain(there).unwrap(), &domain, stall).unwrap();
        Self { target, domain, peer: Played::new(here), memory, key }
    }

    pub(super) fn ask(&self, asked: Asked, op: u32, bytes: u32) {
        let range = Range { key: self.key.key, offset: 0, bytes };
        self.peer.send(&Request { asked, op, range }.encode());
    }

    /// Why the target ended.
    pub(super) fn death(&self) -> Cause {
        sooner_or_later(|| self.target.death())
    }
}

/// What `look` finds, before patience ends.
fn sooner_or_later<T>(look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look() {
            Some(found) => return found,
            None if Instant::now() > deadline => panic!("it does not come"),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

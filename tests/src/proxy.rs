//! A network that fails, between a client and a server on one machine. Owns: connections passed on through faults that a seed
//! chooses. Must not know: what is spoken on them.
//!
//! A fault is drawn for each connection, so one call may lose its control connection, another a data rail, another nothing. What
//! counts bytes counts those of one direction.

use anyhow::Result;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use turnkv_mutate::Random;

/// Bytes passed on in one piece.
const PIECE_BYTES: usize = 64 << 10;
/// How often a direction that is stalled looks whether the proxy has ended.
const LOOK: Duration = Duration::from_millis(5);

/// What is wrong with one direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Every piece comes so much later.
    Delay(Duration),
    /// Pieces of so many bytes, with a pause between them.
    Slow(usize, Duration),
    /// After so many bytes nothing comes for so long: packets are lost, and sent again.
    Stall(u64, Duration),
    /// After so many bytes nothing comes any more, and nobody is told.
    Vanish(u64),
    /// After so many bytes this direction ends, the other one goes on.
    HalfOpen(u64),
    /// After so many bytes the connection is cut, both ways.
    Cut(u64),
    /// The bit of this number in the stream is another one.
    Flip(u64),
}

/// What to do with each connection: towards the server, and back.
pub type Plan = dyn Fn(u64) -> (Fault, Fault) + Send + Sync;

/// A port that leads to a server, through faults. Dropped, every connection through it is cut.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    plan: Box<Plan>,
    ended: AtomicBool,
    /// Nothing passes, either way.
    partitioned: AtomicBool,
    next: AtomicU64,
    /// Of connections with a smaller number nothing passes any more, not even their end.
    frozen: AtomicU64,
    /// Both ends of each connection, to be cut.
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
}

impl Proxy {
    /// A port of its own for a server.
    ///
    /// # Errors
    /// The system has no port or thread.
    pub fn to(
        server: SocketAddr,
        plan: impl Fn(u64) -> (Fault, Fault) + Send + Sync + 'static,
    ) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server,
            plan: Box::new(plan),
            ended: AtomicBool::new(false),
            partitioned: AtomicBool::new(false),
            next: AtomicU64::new(0),
            frozen: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::Builder::new().name("proxy".to_owned()).spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(Ordering::Acquire) {
                    return;
                }
                // A connection that cannot be passed on is closed: that too is a fault.
                drop(client.and_then(|client| accepting.pass(client)));
            }
        })?;
        Ok(Proxy { address, shared })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing passes, or it does again.
    pub fn partition(&self, partitioned: bool) {
        self.shared.partitioned.store(partitioned, Ordering::Release);
    }

    /// Every connection that is open dies, and neither of its ends is told: a firewall has forgotten them. New ones are well.
    pub fn freeze(&self) {
        self.shared.frozen.store(self.shared.next.load(Ordering::Acquire), Ordering::Release);
    }

    /// Cuts every connection that is open.
    pub fn cut(&self) {
        self.shared.cut();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.cut();
        // The thread that accepts wakes, and sees that it has ended.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn pass(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (up, down) = (self.plan)(number);
        self.open().insert(number, [client.try_clone()?, server.try_clone()?]);
        let left = Arc::new(AtomicU64::new(2));
        let ways = [(client.try_clone()?, server.try_clone()?, up), (server, client, down)];
        for (from, to, fault) in ways {
            let (shared, left) = (Arc::clone(self), Arc::clone(&left));
            thread::Builder::new().name("proxy-way".to_owned()).spawn(move || {
                shared.carry(number, from, to, fault);
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    shared.open().remove(&number);
                }
            })?;
        }
        Ok(())
    }

    /// Passes one direction on until it ends.
    fn carry(&self, number: u64, mut from: TcpStream, mut to: TcpStream, fault: Fault) {
        let piece_bytes = if let Fault::Slow(bytes, _) = fault { bytes } else { PIECE_BYTES };
        let mut piece = vec![0; piece_bytes];
        let mut passed = 0u64;
        while let Ok(count @ 1..) = from.read(&mut piece) {
            while self.partitioned.load(Ordering::Acquire) && !self.ended.load(Ordering::Acquire) {
                thread::sleep(LOOK);
            }
            self.rest_frozen(number);
            let end = passed + count as u64;
            let reached = |at: u64| (passed..end).contains(&at);
            let until = |at: u64| at.saturating_sub(passed) as usize;
            let sent = match fault {
                Fault::Delay(pause) | Fault::Slow(_, pause) => {
                    self.rest(pause);
                    to.write_all(&piece[..count])
                }
                Fault::Stall(at, pause) if reached(at) => to.write_all(&piece[..until(at)]).and_then(|()| {
                    self.rest(pause);
                    to.write_all(&piece[until(at)..count])
                }),
                Fault::Vanish(at) if end > at => {
                    let sent = to.write_all(&piece[..until(at)]);
                    while !self.ended.load(Ordering::Acquire) {
                        thread::sleep(LOOK);
                    }
                    sent
                }
                Fault::HalfOpen(at) if end > at => {
                    let sent = to.write_all(&piece[..until(at)]).and_then(|()| to.shutdown(Shutdown::Write));
                    drop(sent);
                    return;
                }
                Fault::Cut(at) if end > at => {
                    drop(to.write_all(&piece[..until(at)]));
                    for stream in [&from, &to] {
                        drop(stream.shutdown(Shutdown::Both));
                    }
                    return;
                }
                Fault::Flip(bit) => {
                    if reached(bit / 8) {
                        piece[until(bit / 8)] ^= 1 << (bit % 8);
                    }
                    to.write_all(&piece[..count])
                }
                _ => to.write_all(&piece[..count]),
            };
            passed = end;
            if sent.is_err() {
                break;
            }
        }
        self.rest_frozen(number);
        // What cannot be passed on any more is the end of both.
        drop(to.shutdown(Shutdown::Write));
        drop(from.shutdown(Shutdown::Read));
    }

    /// For good, where the connection is frozen.
    fn rest_frozen(&self, number: u64) {
        while number < self.frozen.load(Ordering::Acquire) && !self.ended.load(Ordering::Acquire) {
            thread::sleep(LOOK);
        }
    }

    /// Waits, but not longer than the proxy is there.
    fn rest(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.ended.load(Ordering::Acquire) {
            thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
        }
    }

    fn cut(&self) {
        for (_, ends) in self.open().drain() {
            for end in ends {
                drop(end.shutdown(Shutdown::Both));
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, [TcpStream; 2]>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fault that strikes within so many bytes, if it does.
pub fn draw_fault(random: &mut Random, bytes: usize) -> Fault {
    let at = random.below(bytes) as u64;
    let mut millis = |most: usize| Duration::from_millis(random.below(most) as u64);
    let (delay, stall, pause) = (millis(30), millis(400), millis(2));
    match random.below(16) {
        0 => Fault::Delay(delay),
        1 => Fault::Slow(1 + random.below(8192), pause),
        2 => Fault::Stall(at, stall),
        3 => Fault::Vanish(at),
        4 => Fault::HalfOpen(at),
        5 | 6 => Fault::Cut(at),
        7..=9 => Fault::Flip(at * 8 + random.below(8) as u64),
        _ => Fault::None,
    }
}

//! The client's process: lends memory, connects rails, does what it is told.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use turnkv_transfer::Region;
use turnkv_transfer::fabric::{Access, RailOffers, RegionKey, Target, TargetMemory};

use crate::control::{PATIENCE, Wanted, Wire, fill, has, hex, region, unhex};

/// Where the server's process listens, and which engine it tests.
pub(crate) const SERVER: &str = "TURNKV_TEST_SERVER";

/// Serves one server until it hangs up.
pub(crate) fn serve() {
    let server = std::env::var(SERVER).expect("a server's test starts this");
    let mut wire = Wire::new(connect(&server));
    let engine = wire.hear().expect("the server says which engine");
    let client = Wanted::by_name(&engine[0]).client().expect("the server has it too");
    let mut desk = Desk { client, target: None, memory: HashMap::new() };
    while let Some(words) = wire.hear() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        desk.obey(&words, &mut wire);
    }
}

/// The server of another machine may not listen yet.
fn connect(server: &str) -> TcpStream {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(server) {
            Ok(stream) => return stream,
            Err(error) if std::time::Instant::now() > deadline => panic!("{server}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

struct Desk {
    client: Box<dyn RailOffers>,
    target: Option<Arc<dyn Target>>,
    /// By key.
    memory: HashMap<u64, (RegionKey, Arc<Region>)>,
}

impl Desk {
    fn obey(&mut self, words: &[&str], wire: &mut Wire) {
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        match words[0] {
            "rail" => {
                let offer = self.client.offer().expect("a rail can be offered");
                wire.say(&hex(offer.address()));
                let server = wire.hear().expect("the server answers");
                self.target = Some(offer.connect(&unhex(&server[0])).expect("its address is good"));
                wire.say("connected");
            }
            "lend" => {
                let memory = region(number(2) as usize);
                fill(&memory, number(1));
                let owner = Arc::clone(&memory);
                let key = self.client.register(TargetMemory::Host(owner), Access::ReadWrite);
                let key = key.expect("it can be registered");
                wire.say(&format!("{} {} {}", key.key, key.base, key.bytes));
                self.memory.insert(key.key, (key, memory));
            }
            "has" => wire.say(&has(&self.memory[&number(1)].1, number(2)).to_string()),
            "close" => {
                if let Some(target) = self.target.take() {
                    target.close();
                }
                wire.say("closed");
            }
            "keep" => wire.say(&self.keep(number(1), number(2)).to_string()),
            "die" => std::process::abort(),
            word => panic!("{word:?}"),
        }
    }

    /// Takes memory back, waits until the engine let it go, and looks whether anybody writes it then.
    fn keep(&mut self, key: u64, seed: u64) -> bool {
        let (key, memory) = self.memory.remove(&key).expect("it was lent");
        if self.client.deregister(key).is_err() {
            let deadline = std::time::Instant::now() + PATIENCE;
            while Arc::strong_count(&memory) > 1 {
                assert!(std::time::Instant::now() < deadline, "a closed rail holds the memory");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(Arc::strong_count(&memory), 1, "the engine let it go");
        fill(&memory, seed);
        std::thread::sleep(Duration::from_millis(100));
        has(&memory, seed)
    }
}

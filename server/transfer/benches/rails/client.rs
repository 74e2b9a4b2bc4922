//! The client's process of the bench: lends memory over the engine and, for libfabric, over a bare endpoint.

use std::net::TcpStream;
use std::sync::Arc;

use turnkv_transfer::fabric::{Access, TargetMemory};

use crate::MEMORY_BYTES;
use crate::bare::Bare;
use crate::control::{Wanted, Wire, hex, region, unhex};
use turnkv_transfer::fabric::RailAddress;

pub(crate) fn serve(server: &str) {
    let mut wire = Wire::new(TcpStream::connect(server).expect("the server listens"));
    let words = wire.hear().expect("the server says which engine");
    let engine = Wanted::by_name(&words[0]);
    let client = engine.client().expect("the server has it too");
    let offer = client.offer().expect("a rail can be offered");
    wire.say(&hex(offer.address()));
    let answer = wire.hear().expect("the server answers");
    let _target = offer.connect(&unhex(&answer[0])).expect("its address is good");
    let memory = region(MEMORY_BYTES);
    let owner = Arc::clone(&memory);
    let key = client.register(TargetMemory::Host(owner), Access::ReadWrite).expect("it can be registered");
    wire.say(&format!("{} {} {}", key.key, key.base, key.bytes));
    let mut bare = (engine == Wanted::Libfabric).then(|| Bare::open(&words[1], &memory, true));
    if let Some(bare) = &mut bare {
        wire.say(&hex(&RailAddress::new(bare.address()).expect("it is short")));
        let (key, base) = bare.key();
        wire.say(&format!("{key} {base} {MEMORY_BYTES}"));
    }
    while let Some(words) = wire.hear() {
        match (words[0].as_str(), &mut bare) {
            ("poll", Some(bare)) => bare.poll(true),
            ("rest", Some(bare)) => bare.poll(false),
            ("end", _) => return,
            (word, _) => panic!("{word:?}"),
        }
    }
}

//! A client that leases all it can and never finishes: `hog ADDRESS LOCAL_SOCKET HELLOS SEED`. It says how many slots it got, and
//! waits to be stopped.
#![allow(clippy::print_stdout, reason = "what it says is for the test")]

use anyhow::{Context, Result};
use std::path::PathBuf;
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::local::Local;
use turnkv_tests::pages::chain;
use wire::Verb;

const USAGE: &str = "usage: hog ADDRESS LOCAL_SOCKET HELLOS SEED";

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().context(USAGE)?;
    let socket = PathBuf::from(arguments.next().context(USAGE)?);
    let hellos: usize = arguments.next().context(USAGE)?.parse()?;
    let mut seed: u64 = arguments.next().context(USAGE)?.parse()?;
    let first = Local::connect_at(&address, &socket, 64 << 10).await?;
    let mut connections = vec![];
    for _ in 1..hellos {
        connections.push(Local::hello(&socket, first.ns.clone())?);
    }
    connections.push(first);
    let mut granted = 0;
    for local in &connections {
        loop {
            seed += 1;
            let ask = wire::BeginOffloadRequest {
                namespace: local.ns.clone(),
                hashes: pack_hashes(&chain(seed, 64)).into(),
                client: local.client,
                ..Default::default()
            };
            let reply: wire::BeginOffloadReply = local.ask(Verb::BeginOffload, &ask)?;
            granted += reply.slots.len();
            if reply.slots.is_empty() {
                break;
            }
        }
    }
    println!("{granted}");
    std::future::pending().await
}

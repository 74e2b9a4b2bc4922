//! A client that leases all it can and never finishes: `hog ADDRESS LOCAL_SOCKET HELLOS SEED write|read PAGES`, so many pages a
//! lease; `read`: always the same ones. It says how many slots it got, its number and its last lease, and waits to be stopped.
#![allow(clippy::print_stdout, reason = "what it says is for the test")]

use anyhow::{Context, Result};
use std::path::PathBuf;
use turnkv_proto::{Error, ErrorKind, pack_hashes, wire};
use turnkv_tests::local::Local;
use turnkv_tests::pages::chain;
use wire::Verb;

const USAGE: &str = "usage: hog ADDRESS LOCAL_SOCKET HELLOS SEED write|read PAGES";

/// Leases some pages: how many slots, and the lease. None: there are no more.
fn lease(local: &Local, reads: bool, seed: u64, pages: usize) -> Result<Option<(usize, u64)>> {
    let (namespace, hashes, client) =
        (local.ns.clone(), pack_hashes(&chain(seed, pages)).into(), local.client);
    let leased = if reads {
        let ask = wire::BeginReloadRequest { namespace, hashes, client, ..Default::default() };
        let reply = local.ask::<wire::BeginReloadReply>(Verb::BeginReload, &ask);
        reply.map(|reply| (reply.pages.iter().filter(|page| page.slot.is_some()).count(), reply.lease))
    } else {
        let ask = wire::BeginOffloadRequest { namespace, hashes, client, ..Default::default() };
        let reply = local.ask::<wire::BeginOffloadReply>(Verb::BeginOffload, &ask);
        reply.map(|reply| (reply.slots.len(), reply.lease))
    };
    match leased {
        Ok(leased) => Ok(Some(leased).filter(|(slots, _)| *slots > 0)),
        Err(error) => match error.downcast_ref::<Error>() {
            Some(Error { kind: ErrorKind::Busy { .. }, .. }) => Ok(None),
            _ => Err(error),
        },
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().context(USAGE)?;
    let socket = PathBuf::from(arguments.next().context(USAGE)?);
    let hellos: usize = arguments.next().context(USAGE)?.parse()?;
    let mut seed: u64 = arguments.next().context(USAGE)?.parse()?;
    let reads = arguments.next().context(USAGE)? == "read";
    let pages: usize = arguments.next().context(USAGE)?.parse()?;
    let first = Local::connect_at(&address, &socket, 64 << 10).await?;
    let mut connections = vec![];
    for _ in 1..hellos {
        connections.push(Local::hello(&socket, first.ns.clone())?);
    }
    connections.push(first);
    let (mut granted, mut client, mut last) = (0, 0, 0);
    for local in &connections {
        seed += u64::from(!reads);
        while let Some((slots, id)) = lease(local, reads, seed, pages)? {
            (granted, client, last) = (granted + slots, local.client, id);
            seed += u64::from(!reads);
        }
    }
    println!("{granted} {client} {last}");
    std::future::pending().await
}

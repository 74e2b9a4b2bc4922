//! Requests that are well formed and mean nonsense, on the local socket: every verb, its fields changed. The server stays up, keeps
//! what it had, and answers others.

use anyhow::{Context, Result, ensure};
use prost::Message;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_mutate::{each_seed, mutate_bytes, mutate_message};
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::LocalSocket;
use wire::Verb;

const PAGE: u64 = 64 << 10;
const PAGES: usize = 8;
/// How long one nonsensical request is waited for: some ask to wait long, which is their right.
const PATIENCE: Duration = Duration::from_millis(300);

/// A request of each verb that would be fine.
fn requests(namespace: &[u8], client: u64) -> Vec<(Verb, Vec<u8>)> {
    let (namespace, hashes) = (bytes::Bytes::copy_from_slice(namespace), pack_hashes(&chain(7, 4)));
    let lookup = wire::LookupRequest {
        namespace: namespace.clone(),
        hashes: hashes.clone().into(),
        ..Default::default()
    };
    let offload = wire::BeginOffloadRequest {
        namespace: namespace.clone(),
        hashes: hashes.clone().into(),
        client,
        session: "chat".to_owned(),
        ..Default::default()
    };
    let reload = wire::BeginReloadRequest {
        namespace: namespace.clone(),
        hashes: hashes.into(),
        client,
        ..Default::default()
    };
    vec![
        (Verb::Lookup, lookup.encode_to_vec()),
        (Verb::BeginOffload, offload.encode_to_vec()),
        (Verb::BeginReload, reload.encode_to_vec()),
        (Verb::CommitOffload, wire::CommitOffloadRequest { client, ..Default::default() }.encode_to_vec()),
        (
            Verb::Reserve,
            wire::ReserveRequest { client, namespace: namespace.clone(), ..Default::default() }
                .encode_to_vec(),
        ),
    ]
}

fn hello(server: &Server) -> Result<(LocalSocket, u64)> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let socket = LocalSocket::connect(&server.local_socket(), deadline)?;
    let ask = wire::HelloRequest { protocol: 1, ..Default::default() };
    socket.send(Verb::Hello as u8, 0, &ask.encode_to_vec(), &[])?;
    let reply = wire::HelloReply::decode(socket.recv(Some(deadline))?.body.as_slice())?;
    Ok((socket, reply.client))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_survives_every_field_of_every_request() -> Result<()> {
    let server = Server::start(Setup { limits: "lease_ms = 500\n".to_owned(), ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let options =
        OffloadOptions { durable: true, wait: Duration::from_secs(20), ..OffloadOptions::default() };
    user.offload(&options, &chain(1, PAGES)).await?;
    let (mut socket, mut client) = hello(&server)?;
    let mut answered = 0;
    each_seed(400, |random| {
        let asks = requests(&user.namespace.id().0, client);
        let Some((verb, body)) = random.pick(&asks) else { return };
        let body = match random.below(4) {
            0 => mutate_bytes(random, body),
            _ => mutate_message(random, body),
        };
        let verb = if random.one_in(20) { random.number() as u8 } else { *verb as u8 };
        let sent = socket.send(verb, 0, &body, &[]);
        match sent.and_then(|()| socket.recv(Some(Instant::now() + PATIENCE))) {
            Ok(_) => answered += 1,
            // It waits, as it was asked to, or closed the door: the next one begins anew.
            Err(_) => {
                (socket, client) =
                    hello(&server).unwrap_or_else(|error| panic!("{error:#}: {}", server.log()))
            }
        }
    });
    ensure!(answered > 200 || answered == 1, "only {answered} were answered");
    let report = user.reload(&chain(1, PAGES)).await?;
    ensure!(report.pages == PAGES, "{report:?}");
    user.client.stats().await.context("it is up")?;
    ensure!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

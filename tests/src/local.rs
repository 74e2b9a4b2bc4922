//! A client that speaks the frames of the local socket by hand. Owns: one connection, its number, a namespace. Must not know:
//! what a test wants of them.

use crate::pages::{chain, namespace};
use crate::server::Server;
use anyhow::{Context, Result, ensure};
use prost::Message;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use turnkv_proto::{ErrorKind, pack_hashes, wire};
use turnkv_transfer::fabric::framed::FramedStream;
use turnkv_transfer::{FLAG_FAILURE, FLAG_MORE, Frame, LocalSocket};
use wire::Verb;
use wire::pool_client::PoolClient;

/// A client that speaks the frames by hand.
pub struct Local {
    socket: LocalSocket,
    /// Its number.
    pub client: u64,
    /// The namespace it opened.
    pub ns: bytes::Bytes,
}

impl Local {
    /// Says Hello to a server, and opens a namespace with pages of so many bytes.
    ///
    /// # Errors
    /// The server is not there.
    pub async fn connect(server: &Server, page_bytes: u64) -> Result<Local> {
        Local::connect_at(&server.address(), &server.local_socket(), page_bytes).await
    }

    /// The same by its addresses.
    ///
    /// # Errors
    /// As there.
    pub async fn connect_at(address: &str, socket: &Path, page_bytes: u64) -> Result<Local> {
        let channel = tonic::transport::Endpoint::from_shared(address.to_owned())?.connect().await?;
        let spec = Some(wire::NamespaceSpec::from(&namespace("held", page_bytes)));
        let opened = PoolClient::new(channel).open_namespace(wire::OpenNamespaceRequest { spec }).await?;
        Local::hello(socket, opened.into_inner().namespace)
    }

    /// Says Hello on one more connection.
    ///
    /// # Errors
    /// The server is not there.
    pub fn hello(socket: &Path, ns: bytes::Bytes) -> Result<Local> {
        let socket = LocalSocket::connect(socket, Instant::now() + Duration::from_secs(5))?;
        Local::greet(socket, ns)
    }

    /// The same over a network, without encryption.
    ///
    /// # Errors
    /// The server is not there.
    pub fn over_network(tcp: SocketAddr, ns: bytes::Bytes) -> Result<Local> {
        let stream = FramedStream::plain(TcpStream::connect(tcp)?)?;
        Local::greet(LocalSocket::over_network(stream)?, ns)
    }

    fn greet(socket: LocalSocket, ns: bytes::Bytes) -> Result<Local> {
        let mut local = Local { socket, client: 0, ns };
        let hello: wire::HelloReply =
            local.ask(Verb::Hello, &wire::HelloRequest { protocol: 1, ..Default::default() })?;
        local.client = hello.client;
        Ok(local)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The server left.
    pub fn tell(&self, verb: Verb, body: &impl Message) -> Result<()> {
        let by = Instant::now() + Duration::from_secs(5);
        Ok(self.socket.send_by(verb as u8, 0, &body.encode_to_vec(), &[], by)?)
    }

    /// Sends a request and takes its answer.
    ///
    /// # Errors
    /// The server left, or refused it.
    pub fn ask<M: Message + Default>(&self, verb: Verb, body: &impl Message) -> Result<M> {
        self.tell(verb, body)?;
        Ok(M::decode(&self.answer()?.body[..])?)
    }

    /// Sends a request and takes its answers to the last one.
    ///
    /// # Errors
    /// The server left, or refused it.
    pub fn ask_all<M: Message + Default>(&self, verb: Verb, body: &impl Message) -> Result<Vec<M>> {
        self.tell(verb, body)?;
        let mut answers = Vec::new();
        loop {
            let frame = self.answer()?;
            answers.push(M::decode(&frame.body[..])?);
            if frame.flags & FLAG_MORE == 0 {
                return Ok(answers);
            }
        }
    }

    fn answer(&self) -> Result<Frame> {
        let frame = self.next(Duration::from_secs(60))?;
        if frame.flags & FLAG_FAILURE != 0 {
            let failure = wire::Failure::decode(&frame.body[..])?;
            return Err(turnkv_proto::Error::from_failure(&failure).into());
        }
        Ok(frame)
    }

    /// The next frame that comes, within so long.
    ///
    /// # Errors
    /// None does, or the server hung up.
    pub fn next(&self, wait: Duration) -> Result<Frame> {
        Ok(self.socket.recv(Some(Instant::now() + wait))?)
    }

    /// Says that no more requests will come; answers can still be read.
    ///
    /// # Errors
    /// The server hung up.
    pub fn end_requests(&self) -> Result<()> {
        Ok(rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write)?)
    }

    /// A request that must be refused so.
    ///
    /// # Errors
    /// It was not.
    pub fn refused(&self, verb: Verb, body: &impl Message, kind: ErrorKind, what: &str) -> Result<()> {
        let Err(error) = self.ask::<wire::RenewReply>(verb, body) else { anyhow::bail!("{what}: accepted") };
        let error = error.downcast::<turnkv_proto::Error>().with_context(|| what.to_owned())?;
        ensure!(error.kind == kind, "{what}: {error:?}");
        Ok(())
    }

    /// A wish for slots, under a lease (0: a new one).
    #[must_use]
    pub fn reserve(&self, pages: u32, lease: u64) -> wire::ReserveRequest {
        wire::ReserveRequest { namespace: self.ns.clone(), shard: 0, client: self.client, lease, pages }
    }

    /// A commit of the leading pages of the first chain into these positions.
    #[must_use]
    pub fn commit(&self, lease: u64, hashes: usize, positions: &[u32]) -> wire::CommitReservedRequest {
        wire::CommitReservedRequest {
            namespace: self.ns.clone(),
            client: self.client,
            lease,
            hashes: pack_hashes(&chain(1, hashes)).into(),
            positions: positions.to_vec(),
            checksums: vec![7; positions.len()],
            ..Default::default()
        }
    }

    /// Renews one lease.
    ///
    /// # Errors
    /// The server left.
    pub fn renew(&self, lease: u64) -> Result<wire::RenewReply> {
        self.ask(Verb::Renew, &wire::RenewRequest { client: self.client, leases: vec![lease] })
    }
}

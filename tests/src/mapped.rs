//! A client that keeps the slabs mapped and writes where it likes, by the frames of the local socket. Owns: one connection, the
//! slabs that it was given. Must not know: what a test wants of them.

use crate::server::Server;
use anyhow::{Context, Result, ensure};
use prost::Message;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_client::BlockHash;
use turnkv_proto::{pack_hashes, wire};
use turnkv_transfer::{FLAG_FAILURE, FLAG_MORE, Frame, LocalSocket, Region, Slot};
use wire::Verb;

/// The client.
pub struct Mapped {
    socket: LocalSocket,
    client: u64,
    namespace: Vec<u8>,
    page_bytes: usize,
}

impl Mapped {
    /// Says Hello, for pages of an open namespace.
    ///
    /// # Errors
    /// The server is not there.
    pub fn connect(server: &Server, namespace: &[u8], page_bytes: usize) -> Result<Mapped> {
        let socket = LocalSocket::connect(&server.local_socket(), Instant::now() + Duration::from_secs(5))?;
        let mut mapped = Mapped { socket, client: 0, namespace: namespace.to_vec(), page_bytes };
        let hello: wire::HelloReply =
            mapped.ask(Verb::Hello, &wire::HelloRequest { protocol: 1, ..Default::default() })?;
        mapped.client = hello.client;
        Ok(mapped)
    }

    /// Offloads pages as any client does; the slots they are in, which it goes on to have mapped.
    ///
    /// # Errors
    /// The server left, or declined a page.
    pub fn offload(&self, hashes: &[BlockHash], pages: &[Vec<u8>]) -> Result<Vec<Slot>> {
        let begin = self.begin(hashes, false);
        let granted: wire::BeginOffloadReply = self.ask(Verb::BeginOffload, &begin)?;
        ensure!(granted.slots.len() == hashes.len(), "{granted:?}");
        let (mut slots, mut checksums) = (Vec::new(), Vec::new());
        for (place, page) in granted.slots.iter().zip(pages) {
            let slot = self.map(place)?;
            checksums.push(slot.claim()?.fill(page).1);
            slots.push(slot);
        }
        let commit = wire::CommitOffloadRequest {
            lease: granted.lease,
            client: self.client,
            pages: (0..hashes.len() as u32).collect(),
            checksums,
            durable: false,
        };
        let done: wire::CommitOffloadReply = self.ask(Verb::CommitOffload, &commit)?;
        ensure!(done.dropped.is_empty(), "{done:?}");
        Ok(slots)
    }

    /// Asks for pages that are there to be made durable.
    ///
    /// # Errors
    /// The server left.
    pub fn make_durable(&self, hashes: &[BlockHash]) -> Result<wire::BeginOffloadReply> {
        self.ask(Verb::BeginOffload, &self.begin(hashes, true))
    }

    fn begin(&self, hashes: &[BlockHash], durable: bool) -> wire::BeginOffloadRequest {
        wire::BeginOffloadRequest {
            namespace: self.namespace.clone().into(),
            hashes: pack_hashes(hashes).into(),
            client: self.client,
            durable,
            ..Default::default()
        }
    }

    fn map(&self, place: &wire::SlotRef) -> Result<Slot> {
        let ask = wire::AttachSlabRequest {
            namespace: self.namespace.clone().into(),
            slab: place.slab,
            generation: place.generation,
        };
        let mut frame = self.exchange(Verb::AttachSlab, &ask)?;
        let reply = wire::AttachSlabReply::decode(&frame.body[..])?;
        let fd = frame.fd.take().context("no memfd came")?;
        let region: Arc<Region> = Region::from_fd(fd, reply.slab_bytes as usize)?;
        region.slot(place.offset as usize, self.page_bytes).context("the slot is outside its slab")
    }

    fn ask<M: Message + Default>(&self, verb: Verb, body: &impl Message) -> Result<M> {
        Ok(M::decode(&self.exchange(verb, body)?.body[..])?)
    }

    fn exchange(&self, verb: Verb, body: &impl Message) -> Result<Frame> {
        let by = Instant::now() + Duration::from_secs(5);
        self.socket.send_by(verb as u8, 0, &body.encode_to_vec(), &[], by)?;
        let frame = self.socket.recv(Some(Instant::now() + Duration::from_secs(60)))?;
        ensure!(frame.flags & FLAG_FAILURE == 0, "refused: {:?}", wire::Failure::decode(&frame.body[..])?);
        ensure!(frame.flags & FLAG_MORE == 0, "more frames than one");
        Ok(frame)
    }
}

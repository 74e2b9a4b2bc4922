//! The server's slabs, mapped into this process. Owns: the bounded cache of mappings, attaching. Must not know: pages.

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{PREFAULT_PIECE_BYTES, SLABS_MAX};
use crate::local::{Connection, LocalPool, Server, decode, receive, send};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::{FLAG_FAILURE, Region, Slot};

/// A mapping's name: instance of the server, slab, generation.
type Key = (u64, u32, u32);

#[derive(Debug, Default)]
pub(crate) struct Slabs {
    mapped: Mutex<HashMap<Key, Arc<Region>>>,
    /// Attaching has a connection of its own, because the operation that needs a slab may be reading a stream.
    connection: tokio::sync::Mutex<Option<Connection>>,
    /// Slabs are faulted in one after another.
    warming: Arc<tokio::sync::Mutex<()>>,
}

/// A place in a slab, as a reply names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) server: &'a Server,
    pub(crate) namespace: &'a [u8; 32],
    pub(crate) page_bytes: usize,
}

impl Slabs {
    /// Drops every mapping that no slot uses.
    pub(crate) fn forget(&self) {
        self.mapped.lock().clear();
    }

    /// How many slabs are mapped.
    pub(crate) fn count(&self) -> usize {
        self.mapped.lock().len()
    }

    fn find(&self, key: Key) -> Option<Arc<Region>> {
        self.mapped.lock().get(&key).cloned()
    }

    fn keep(&self, key: Key, region: &Arc<Region>) {
        let mut mapped = self.mapped.lock();
        // A re-cut slab's old memory is of no use to anyone.
        mapped.retain(|(instance, slab, _), _| *instance == key.0 && *slab != key.1);
        if mapped.len() >= SLABS_MAX
            && let Some(other) = mapped.keys().next().copied()
        {
            mapped.remove(&other);
        }
        mapped.insert(key, Arc::clone(region));
    }

    /// Faults a new mapping in beside the operations that use it: touching a page first costs more than copying it.
    fn warm(&self, region: &Arc<Region>) {
        let (turn, region) = (Arc::clone(&self.warming), Arc::downgrade(region));
        drop(tokio::spawn(async move {
            let _turn = turn.lock().await;
            let warmed = tokio::task::spawn_blocking(move || prefault(&region)).await;
            if let Ok(Err(error)) = warmed {
                tracing::debug!(%error, "a slab was not faulted in: its first copies will");
            }
        }));
    }
}

impl LocalPool {
    /// The slot that a reply names, its slab mapped if it is not yet.
    pub(crate) async fn slot(
        &self,
        place: Place<'_>,
        slot: Option<&wire::SlotRef>,
        deadline: Deadline,
    ) -> Result<Slot> {
        let slot = slot.ok_or_else(|| Error::protocol("a page without a slot"))?;
        let key = (place.server.instance, slot.slab, slot.generation);
        let region = match self.slabs.find(key) {
            Some(region) => region,
            None => self.attach(place, key, deadline).await?,
        };
        let offset = usize::try_from(slot.offset).map_err(Error::protocol)?;
        region.slot(offset, place.page_bytes).ok_or_else(|| Error::protocol("a slot reaches past its slab"))
    }

    async fn attach(&self, place: Place<'_>, key: Key, deadline: Deadline) -> Result<Arc<Region>> {
        let mut kept = deadline.bound(self.slabs.connection.lock()).await?;
        if let Some(region) = self.slabs.find(key) {
            return Ok(region); // someone else attached it meanwhile
        }
        // Taken out while it is used: if this future is dropped half way, the connection is closed, not out of step.
        let usable = kept.take().filter(|connection| {
            connection.server.instance == key.0 && matches!(connection.socket.peer_hung_up(), Ok(false))
        });
        let connection = match usable {
            Some(connection) => connection,
            None => self.connect(deadline).await?,
        };
        if connection.server.instance != key.0 {
            return Err(Error::unavailable("the server restarted"));
        }
        let request = wire::AttachSlabRequest {
            namespace: place.namespace.to_vec().into(),
            slab: key.1,
            generation: key.2,
        };
        send(&connection.socket, Verb::AttachSlab, &request, deadline)?;
        let mut frame = receive(&connection.socket, deadline).await?;
        let reply: wire::AttachSlabReply = match decode(Verb::AttachSlab, &frame) {
            Ok(reply) => reply,
            Err(error) => {
                if frame.flags & FLAG_FAILURE != 0 {
                    *kept = Some(connection); // a refusal leaves it in step
                }
                return Err(error);
            }
        };
        let fd = frame.fd.take().ok_or_else(|| Error::protocol("a slab without its memory"))?;
        let bytes = usize::try_from(reply.slab_bytes).map_err(Error::protocol)?;
        let region = Region::from_fd(fd, bytes)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("mapping slab {}: {error}", key.1)))?;
        self.slabs.keep(key, &region);
        self.slabs.warm(&region);
        *kept = Some(connection);
        Ok(region)
    }
}

/// Piece by piece, so that it ends soon after the mapping is not needed any more.
fn prefault(region: &Weak<Region>) -> io::Result<()> {
    let mut offset = 0;
    while let Some(region) = region.upgrade().filter(|region| offset < region.len()) {
        let bytes = PREFAULT_PIECE_BYTES.min(region.len() - offset);
        region.prefault(offset, bytes)?;
        offset += bytes;
    }
    Ok(())
}

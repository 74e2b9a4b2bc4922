//! Attaching slabs: a slot that a reply names is mapped where this process can reach it. Must not know:
//! pages, who maps what.

use super::connection::Server;
use super::mapped_slabs::SlabKey;
use super::pool::LocalPool;
use super::talk::{decode, receive, send};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::{FLAG_FAILURE, Region, Slot};

/// A place in a slab, as a reply names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotOf<'a> {
    pub(crate) server: &'a Server,
    pub(crate) namespace: &'a [u8; 32],
    pub(crate) page_bytes: usize,
}

impl LocalPool {
    /// The slot that a reply names, its slab mapped if it is not yet.
    pub(crate) async fn slot(
        &self,
        place: SlotOf<'_>,
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

    async fn attach(&self, place: SlotOf<'_>, key: SlabKey, deadline: Deadline) -> Result<Arc<Region>> {
        let mut kept = deadline.bound(self.attaching.lock()).await?;
        if let Some(region) = self.slabs.find(key) {
            return Ok(region); // someone else attached it meanwhile
        }
        // Taken out while it is used: if this future is dropped half way, the connection is closed, not out
        // of step.
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

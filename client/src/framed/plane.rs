//! What all calls over a network share. Owns: the memory lent to one server process and the rails to it, and for how long a
//! server counts as one that speaks no frames. Must not know: verbs.

use super::direct::DeviceWay;
use super::own_pages::{LentFor, OwnPages};
use super::rails::Rails;
use super::staging::{Staged, StagingRoom};
use crate::config::FabricConfig;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::limits::{NO_FRAMES_PAUSE, SUSPICION};
use crate::local::{Lent, LocalPool, Place, Port, Server};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;
use turnkv_transfer::PageMemory;
use turnkv_transfer::device::Device;
use turnkv_transfer::fabric::{Access, Engine};

/// The way to one server over a network.
#[derive(Debug)]
pub(crate) struct FramedPlane {
    /// Control connections.
    pub(crate) control: Arc<LocalPool>,
    port: Port,
    fabric: FabricConfig,
    /// Numbers the domains of this client.
    domains: Arc<AtomicU32>,
    staging: Arc<StagingRoom>,
    /// To the server process last spoken to.
    rails: Mutex<Option<Arc<Rails>>>,
    /// The server spoke something else; it is asked again after this moment.
    no_frames_until: Mutex<Option<Instant>>,
    /// Its pages were not what they should be; it looks at them itself until this moment.
    suspected_until: Mutex<Option<Instant>>,
}

/// The memory that a call's pages would be copied to or from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copies<'a> {
    /// What copies them, if not a CPU.
    pub(crate) device: Option<&'a Device>,
    pub(crate) bytes: usize,
}

/// What is known of the rails to a server, without asking anybody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PlaneState {
    /// Rails that are open.
    pub(crate) rails: usize,
    /// The fastest fabric that they are of.
    pub(crate) fabric: Option<Engine>,
    /// Why no NIC is used, where one could be.
    pub(crate) why_no_nic: String,
    /// Bytes that a dropped call had lent and that an engine keeps until its rails end.
    pub(crate) quarantined_bytes: usize,
    /// How the pages of the last call of a device go; none: there was none.
    pub(crate) device_way: Option<DeviceWay>,
}

impl FramedPlane {
    /// Of the server at this port; connects nothing yet.
    pub(crate) fn new(port: Port, fabric: FabricConfig) -> FramedPlane {
        FramedPlane {
            control: LocalPool::new(Place::Port(port.clone())),
            port,
            staging: StagingRoom::new(fabric.device_memory),
            fabric,
            domains: Arc::default(),
            rails: Mutex::default(),
            no_frames_until: Mutex::default(),
            suspected_until: Mutex::default(),
        }
    }

    /// Memory for so many bytes, lent to the server of this connection, with rails to reach it by: for a call of a device that device's,
    /// where NICs reach it, else this host's.
    pub(crate) async fn stage_for(
        &self,
        device: Option<&Device>,
        lent: &mut Lent,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Staged> {
        let rails = self.rails_to(&lent.server());
        for domain in self.staging.overfull() {
            rails.renew(domain);
        }
        rails.prepare(&self.port, lent, bytes, deadline).await?;
        self.staging.lend(device, &rails.reaches(), bytes, deadline).await
    }

    /// Lends a call's own pages as they are, where all of them may be (`own`) and all rails are framed; else memory to copy them to or
    /// from.
    pub(crate) async fn lend(
        &self,
        lent: &mut Lent,
        own: Option<(Vec<PageMemory>, Access)>,
        copies: Copies<'_>,
        deadline: Deadline,
    ) -> Result<LentFor> {
        if let Some((pages, access)) = own {
            let rails = self.rails_to(&lent.server());
            let bytes = pages.iter().map(PageMemory::len).sum();
            rails.prepare(&self.port, lent, bytes, deadline).await?;
            let framed = rails.only_framed();
            let own = framed.and_then(|(number, domain)| OwnPages::lend(domain, number, pages, access));
            if let Some(own) = own {
                return Ok(LentFor::Own(own));
            }
        }
        Ok(LentFor::Copies(self.stage_for(copies.device, lent, copies.bytes, deadline).await?))
    }

    /// A call came back otherwise than it should: a rail may be gone that this end still has.
    pub(crate) fn doubt(&self) {
        self.staging.doubt();
        if let Some(rails) = &*self.rails.lock() {
            rails.doubt();
        }
    }

    /// A page did not verify, long after it was sent: the wire may have damaged it, or the pool's memory, which only the server can tell.
    pub(crate) fn suspect(&self) {
        *self.suspected_until.lock() = Some(Instant::now() + SUSPICION);
    }

    /// Whether the server is asked to look at its own bytes.
    pub(crate) fn is_suspected(&self) -> bool {
        self.suspected_until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Pages go in frames only, for all that is known.
    pub(crate) fn has_no_nic(&self) -> bool {
        let rails = self.rails.lock().clone();
        rails.is_none_or(|rails| rails.fastest().is_none_or(|engine| engine == Engine::Framed))
    }

    /// What is known of the rails.
    pub(crate) fn state(&self) -> PlaneState {
        let (quarantined_bytes, device_way) = (self.staging.quarantined_bytes(), self.staging.device_way());
        let without = PlaneState { quarantined_bytes, device_way, ..PlaneState::default() };
        let Some(rails) = self.rails.lock().clone() else { return without };
        PlaneState {
            rails: rails.count(),
            fabric: rails.fastest(),
            why_no_nic: rails.why_no_nic(),
            ..without
        }
    }

    /// Whether the server was found to speak no frames a short while ago.
    pub(crate) fn speaks_no_frames(&self) -> bool {
        self.no_frames_until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// The server speaks no frames.
    pub(crate) fn note_no_frames(&self) {
        *self.no_frames_until.lock() = Some(Instant::now() + NO_FRAMES_PAUSE);
    }

    /// The rails to a server process; another process, or a client number that it forgot, has none of them.
    fn rails_to(&self, server: &Server) -> Arc<Rails> {
        let mut kept = self.rails.lock();
        match &*kept {
            Some(rails) if rails.server() == server => Arc::clone(rails),
            _ => {
                let (fabric, peer) = (self.fabric.clone(), (self.port.host.clone(), self.port.number));
                let rails = Arc::new(Rails::new(server.clone(), fabric, peer, &self.domains));
                *kept = Some(Arc::clone(&rails));
                rails
            }
        }
    }
}

//! The server's end over libfabric. Owns: its NIC, and one endpoint a peer. Must not know: operations, whom
//! they are for.

use std::ffi::c_void;
use std::sync::Arc;

use super::address::LibfabricAddress;
use super::device::{LibfabricOptions, ProviderDomain, ProviderRegistration};
use super::endpoint::{CqEvent, Endpoint, PeerPlace, RmaRequest};
use super::error::cause;
use super::sys::FiContext;
use crate::fabric::completion::CompletionQueue;
use crate::fabric::contract::{Answer, NicReport, OpenError, RailAddress, RailAnswers, RegisterError};
use crate::fabric::onesided::{Broken, LandedPart, Nic, NicDriver, Pair, Part};
use crate::fabric::operation::Cause;
use crate::limits::{RAIL_PART_BYTES_MAX, RAIL_PARTS_MAX};
use crate::region::Region;

/// A server's NIC over libfabric.
pub struct LibfabricServer {
    device: Arc<ProviderDomain>,
    driver: NicDriver<LibfabricNic>,
}

impl LibfabricServer {
    /// Opens the first of the wanted providers that this machine has.
    ///
    /// # Errors
    /// `Unavailable`: no library, or none of the providers. `Failed`: one that does not open.
    pub fn open(options: &LibfabricOptions) -> Result<Self, OpenError> {
        let device = ProviderDomain::open(options)?;
        let driver = NicDriver::start(Arc::new(LibfabricNic(Arc::clone(&device))), "fabric-libfabric")?;
        Ok(Self { device, driver })
    }

    /// The provider's name.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.device.provider
    }
}

impl std::fmt::Debug for LibfabricServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LibfabricServer").field("provider", &self.device.provider).finish_non_exhaustive()
    }
}

impl RailAnswers for LibfabricServer {
    fn answer(&self, client: &RailAddress, completions: &Arc<CompletionQueue>) -> Result<Answer, OpenError> {
        let client = LibfabricAddress::decode(client)?;
        let pair = LibfabricPair::open(&self.device, &client)?;
        let address = pair.endpoint.address()?.encode()?;
        let rail = self.driver.open(pair, completions)?;
        Ok(Answer { rail, address })
    }

    fn attach(&self, region: &Arc<Region>) -> Result<(), RegisterError> {
        self.driver.attach(region)
    }

    fn detach(&self, region: &Arc<Region>) {
        self.driver.detach(region);
    }

    fn name(&self) -> &str {
        &self.device.name
    }

    fn report(&self) -> NicReport {
        self.driver.report()
    }
}

/// The domain, as the driver has it.
struct LibfabricNic(Arc<ProviderDomain>);

/// The server's own registration, where the provider wants one.
struct LocalAccess(Option<ProviderRegistration>);

impl Nic for LibfabricNic {
    type Memory = LocalAccess;
    type Pair = LibfabricPair;
    // Providers that emulate what they offer do it on this thread, also for what a peer still has to be told.
    const POLLED_AT_REST: bool = true;

    fn register(&self, region: &Region) -> Result<LocalAccess, String> {
        if !self.0.wants_local() {
            return Ok(LocalAccess(None));
        }
        // The whole mapping: on huge pages a length that is not a multiple of theirs is refused.
        // SAFETY: the driver drops the registration before its share of the region.
        let made = unsafe { self.0.register_local(region.base(), region.mapped_bytes()) };
        made.map(|made| LocalAccess(Some(made))).map_err(|why| why.to_string())
    }
}

/// One endpoint and its one peer.
struct LibfabricPair {
    device: Arc<ProviderDomain>,
    endpoint: Endpoint,
    peer: PeerPlace,
    /// One for each token: the provider may use it while the operation is under way.
    contexts: Vec<FiContext>,
    events: Vec<CqEvent>,
}

// SAFETY: contexts are touched by the library alone, and it may be called by any thread.
unsafe impl Send for LibfabricPair {}

impl LibfabricPair {
    fn open(device: &Arc<ProviderDomain>, client: &LibfabricAddress) -> Result<Self, OpenError> {
        let parts_max = device.queue_size().clamp(1, RAIL_PARTS_MAX);
        let endpoint = Endpoint::open(device, parts_max, false)?;
        let peer = endpoint.learn(client)?;
        let contexts = vec![FiContext { internal: [0; 8] }; parts_max];
        Ok(Self { device: Arc::clone(device), endpoint, peer, contexts, events: Vec::new() })
    }

    fn context(&mut self, token: u32) -> *mut c_void {
        self.contexts.as_mut_ptr().wrapping_add(token as usize).cast()
    }

    /// Whose context that is: none if it is not one of ours.
    fn token(&self, context: *mut c_void) -> Option<u32> {
        let offset = context.addr().checked_sub(self.contexts.as_ptr().addr())?;
        let index = offset / size_of::<FiContext>();
        if index < self.contexts.len() { u32::try_from(index).ok() } else { None }
    }
}

// SAFETY: the library says of an operation that ended, done or failed, that it is past its memory, and drops
// what is under way when an endpoint is closed, which `destroy` waits for. A provider that says EAGAIN has
// begun nothing.
unsafe impl Pair for LibfabricPair {
    type Memory = LocalAccess;

    fn parts_max(&self) -> usize {
        self.contexts.len()
    }

    fn part_bytes_max(&self) -> u32 {
        let message = u32::try_from(self.device.message_bytes_max()).unwrap_or(u32::MAX);
        message.clamp(1, RAIL_PART_BYTES_MAX)
    }

    unsafe fn give(&mut self, parts: &[Part<'_, LocalAccess>]) -> Result<usize, Broken> {
        for (taken, part) in parts.iter().enumerate() {
            let request = RmaRequest {
                direction: part.direction,
                local: part.local,
                bytes: part.bytes as usize,
                desc: part.memory.0.as_ref().map_or(std::ptr::null_mut(), ProviderRegistration::desc),
                peer: self.peer,
                remote: part.remote,
                key: part.key,
                context: self.context(part.token),
            };
            // SAFETY: the caller vouches for the memory; the context is the token's own, which comes back with
            // its event and is not given twice before.
            match unsafe { self.endpoint.begin(&request) } {
                Ok(true) => {}
                Ok(false) => return Ok(taken),
                Err(code) => return Err(Broken { taken, cause: cause(&self.device.api, code) }),
            }
        }
        Ok(parts.len())
    }

    fn land(&mut self, landed: &mut Vec<LandedPart>) -> Result<(), Cause> {
        let read = self.endpoint.events(&mut self.events);
        let mut broken = read.err().map(|code| cause(&self.device.api, code));
        for event in std::mem::take(&mut self.events) {
            let (context, outcome) = match event {
                CqEvent::Done(context) => (context, Ok(())),
                CqEvent::Failed(context, code) => (context, Err(cause(&self.device.api, code))),
            };
            match (self.token(context), outcome) {
                (Some(token), outcome) => landed.push(LandedPart { token, outcome }),
                (None, Err(cause)) => broken = broken.or(Some(cause)),
                (None, Ok(())) => {}
            }
        }
        broken.map_or(Ok(()), Err)
    }

    fn destroy(&mut self) -> Result<(), String> {
        self.endpoint.close()
    }
}

impl Drop for LibfabricPair {
    fn drop(&mut self) {
        if self.endpoint.close().is_err() {
            // The provider may still write there.
            std::mem::forget(std::mem::take(&mut self.contexts));
        }
    }
}

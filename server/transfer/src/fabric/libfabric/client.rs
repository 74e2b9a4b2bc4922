//! The client's end over libfabric. Owns: its domain, what it lends, the endpoints that serve it. Must not
//! know: whose memory it is, what is asked of it.
//!
//! Most providers do the work of a target on the thread that reads its completion queue, so each rail has
//! one. Such a provider may be in the middle of a write when memory is taken back, and nobody can ask it: so
//! what is taken back while a rail lives stays with the domain until all its rails are closed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::address::LibfabricAddress;
use super::device::{LibfabricOptions, ProviderDomain, ProviderRegistration};
use super::endpoint::Endpoint;
use crate::fabric::contract::{
    Domain, OpenError, Quarantined, RailAddress, RailOffer, RailOffers, RegisterError, Target,
};
use crate::fabric::memory::{Access, TargetMemory};
use crate::fabric::onesided::{LentRail, Loans, RailEnd};
use crate::fabric::operation::{Cause, RegionKey};
use crate::limits::{RAIL_PARTS_MAX, TARGET_LOOK, TARGET_WAIT};

/// A client's memory towards one server, over libfabric.
pub struct LibfabricClient {
    device: Arc<ProviderDomain>,
    loans: Arc<Loans<LibfabricLoan>>,
}

impl LibfabricClient {
    /// Opens the first of the wanted providers that this machine has.
    ///
    /// # Errors
    /// `Unavailable`: no library, or none of the providers. `Failed`: one that does not open.
    pub fn open(options: &LibfabricOptions) -> Result<Self, OpenError> {
        let device = ProviderDomain::open(options)?;
        Ok(Self { device, loans: Loans::new() })
    }
}

/// Memory that is lent.
struct LibfabricLoan {
    /// Goes before the memory. None: closed, and only the memory is kept.
    registered: Option<ProviderRegistration>,
    _memory: TargetMemory,
}

impl fmt::Debug for LibfabricClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LibfabricClient").field("provider", &self.device.provider).finish_non_exhaustive()
    }
}

impl Domain for LibfabricClient {
    fn register(&self, memory: TargetMemory, access: Access) -> Result<RegionKey, RegisterError> {
        self.loans.room()?;
        let (registered, address) = match &memory {
            TargetMemory::Host(host) => {
                // SAFETY: the owner keeps its memory as `HostMemory` promises, and the loan keeps the owner until
                // the registration is dropped and no endpoint of the domain is open.
                let made = unsafe { self.device.register_remote(host.address(), host.bytes(), access) };
                (made?, host.address().as_ptr().addr() as u64)
            }
            TargetMemory::Device(device) => (self.device.register_device(device, access)?, device.address),
        };
        let key = RegionKey { key: registered.key(), base: self.device.base(address), bytes: memory.bytes() };
        let loan = LibfabricLoan { registered: Some(registered), _memory: memory };
        self.loans.lend(key.key, loan);
        Ok(key)
    }

    fn deregister(&self, key: RegionKey) -> Result<(), Quarantined> {
        let Some(mut loan) = self.loans.take(key.key) else { return Ok(()) };
        // From here on the provider refuses new operations on it.
        loan.registered = None;
        self.loans.keep_from_rails(loan)
    }

    fn registrations(&self) -> usize {
        self.loans.lent()
    }
}

impl RailOffers for LibfabricClient {
    fn offer(&self) -> Result<Box<dyn RailOffer>, OpenError> {
        let rail = self.loans.rail(|| Endpoint::open(&self.device, RAIL_PARTS_MAX, true))?;
        Ok(Box::new(LibfabricOffer { address: rail.address()?.encode()?, rail }))
    }

    fn name(&self) -> &str {
        &self.device.name
    }
}

type LibfabricRail = LentRail<Endpoint, LibfabricLoan>;

impl RailEnd for Endpoint {
    fn close(&mut self) -> Result<(), String> {
        Endpoint::close(self)
    }
}

struct LibfabricOffer {
    address: RailAddress,
    rail: LibfabricRail,
}

impl RailOffer for LibfabricOffer {
    fn address(&self) -> &RailAddress {
        &self.address
    }

    fn connect(self: Box<Self>, server: &RailAddress) -> Result<Arc<dyn Target>, OpenError> {
        self.rail.learn(&LibfabricAddress::decode(server)?)?;
        let state = Arc::new(LibfabricRailState { closed: AtomicBool::new(false), ended: Mutex::new(None) });
        let seen = Arc::clone(&state);
        let rail = self.rail;
        std::thread::Builder::new()
            .name("fabric-target".to_owned())
            .spawn(move || serve(rail, &seen))
            .map_err(|error| OpenError::Failed(format!("no thread for the rail: {error}")))?;
        Ok(Arc::new(LibfabricTarget(state)))
    }
}

/// The client's end of a rail. Its thread ends soon after it was closed, and closes the endpoint.
#[derive(Debug)]
struct LibfabricTarget(Arc<LibfabricRailState>);

#[derive(Debug)]
struct LibfabricRailState {
    closed: AtomicBool,
    /// Why the thread ended by itself.
    ended: Mutex<Option<Cause>>,
}

impl Target for LibfabricTarget {
    fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
    }

    fn death(&self) -> Option<Cause> {
        let ended = self.0.ended.lock().clone();
        ended.or_else(|| self.0.closed.load(Ordering::Acquire).then_some(Cause::Cancelled))
    }
}

impl Drop for LibfabricTarget {
    fn drop(&mut self) {
        self.close();
    }
}

/// A rail's thread: lets the provider work. What it reports of operations is the server's business.
fn serve(rail: LibfabricRail, state: &LibfabricRailState) {
    let mut events = Vec::new();
    while !state.closed.load(Ordering::Acquire) {
        events.clear();
        let looked = if rail.can_wait() {
            rail.wait(TARGET_WAIT, &mut events)
        } else {
            std::thread::sleep(TARGET_LOOK);
            rail.events(&mut events)
        };
        if let Err(code) = looked {
            *state.ended.lock() = Some(super::error::cause(rail.api(), code));
            break;
        }
    }
}

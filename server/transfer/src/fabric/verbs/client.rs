//! The client's end over verbs. Owns: its protection domain, what it lends, the queue pairs that serve it. Must
//! not know: whose memory it is, what is asked of it.
//!
//! The NIC serves the peer by itself, with no thread of ours. It also ends that: when a registration is taken
//! back, it is past the memory.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::address::VerbsAddress;
use super::device::{ProtectionDomain, RdmaPort, VerbsOptions, VerbsRegistration, flags};
use super::queue_pair::{PairSide, QueuePair};
use crate::fabric::contract::{
    Domain, OpenError, Quarantined, RailAddress, RailOffer, RailOffers, RegisterError, Target,
};
use crate::fabric::memory::{Access, TargetMemory};
use crate::fabric::onesided::{LentRail, Loans, RailEnd};
use crate::fabric::operation::{Cause, RegionKey};

/// A client's memory towards one server, over verbs.
pub struct VerbsClient {
    domain: Arc<ProtectionDomain>,
    /// What the kernel did not take back stays in quarantine, and is tried again when the last rail is gone.
    loans: Arc<Loans<VerbsLoan>>,
}

impl VerbsClient {
    /// Opens the first port that is up and, if a device is named, is that one.
    ///
    /// # Errors
    /// `Unavailable`: no library, no device, no port that can be used. `Failed`: one that does not open.
    pub fn open(options: &VerbsOptions) -> Result<Self, OpenError> {
        let domain = ProtectionDomain::new(&RdmaPort::open(options)?)?;
        Ok(Self { domain, loans: Loans::new() })
    }
}

/// Memory that is lent.
struct VerbsLoan {
    /// Goes before the memory.
    registered: VerbsRegistration,
    memory: TargetMemory,
}

impl fmt::Debug for VerbsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsClient").field("device", &self.domain.device.name).finish_non_exhaustive()
    }
}

impl Domain for VerbsClient {
    fn register(&self, memory: TargetMemory, access: Access) -> Result<RegionKey, RegisterError> {
        self.loans.room()?;
        let (registered, base) = match &memory {
            TargetMemory::Host(host) => {
                // SAFETY: the owner keeps its memory as `HostMemory` promises, and the loan keeps the owner until
                // the registration is taken back.
                let made = unsafe { self.domain.register(host.address(), host.bytes(), flags(access)) };
                (made?, host.address().as_ptr().addr() as u64)
            }
            TargetMemory::Device(device) => (self.domain.register_device(device, access)?, device.address),
        };
        let key = RegionKey { key: registered.keys().1.into(), base, bytes: memory.bytes() };
        self.loans.lend(key.key, VerbsLoan { registered, memory });
        Ok(key)
    }

    fn deregister(&self, key: RegionKey) -> Result<(), Quarantined> {
        let Some(mut loan) = self.loans.take(key.key) else { return Ok(()) };
        if loan.registered.take_back() {
            return Ok(());
        }
        self.loans.keep(loan);
        Err(Quarantined)
    }

    fn registrations(&self) -> usize {
        self.loans.lent()
    }
}

impl Drop for VerbsLoan {
    fn drop(&mut self) {
        if self.registered.take_back() {
            return;
        }
        // The NIC may touch it for ever, so it stays for ever.
        if let TargetMemory::Host(host) = &self.memory {
            std::mem::forget(Arc::clone(host));
        } else if let TargetMemory::Device(device) = &self.memory {
            std::mem::forget(Arc::clone(&device.owner));
        }
    }
}

impl RailOffers for VerbsClient {
    fn offer(&self) -> Result<Box<dyn RailOffer>, OpenError> {
        let pair = self.loans.rail(|| QueuePair::open(&self.domain, PairSide::Target))?;
        Ok(Box::new(VerbsOffer { address: pair.address().encode()?, pair }))
    }

    fn name(&self) -> &str {
        &self.domain.device.name
    }
}

type VerbsRail = LentRail<QueuePair, VerbsLoan>;

impl RailEnd for QueuePair {
    fn close(&mut self) -> Result<(), String> {
        self.destroy()
    }
}

struct VerbsOffer {
    address: RailAddress,
    pair: VerbsRail,
}

impl RailOffer for VerbsOffer {
    fn address(&self) -> &RailAddress {
        &self.address
    }

    fn connect(self: Box<Self>, server: &RailAddress) -> Result<Arc<dyn Target>, OpenError> {
        self.pair.connect(&VerbsAddress::decode(server)?)?;
        Ok(Arc::new(VerbsTarget(Mutex::new(Some(self.pair)))))
    }
}

/// The client's end of a rail. None: closed.
struct VerbsTarget(Mutex<Option<VerbsRail>>);

impl fmt::Debug for VerbsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VerbsTarget").field(&self.0.lock().is_some()).finish()
    }
}

impl Target for VerbsTarget {
    fn close(&self) {
        let pair = self.0.lock().take();
        drop(pair);
    }

    fn death(&self) -> Option<Cause> {
        match &*self.0.lock() {
            None => Some(Cause::Cancelled),
            Some(pair) if pair.is_in_error() => Some(Cause::Device(
                "the queue pair is in error: a request was refused, or the NIC failed".to_owned(),
            )),
            Some(_) => None,
        }
    }
}

impl Drop for VerbsTarget {
    fn drop(&mut self) {
        self.close();
    }
}

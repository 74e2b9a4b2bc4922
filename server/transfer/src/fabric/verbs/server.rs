//! The server's end over verbs. Owns: its NIC, and one queue pair a peer. Must not know: operations, whom they
//! are for.

use std::sync::Arc;

use super::address::VerbsAddress;
use super::device::{ProtectionDomain, RdmaPort, VerbsOptions, VerbsRegistration};
use super::error::cause;
use super::queue_pair::{PairSide, QueuePair, VerbsRequest};
use super::sys;
use crate::fabric::completion::CompletionQueue;
use crate::fabric::contract::{Answer, NicReport, OpenError, RailAddress, RailAnswers, RegisterError};
use crate::fabric::onesided::{Broken, LandedPart, Nic, NicDriver, Pair, Part};
use crate::fabric::operation::{Cause, Direction};
use crate::limits::RAIL_PART_BYTES_MAX;
use crate::region::Region;

/// A server's NIC over verbs.
pub struct VerbsServer {
    domain: Arc<ProtectionDomain>,
    driver: NicDriver<VerbsNic>,
}

impl VerbsServer {
    /// Opens the first port that is up and, if a device is named, is that one.
    ///
    /// # Errors
    /// `Unavailable`: no library, no device, no port that can be used. `Failed`: one that does not open.
    pub fn open(options: &VerbsOptions) -> Result<Self, OpenError> {
        let domain = ProtectionDomain::new(&RdmaPort::open(options)?)?;
        let name = format!("fabric-{}", domain.device.device_name);
        let driver = NicDriver::start(Arc::new(VerbsNic(Arc::clone(&domain))), &name)?;
        Ok(Self { domain, driver })
    }
}

impl std::fmt::Debug for VerbsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerbsServer").field("device", &self.domain.device.name).finish_non_exhaustive()
    }
}

impl RailAnswers for VerbsServer {
    fn answer(&self, client: &RailAddress, completions: &Arc<CompletionQueue>) -> Result<Answer, OpenError> {
        let client = VerbsAddress::decode(client)?;
        let pair = QueuePair::open(&self.domain, PairSide::Initiator)?;
        pair.connect(&client)?;
        let address = pair.address().encode()?;
        let domain = Arc::clone(&self.domain);
        let rail = self.driver.open(VerbsPair { domain, pair }, completions)?;
        Ok(Answer { rail, address })
    }

    fn attach(&self, region: &Arc<Region>) -> Result<(), RegisterError> {
        self.driver.attach(region)
    }

    fn detach(&self, region: &Arc<Region>) {
        self.driver.detach(region);
    }

    fn name(&self) -> &str {
        &self.domain.device.name
    }

    fn report(&self) -> NicReport {
        self.driver.report()
    }
}

/// The protection domain, as the driver has it.
struct VerbsNic(Arc<ProtectionDomain>);

impl Nic for VerbsNic {
    type Memory = VerbsRegistration;
    type Pair = VerbsPair;
    const POLLED_AT_REST: bool = false;

    fn register(&self, region: &Region) -> Result<VerbsRegistration, String> {
        // The whole mapping: on huge pages a length that is not a multiple of theirs is refused.
        // SAFETY: the driver drops the registration before its share of the region. Only this side's NIC writes
        // there, and only for operations on slots.
        let made =
            unsafe { self.0.register(region.base(), region.mapped_bytes(), sys::IBV_ACCESS_LOCAL_WRITE) };
        made.map_err(|why| why.to_string())
    }
}

/// One queue pair, as the driver has it.
struct VerbsPair {
    domain: Arc<ProtectionDomain>,
    pair: QueuePair,
}

// SAFETY: a work request's completion says that the NIC is past its memory, and the kernel destroys a queue
// pair only when its NIC has stopped working on it, which `destroy` waits for. Requests from the one that a
// chain is refused at were not begun.
unsafe impl Pair for VerbsPair {
    type Memory = VerbsRegistration;

    fn parts_max(&self) -> usize {
        self.domain.device.requests_max
    }

    fn part_bytes_max(&self) -> u32 {
        self.domain.device.attr.max_msg_sz.clamp(1, RAIL_PART_BYTES_MAX)
    }

    unsafe fn give(&mut self, parts: &[Part<'_, VerbsRegistration>]) -> Result<usize, Broken> {
        let mut requests = Vec::with_capacity(parts.len());
        for part in parts {
            // Keys of verbs have 32 bits: another one is nobody's.
            let Ok(remote_key) = u32::try_from(part.key) else {
                break;
            };
            requests.push(VerbsRequest {
                name: u64::from(part.token),
                opcode: match part.direction {
                    Direction::Read => sys::IBV_WR_RDMA_READ,
                    Direction::Write => sys::IBV_WR_RDMA_WRITE,
                },
                local: part.local,
                bytes: part.bytes,
                local_key: part.memory.keys().0,
                remote: part.remote,
                remote_key,
            });
        }
        let foreign = requests.len() < parts.len();
        // SAFETY: the caller vouches for the memory and for what registers it.
        match unsafe { self.pair.give(&requests) } {
            Ok(taken) if foreign && taken == requests.len() => Err(Broken { taken, cause: Cause::Refused }),
            Ok(taken) => Ok(taken),
            Err((taken, why)) => Err(Broken { taken, cause: Cause::Device(why) }),
        }
    }

    fn land(&mut self, landed: &mut Vec<LandedPart>) -> Result<(), Cause> {
        let api = &self.domain.device.api;
        let read = self.pair.completions(|name, status| {
            let Ok(token) = u32::try_from(name) else { return };
            let outcome =
                if status == sys::IBV_WC_SUCCESS { Ok(()) } else { Err(cause(status, || api.words(status))) };
            landed.push(LandedPart { token, outcome });
        });
        read.map_err(Cause::Device)
    }

    fn destroy(&mut self) -> Result<(), String> {
        self.pair.destroy()
    }
}

//! The engine over verbs: the suite that all engines pass, on the RDMA device of this machine, and what happens
//! where there is none.
//!
//! With `TURNKV_RDMA` set (to a device's name, or empty for the first one) the suite runs and fails where it
//! cannot; without, it is left out, which each test says on stderr by its name. `make test-rdma` runs it in a
//! virtual machine with a software NIC.

use std::io::Write;
use std::sync::Arc;

use super::device::{ProtectionDomain, RdmaPort};
use super::queue_pair::{PairSide, QueuePair, VerbsRequest};
use super::sys::{IBV_ACCESS_LOCAL_WRITE, IBV_WC_SUCCESS, IBV_WR_RDMA_WRITE};
use super::{VerbsClient, VerbsOptions, VerbsServer};
use crate::fabric::conformance::{Ends, Rail, conforms, needs_its_library};
use crate::fabric::memory::DeviceTarget;
use crate::fabric::{
    Access, CompletionQueue, Domain, OpenError, RailAddress, RailAnswers, RailOffers, RegisterError,
    TargetMemory,
};
use crate::region::Region;

/// The server's end; clients are opened on the same device.
struct OneDevice {
    server: VerbsServer,
    options: VerbsOptions,
}

impl Ends for OneDevice {
    const SEES_SERVER: bool = false;

    type Client = VerbsClient;

    fn client(&self) -> VerbsClient {
        VerbsClient::open(&self.options).expect("the server has the same device")
    }

    fn domain(client: &VerbsClient) -> &dyn Domain {
        client
    }

    fn rail(&self, client: &VerbsClient, completions: &Arc<CompletionQueue>) -> Rail {
        let offer = client.offer().expect("a queue pair can be made");
        let answer = self.server.answer(offer.address(), completions).expect("the address is good");
        let target = offer.connect(&answer.address).expect("the answer is good");
        Rail { initiator: answer.rail, target }
    }

    fn attach(&self, region: &Arc<Region>) {
        self.server.attach(region).expect("the NIC takes one more");
    }
}

/// Both ends on one device, or none where there is no device, which is said.
fn one_device(test: &str) -> Option<OneDevice> {
    let Some(device) = std::env::var_os("TURNKV_RDMA") else {
        // Past the harness, which keeps what passing tests print.
        writeln!(
            std::io::stderr(),
            "LEFT OUT: fabric::verbs {test}: TURNKV_RDMA is not set; run make test-rdma"
        )
        .expect("stderr can be written");
        return None;
    };
    let device = device.to_str().filter(|device| !device.is_empty()).map(str::to_owned);
    let options = VerbsOptions { device, ..VerbsOptions::default() };
    let server = VerbsServer::open(&options).expect("TURNKV_RDMA says that there is a device");
    Some(OneDevice { server, options })
}

conforms!(if one_device);

#[test]
fn without_its_library_it_says_why() {
    let at = |path: &str| VerbsOptions { library: Some(path.into()), ..VerbsOptions::default() };
    needs_its_library(|path| VerbsServer::open(&at(path)));
    needs_its_library(|path| VerbsClient::open(&at(path)));
}

#[test]
fn a_device_that_is_not_there_is_unavailable() {
    let options = VerbsOptions { device: Some("nonesuch_0".to_owned()), ..VerbsOptions::default() };
    let why = VerbsServer::open(&options).map(|_| ()).expect_err("no such device");
    assert!(matches!(why, OpenError::Unavailable(_)), "{why}");
}

#[test]
fn addresses_of_others_are_refused() {
    let Some(ends) = one_device("addresses_of_others_are_refused") else { return };
    let queue = CompletionQueue::new(1);
    let nonsense = RailAddress::new(vec![0; 40]).expect("it is short");
    let refused = ends.server.answer(&nonsense, &queue).map(|_| ()).expect_err("nonsense");
    assert!(matches!(refused, OpenError::BadAddress(_)), "{refused}");
    let client = ends.client();
    let offer = client.offer().expect("a queue pair can be made");
    let mut other = offer.address().as_bytes().to_vec();
    other[5] = 1;
    other[15] = 7;
    let infiniband = RailAddress::new(other).expect("it is short");
    let refused = ends.server.answer(&infiniband, &queue).map(|_| ()).expect_err("another network's");
    assert!(matches!(refused, OpenError::BadAddress(_)), "{refused}");
    assert_eq!(ends.server.report().rails, 0);
}

#[test]
fn a_device_s_memory_that_is_none_is_refused() {
    let Some(ends) = one_device("a_device_s_memory_that_is_none_is_refused") else { return };
    let memory = TargetMemory::Device(DeviceTarget {
        dma_buf: std::fs::File::open("/dev/null").expect("it is there").into(),
        offset: 0,
        bytes: 4096,
        address: 0x7000_0000,
        owner: Arc::new(()),
    });
    let refused = ends.client().register(memory, Access::ReadWrite).expect_err("/dev/null is no dma-buf");
    assert_eq!(refused, RegisterError::Unsupported);
}

/// Only this side's own operations may reach a slab: a peer that learnt its key reaches nothing.
#[test]
fn a_server_s_slab_cannot_be_reached() {
    let Some(ends) = one_device("a_server_s_slab_cannot_be_reached") else { return };
    let domain =
        ProtectionDomain::new(&RdmaPort::open(&ends.options).expect("it is there")).expect("it is open");
    let slab = crate::fabric::conformance::region(4096);
    let (mut server, client) = (
        QueuePair::open(&domain, PairSide::Initiator).expect("a queue pair can be made"),
        QueuePair::open(&domain, PairSide::Initiator).expect("a queue pair can be made"),
    );
    server.connect(&client.address()).expect("the address is good");
    client.connect(&server.address()).expect("the address is good");
    // SAFETY: the slab outlives both registrations and queue pairs: it is dropped last.
    let registered =
        unsafe { domain.register(slab.base(), 4096, IBV_ACCESS_LOCAL_WRITE) }.expect("there is memory");
    let (local_key, remote_key) = registered.keys();
    let remote = slab.as_ptr().addr() as u64;
    let request = VerbsRequest {
        name: 1,
        opcode: IBV_WR_RDMA_WRITE,
        local: slab.base(),
        bytes: 8,
        local_key,
        remote,
        remote_key,
    };
    // SAFETY: as above.
    assert_eq!(unsafe { client.give(&[request]) }, Ok(1));
    let mut status = None;
    for _ in 0..60_000 {
        client.completions(|_, found| status = Some(found)).expect("the queue is there");
        if status.is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let status = status.expect("it ends");
    assert!(status != IBV_WC_SUCCESS, "a peer wrote to a slab: status {status}");
    server.destroy().expect("it can be destroyed");
    drop((client, server, registered, slab));
}

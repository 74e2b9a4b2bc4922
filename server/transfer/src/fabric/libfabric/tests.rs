//! The engine over libfabric: the suite that all engines pass, over its providers for TCP, and what happens
//! where there is no library.
//!
//! The library comes from the folder that `TURNKV_LIBFABRIC` names, from `.tools/libfabric`
//! (`server/transfer/setup_libfabric.sh`), or from the system. Without one the suite is left out, which each
//! test says on stderr by its name; with the variable set, it fails.

mod folder;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::{LibfabricClient, LibfabricOptions, LibfabricServer};
use crate::fabric::conformance::{Ends, Rail, conforms, needs_its_library};
use crate::fabric::{
    Access, CompletionQueue, Domain, OpenError, RailAnswers, RailOffers, RegisterError, TargetMemory,
};
use crate::region::Region;

/// The server's end; clients are opened with the same provider.
struct Loopback {
    server: LibfabricServer,
    options: LibfabricOptions,
}

impl Ends for Loopback {
    // Over TCP a target that refuses ends the connection and says nothing.
    const TELLS_REFUSALS: bool = false;
    const TAKES_BACK_AT_ONCE: bool = false;
    const SEES_SERVER: bool = false;

    type Client = LibfabricClient;

    fn client(&self) -> LibfabricClient {
        LibfabricClient::open(&self.options).expect("the server has the same library")
    }

    fn domain(client: &LibfabricClient) -> &dyn Domain {
        client
    }

    fn rail(&self, client: &LibfabricClient, completions: &Arc<CompletionQueue>) -> Rail {
        let offer = client.offer().expect("an endpoint can be opened");
        let answer = self.server.answer(offer.address(), completions).expect("the address is good");
        let target = offer.connect(&answer.address).expect("the answer is good");
        Rail { initiator: answer.rail, target }
    }

    fn attach(&self, region: &Arc<Region>) {
        self.server.attach(region).expect("the NIC takes one more");
    }
}

fn options(provider: &str) -> LibfabricOptions {
    let source = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    LibfabricOptions {
        library: folder::library(),
        providers: vec![provider.to_owned()],
        source,
        ..LibfabricOptions::default()
    }
}

/// Both ends over one provider, or none where there is no library, which is said.
fn loopback(provider: &str, test: &str) -> Option<Loopback> {
    let options = options(provider);
    match LibfabricServer::open(&options) {
        Ok(server) => Some(Loopback { server, options }),
        Err(OpenError::Unavailable(why)) if std::env::var_os("TURNKV_LIBFABRIC").is_none() => {
            // Past the harness, which keeps what passing tests print.
            writeln!(
                std::io::stderr(),
                "LEFT OUT: fabric::libfabric {provider} {test}: {why}; run server/transfer/setup_libfabric.sh"
            )
            .expect("stderr can be written");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

mod rxm {
    use super::{conforms, loopback};

    conforms!(if |test| loopback("tcp;ofi_rxm", test));
}

mod tcp {
    use super::{conforms, loopback};

    conforms!(if |test| loopback("tcp", test));
}

#[test]
fn without_its_library_it_says_why() {
    let at = |path: &str| LibfabricOptions { library: Some(path.into()), ..LibfabricOptions::default() };
    needs_its_library(|path| LibfabricServer::open(&at(path)));
    needs_its_library(|path| LibfabricClient::open(&at(path)));
}

#[test]
fn a_provider_that_is_not_there_is_named() {
    let Some(_) = loopback("tcp;ofi_rxm", "a_provider_that_is_not_there_is_named") else { return };
    let wanted = LibfabricOptions { providers: vec!["efa".to_owned(), "nonesuch".to_owned()], ..options("") };
    match LibfabricServer::open(&wanted).map(|_| ()) {
        Err(OpenError::Unavailable(why)) => {
            assert!(why.contains("efa: ") && why.contains("nonesuch: "), "{why}");
        }
        other => panic!("{other:?}"),
    }
    let both = LibfabricOptions { providers: vec!["nonesuch".to_owned(), "tcp".to_owned()], ..options("") };
    assert_eq!(LibfabricServer::open(&both).expect("tcp is there").provider(), "tcp");
}

#[test]
fn addresses_of_others_are_refused() {
    let test = "addresses_of_others_are_refused";
    let (Some(rxm), Some(tcp)) = (loopback("tcp;ofi_rxm", test), loopback("tcp", test)) else { return };
    let queue = CompletionQueue::new(1);
    let client = tcp.client();
    let offer = client.offer().expect("an endpoint can be opened");
    let refused = rxm.server.answer(offer.address(), &queue).map(|_| ()).expect_err("another provider's");
    assert!(matches!(refused, OpenError::BadAddress(_)), "{refused}");
    let nonsense = crate::fabric::RailAddress::new(vec![0; 40]).expect("it is short");
    let refused = rxm.server.answer(&nonsense, &queue).map(|_| ()).expect_err("nonsense");
    assert!(matches!(refused, OpenError::BadAddress(_)), "{refused}");
    let refused = offer.connect(&nonsense).map(|_| ()).expect_err("nonsense");
    assert!(matches!(refused, OpenError::BadAddress(_)), "{refused}");
    assert_eq!(rxm.server.report().rails, 0);
}

#[test]
fn a_device_s_memory_is_refused_by_providers_that_copy_on_the_host() {
    let test = "a_device_s_memory_is_refused_by_providers_that_copy_on_the_host";
    let Some(ends) = loopback("tcp;ofi_rxm", test) else { return };
    let memory = TargetMemory::Device(crate::fabric::memory::DeviceTarget {
        dma_buf: std::fs::File::open("/dev/null").expect("it is there").into(),
        offset: 0,
        bytes: 4096,
        address: 0x7000_0000,
        owner: Arc::new(()),
    });
    let refused = ends.client().register(memory, Access::ReadWrite).expect_err("TCP reads no device");
    assert_eq!(refused, RegisterError::Unsupported);
}

#[test]
fn rails_and_regions_are_counted_and_gone_after_use() {
    let Some(ends) = loopback("tcp;ofi_rxm", "rails_and_regions_are_counted_and_gone_after_use") else {
        return;
    };
    let region = crate::fabric::conformance::region(1 << 20);
    ends.attach(&region);
    let (client, queue) = (ends.client(), CompletionQueue::new(1));
    let rail = ends.rail(&client, &queue);
    let until = |wanted: &dyn Fn() -> bool, what: &str| {
        for _ in 0..20_000 {
            if wanted() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("{what}: {:?}", ends.server.report());
    };
    until(&|| ends.server.report().regions == 1, "the slab is registered");
    assert_eq!(ends.server.report().rails, 1);
    drop(rail);
    until(&|| ends.server.report().rails == 0, "the rail is gone");
    ends.server.detach(&region);
    assert_eq!(ends.server.report().regions, 0);
    assert_eq!(Arc::strong_count(&region), 1, "the engine let the slab go");
}

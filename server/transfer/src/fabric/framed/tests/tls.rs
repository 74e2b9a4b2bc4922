//! The suite over TLS, and streams whose bytes change on the way.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::pair::{OverTcp, tcp};
use crate::fabric::conformance::{Ends, Rail, conforms, region};
use crate::fabric::framed::{FramedDomain, FramedInitiator, FramedStream, FramedTarget};
use crate::fabric::{
    Access, Cause, CompletionQueue, Domain, HostMemory, Initiator, Op, Operation, Outcome, RemoteSpan,
    TargetMemory,
};
use crate::limits::FRAMED_STALL;
use crate::region::Region;
use crate::tls::provider;

struct OverTls;

impl Ends for OverTls {
    type Client = Arc<FramedDomain>;

    fn client(&self) -> Self::Client {
        FramedDomain::new()
    }

    fn domain(client: &Self::Client) -> &dyn Domain {
        OverTcp::domain(client)
    }

    fn rail(&self, client: &Self::Client, completions: &Arc<CompletionQueue>) -> Rail {
        let (server, target) = tls(tcp(), tcp_ends_meet);
        let initiator = FramedInitiator::open(server, completions, FRAMED_STALL).unwrap();
        let target = FramedTarget::open(target, client, FRAMED_STALL).unwrap();
        Rail { initiator: Arc::new(initiator), target: Arc::new(target) }
    }

    fn attach(&self, _: &Arc<Region>) {}
}

conforms!(OverTls);

/// What both ends of a connection are made with.
pub(super) struct Configs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// Those of a pool.
static CONFIGS: LazyLock<Configs> = LazyLock::new(|| Configs::new(provider(), None));

impl Configs {
    /// Two that trust one another. `record_bytes`: the most of a record from the client, with its header.
    pub(super) fn new(provider: Arc<CryptoProvider>, record_bytes: Option<usize>) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["pool".to_owned()]).unwrap().self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let versions = &[&rustls::version::TLS13];
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        server.send_tls13_tickets = 0; // none is left on the way when something is put between the ends
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.max_fragment_size = record_bytes;
        Self { server: Arc::new(server), client: Arc::new(client) }
    }

    /// Handshakes over both ends of a connection.
    pub(super) fn shake(
        &self,
        here: &mut TcpStream,
        there: &mut TcpStream,
    ) -> (ServerConnection, ClientConnection) {
        let mut server = ServerConnection::new(Arc::clone(&self.server)).unwrap();
        let name = ServerName::try_from("pool").unwrap();
        let mut client = ClientConnection::new(Arc::clone(&self.client), name).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while server.is_handshaking() || server.wants_write() {
                    server.complete_io(here).map(|_| ()).unwrap()
                }
            });
            while client.is_handshaking() || client.wants_write() {
                client.complete_io(there).unwrap();
            }
        });
        (server, client)
    }
}

/// Handshakes over both ends of a connection; then `between` may put something between them.
pub(super) fn tls(
    (mut here, mut there): (TcpStream, TcpStream),
    between: impl FnOnce(TcpStream, TcpStream) -> (TcpStream, TcpStream),
) -> (FramedStream, FramedStream) {
    let (server, client) = CONFIGS.shake(&mut here, &mut there);
    let (here, there) = between(here, there);
    (FramedStream::tls(here, server).unwrap(), FramedStream::tls(there, client).unwrap())
}

pub(super) fn tcp_ends_meet(here: TcpStream, there: TcpStream) -> (TcpStream, TcpStream) {
    (here, there)
}

#[test]
fn a_handshake_that_is_not_done_makes_no_stream() {
    let connection = ServerConnection::new(Arc::clone(&CONFIGS.server)).unwrap();
    assert_eq!(FramedStream::tls(tcp().0, connection).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
}

/// One bit flipped anywhere ends the rail, and nothing that its record would say is in memory; what is said to be done
/// is right.
#[test]
fn a_flipped_bit_on_the_way_ends_the_rail() {
    for at in [3, 40, 900, 70_000] {
        let (server, client) = tls(tcp(), |here, there| {
            let ((near, far), (away, back)) = (tcp(), tcp());
            // The handshake's own sockets are done with: from now on bytes go through the one between.
            drop((here, there));
            carry(far.try_clone().unwrap(), away.try_clone().unwrap(), Some(at));
            carry(away, far, None);
            (near, back)
        });
        let (queue, domain, memory, slab) =
            (CompletionQueue::new(1), FramedDomain::new(), region(1 << 20), region(1 << 20));
        slab.slot(0, 1 << 20).unwrap().claim().unwrap().fill(&vec![7; 1 << 20]);
        let owner: Arc<dyn HostMemory> = Arc::<Region>::clone(&memory);
        let key = domain.register(TargetMemory::Host(owner), Access::ReadWrite).unwrap();
        let initiator = FramedInitiator::open(server, &queue, FRAMED_STALL).unwrap();
        let _target = FramedTarget::open(client, &domain, FRAMED_STALL).unwrap();
        let remote = RemoteSpan::new(key, 0, 1 << 20).unwrap();
        let write = Operation::write(slab.slot(0, 1 << 20).unwrap(), remote, Op(1)).unwrap();
        initiator.post(write).unwrap();
        let mut taken = Vec::new();
        assert_eq!(queue.poll(&mut taken, Duration::from_secs(60)), 1);
        assert!(
            matches!(taken[0].outcome, Outcome::Failed(Cause::Protocol(_) | Cause::PeerGone)),
            "{:?}",
            taken[0].outcome
        );
        let written = memory.slot(0, 1 << 20).unwrap().page().to_vec();
        assert!(written.iter().all(|byte| matches!(byte, 0 | 7)), "nothing else was written");
        assert!(written.contains(&0), "nothing behind the flipped bit was written");
    }
}

/// Carries bytes one way, and flips a bit of the one at `flipped`.
fn carry(mut from: TcpStream, mut to: TcpStream, flipped: Option<usize>) {
    let carry = move || {
        let (mut bytes, mut total) = (vec![0; 1 << 16], 0);
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if let Some(at) = flipped.and_then(|at| at.checked_sub(total)).filter(|&at| at < count) {
                bytes[at] ^= 4;
            }
            total += count;
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        for end in [&from, &to] {
            end.shutdown(Shutdown::Both).unwrap_or_default();
        }
    };
    std::thread::Builder::new().spawn(carry).unwrap();
}

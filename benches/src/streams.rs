//! Connected pairs of TCP streams over the loopback, plain or under TLS. Must not know: what they carry.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

const NAME: &str = "bench";

/// The client's end and the server's end of a TCP connection.
pub fn connected() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

/// Configurations of both ends that trust one another.
#[derive(Debug, Clone)]
pub struct Trust {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Trust {
    /// A new certificate, and who accepts it, by the cryptography of `provider`.
    pub fn new(provider: Arc<CryptoProvider>) -> Result<Trust> {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec![NAME.to_owned()])?.self_signed(&key)?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone())?;
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )?;
        Ok(Trust { client: Arc::new(client), server: Arc::new(server) })
    }

    /// Both ends of a connection through the handshake.
    pub fn shaken(&self) -> Result<(Shaken<ClientConnection>, Shaken<ServerConnection>)> {
        let (mut client, mut server) = connected()?;
        let name = ServerName::try_from(NAME)?;
        let mut at_client = ClientConnection::new(Arc::clone(&self.client), name)?;
        let mut at_server = ServerConnection::new(Arc::clone(&self.server))?;
        std::thread::scope(|scope| -> Result<()> {
            let other = scope.spawn(|| -> std::io::Result<()> {
                while at_server.is_handshaking() || at_server.wants_write() {
                    at_server.complete_io(&mut server)?;
                }
                Ok(())
            });
            while at_client.is_handshaking() || at_client.wants_write() {
                at_client.complete_io(&mut client)?;
            }
            other.join().ok().context("the server's handshake panicked")??;
            Ok(())
        })?;
        Ok((Shaken { stream: client, tls: at_client }, Shaken { stream: server, tls: at_server }))
    }
}

/// One end of a TLS connection.
#[derive(Debug)]
pub struct Shaken<T> {
    /// What carries the ciphertext.
    pub stream: TcpStream,
    /// What makes it.
    pub tls: T,
}

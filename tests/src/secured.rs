//! A server under TLS, and clients of it. Owns: the server and its certificates. Must not know: what is sent to it.

use crate::certs::Certs;
use crate::http::{free_address, get, value};
use crate::pages::{chain, namespace};
use crate::server::{Server, Setup};
use crate::user::User;
use anyhow::{Result, ensure};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use turnkv_client::{Client, ClientConfig, Error, ErrorKind, NamespaceSpec, TlsConfig};

/// Bytes of a page of [`user`]'s namespace.
pub const PAGE: u64 = 64 << 10;
/// Longer than a server takes to see that its files have changed, and to end what they allowed: on a busy machine too.
pub const SEEN_MAX: Duration = Duration::from_secs(20);

/// A server whose TCP port speaks TLS only.
pub struct Place {
    /// The server.
    pub server: Server,
    /// Its certificates, and its clients'.
    pub certs: Certs,
    /// Its TCP port.
    pub tcp: SocketAddr,
    metrics: SocketAddr,
}

impl Place {
    /// Starts one.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start() -> Result<Place> {
        let certs = Certs::new()?;
        let (tcp, metrics) = (free_address()?, free_address()?);
        let server = Server::start(setup(tcp, metrics, certs.section()))?;
        Ok(Place { server, certs, tcp, metrics })
    }

    /// Its address for clients.
    #[must_use]
    pub fn address(&self) -> String {
        format!("tls://{}", self.tcp)
    }

    /// [`user`] at this server.
    ///
    /// # Errors
    /// As there.
    pub async fn user(&self, tls: TlsConfig, tenant: &str) -> Result<User, Error> {
        user(&self.address(), tls, tenant).await
    }

    /// A user with a certificate of the tenant `acme`'s engine, its own each time.
    ///
    /// # Errors
    /// It was refused.
    pub async fn engine(&self) -> Result<User> {
        Ok(self.user(self.certs.client(&["turnkv://engine/acme"])?, "acme").await?)
    }

    /// What a series of its metrics says now.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn series(&self, series: &str) -> Result<f64> {
        value(&get(self.metrics, "/metrics")?.1, series)
    }

    /// Waits until so many connections are counted as refused: they are after the last word to their peers.
    ///
    /// # Errors
    /// They were not within [`SEEN_MAX`].
    pub async fn counts(&self, reason: &str, least: f64) -> Result<()> {
        let until = Instant::now() + SEEN_MAX;
        while self.refused(reason)? < least {
            ensure!(Instant::now() < until, "{reason}: {} of {least}", self.refused(reason)?);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Connections that were refused for this reason.
    ///
    /// # Errors
    /// There is no such reason.
    pub fn refused(&self, reason: &str) -> Result<f64> {
        self.series(&format!("turnkv_tls_refused_total{{reason=\"{reason}\"}}"))
    }
}

/// A server with a TCP port, without a disk; `sections` says how the port is protected.
#[must_use]
pub fn setup(tcp: SocketAddr, metrics: SocketAddr, sections: String) -> Setup {
    let (tcp, metrics) = (Some(tcp.to_string()), Some(metrics.to_string()));
    Setup { tcp, metrics, sections, nvme_mib: 0, ..Setup::default() }
}

/// A client with time enough for a busy machine.
///
/// # Errors
/// `address` or `tls` is not what a client takes.
pub fn client(address: &str, tls: TlsConfig) -> Result<Client, Error> {
    let config = ClientConfig { tls, connect_ms: 20_000, call_ms: 20_000, ..ClientConfig::at(address) };
    Client::new(config).map_err(|error| Error { kind: ErrorKind::Invalid, message: error.to_string() })
}

/// A client of this tenant with one namespace open, its pages of [`PAGE`] bytes.
///
/// # Errors
/// The server or the client refused the other.
pub async fn user(address: &str, tls: TlsConfig, tenant: &str) -> Result<User, Error> {
    let client = client(address, tls)?;
    let spec = NamespaceSpec { tenant: tenant.to_owned(), ..namespace("test-model", PAGE) };
    let namespace = client.open_namespace(spec).await?;
    Ok(User { client, namespace })
}

/// Whether a call's connection ended; what the call is told depends on where it was.
#[must_use]
pub fn is_gone(error: &Error) -> bool {
    // A call that comes while its connection ends is told why.
    let is_told = error.kind == ErrorKind::Limit && error.message.ends_with("it is ended");
    is_told || matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Deadline)
}

/// Calls again and again until told to stop; how often it was answered, and the first failure.
pub fn calling(user: User, stop: &Arc<AtomicBool>) -> (Arc<AtomicU64>, JoinHandle<Option<Error>>) {
    let (answered, stop) = (Arc::new(AtomicU64::new(0)), Arc::clone(stop));
    let count = Arc::clone(&answered);
    let task = tokio::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = user.namespace.lookup(&chain(1, 4)).await {
                return Some(error);
            }
            count.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        None
    });
    (answered, task)
}

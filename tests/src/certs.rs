//! Certificates of a test: an authority, a server's files, clients'. Owns: their directory. Must not know: servers.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType, date_time_ymd,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;
use turnkv_client::TlsConfig;

static AUTHORITIES: AtomicU32 = AtomicU32::new(0);

/// The name of every test's server.
pub const SERVER_NAME: &str = "pool.test";

/// Somebody who signs.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valid {
    /// Now.
    Now,
    /// Until long ago.
    Before,
    /// Not for long yet.
    Later,
}

/// Files in a directory: `ca.pem`, `server.pem` and `server-key.pem` are the server's.
pub struct Certs {
    dir: TempDir,
    /// Who signed the server's certificate, and whose clients it takes.
    pub authority: Authority,
    next: AtomicU32,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// None that a test causes.
    pub fn new() -> Result<Authority> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Each has a name of its own: one of the same name would be found, and its signature not.
        let number = AUTHORITIES.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name.push(DnType::CommonName, format!("authority {number} of a test"));
        Ok(Authority(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Its certificate.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate and its key; with names a server's, else a client's.
    ///
    /// # Errors
    /// A name that no certificate can have.
    pub fn issue(&self, names: &[&str], uris: &[&str], valid: Valid) -> Result<(String, String)> {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        for uri in uris {
            params.subject_alt_names.push(SanType::URI((*uri).try_into()?));
        }
        params.distinguished_name.push(DnType::CommonName, "of a test");
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        params.extended_key_usages =
            vec![if names.is_empty() { usage } else { ExtendedKeyUsagePurpose::ServerAuth }];
        match valid {
            Valid::Now => {}
            Valid::Before => params.not_after = date_time_ymd(2001, 1, 1),
            Valid::Later => params.not_before = date_time_ymd(4000, 1, 1),
        }
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.0)?.pem(), key.serialize_pem()))
    }
}

impl Certs {
    /// A server's files.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn new() -> Result<Certs> {
        let dir = tempfile::tempdir()?;
        let certs = Certs { dir, authority: Authority::new()?, next: AtomicU32::new(0) };
        certs.write("ca.pem", &certs.authority.pem())?;
        certs.renew()?;
        Ok(certs)
    }

    /// Replaces the server's certificate and key, one after the other.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn renew(&self) -> Result<()> {
        let (cert, key) = self.authority.issue(&[SERVER_NAME], &[], Valid::Now)?;
        self.write("server.pem", &cert)?;
        self.write("server-key.pem", &key)
    }

    /// Writes a file.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.path(name), text)?)
    }

    /// A file's path.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The server's section of the configuration.
    #[must_use]
    pub fn section(&self) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        let (cert, key, ca) = (path("server.pem"), path("server-key.pem"), path("ca.pem"));
        format!("[tls]\ncert = \"{cert}\"\nkey = \"{key}\"\nclient_ca = \"{ca}\"\n")
    }

    /// A client with these URI names.
    ///
    /// # Errors
    /// As [`Certs::client_of`].
    pub fn client(&self, uris: &[&str]) -> Result<TlsConfig> {
        self.client_of(&self.authority, uris, Valid::Now)
    }

    /// A client whom this authority knows.
    ///
    /// # Errors
    /// The directory cannot be written, or a name is none.
    pub fn client_of(&self, authority: &Authority, uris: &[&str], valid: Valid) -> Result<TlsConfig> {
        let pair = authority.issue(&[], uris, valid)?;
        self.with(&pair)
    }

    /// A client with this certificate and key.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn with(&self, (cert, key): &(String, String)) -> Result<TlsConfig> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let names = [format!("client-{number}.pem"), format!("client-{number}-key.pem")];
        self.write(&names[0], cert)?;
        self.write(&names[1], key)?;
        let [cert, key] = names.map(|name| Some(self.path(&name)));
        Ok(TlsConfig { cert, key, ..self.stranger() })
    }

    /// A client without a certificate.
    #[must_use]
    pub fn stranger(&self) -> TlsConfig {
        let server_name = Some(SERVER_NAME.to_owned());
        TlsConfig { ca: Some(self.path("ca.pem")), server_name, ..TlsConfig::default() }
    }
}

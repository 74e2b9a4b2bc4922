//! Where a server on a network runs and how it is reached. Owns: the network namespace, the certificates. Must not know: what is
//! measured.

use std::fmt::Write as _;
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use turnkv_client::TlsConfig;

/// How clients reach a server.
#[derive(Debug)]
pub struct Network {
    /// The server's address.
    pub host: String,
    /// The network namespace in which it runs; none: this one.
    pub namespace: Option<String>,
    /// Where its certificates are, if it speaks TLS.
    pub certs: Option<TempDir>,
    /// More sections of the server's settings.
    pub more: String,
    port: u16,
}

impl Network {
    /// With certificates that `server` makes, or without TLS.
    pub fn new(server: &Path, host: &str, namespace: Option<String>, tls: bool) -> Result<Network> {
        let certs = tls.then(|| certificates(server, host)).transpose()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        Ok(Network { host: host.to_owned(), namespace, certs, more: String::new(), port })
    }

    /// The pool's address: where pages may travel in frames, and where in gRPC streams only.
    pub fn address(&self) -> String {
        let scheme = if self.certs.is_some() { "tls" } else { "tcp" };
        format!("{scheme}://{}:{}", self.host, self.port)
    }

    /// What clients show.
    pub fn client(&self) -> TlsConfig {
        self.certs.as_ref().map(|certs| client_files(certs.path())).unwrap_or_default()
    }

    /// A program that is to run where the server does.
    pub fn command(&self, program: &Path) -> Command {
        match &self.namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(program);
                command
            }
            None => Command::new(program),
        }
    }

    /// The server's settings of it: keys before the first section, and sections.
    pub fn settings(&self) -> Result<(String, String)> {
        let mut sections = "[access]\nplain = \"operator\"\n".to_owned();
        match &self.certs {
            Some(certs) => {
                let file = |name: &str| certs.path().join(name).display().to_string();
                let (cert, key, ca) = (file("server.pem"), file("server-key.pem"), file("ca.pem"));
                write!(sections, "[tls]\ncert = \"{cert}\"\nkey = \"{key}\"\nclient_ca = \"{ca}\"\n")?;
            }
            None if !self.host.parse::<IpAddr>()?.is_loopback() => {
                sections.push_str("[tls]\ninsecure = true\n");
            }
            None => {}
        }
        sections.push_str(&self.more);
        Ok((format!("tcp = \"{}:{}\"\n", self.host, self.port), sections))
    }
}

/// What a client shows of a folder that `turnkv certs` filled: benches drop pages, which is for operators.
pub fn client_files(folder: &Path) -> TlsConfig {
    let file = |name: &str| Some(folder.join(name));
    TlsConfig {
        ca: file("ca.pem"),
        cert: file("operator.pem"),
        key: file("operator-key.pem"),
        server_name: None,
    }
}

fn certificates(server: &Path, host: &str) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("bench-certs.").tempdir()?;
    let mut making = Command::new(server);
    making.arg("certs").arg(folder.path()).args(["--server", host, "--operator"]);
    let made = making.output().context("making certificates")?;
    ensure!(made.status.success(), "no certificates: {}", String::from_utf8_lossy(&made.stderr));
    Ok(folder)
}

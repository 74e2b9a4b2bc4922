//! A server whose pages go by NICs, and clients that use them: over libfabric's provider for TCP, with the library that
//! `server/transfer/setup_libfabric.sh` puts into `.tools/libfabric` (or `TURNKV_LIBFABRIC` names), or with `TURNKV_RDMA` set over verbs
//! on this machine's device. Owns: finding the library. Must not know: any one test.

use crate::child::Running;
use crate::counts;
use crate::http::{free_address, get, value};
use crate::pages;
use crate::server::{Server, Setup};
use crate::user::User;
use anyhow::{Result, ensure};
use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use turnkv_client::{Client, ClientConfig, DataPlane, Fabric, FabricChoice, FabricConfig, StatsReply};

/// Busy machines get much of it.
pub const SOON: Duration = Duration::from_secs(60);
/// A provider that runs on any machine.
const PROVIDER: &str = "tcp;ofi_rxm";
/// Set in the process that finds the library.
const INSIDE: &str = "TURNKV_FABRICS_INSIDE";

/// What is tested here.
#[must_use]
pub fn fabric() -> Fabric {
    if std::env::var_os("TURNKV_RDMA").is_some() { Fabric::Verbs } else { Fabric::Libfabric }
}

/// The client's choice of that alone.
#[must_use]
pub fn choice() -> FabricChoice {
    if fabric() == Fabric::Verbs { FabricChoice::Verbs } else { FabricChoice::Libfabric }
}

/// libfabric's provider, where it is tested.
#[must_use]
pub fn provider() -> &'static str {
    if fabric() == Fabric::Verbs { "" } else { PROVIDER }
}

fn folder() -> Option<PathBuf> {
    let named = std::env::var_os("TURNKV_LIBFABRIC").map(PathBuf::from);
    let folder =
        named.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.tools/libfabric"));
    folder.join("libfabric.so.1").exists().then_some(folder)
}

/// Runs a test where both ends find the library: over libfabric once more, in a process whose loader is told of it. Says so if there
/// is none.
///
/// # Errors
/// The test failed.
pub fn with_fabric(name: &str, test: impl Future<Output = Result<()>>) -> Result<()> {
    if fabric() == Fabric::Verbs || std::env::var_os(INSIDE).is_some() {
        return tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(test);
    }
    let Some(folder) = folder() else {
        ensure!(std::env::var_os("TURNKV_LIBFABRIC").is_none(), "TURNKV_LIBFABRIC names no library");
        // Past the harness, which keeps what passing tests print.
        writeln!(std::io::stderr(), "LEFT OUT: fabrics {name}: run server/transfer/setup_libfabric.sh")?;
        return Ok(());
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").env("LD_LIBRARY_PATH", folder);
    ensure!(command.status()?.success(), "it failed in its own process: see above");
    Ok(())
}

/// A server with a port and its metrics.
pub struct Rig {
    /// The server.
    pub server: Server,
    /// Its port.
    pub tcp: SocketAddr,
    http: SocketAddr,
}

impl Rig {
    /// With these settings of `[remote]`.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(remote: &str, setup: Setup) -> Result<Rig> {
        let (tcp, http) = (free_address()?, free_address()?);
        let sections = format!("[remote]\n{remote}\n");
        let (door, metrics) = (Some(tcp.to_string()), Some(http.to_string()));
        let server = Server::start(Setup { tcp: door, metrics, sections, ..setup })?;
        Ok(Rig { server, tcp, http })
    }

    /// With the fabric that is tested here.
    ///
    /// # Errors
    /// It does not start.
    pub fn with_nics(setup: Setup) -> Result<Rig> {
        Rig::start(&format!("libfabric_provider = \"{}\"", provider()), setup)
    }

    /// Bytes that a fabric moved: `read` or `written`.
    ///
    /// # Errors
    /// The server does not say.
    pub fn moved(&self, fabric: Fabric, direction: &str) -> Result<f64> {
        let series =
            format!("turnkv_remote_moved_bytes_total{{fabric=\"{fabric}\",direction=\"{direction}\"}}");
        value(&get(self.http, "/metrics")?.1, &series)
    }

    /// Rails of a fabric that are open.
    ///
    /// # Errors
    /// The server does not say.
    pub fn rails(&self, fabric: Fabric) -> Result<f64> {
        value(
            &get(self.http, "/metrics")?.1,
            &format!("turnkv_remote_rail_connections{{fabric=\"{fabric}\"}}"),
        )
    }

    /// Waits until the server's counts are so.
    ///
    /// # Errors
    /// They are not so soon.
    pub async fn eventually(&self, what: &str, holds: impl Fn(&StatsReply) -> bool) -> Result<()> {
        counts::eventually(&self.server, SOON, what, holds).await
    }

    /// Nothing is leased, so every slot can be used again.
    ///
    /// # Errors
    /// As of `eventually`.
    pub async fn slots_are_back(&self) -> Result<()> {
        counts::slots_are_back(&self.server, SOON).await
    }

    /// A user over rails of this choice, over these NICs if any are named.
    ///
    /// # Errors
    /// The server is not there.
    pub async fn connect_over(&self, choice: FabricChoice, nics: &[String], page_bytes: u64) -> Result<User> {
        connect_to(&self.tcp.to_string(), choice, nics, page_bytes).await
    }

    /// A user over rails of this choice.
    ///
    /// # Errors
    /// The server is not there.
    pub async fn connect(&self, choice: FabricChoice, page_bytes: u64) -> Result<User> {
        self.connect_over(choice, &[], page_bytes).await
    }

    /// A client in another process that offloads for ever, over the fabric that is tested here. `program`: `victim`, where cargo put it.
    ///
    /// # Errors
    /// It does not start.
    pub fn victim(&self, program: &str, seed: u64) -> Result<Running> {
        let mut victim = Command::new(here(program));
        victim.args([format!("tcp://{}", self.tcp), seed.to_string()]);
        victim.env("TURNKV_FABRIC", fabric().name()).env("TURNKV_LIBFABRIC_PROVIDER", provider());
        Ok(Running::start(&mut victim)?)
    }
}

/// A user of the server at a host and port, over rails of this choice.
///
/// # Errors
/// The server is not there.
pub async fn connect_to(at: &str, choice: FabricChoice, nics: &[String], page_bytes: u64) -> Result<User> {
    let fabric = FabricConfig {
        choice,
        libfabric_provider: provider().to_owned(),
        nics: nics.to_vec(),
        ..FabricConfig::default()
    };
    connect_with(at, fabric, page_bytes).await
}

/// A user of the server at a host and port, over rails of these settings.
///
/// # Errors
/// The server is not there.
pub async fn connect_with(at: &str, fabric: FabricConfig, page_bytes: u64) -> Result<User> {
    let config = ClientConfig {
        data_plane: DataPlane::Framed,
        fabric,
        call_ms: 20_000,
        ..ClientConfig::at(format!("tcp://{at}"))
    };
    let client = Client::new(config)?;
    let namespace = client.open_namespace(pages::namespace("test-model", page_bytes)).await?;
    Ok(User { client, namespace })
}

/// A program, or the one of its name beside this one, where both were copied to another machine.
fn here(program: &str) -> PathBuf {
    let program = Path::new(program);
    let beside =
        std::env::current_exe().ok().and_then(|this| Some(this.parent()?.join(program.file_name()?)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| program.to_owned())
}

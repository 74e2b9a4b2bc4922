//! A server of one's own: configuration, start, waiting until it answers, end.
//! Must not know: what is measured against it.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::memory::without_huge_pages;
use crate::network::Network;
use crate::options::Common;

/// How long a start may take: claiming and touching the DRAM tier is most of it.
const START_MAX: Duration = Duration::from_secs(120);

/// Budgets of the pool to start.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// DRAM tier.
    pub dram_bytes: usize,
    /// Unit in which it is cut; 0: as it is by itself.
    pub slab_bytes: usize,
    /// NVMe tier; 0: none.
    pub nvme_bytes: usize,
    /// Bytes in flight to the NVMe device.
    pub inflight_bytes: usize,
    /// How pages are made smaller on their way to NVMe.
    pub codec: Codec,
    /// Whether snapshots are kept: in a directory beside the rest.
    pub archive: bool,
}

/// A setting of `nvme.codec`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs, reason = "each is the setting of the same name")]
pub enum Codec {
    Auto,
    None,
    Codebook,
    Huffman,
    Zstd,
}

impl Budget {
    /// DRAM only, on the Unix socket only.
    pub fn dram(dram_bytes: usize) -> Budget {
        Budget {
            dram_bytes,
            slab_bytes: 0,
            nvme_bytes: 0,
            inflight_bytes: 16 << 20,
            codec: Codec::Auto,
            archive: false,
        }
    }
}

/// A running server; it is killed and its folder removed when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    folder: TempDir,
}

impl Server {
    /// Starts the binary and waits until it accepts connections.
    pub fn start(common: &Common, budget: Budget) -> Result<Server> {
        Server::start_with(common, budget, None)
    }

    /// The same, and it serves clients on this network too.
    pub fn start_on(common: &Common, budget: Budget, network: &Network) -> Result<Server> {
        Server::start_with(common, budget, Some(network))
    }

    fn start_with(common: &Common, budget: Budget, network: Option<&Network>) -> Result<Server> {
        ensure!(
            common.server.is_file(),
            "no server at {}: build it (cargo build --release -p turnkv) or name it with --server",
            common.server.display()
        );
        std::fs::create_dir_all(&common.dir).with_context(|| format!("making {}", common.dir.display()))?;
        let folder = tempfile::Builder::new().prefix("bench.").tempdir_in(common.dir.canonicalize()?)?;
        let config = folder.path().join("turnkv.toml");
        let (keys, sections) = network.map(Network::settings).transpose()?.unwrap_or_default();
        let own = configuration(folder.path(), budget);
        std::fs::write(&config, [keys, own, sections].concat())?;
        let log = File::create(folder.path().join("log"))?;
        let alone = || Command::new(&common.server);
        let mut command = network.map_or_else(alone, |network| network.command(&common.server));
        command.arg("serve").arg("--config").arg(&config).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        let child = without_huge_pages(&mut command).spawn().context("starting the server")?;
        let mut server = Server { child, folder };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    /// Where clients on this host connect.
    pub fn address(&self) -> String {
        format!("unix:{}", socket(self.folder.path()).display())
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of all files of its archive.
    pub fn archive_bytes(&self) -> Result<u64> {
        bytes_below(&archive(self.folder.path()))
    }

    /// A folder on the same file system as the NVMe tier, for the disk limit's file.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let path = socket(self.folder.path());
        let started = Instant::now();
        // The local socket appears last; a connection is the proof that somebody listens.
        while UnixStream::connect(path.with_extension("sock.local")).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server left at its start ({status}); it said:\n{}", self.log());
            }
            ensure!(
                started.elapsed() < START_MAX,
                "the server did not answer in {START_MAX:?}:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The data goes with the folder: nothing is worth a graceful end.
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            log_failure(&error);
        }
    }
}

#[allow(clippy::print_stderr, reason = "a bench tells its user on the terminal")]
fn log_failure(error: &std::io::Error) {
    eprintln!("the server could not be ended: {error}");
}

fn bytes_below(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let (path, about) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        bytes += if about.is_dir() { bytes_below(&path)? } else { about.len() };
    }
    Ok(bytes)
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("pool.sock")
}

fn archive(folder: &Path) -> PathBuf {
    folder.join("archive")
}

fn configuration(folder: &Path, budget: Budget) -> String {
    let mut text = format!("listen = \"unix:{}\"\n", socket(folder).display());
    // What a bench asks for is little, and a machine whose memory grows as it is used says that it has less.
    writeln!(text, "[dram]\nbytes = {}\ncheck_available = false", budget.dram_bytes).unwrap_or_default();
    if budget.slab_bytes > 0 {
        writeln!(text, "slab_bytes = {}", budget.slab_bytes).unwrap_or_default();
    }
    if budget.nvme_bytes > 0 {
        let path = folder.join("nvme");
        writeln!(text, "[nvme]\npath = \"{}\"\nbytes = {}", path.display(), budget.nvme_bytes)
            .unwrap_or_default();
        writeln!(text, "inflight_bytes = {}", budget.inflight_bytes).unwrap_or_default();
        let codec = format!("{:?}", budget.codec).to_lowercase();
        writeln!(text, "codec = \"{codec}\"").unwrap_or_default();
    }
    if budget.archive {
        writeln!(text, "[archive]\nplace = \"{}\"", archive(folder).display()).unwrap_or_default();
    }
    // Its memory is free as soon as it has ended, for the next one.
    text + "[keep]\ndram = \"off\"\n"
}

#[cfg(test)]
mod tests {
    use super::{Budget, Codec, configuration};
    use std::path::Path;

    #[test]
    fn the_configuration_names_what_was_asked() {
        let budget = Budget {
            dram_bytes: 5,
            slab_bytes: 8,
            nvme_bytes: 6,
            inflight_bytes: 7,
            codec: Codec::Huffman,
            archive: true,
        };
        let text = configuration(Path::new("f"), budget);
        for part in [
            "unix:f/pool.sock",
            "bytes = 5",
            "slab_bytes = 8",
            "bytes = 6",
            "inflight_bytes = 7",
            "codec = \"huffman\"",
            "place = \"f/archive\"",
            "check_available = false",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let alone = configuration(Path::new("f"), Budget::dram(5));
        assert!(!alone.contains("[nvme]") && !alone.contains("[archive]"));
    }
}

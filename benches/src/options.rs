//! Command line that all benches share. Must not know: what each of them measures.

use std::path::PathBuf;

use clap::Args;

/// Where the server is, where its data may go, and how long to measure.
#[derive(Args, Debug, Clone)]
pub struct Common {
    /// Binary of the server.
    #[arg(long, env = "TURNKV_SERVER", default_value = "target/release/turnkv")]
    pub server: PathBuf,
    /// Folder for the pool's data and the disk limit's file; a new folder in it is used and removed.
    #[arg(long, default_value = "data")]
    pub dir: PathBuf,
    /// Rounds; each measures the limit and the pool once, one after the other.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Bytes moved in one round, in MiB.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(64..=1_048_576))]
    pub total_mib: u64,
}

/// How large pages are.
#[derive(Args, Debug, Clone, Copy)]
pub struct PageSize {
    /// Bytes of a page, in KiB.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=65536))]
    pub page_kib: u32,
}

impl PageSize {
    /// Bytes of a page.
    pub fn bytes(self) -> usize {
        (self.page_kib as usize) << 10
    }
}

impl Common {
    /// Bytes moved in one round.
    pub fn total_bytes(&self) -> usize {
        (self.total_mib << 20) as usize
    }
}

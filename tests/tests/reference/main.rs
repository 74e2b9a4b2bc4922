//! The pages of the docs that are made of the code's truth, compared with it. `make docs-reference` (TURNKV_WRITE_DOCS=1) writes
//! them anew; what stands between their marks is never written by hand, but for the cells that say so.
//!
//! - `blocks`: the marked parts of a page
//! - `settings`, `cli`, `metrics`: what the server's binary and its metrics page say
//! - `limits`, `formats`, `errors`: what the sources say; `sums`: the arithmetic of their constants
#![forbid(unsafe_code)]

mod blocks;
mod cli;
mod errors;
mod formats;
mod limits;
mod metrics;
mod settings;
mod sums;

use anyhow::Result;
use blocks::Page;

#[test]
fn the_settings_are_those_that_the_server_checks() -> Result<()> {
    let mut page = Page::open("docs/operating/configuration.md")?;
    let table = settings::table(page.block("settings")?)?;
    page.compare("settings", &table)?;
    page.close()
}

#[test]
fn the_commands_are_those_of_the_binary() -> Result<()> {
    let mut page = Page::open("docs/reference/cli.md")?;
    page.compare("commands", &cli::text()?)?;
    page.close()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_are_those_of_a_running_server() -> Result<()> {
    let mut page = Page::open("docs/operating/metrics.md")?;
    page.compare("series", &metrics::series().await?)?;
    page.compare("alerts", &metrics::alerts()?)?;
    page.close()
}

#[test]
fn the_limits_are_those_of_the_sources() -> Result<()> {
    let mut page = Page::open("docs/reference/limits.md")?;
    let limits = limits::read()?;
    page.compare("doors", &limits::doors(&limits)?)?;
    page.compare("crates", &limits::tables(&limits))?;
    page.close()
}

#[test]
fn errors_and_frames_are_those_of_the_protocol() -> Result<()> {
    let mut page = Page::open("docs/reference/protocol.md")?;
    page.compare("errors", &errors::of_the_wire())?;
    page.compare("frame", &formats::tables("server/transfer/src/frame.rs")?.remove(0))?;
    let rails = formats::tables("server/transfer/src/fabric/framed/wire.rs")?;
    for (name, table) in ["rail header", "join"].iter().zip(&rails) {
        page.compare(name, table)?;
    }
    page.close()?;
    let mut page = Page::open("docs/reference/python.md")?;
    page.compare("python errors", &errors::of_python()?)?;
    page.close()
}

#[test]
fn the_disk_format_is_that_of_the_code() -> Result<()> {
    let mut page = Page::open("docs/reference/on-disk-format.md")?;
    let tables = formats::tables("server/tier/src/nvme/format.rs")?;
    let names = ["superblock", "segment header", "extent header", "record", "footer trailer"];
    anyhow::ensure!(tables.len() == names.len(), "{} tables in the format's head", tables.len());
    for (name, table) in names.iter().zip(&tables) {
        page.compare(name, table)?;
    }
    for (name, path) in [("packed page", "page.rs"), ("codebook block", "codebook.rs")] {
        page.compare(name, &formats::tables(&format!("server/codec/src/{path}"))?.concat())?;
    }
    page.close()
}

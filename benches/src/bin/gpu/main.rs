//! The GPU: pinning, copies, checksums, digests, and what an offload costs the engine beside it, against what the driver reaches
//! plainly in the same round. Says so and ends well where there is no GPU. Owns: the command line, the order. Must not know: how
//! anything is measured.
//!
//! - `rig`: the driver without the client; `shapes`: pages as engines keep them; `scale`: how much; `report`: tables
//! - `registration`, `copies`, `sums`, `interference`: the driver's limits; `pool`: the pool's own path
#![allow(clippy::print_stdout, reason = "a bench prints its tables")]

mod copies;
mod interference;
mod pool;
mod registration;
mod report;
mod rig;
mod scale;
mod shapes;
mod sums;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use turnkv_benches::memory::with_huge_pages;
use turnkv_benches::options::Common;
use turnkv_benches::sampling::Random;
use turnkv_client::{CopyChoice, Device, DeviceOptions, HostOptions};

use crate::report::{Report, TIME_IS_UP};
use crate::scale::Scale;

#[derive(Parser)]
#[command(
    about = "GPU benches: registration, copies, checksums, interference, and the pool's own path, with ratios"
)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// The device: a GPU, or this process's memory, which is always `--tiny`.
    #[arg(long, value_enum, default_value_t = Kind::Cuda)]
    device: Kind,
    /// Tiny sizes: shows that everything runs and every byte is right, not how fast.
    #[arg(long)]
    tiny: bool,
    /// Which GPU.
    #[arg(long, default_value_t = 0)]
    ordinal: u32,
    /// Only these parts, in this order.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    parts: Vec<Part>,
    /// After so many seconds what is not measured yet is left out; 0: never.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Where all tables go as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Cuda,
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Pinning a slab, with huge pages and without.
    Registration,
    /// Driver only: slots and tensors of every shape, one way, by every means.
    Copies,
    /// Through the client and a server.
    Pool,
    /// Checksums and digests on the device.
    Sums,
    /// Decode-like steps beside an offload.
    Interference,
    /// Driver only: both ways at once.
    Both,
}

/// The device under test, opened anew for every way to use it.
struct Opened {
    kind: Kind,
    ordinal: u32,
    /// Thread blocks of its kernels, where not the usual number.
    kernel_blocks: Option<u32>,
}

impl Opened {
    /// The device with its copies by that choice.
    fn device(&self, copy: CopyChoice) -> Result<Device> {
        let usual = DeviceOptions::default();
        let kernel_blocks = self.kernel_blocks.unwrap_or(usual.kernel_blocks);
        let device = DeviceOptions { copy, kernel_blocks, ..usual };
        match self.kind {
            Kind::Cuda => Device::cuda(self.ordinal, device),
            Kind::Host => Device::host(HostOptions { device, ..HostOptions::default() }),
        }
        .context("opening the device")
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.device == Kind::Cuda && Device::cuda_count() == 0 {
        println!(
            "gpu: skipped: no CUDA device here (--device host runs everything, tiny, on this process's memory)"
        );
        return Ok(());
    }
    with_huge_pages()?;
    let bound = (options.seconds > 0).then(|| Duration::from_secs(options.seconds));
    let tiny = options.tiny || options.device == Kind::Host;
    let scale = if tiny {
        Scale::tiny()
    } else {
        Scale::full(options.common.rounds, options.common.total_bytes(), bound)
    };
    let kernel_blocks = tiny.then_some(scale.blocks[0]);
    let opened = Opened { kind: options.device, ordinal: options.ordinal, kernel_blocks };
    let device = opened.device(CopyChoice::Auto)?;
    let driver = device.driver();
    println!("## {}", driver.name());
    let mut report = Report::new(driver.name(), !tiny);
    for part in &options.parts {
        match part {
            _ if scale.is_over() => report.leave_out(&format!("{part:?}"), TIME_IS_UP),
            Part::Registration => registration::measure(driver, &scale, &mut report)?,
            Part::Copies => copies::measure(driver, &scale, &mut report)?,
            Part::Both => copies::measure_both(driver, &scale, &mut report)?,
            Part::Sums => sums::measure(driver, &scale, &mut report)?,
            Part::Interference => interference::measure(driver, &scale, &mut report)?,
            Part::Pool => pool::measure(&opened, &options.common, &scale, &mut report)?,
        }
        if let Some(path) = &options.json {
            report.write(path)?; // what was measured stays, even if a later part fails
        }
    }
    println!("Every byte and every sum was compared with what it must be.");
    Ok(())
}

/// Bytes that repeat nowhere near a page's or a piece's size.
fn contents(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(7);
    let pattern: Vec<u8> = (0..(1 << 17) + 9).flat_map(|_| random.bits().to_le_bytes()).collect();
    let mut contents = pattern.repeat(bytes / pattern.len());
    contents.extend_from_slice(&pattern[..bytes - contents.len()]);
    contents
}

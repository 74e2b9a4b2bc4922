//! The GPU: pinning, copies, checksums, digests, and what an offload costs the engine beside it, against what the driver reaches
//! plainly in the same round. Says so and ends well where there is no GPU. Owns: the command line, the order. Must not know: how
//! anything is measured.
//!
//! - `rig`: the driver without the client; `shapes`: pages as engines keep them; `scale`: how much; `report`: tables
//! - `registration`, `copies`, `sums`, `interference`: the driver's limits; `pool`: the pool's own path
//! - `calls`: what that takes beside its copies, on a device that is only `modelled`
#![allow(clippy::print_stdout, reason = "a bench prints its tables")]

mod calls;
mod copies;
mod interference;
mod modelled;
mod pool;
mod registration;
mod report;
mod rig;
mod scale;
mod shapes;
mod sums;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use turnkv_benches::memory::with_huge_pages;
use turnkv_benches::options::Common;
use turnkv_benches::sampling::Random;
use turnkv_client::{CopyChoice, Device, DeviceOptions, HostOptions};

use crate::copies::By;
use crate::modelled::Modelled;
use crate::report::{Report, TIME_IS_UP};
use crate::scale::Scale;

#[derive(Parser)]
#[command(
    about = "GPU benches: registration, copies, checksums, interference, and the pool's own path, with ratios"
)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// The device: a GPU; this process's memory, which is always `--tiny`; or a model of a GPU's times, for its calls alone.
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
    /// Seconds after which work that has not ended never will: the device is lost, and the run ends.
    #[arg(long, default_value_t = 20)]
    patience: u64,
    /// Where all tables go as JSON, each as soon as it is complete.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Cuda,
    Host,
    /// A model of an H200's times, which moves no byte: what calls take beside their copies, on this machine's CPU. No other part.
    Modelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Pinning a slab, with huge pages and without.
    Registration,
    /// Driver only: slots and tensors of every shape, one way, by every means but batches.
    Copies,
    /// Checksums and digests on the device.
    Sums,
    /// Decode-like steps beside an offload.
    Interference,
    /// Driver only: both ways at once.
    Both,
    /// Through the client and a server.
    Pool,
    /// Copies, both ways and interference once more, in batches: last, since some drivers are said to hang in them.
    Batches,
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
        let device = DeviceOptions { copy, kernel_blocks, stuck_after: rig::patience(), ..usual };
        match self.kind {
            Kind::Cuda => Device::cuda(self.ordinal, device),
            Kind::Host => Device::host(HostOptions { device, ..HostOptions::default() }),
            Kind::Modelled => Device::with_driver(Arc::new(Modelled::new()), device),
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
    rig::set_patience(options.patience);
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
    if options.device == Kind::Modelled {
        let mut report = Report::new(device.driver().name(), true, options.json);
        return calls::measure(&opened, &options.common, &scale, &mut report);
    }
    println!("## {}", device.driver().name());
    let mut report = Report::new(device.driver().name(), !tiny, options.json.clone());
    for part in &options.parts {
        let name = format!("{part:?}");
        if rig::is_lost() {
            report.leave_out(&name, "the device is lost")?;
        } else if scale.is_over() {
            report.leave_out(&name, TIME_IS_UP)?;
        } else if let Err(error) = measure(*part, &device, &opened, &options.common, &scale, &mut report) {
            report.fail(&name, &error)?;
        }
    }
    if rig::is_lost() {
        rig::leave(1);
    }
    ensure!(report.failed().is_empty(), "failed: {}", report.failed().join("; "));
    println!("Every byte and every sum was compared with what it must be.");
    Ok(())
}

fn measure(
    part: Part,
    device: &Device,
    opened: &Opened,
    common: &Common,
    scale: &Scale,
    report: &mut Report,
) -> Result<()> {
    let (driver, first, last) = (device.driver(), By::CallsAndKernels, By::Batches);
    match part {
        Part::Registration => registration::measure(driver, scale, report),
        Part::Copies => copies::measure(driver, first, scale, report),
        Part::Sums => sums::measure(driver, scale, report),
        Part::Interference => interference::measure(driver, first, scale, report),
        Part::Both => copies::measure_both(driver, first, scale, report),
        Part::Pool => pool::measure(opened, common, scale, report),
        Part::Batches => {
            copies::measure(driver, last, scale, report)?;
            copies::measure_both(driver, last, scale, report)?;
            interference::measure(driver, last, scale, report)
        }
    }
}

/// Bytes that repeat nowhere near a page's or a piece's size.
fn contents(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(7);
    let pattern: Vec<u8> = (0..(1 << 17) + 9).flat_map(|_| random.bits().to_le_bytes()).collect();
    let mut contents = pattern.repeat(bytes / pattern.len());
    contents.extend_from_slice(&pattern[..bytes - contents.len()]);
    contents
}

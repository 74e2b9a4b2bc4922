//! What the pool's own path reaches: pages between a real server's slots and device memory through the client, checksums and
//! leases included, against a plain copy of the same bytes in the same round. Must not know: kernels, streams.
//!
//! Pages go in from the CPU, to the device, back under other names, and out to the CPU, which compares every byte.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use turnkv_benches::connection::{Connection, page_hashes};
use turnkv_benches::options::Common;
use turnkv_benches::pages::{Pages, check_whole};
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::stats::Series;
use turnkv_client::{CopyChoice, DataPlane, Device, DevicePlan};
use turnkv_transfer::device::{DeviceBuffer, Driver, Priority};

use crate::Opened;
use crate::report::{Report, Section, TIME_IS_UP};
use crate::rig::{Lane, Means, Memory, Moves, attempted};
use crate::scale::Scale;
use crate::shapes::{CONTIGUOUS, FRAGMENTED, Shape, Spread};

/// How long slabs may take to be pinned in the background before the figures count.
const PINNED_WITHIN: Duration = Duration::from_secs(60);

/// Rates of one copy choice.
#[derive(Default)]
struct Rates {
    reload: Series,
    layered: Series,
    offload: Series,
}

/// All shapes by all choices: what users have comes first, what copies in batches last.
pub(crate) fn measure(opened: &Opened, common: &Common, scale: &Scale, report: &mut Report) -> Result<()> {
    for choice in [CopyChoice::Auto, CopyChoice::Kernel, CopyChoice::Engine, CopyChoice::Batch] {
        for shape in [CONTIGUOUS].into_iter().chain(FRAGMENTED).take(scale.pool_shapes) {
            let title = format!("{} through the client, {choice:?}", shape.name);
            if scale.is_over() {
                report.leave_out(&title, TIME_IS_UP)?;
                continue;
            }
            let bench = Bench::new(opened, common, scale, shape, choice);
            let measured = bench.and_then(|bench| bench.measure(scale, report));
            attempted(report, &title, measured)?;
        }
    }
    Ok(())
}

struct Bench {
    shape: Shape,
    choice: CopyChoice,
    device: Device,
    connection: Connection,
    _server: Server,
    _tensors: Arc<DeviceBuffer>,
    plans: Vec<DevicePlan>,
    bytes: usize,
}

impl Bench {
    fn new(
        opened: &Opened,
        common: &Common,
        scale: &Scale,
        shape: Shape,
        choice: CopyChoice,
    ) -> Result<Bench> {
        let spread = Spread::new(shape, scale.copied_bytes);
        let device = opened.device(choice)?;
        let tensors = device.allocate(spread.bytes())?;
        let plans = spread.plans(&tensors)?;
        let server = Server::start(common, Budget::dram(4 * spread.bytes() + (256 << 20)))?;
        let connection = Connection::open(&server.address(), DataPlane::Shm, shape.page_bytes())?;
        let bytes = spread.bytes();
        Ok(Bench { shape, choice, device, connection, _server: server, _tensors: tensors, plans, bytes })
    }

    fn measure(&self, scale: &Scale, report: &mut Report) -> Result<()> {
        let driver = self.device.driver();
        let mut limit = Limit::new(driver, self.bytes)?;
        let (mut to_device, mut to_slots, mut rates) = (Series::new(), Series::new(), Rates::default());
        let mut source = Pages::filled(self.bytes, self.shape.page_bytes());
        let warm = self.warm(scale, &mut source)?;
        let before = self.device.stats();
        for round in warm..warm + u64::from(scale.rounds) {
            to_device.push(limit.run(true)?);
            to_slots.push(limit.run(false)?);
            let found = self.round(scale, round, &mut source)?;
            rates.reload.push(found[0]);
            rates.layered.push(found[1]);
            rates.offload.push(found[2]);
        }
        let after = self.device.stats();
        let direct = after.direct_bytes - before.direct_bytes;
        let staged = after.staged_bytes - before.staged_bytes;
        let title = format!(
            "{} through the client, {:?}, {} pages a call, every byte checked; copied directly: {:.0} %",
            self.shape.name,
            self.choice,
            scale.batch,
            100.0 * direct as f64 / (direct + staged).max(1) as f64
        );
        let wanted = match (self.choice, self.shape.fragments) {
            (CopyChoice::Auto, 1) => ">= 0.97",
            (CopyChoice::Auto, _) => ">= 0.85",
            _ => "",
        };
        let mut section = Section::new(title);
        section.row("plain copy to the device", "GB/s", &to_device, "");
        section.row("reload", "GB/s", &rates.reload, "");
        section.row("reload / plain", "x", &rates.reload.over(&to_device), wanted);
        section.row("reload by layers / plain", "x", &rates.layered.over(&to_device), "");
        section.row("plain copy from the device", "GB/s", &to_slots, "");
        section.row("offload", "GB/s", &rates.offload, "");
        section.row("offload / plain", "x", &rates.offload.over(&to_slots), wanted);
        report.add(section)
    }

    /// Rounds until the slabs in use are pinned, or will not be. Returns the next round's number.
    fn warm(&self, scale: &Scale, source: &mut Pages) -> Result<u64> {
        let (started, mut round, mut pinned) = (Instant::now(), 0, 0);
        loop {
            self.round(scale, round, source)?;
            round += 1;
            let stats = self.device.stats();
            let settled = stats.registered_bytes == pinned && (pinned > 0 || stats.refused > 0);
            if settled || started.elapsed() > PINNED_WITHIN {
                return Ok(round);
            }
            pinned = stats.registered_bytes;
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Pages from the CPU to the device, twice, and back. GB/s of the reload, the reload by layers and the offload.
    fn round(&self, scale: &Scale, round: u64, source: &mut Pages) -> Result<[f64; 3]> {
        let (pages, gb) = (self.plans.len(), self.bytes as f64 / 1e9);
        let batches: Vec<_> =
            (0..pages).step_by(scale.batch).map(|at| at..(at + scale.batch).min(pages)).collect();
        let (first, second) = (round * 2, round * 2 + 1);
        for batch in &batches {
            let hashes = page_hashes(first, batch.clone());
            self.connection.offload_all(None, &hashes, &source.stamped(batch.clone()))?;
        }
        let mut seconds = [0.0; 3];
        for (layers, seconds) in [1, self.shape.layers()].into_iter().zip(&mut seconds) {
            let started = Instant::now();
            for batch in &batches {
                let (hashes, plans) = (page_hashes(first, batch.clone()), &self.plans[batch.clone()]);
                self.connection.reload_device(&self.device, &hashes, plans, layers)?;
            }
            *seconds = started.elapsed().as_secs_f64();
        }
        let started = Instant::now();
        for batch in &batches {
            let (hashes, plans) = (page_hashes(second, batch.clone()), &self.plans[batch.clone()]);
            self.connection.offload_device(&self.device, &hashes, plans)?;
        }
        seconds[2] = started.elapsed().as_secs_f64();
        let mut target = Pages::empty(self.bytes, self.shape.page_bytes());
        for batch in batches {
            let mut targets = target.targets(batch.start, batch.len());
            self.connection.reload_all(&page_hashes(second, batch.clone()), &mut targets)?;
            check_whole(&targets, &source.stamped(batch))?;
        }
        self.connection.drop_all()?;
        Ok(seconds.map(|seconds| gb / seconds))
    }
}

/// A plain copy of as many bytes between pinned and device memory.
struct Limit {
    lane: Lane,
    moves: [Arc<Moves>; 2],
    gb: f64,
}

impl Limit {
    fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Limit> {
        let (pinned, device) = (Memory::pinned(driver, bytes)?, Memory::device(driver, bytes)?);
        let moves = [Moves::whole(&pinned, &device)?, Moves::whole(&device, &pinned)?];
        Ok(Limit { lane: Lane::new(driver, Priority::High)?, moves, gb: bytes as f64 / 1e9 })
    }

    fn run(&mut self, to_device: bool) -> Result<f64> {
        let started = Instant::now();
        let begun = self.lane.enqueue(&self.moves[usize::from(to_device)], Means::Engine)?;
        ensure!(begun.is_some(), "a plain copy is always there");
        self.lane.finish()?;
        Ok(self.gb / started.elapsed().as_secs_f64())
    }
}

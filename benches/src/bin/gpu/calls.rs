//! What calls through the client take beside their copies, on a modelled device: reloads and offloads of every shape against the time
//! of a plain copy of their bytes. Must not know: how a device is modelled.
//!
//! Nothing is compared here: no byte moves. `pool` does that, on a device that moves them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use turnkv_benches::connection::{Connection, page_hashes};
use turnkv_benches::options::Common;
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::stats::Series;
use turnkv_client::{CopyChoice, DataPlane, Device, DevicePlan};
use turnkv_transfer::device::{DeviceBuffer, Priority, Stream};

use crate::Opened;
use crate::modelled::LINK;
use crate::report::{Report, Section};
use crate::scale::Scale;
use crate::shapes::{CONTIGUOUS, FRAGMENTED, Shape, Spread};

/// How long slabs may take to be registered.
const REGISTERED_WITHIN: Duration = Duration::from_secs(60);

/// What is timed: offloads and reloads until they are done, reloads by layers until an engine may begin, and until its first and
/// its last layer are there, and until all of it is verified.
const ROWS: [&str; 6] =
    ["offload", "reload", "by layers, begun", "by layers, first", "by layers, last", "by layers, verified"];

/// All shapes, and a long conversation of the second of them.
pub(crate) fn measure(opened: &Opened, common: &Common, scale: &Scale, report: &mut Report) -> Result<()> {
    for shape in [CONTIGUOUS].into_iter().chain(FRAGMENTED) {
        Calls::new(opened, common, shape, scale.batch)?.measure(scale, report)?;
    }
    Calls::new(opened, common, FRAGMENTED[1], scale.long)?.measure(scale, report)
}

struct Calls {
    shape: Shape,
    device: Device,
    connection: Connection,
    _server: Server,
    _tensors: Arc<DeviceBuffer>,
    plans: Vec<DevicePlan>,
    engine: Stream,
    /// What is called for so far: each offload is of pages of its own.
    called: u64,
}

impl Calls {
    fn new(opened: &Opened, common: &Common, shape: Shape, pages: usize) -> Result<Calls> {
        let spread = Spread::new(shape, pages * shape.page_bytes());
        let device = opened.device(CopyChoice::Auto)?;
        let tensors = device.allocate(spread.bytes())?;
        let plans = spread.plans(&tensors)?;
        let server = Server::start(common, Budget::dram(2 * spread.bytes() + (256 << 20)))?;
        let connection = Connection::open(&server.address(), DataPlane::Shm, shape.page_bytes())?;
        let engine = device.driver().new_stream(Priority::High)?;
        Ok(Calls { shape, device, connection, _server: server, _tensors: tensors, plans, engine, called: 0 })
    }

    fn measure(&mut self, scale: &Scale, report: &mut Report) -> Result<()> {
        let copied = (self.plans.len() * self.shape.page_bytes()) as f64 / LINK;
        let (started, mut settled) = (Instant::now(), 0);
        while self.device.stats().registered_bytes != settled || settled == 0 {
            settled = self.device.stats().registered_bytes;
            self.round()?;
            std::thread::sleep(Duration::from_millis(100));
            ensure!(
                started.elapsed() < REGISTERED_WITHIN,
                "slabs are not registered within {REGISTERED_WITHIN:?}"
            );
        }
        let mut rounds = Vec::new();
        for _ in 0..scale.rounds {
            rounds.push(self.round()?);
        }
        let title = format!(
            "{} on a modelled device, {} pages a call, {:.2} ms over its link",
            self.shape.name,
            self.plans.len(),
            copied * 1e3
        );
        let mut section = Section::new(title);
        for (number, what) in ROWS.into_iter().enumerate() {
            let (mut took, mut share) = (Series::new(), Series::new());
            for round in &rounds {
                took.push(round[number] * 1e3);
                share.push(copied / round[number]);
            }
            section.row(what, "ms", &took, "");
            if !(what.ends_with("begun") || what.ends_with("first")) {
                section.row(&format!("{what}, of the link"), "x", &share, "");
            }
        }
        report.add(section)
    }

    /// Seconds of all [`ROWS`].
    fn round(&mut self) -> Result<[f64; 6]> {
        self.called += 1;
        let hashes = page_hashes(self.called, 0..self.plans.len());
        let (connection, device, plans) = (&self.connection, &self.device, &self.plans);
        let begun = Instant::now();
        connection.offload_device(device, &hashes, plans)?;
        let offload = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        connection.reload_device(device, &hashes, plans, 1)?;
        let reload = begun.elapsed().as_secs_f64();
        let (pages, layers) = ((&hashes[..], &plans[..]), self.shape.layers());
        let [begun, first, last, verified] = connection.reload_layers(device, pages, layers, self.engine)?;
        connection.drop_all()?;
        Ok([offload, reload, begun, first, last, verified])
    }
}

//! What an offload costs the engine: the length of decode-like steps with an offload beside them and without. Must not know: the
//! client, the pool.
//!
//! A step is a launch a layer of a kernel that reads and writes memory as fast as the device can, on a stream of the usual
//! priority (which is also the lowest); decoding is bound by memory in the same way. The offload runs at a fixed rate on a
//! stream of the lowest priority, from layer tensors into slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use turnkv_benches::stats::{Series, quantile};
use turnkv_transfer::device::{Driver, Priority};

use crate::contents;
use crate::copies::By;
use crate::report::{NO_KERNELS, Report, Section};
use crate::rig::{Lane, Means, Memory, Moves};
use crate::scale::Scale;
use crate::shapes::{CONTIGUOUS, FRAGMENTED, Shape, Spread};

/// What the offload should move a second.
const OFFLOAD_BYTES_A_SECOND: f64 = 20e9;
/// About how much of it is enqueued at once.
const BURST_BYTES: usize = 16 << 20;
/// Thread blocks and bytes a launch of the offload's kernel.
const BLOCKS: [u32; 5] = [2, 4, 8, 16, 32];
const CHUNKS: [usize; 3] = [1 << 20, 4 << 20, 16 << 20];

/// One offload to have beside the steps.
struct Case {
    name: String,
    shape: Shape,
    means: Means,
    chunk_bytes: usize,
    p50: Series,
    p99: Series,
    rate: Series,
}

/// Steps alone and beside each kind of offload, interleaved.
pub(crate) fn measure(driver: &Arc<dyn Driver>, by: By, scale: &Scale, report: &mut Report) -> Result<()> {
    let Some(decode) = Decode::fit(driver, scale)? else {
        return report.leave_out("interference", NO_KERNELS);
    };
    let mut cases = cases(by, scale);
    let (mut alone50, mut alone99) = (Series::new(), Series::new());
    let offload = Offload::new(driver, scale)?;
    for _ in 0..scale.decode_rounds {
        let steps = decode.steps(driver, scale.decode_steps)?;
        alone50.push(quantile(&steps, 0.5) * 1e3);
        alone99.push(quantile(&steps, 0.99) * 1e3);
        for case in &mut cases {
            let (steps, rate) = beside(driver, &decode, &offload, case, scale.decode_steps)?;
            case.p50.push(quantile(&steps, 0.5) * 1e3);
            case.p99.push(quantile(&steps, 0.99) * 1e3);
            case.rate.push(rate);
        }
    }
    let title = format!(
        "decode-like steps of {} launches beside an offload at {} GB/s, {} steps a round",
        scale.decode_layers,
        OFFLOAD_BYTES_A_SECOND / 1e9,
        scale.decode_steps
    );
    let mut section = Section::new(title);
    section.row("alone, p50", "ms", &alone50, "");
    section.row("alone, p99", "ms", &alone99, "");
    for case in &cases {
        if case.rate.median().is_nan() {
            report.leave_out(&case.name, "this device has no such call")?;
            continue;
        }
        section.row(&format!("{}: offload", case.name), "GB/s", &case.rate, "");
        section.row(&format!("{}: p50 / alone", case.name), "x", &case.p50.over(&alone50), "");
        section.row(&format!("{}: p99 / alone", case.name), "x", &case.p99.over(&alone99), "best <= 1.05");
    }
    report.add(section)
}

fn cases(by: By, scale: &Scale) -> Vec<Case> {
    let case = |name: String, shape, means, chunk_bytes| Case {
        name,
        shape,
        means,
        chunk_bytes,
        p50: Series::new(),
        p99: Series::new(),
        rate: Series::new(),
    };
    let fragments = FRAGMENTED[0];
    if by == By::Batches {
        return vec![
            case("2 MiB pieces, batch".to_owned(), CONTIGUOUS, Means::Batch, usize::MAX),
            case("32 KiB pieces, batch".to_owned(), fragments, Means::Batch, usize::MAX),
        ];
    }
    let mut cases = vec![
        case("2 MiB pieces, copy engine".to_owned(), CONTIGUOUS, Means::Engine, usize::MAX),
        case("32 KiB pieces, copy engine".to_owned(), fragments, Means::Engine, usize::MAX),
    ];
    // A small scale has one kernel only.
    let (blocks, chunks) =
        if scale.blocks.len() == 1 { (&BLOCKS[..1], &CHUNKS[..1]) } else { (&BLOCKS[..], &CHUNKS[..]) };
    for &blocks in blocks {
        for &chunk in chunks {
            let name = format!("32 KiB pieces, kernel, {blocks} blocks, {} MiB a launch", chunk >> 20);
            cases.push(case(name, fragments, Means::Kernel(blocks), chunk));
        }
    }
    cases
}

/// Steps on one thread, the offload on another.
fn beside(
    driver: &Arc<dyn Driver>,
    decode: &Decode,
    offload: &Offload,
    case: &Case,
    steps: usize,
) -> Result<(Vec<f64>, f64)> {
    let bursts = offload.bursts(case)?;
    offload.slots.write(&vec![0xa5; offload.contents.len()])?;
    let stop = AtomicBool::new(false);
    let found = thread::scope(|scope| {
        let run = thread::Builder::new()
            .name("bench-offload".to_owned())
            .spawn_scoped(scope, || offload.run(driver, &bursts, case.means, &stop))?;
        // The first copies warm both sides up.
        let warm = decode.steps(driver, (steps / 10).max(1));
        let steps = warm.and_then(|_| decode.steps(driver, steps));
        stop.store(true, Ordering::Relaxed);
        let rate = run.join().map_err(|_| anyhow!("the offload's thread panicked"))??;
        Ok::<_, anyhow::Error>((steps?, rate))
    })?;
    if !found.1.is_nan() {
        offload.check(case)?;
    }
    Ok(found)
}

/// The engine's side.
struct Decode {
    layer: Arc<Moves>,
    layers: usize,
    blocks: u32,
}

impl Decode {
    /// Steps of about the wanted length. None: no kernels.
    fn fit(driver: &Arc<dyn Driver>, scale: &Scale) -> Result<Option<Decode>> {
        let (from, to) =
            (Memory::device(driver, scale.layer_bytes)?, Memory::device(driver, scale.layer_bytes)?);
        let mut decode = Decode {
            layer: Moves::whole(&to, &from)?,
            layers: scale.decode_layers,
            blocks: scale.decode_blocks,
        };
        let mut lane = Lane::new(driver, Priority::Low)?;
        if lane.enqueue(&decode.layer, Means::Kernel(decode.blocks))?.is_none() {
            return Ok(None);
        }
        drop(lane);
        let took = quantile(&decode.steps(driver, 5)?, 0.5);
        let bytes = (scale.layer_bytes as f64 * (scale.decode_seconds / took).min(1.0)) as usize;
        let bytes = bytes.next_multiple_of(4096).min(scale.layer_bytes);
        decode.layer = Moves::new(&to, &from, &[(0, 0, bytes)], usize::MAX)?;
        Ok(Some(decode))
    }

    /// Seconds of each of so many steps, one after another.
    fn steps(&self, driver: &Arc<dyn Driver>, count: usize) -> Result<Vec<f64>> {
        let mut lane = Lane::new(driver, Priority::Low)?;
        let mut seconds = Vec::with_capacity(count);
        for _ in 0..count {
            let started = Instant::now();
            for _ in 0..self.layers {
                ensure!(lane.enqueue(&self.layer, Means::Kernel(self.blocks))?.is_some(), "kernels are gone");
            }
            lane.finish()?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        Ok(seconds)
    }
}

/// The pool's side: slots and tensors for any shape.
struct Offload {
    slots: Arc<Memory>,
    tensors: Arc<Memory>,
    /// What the tensors hold.
    contents: Vec<u8>,
}

impl Offload {
    fn new(driver: &Arc<dyn Driver>, scale: &Scale) -> Result<Offload> {
        let bytes = scale.copied_bytes;
        let (slots, _) = Memory::slots(driver, bytes)?;
        let (tensors, contents) = (Memory::device(driver, bytes)?, contents(bytes));
        slots.write(&contents)?;
        let mut lane = Lane::new(driver, Priority::Low)?;
        lane.enqueue(&Moves::whole(&tensors, &slots)?, Means::Engine)?;
        lane.finish()?;
        Ok(Offload { slots, tensors, contents })
    }

    /// Whether the slots hold the pages of that shape.
    fn check(&self, case: &Case) -> Result<()> {
        let (spread, slots) = (Spread::new(case.shape, self.contents.len()), self.slots.read()?);
        let right = spread
            .all()
            .into_iter()
            .all(|(tensor, slot, bytes)| slots[slot..slot + bytes] == self.contents[tensor..tensor + bytes]);
        ensure!(right, "WRONG BYTES: {} left something else in the slots", case.name);
        Ok(())
    }

    /// The copies of all pages that there is room for, in bursts.
    fn bursts(&self, case: &Case) -> Result<Vec<Arc<Moves>>> {
        let spread = Spread::new(case.shape, self.contents.len());
        let pages: Vec<usize> = (0..spread.pages()).collect();
        let burst = |pages: &[usize]| {
            let list: Vec<_> = pages
                .iter()
                .flat_map(|&page| spread.page(page))
                .map(|(tensor, slot, bytes)| (slot, tensor, bytes))
                .collect();
            Moves::new(&self.slots, &self.tensors, &list, case.chunk_bytes)
        };
        pages.chunks((BURST_BYTES / case.shape.page_bytes()).max(1)).map(burst).collect()
    }

    /// Offloads at the fixed rate, or as fast as it goes, until told to stop. Returns the rate in GB/s.
    fn run(
        &self,
        driver: &Arc<dyn Driver>,
        bursts: &[Arc<Moves>],
        means: Means,
        stop: &AtomicBool,
    ) -> Result<f64> {
        let mut lane = Lane::new(driver, Priority::Low)?;
        let (started, mut moved) = (Instant::now(), 0);
        for (at, burst) in bursts.iter().cycle().enumerate() {
            if at >= bursts.len() && stop.load(Ordering::Relaxed) {
                break; // every page was offloaded once: all slots can be checked
            }
            let due = started + Duration::from_secs_f64(moved as f64 / OFFLOAD_BYTES_A_SECOND);
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            if lane.enqueue(burst, means)?.is_none() {
                return Ok(f64::NAN);
            }
            lane.finish()?;
            moved += burst.bytes();
        }
        Ok(moved as f64 / 1e9 / started.elapsed().as_secs_f64())
    }
}

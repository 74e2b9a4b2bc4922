//! What the driver's own means of copying reach between a registered slab and device memory: the table that the planner's choice
//! rests on. Every byte is checked. Must not know: the client, the pool.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use turnkv_benches::stats::Series;
use turnkv_transfer::device::{Driver, Priority};

use crate::contents;
use crate::report::{Report, Section, TIME_IS_UP};
use crate::rig::{Lane, Means, Memory, Moves, attempted};
use crate::scale::Scale;
use crate::shapes::{CONTIGUOUS, FRAGMENTED, Shape, Spread};

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ToDevice,
    ToSlots,
}

/// Which means are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Copy engines a call a piece, and kernels.
    CallsAndKernels,
    /// Copy engines a call for many: measured last, since some drivers are said to hang in them.
    Batches,
}

impl By {
    fn words(self) -> &'static str {
        if self == By::Batches { ", in batches" } else { "" }
    }
}

/// One way to copy: its name, who copies, and how much a launch moves.
struct Variant {
    name: String,
    means: Means,
    chunk_bytes: usize,
}

/// The memory of one shape's copies.
struct Place {
    spread: Spread,
    slots: Arc<Memory>,
    /// What the slots lie in, for people.
    kind: &'static str,
    tensors: Arc<Memory>,
    /// Pinned memory and device memory of the same size, for the plain copy that is the limit.
    pinned: Arc<Memory>,
    plain: Arc<Memory>,
    /// What slots hold.
    contents: Vec<u8>,
}

/// All shapes, one way at a time, by these means.
pub(crate) fn measure(driver: &Arc<dyn Driver>, by: By, scale: &Scale, report: &mut Report) -> Result<()> {
    for shape in [CONTIGUOUS].into_iter().chain(FRAGMENTED) {
        for (way, arrow) in [(Way::ToDevice, "slots -> device"), (Way::ToSlots, "device -> slots")] {
            let title = format!("{}, {arrow}, driver only{}", shape.name, by.words());
            if scale.is_over() {
                report.leave_out(&title, TIME_IS_UP)?;
                continue;
            }
            let measured = Place::new(driver, shape, scale.copied_bytes).and_then(|place| {
                let mut section = Section::new(format!("{title}, slots in {}", place.kind));
                compare(driver, &[(&place, way)], by, scale, &mut section, report, wanted(shape))?;
                report.add(section)
            });
            attempted(report, &title, measured)?;
        }
    }
    Ok(())
}

/// Both directions at once, each with its own memory: whether the link and the means are full duplex.
pub(crate) fn measure_both(
    driver: &Arc<dyn Driver>,
    by: By,
    scale: &Scale,
    report: &mut Report,
) -> Result<()> {
    for shape in [CONTIGUOUS, FRAGMENTED[0]] {
        let title =
            format!("{}, both directions at once, both counted, driver only{}", shape.name, by.words());
        if scale.is_over() {
            report.leave_out(&title, TIME_IS_UP)?;
            continue;
        }
        let place = || Place::new(driver, shape, scale.copied_bytes);
        let measured = place().and_then(|down| {
            let (up, mut section) = (place()?, Section::new(&title));
            let legs = [(&down, Way::ToDevice), (&up, Way::ToSlots)];
            compare(driver, &legs, by, scale, &mut section, report, "")?;
            report.add(section)
        });
        attempted(report, &title, measured)?;
    }
    Ok(())
}

/// Copies by all means, each leg on a lane of its own and all legs at once, against plain copies of the same bytes.
fn compare(
    driver: &Arc<dyn Driver>,
    legs: &[(&Place, Way)],
    by: By,
    scale: &Scale,
    section: &mut Section,
    report: &mut Report,
    wanted: &str,
) -> Result<()> {
    let lane = |(_, way): &(&Place, Way)| {
        Lane::new(driver, if *way == Way::ToDevice { Priority::High } else { Priority::Low })
    };
    let mut lanes = legs.iter().map(lane).collect::<Result<Vec<_>>>()?;
    let plain = legs.iter().map(|(place, way)| place.plain_moves(*way)).collect::<Result<Vec<_>>>()?;
    let mut found = Vec::new();
    for variant in variants(by, scale) {
        let moves = legs.iter().map(|(place, way)| place.moves(*way, variant.chunk_bytes));
        let moves = moves.collect::<Result<Vec<_>>>()?;
        for ((place, way), lane) in legs.iter().zip(&mut lanes) {
            place.poison(lane, *way)?;
        }
        if timed(&mut lanes, &moves, variant.means)?.is_none() {
            report.leave_out(&variant.name, "this device has no such call")?;
            continue;
        }
        for ((place, way), lane) in legs.iter().zip(&mut lanes) {
            place.check(lane, *way, &variant.name)?;
        }
        found.push((variant, moves, Series::new()));
    }
    let gb = plain.iter().map(|moves| moves.bytes()).sum::<usize>() as f64 / 1e9;
    let mut limit = Series::new();
    for _ in 0..scale.rounds {
        limit.push(gb / timed(&mut lanes, &plain, Means::Engine)?.unwrap_or(f64::NAN));
        for (variant, moves, rates) in &mut found {
            rates.push(gb / timed(&mut lanes, moves, variant.means)?.unwrap_or(f64::NAN));
        }
    }
    section.row("plain copy of the same bytes, pinned", "GB/s", &limit, "");
    for (variant, _, rates) in &found {
        section.row(&variant.name, "GB/s", rates, "");
        section.row(&format!("{} / plain", variant.name), "x", &rates.over(&limit), wanted);
    }
    Ok(())
}

/// Seconds from the first call until the last byte is there. None: not by those means.
fn timed(lanes: &mut [Lane], moves: &[Arc<Moves>], means: Means) -> Result<Option<f64>> {
    let (started, mut all) = (Instant::now(), true);
    for (lane, moves) in lanes.iter_mut().zip(moves) {
        all &= lane.enqueue(moves, means)?.is_some();
    }
    lanes.iter_mut().try_for_each(Lane::finish)?;
    Ok(all.then(|| started.elapsed().as_secs_f64()))
}

/// What at least one of the means must reach.
fn wanted(shape: Shape) -> &'static str {
    if shape.fragments == 1 { "best >= 0.97" } else { "best >= 0.85" }
}

fn variants(by: By, scale: &Scale) -> Vec<Variant> {
    if by == By::Batches {
        return vec![Variant { name: "batch".to_owned(), means: Means::Batch, chunk_bytes: usize::MAX }];
    }
    let mut variants =
        vec![Variant { name: "copy engine".to_owned(), means: Means::Engine, chunk_bytes: usize::MAX }];
    for &chunk_bytes in &scale.chunks {
        for &blocks in &scale.blocks {
            let name = format!("kernel, {blocks} blocks, {} MiB a launch", chunk_bytes >> 20);
            variants.push(Variant { name, means: Means::Kernel(blocks), chunk_bytes });
        }
    }
    variants
}

impl Place {
    fn new(driver: &Arc<dyn Driver>, shape: Shape, bytes: usize) -> Result<Place> {
        let spread = Spread::new(shape, bytes);
        let bytes = spread.bytes();
        let (slots, kind) = Memory::slots(driver, bytes)?;
        Ok(Place {
            slots,
            kind,
            tensors: Memory::device(driver, bytes)?,
            pinned: Memory::pinned(driver, bytes)?,
            plain: Memory::device(driver, bytes)?,
            contents: contents(bytes),
            spread,
        })
    }

    fn plain_moves(&self, way: Way) -> Result<Arc<Moves>> {
        match way {
            Way::ToDevice => Moves::whole(&self.plain, &self.pinned),
            Way::ToSlots => Moves::whole(&self.pinned, &self.plain),
        }
    }

    fn moves(&self, way: Way, chunk_bytes: usize) -> Result<Arc<Moves>> {
        let mut list = self.spread.all();
        match way {
            Way::ToDevice => Moves::new(&self.tensors, &self.slots, &list, chunk_bytes),
            Way::ToSlots => {
                list.iter_mut().for_each(|(tensor, slot, _)| std::mem::swap(tensor, slot));
                Moves::new(&self.slots, &self.tensors, &list, chunk_bytes)
            }
        }
    }

    /// Sets the source to what it should be and the target to what it must not stay.
    fn poison(&self, lane: &mut Lane, way: Way) -> Result<()> {
        let noise = vec![0xa5; self.contents.len()];
        let tensors = match way {
            Way::ToDevice => {
                self.slots.write(&self.contents)?;
                noise
            }
            Way::ToSlots => {
                self.slots.write(&noise)?;
                self.spread.in_tensors(&self.contents)
            }
        };
        self.pinned.write(&tensors)?;
        lane.enqueue(&Moves::whole(&self.tensors, &self.pinned)?, Means::Engine)?;
        lane.finish()
    }

    /// Every byte of the target.
    fn check(&self, lane: &mut Lane, way: Way, name: &str) -> Result<()> {
        let right = match way {
            Way::ToDevice => {
                lane.enqueue(&Moves::whole(&self.pinned, &self.tensors)?, Means::Engine)?;
                lane.finish()?;
                self.pinned.read()? == self.spread.in_tensors(&self.contents)
            }
            Way::ToSlots => self.slots.read()? == self.contents,
        };
        ensure!(right, "WRONG BYTES: {name} copied something else");
        Ok(())
    }
}

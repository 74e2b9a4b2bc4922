//! What the driver's own means of copying reach between a registered slab and device memory: the table that the planner's choice
//! rests on. Every byte is checked. Must not know: the client, the pool.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use turnkv_benches::stats::Series;
use turnkv_transfer::HugePages;
use turnkv_transfer::device::{Driver, Priority};

use crate::contents;
use crate::report::{Report, Section, TIME_IS_UP};
use crate::rig::{Lane, Means, Memory, Moves};
use crate::scale::Scale;
use crate::shapes::{CONTIGUOUS, FRAGMENTED, Shape, Spread};

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ToDevice,
    ToSlots,
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
    tensors: Arc<Memory>,
    /// Pinned memory and device memory of the same size, for the plain copy that is the limit.
    pinned: Arc<Memory>,
    plain: Arc<Memory>,
    /// What slots hold.
    contents: Vec<u8>,
}

/// All shapes, one way at a time.
pub(crate) fn measure(driver: &Arc<dyn Driver>, scale: &Scale, report: &mut Report) -> Result<()> {
    for shape in [CONTIGUOUS].into_iter().chain(FRAGMENTED) {
        if scale.is_over() {
            report.leave_out(&format!("{}, driver only", shape.name), TIME_IS_UP);
            continue;
        }
        let place = Place::new(driver, shape, scale.copied_bytes)?;
        for way in [Way::ToDevice, Way::ToSlots] {
            one_way(driver, &place, way, scale, report, shape)?;
        }
    }
    Ok(())
}

fn one_way(
    driver: &Arc<dyn Driver>,
    place: &Place,
    way: Way,
    scale: &Scale,
    report: &mut Report,
    shape: Shape,
) -> Result<()> {
    let mut lane = Lane::new(driver, Priority::High)?;
    let plain = place.plain_moves(way)?;
    let mut found = Vec::new();
    for variant in variants(scale) {
        let moves = place.moves(way, variant.chunk_bytes)?;
        place.poison(&mut lane, way)?;
        if lane.enqueue(&moves, variant.means)?.is_none() {
            report.leave_out(&format!("{}, {}", shape.name, variant.name), "this device has no such call");
            continue;
        }
        lane.finish()?;
        place.check(&mut lane, way, &variant.name)?;
        found.push((variant, moves, Series::new()));
    }
    let mut limit = Series::new();
    let gb = plain.bytes() as f64 / 1e9;
    for _ in 0..scale.rounds {
        limit.push(gb / timed(&mut lane, &plain, Means::Engine)?);
        for (variant, moves, rates) in &mut found {
            rates.push(gb / timed(&mut lane, moves, variant.means)?);
        }
    }
    let arrow = if way == Way::ToDevice { "slots -> device" } else { "device -> slots" };
    let mut section =
        Section::new(format!("{}, {arrow}, {} pages, driver only", shape.name, place.spread.pages()));
    section.row("plain copy of the same bytes, pinned", "GB/s", &limit, "");
    for (variant, _, rates) in &found {
        section.row(&variant.name, "GB/s", rates, "");
        section.row(&format!("{} / plain", variant.name), "x", &rates.over(&limit), wanted(shape));
    }
    report.add(section);
    Ok(())
}

/// What at least one of the means must reach.
fn wanted(shape: Shape) -> &'static str {
    if shape.fragments == 1 { "best >= 0.97" } else { "best >= 0.85" }
}

fn variants(scale: &Scale) -> Vec<Variant> {
    let mut variants = vec![
        Variant { name: "copy engine".to_owned(), means: Means::Engine, chunk_bytes: usize::MAX },
        Variant { name: "batch".to_owned(), means: Means::Batch, chunk_bytes: usize::MAX },
    ];
    for &chunk_bytes in &scale.chunks {
        for &blocks in &scale.blocks {
            let name = format!("kernel, {blocks} blocks, {} MiB a launch", chunk_bytes >> 20);
            variants.push(Variant { name, means: Means::Kernel(blocks), chunk_bytes });
        }
    }
    variants
}

/// Seconds from the first call until the last byte is there.
fn timed(lane: &mut Lane, moves: &Arc<Moves>, means: Means) -> Result<f64> {
    let started = Instant::now();
    ensure!(lane.enqueue(moves, means)?.is_some(), "{means:?} worked a moment ago");
    lane.finish()?;
    Ok(started.elapsed().as_secs_f64())
}

impl Place {
    fn new(driver: &Arc<dyn Driver>, shape: Shape, bytes: usize) -> Result<Place> {
        let spread = Spread::new(shape, bytes);
        let bytes = spread.bytes();
        let (slots, ..) = Memory::slab(driver, bytes, HugePages::Auto)?;
        Ok(Place {
            slots,
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

/// Both directions at once, each with its own memory: whether the link and the means are full duplex.
pub(crate) fn measure_both(driver: &Arc<dyn Driver>, scale: &Scale, report: &mut Report) -> Result<()> {
    for shape in [CONTIGUOUS, FRAGMENTED[0]] {
        if scale.is_over() {
            report.leave_out(&format!("{}, both directions", shape.name), TIME_IS_UP);
            continue;
        }
        let places =
            [Place::new(driver, shape, scale.copied_bytes)?, Place::new(driver, shape, scale.copied_bytes)?];
        let mut lanes = [Lane::new(driver, Priority::High)?, Lane::new(driver, Priority::Low)?];
        let ways = [Way::ToDevice, Way::ToSlots];
        let mut cases = Vec::new();
        let plain = [places[0].plain_moves(ways[0])?, places[1].plain_moves(ways[1])?];
        cases.push(("plain copies, pinned".to_owned(), Means::Engine, plain, Series::new()));
        for variant in variants(scale) {
            let moves = [
                places[0].moves(ways[0], variant.chunk_bytes)?,
                places[1].moves(ways[1], variant.chunk_bytes)?,
            ];
            cases.push((variant.name, variant.means, moves, Series::new()));
        }
        let mut absent = Vec::new();
        for _ in 0..=scale.rounds {
            for (name, means, moves, rates) in &mut cases {
                let gb = moves.iter().map(|moves| moves.bytes()).sum::<usize>() as f64 / 1e9;
                let started = Instant::now();
                let begun = [lanes[0].enqueue(&moves[0], *means)?, lanes[1].enqueue(&moves[1], *means)?];
                lanes[0].finish()?;
                lanes[1].finish()?;
                if begun.contains(&None) {
                    absent.push(name.clone());
                }
                rates.push(gb / started.elapsed().as_secs_f64());
            }
        }
        let title = format!("{}, both directions at once, both counted, driver only", shape.name);
        let mut section = Section::new(title);
        let limit = cases[0].3.clone();
        for (name, _, _, rates) in cases.iter().filter(|case| !absent.contains(&case.0)) {
            section.row(name, "GB/s", rates, "");
            section.row(&format!("{name} / plain"), "x", &rates.over(&limit), "");
        }
        report.add(section);
    }
    Ok(())
}

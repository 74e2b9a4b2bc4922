//! Checksums and digests on the device against the rate at which it can be copied from. Every one is compared with the CPU's.
//! Must not know: what they are for.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};
use turnkv_benches::stats::Series;
use turnkv_transfer::checksum;
use turnkv_transfer::device::{Driver, Priority};

use crate::contents;
use crate::report::{NO_KERNELS, Report, Section};
use crate::rig::{Lane, Means, Memory, Moves, Sums};
use crate::scale::Scale;

const PAGE_BYTES: usize = 2 << 20;

/// One case: what, whether digests or checksums, and the pieces of a page.
struct Case {
    name: &'static str,
    digests: bool,
    piece_bytes: usize,
}

const CASES: [Case; 5] = [
    Case { name: "CRC-64/NVME, pages of 1 x 2 MiB", digests: false, piece_bytes: PAGE_BYTES },
    Case { name: "CRC-64/NVME, pages of 64 x 32 KiB", digests: false, piece_bytes: 32 << 10 },
    Case { name: "CRC-64/NVME, pages of 512 x 4 KiB", digests: false, piece_bytes: 4 << 10 },
    Case { name: "SHA-256, 64 digests of 32 KiB a page", digests: true, piece_bytes: 32 << 10 },
    Case { name: "SHA-256, 2 digests of 1 MiB a page", digests: true, piece_bytes: 1 << 20 },
];

/// All cases over the same pages.
pub(crate) fn measure(driver: &Arc<dyn Driver>, scale: &Scale, report: &mut Report) -> Result<()> {
    let pages = (scale.copied_bytes / PAGE_BYTES).max(1);
    let bytes = pages * PAGE_BYTES;
    let mut lane = Lane::new(driver, Priority::Low)?;
    let (memory, pinned) = (Memory::device(driver, bytes)?, Memory::pinned(driver, bytes)?);
    let contents = contents(bytes);
    pinned.write(&contents)?;
    lane.enqueue(&Moves::whole(&memory, &pinned)?, Means::Engine)?;
    lane.finish()?;
    let copy = Moves::whole(&pinned, &memory)?;
    let mut cases = Vec::new();
    for case in CASES {
        let sums = Sums::new(&memory, &pieces(pages, case.piece_bytes))?;
        if run(&mut lane, &case, &sums)?.is_none() {
            report.leave_out(case.name, NO_KERNELS)?;
            continue;
        }
        check(&case, &sums, &contents)?;
        cases.push((case, sums, Series::new()));
    }
    let (mut limit, gb) = (Series::new(), bytes as f64 / 1e9);
    for _ in 0..scale.rounds {
        let started = Instant::now();
        lane.enqueue(&copy, Means::Engine)?;
        lane.finish()?;
        limit.push(gb / started.elapsed().as_secs_f64());
        for (case, sums, rates) in &mut cases {
            let started = Instant::now();
            run(&mut lane, case, sums)?;
            rates.push(sums.bytes() as f64 / 1e9 / started.elapsed().as_secs_f64());
        }
    }
    let mut section = Section::new(format!("checksums and digests of {pages} pages of 2 MiB on the device"));
    section.row("plain copy to pinned memory", "GB/s", &limit, "");
    for (case, _, rates) in &cases {
        section.row(case.name, "GB/s", rates, "");
        let mut page_rates = Series::new();
        [rates.min(), rates.median(), rates.max()]
            .into_iter()
            .for_each(|rate| page_rates.push(rate * 1e9 / PAGE_BYTES as f64));
        section.row(&format!("{}: pages", case.name), "1/s", &page_rates, "");
        section.row(&format!("{} / copy", case.name), "x", &rates.over(&limit), "");
    }
    report.add(section)
}

fn pieces(pages: usize, piece_bytes: usize) -> Vec<Vec<(usize, usize)>> {
    let page = |page: usize| {
        (0..PAGE_BYTES / piece_bytes).map(|at| (page * PAGE_BYTES + at * piece_bytes, piece_bytes)).collect()
    };
    (0..pages).map(page).collect()
}

fn run(lane: &mut Lane, case: &Case, sums: &Arc<Sums>) -> Result<Option<()>> {
    let begun = if case.digests { lane.digests(sums)? } else { lane.checksums(sums)? };
    lane.finish()?;
    Ok(begun)
}

fn check(case: &Case, sums: &Sums, contents: &[u8]) -> Result<()> {
    let right = if case.digests {
        let wanted = contents.chunks(case.piece_bytes).map(Sha256::digest);
        sums.digests()?.iter().zip(wanted).all(|(found, wanted)| found[..] == wanted[..])
    } else {
        let wanted: Vec<u64> = contents.chunks(PAGE_BYTES).map(checksum).collect();
        sums.checksums()? == wanted
    };
    ensure!(right, "WRONG SUMS: {} differ from the CPU's", case.name);
    Ok(())
}

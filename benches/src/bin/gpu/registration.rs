//! What pinning a slab costs, with huge pages and without. Must not know: what slabs are for.

use std::sync::Arc;

use anyhow::Result;
use turnkv_benches::stats::Series;
use turnkv_transfer::HugePages;
use turnkv_transfer::device::Driver;

use crate::report::{Report, Section};
use crate::rig::Memory;
use crate::scale::Scale;

/// Registers and ends the registration of a fresh, touched slab, round by round.
pub(crate) fn measure(driver: &Arc<dyn Driver>, scale: &Scale, report: &mut Report) -> Result<()> {
    let bytes = scale.registered_bytes;
    let gib = bytes as f64 / (1u64 << 30) as f64;
    let mut seconds = [const { Series::new() }; 2];
    let mut granted = true;
    for _ in 0..scale.rounds {
        for (huge_pages, seconds) in [HugePages::Off, HugePages::Auto].into_iter().zip(&mut seconds) {
            let (_memory, took, huge) = match Memory::slab(driver, bytes, huge_pages) {
                Ok(made) => made,
                Err(error) => return report.leave_out("registration", &format!("{error:#}")),
            };
            granted &= huge || huge_pages == HugePages::Off;
            seconds.push(took / gib);
        }
    }
    let [small, large] = seconds;
    let note =
        if granted { "" } else { " (the system gave none: see its transparent_hugepage/shmem_enabled)" };
    let mut section = Section::new(format!("registration of a touched slab of {} MiB", bytes >> 20));
    section.row("4 KiB pages", "s/GiB", &small, "");
    section.row(&format!("huge pages{note}"), "s/GiB", &large, "");
    section.row("huge / 4 KiB pages", "x", &large.over(&small), "");
    report.add(section)
}

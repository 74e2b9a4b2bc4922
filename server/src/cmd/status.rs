//! `turnkv status`: what a running server holds and does, in human units or as JSON. Owns: the text. Must not know:
//! the server's inside (it asks Admin.Stats like anybody).

use super::connect::{address_or_default, connect};
use anyhow::Context;
use std::fmt::Write as _;
use std::time::Duration;
use tonic::transport::Channel;
use turnkv_proto::wire::admin_client::AdminClient;
use turnkv_proto::wire::{FabricStats, StatsReply, StatsRequest, TierKind, TierStats};

/// Asks twice, `interval` apart, so that rates can be said; prints once.
pub(crate) async fn run(address: Option<&str>, json: bool, interval: Duration) -> anyhow::Result<()> {
    let address = address_or_default(address);
    let mut admin = AdminClient::new(connect(&address).await?);
    let before = ask(&mut admin).await?;
    tokio::time::sleep(interval).await;
    let after = ask(&mut admin).await?;
    let text = if json { as_json(&after)? } else { as_text(&address, &before, &after) };
    super::print(&text)?;
    Ok(())
}

async fn ask(admin: &mut AdminClient<Channel>) -> anyhow::Result<StatsReply> {
    Ok(admin.stats(StatsRequest {}).await.context("the server did not answer Stats")?.into_inner())
}

fn as_text(address: &str, before: &StatsReply, after: &StatsReply) -> String {
    let mut text = String::new();
    let up = human_time(after.uptime_ms);
    let mut line = |line: String| writeln!(text, "{line}").unwrap_or_default();
    line(format!("turnkv {} at {address}, up {up}", after.version));
    for tier in &after.tiers {
        let was = before.tiers.iter().find(|was| was.tier == tier.tier);
        line(tier_line(tier, was, after.uptime_ms.saturating_sub(before.uptime_ms)));
        if !tier.note.is_empty() {
            line(format!("         {}", tier.note));
        }
    }
    if !after.kept.is_empty() {
        line(format!("keep     {}", after.kept));
    }
    let hits: u64 = after.tiers.iter().map(|tier| tier.hit_pages).sum();
    let ratio = |part: u64| if hits == 0 { 0.0 } else { 100.0 * part as f64 / hits as f64 };
    let of =
        |kind: TierKind| after.tiers.iter().find(|tier| tier.tier() == kind).map_or(0, |tier| tier.hit_pages);
    line(format!(
        "reload   {hits} pages ({:.0} % from DRAM, {:.0} % from NVMe), {} tokens not prefilled, {} ended at a miss",
        ratio(of(TierKind::Dram)),
        ratio(of(TierKind::Nvme)),
        after.hit_tokens,
        after.miss_pages
    ));
    line(format!(
        "offload  {} pages stored, {} already there, {} declined, {} evicted, {} corrupt",
        after.offloaded_pages,
        after.present_pages,
        after.declined_pages,
        after.evicted_pages,
        after.corrupt_pages
    ));
    line(format!(
        "state    {} sessions, {} namespaces, {} leases, {} connections, {} to write, {} in quarantine",
        after.sessions,
        after.namespaces,
        after.leases,
        after.connections,
        human_bytes(after.dirty_bytes),
        human_bytes(after.quarantined_bytes)
    ));
    line(format!(
        "protect  {} by {} pins and {} sessions; the tenant with most has {} of its {}",
        human_bytes(after.protected_bytes),
        after.pins,
        after.protections.saturating_sub(after.pins),
        human_bytes(after.protected_tenant_bytes_max),
        human_bytes(after.protected_budget_bytes)
    ));
    for fabric in &after.fabrics {
        line(fabric_line(fabric));
    }
    line(format!("index    {} pages in {}", after.index_pages, human_bytes(after.index_bytes)));
    for note in &after.notes {
        line(format!("note     {note}"));
    }
    text
}

fn tier_line(tier: &TierStats, was: Option<&TierStats>, elapsed_ms: u64) -> String {
    let name = match tier.tier() {
        TierKind::Nvme => "nvme",
        TierKind::Dram | TierKind::Unspecified => "dram",
    };
    let rate =
        |now: u64, was: u64| human_bytes(now.saturating_sub(was).saturating_mul(1000) / elapsed_ms.max(1));
    let rates = was.map_or_else(String::new, |was| {
        format!(
            ", reading {}/s, writing {}/s",
            rate(tier.read_bytes, was.read_bytes),
            rate(tier.written_bytes, was.written_bytes)
        )
    });
    let used = 100.0 * tier.used_bytes as f64 / tier.capacity_bytes.max(1) as f64;
    let rates = if name == "dram" { format!(", {} leased", human_bytes(tier.leased_bytes)) } else { rates };
    let state = if tier.poisoned { ", OUT OF SERVICE" } else { "" };
    let (held, capacity) = (human_bytes(tier.used_bytes), human_bytes(tier.capacity_bytes));
    format!("{name}     {held} of {capacity} ({used:.0} %), {} pages{rates}{state}", tier.pages)
}

fn fabric_line(fabric: &FabricStats) -> String {
    let mut text = format!("{:<9}{} rails", fabric.fabric, fabric.rails);
    if !fabric.nics.is_empty() {
        text += &format!(" over {}", fabric.nics.join(", "));
    }
    let (read, written) = (human_bytes(fabric.read_bytes), human_bytes(fabric.written_bytes));
    text += &format!(", {read} read from other hosts, {written} written");
    if fabric.unknown_slabs > 0 {
        text += &format!(", {} slabs not registered", fabric.unknown_slabs);
    }
    if fabric.stuck_rails > 0 {
        text += &format!(", {} RAILS STUCK", fabric.stuck_rails);
    }
    text
}

fn as_json(stats: &StatsReply) -> anyhow::Result<String> {
    let tier = |tier: &TierStats| {
        serde_json::json!({
            "tier": tier.tier().as_str_name(), "capacity_bytes": tier.capacity_bytes, "used_bytes": tier.used_bytes,
            "leased_bytes": tier.leased_bytes, "pages": tier.pages, "hit_pages": tier.hit_pages,
            "read_bytes": tier.read_bytes, "written_bytes": tier.written_bytes, "poisoned": tier.poisoned, "note": tier.note,
        })
    };
    let tiers: Vec<_> = stats.tiers.iter().map(tier).collect();
    let fabric = |fabric: &FabricStats| {
        serde_json::json!({
            "fabric": fabric.fabric, "nics": fabric.nics, "rails": fabric.rails, "read_bytes": fabric.read_bytes,
            "written_bytes": fabric.written_bytes, "stuck_rails": fabric.stuck_rails, "known_slabs": fabric.known_slabs,
            "unknown_slabs": fabric.unknown_slabs,
        })
    };
    let fabrics: Vec<_> = stats.fabrics.iter().map(fabric).collect();
    let json = serde_json::json!({
        "version": stats.version, "uptime_ms": stats.uptime_ms, "tiers": tiers, "lookups": stats.lookups,
        "miss_pages": stats.miss_pages, "hit_tokens": stats.hit_tokens, "offloaded_pages": stats.offloaded_pages,
        "present_pages": stats.present_pages, "declined_pages": stats.declined_pages, "evicted_pages": stats.evicted_pages,
        "corrupt_pages": stats.corrupt_pages, "sessions": stats.sessions, "namespaces": stats.namespaces,
        "leases": stats.leases, "connections": stats.connections, "dirty_bytes": stats.dirty_bytes,
        "protected_bytes": stats.protected_bytes, "protected_tenant_bytes_max": stats.protected_tenant_bytes_max,
        "protected_budget_bytes": stats.protected_budget_bytes, "protections": stats.protections, "pins": stats.pins,
        "quarantined_bytes": stats.quarantined_bytes, "index_bytes": stats.index_bytes, "index_pages": stats.index_pages,
        "fabrics": fabrics, "notes": stats.notes, "kept": stats.kept,
    });
    Ok(serde_json::to_string_pretty(&json)? + "\n")
}

/// Bytes in a unit that people read.
pub(super) fn human_bytes(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// Time in a unit that people read.
pub(super) fn human_time(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

//! What more memory would buy: a namespace's curve put into sizes, tokens, seconds and money. Owns: the arithmetic of advice,
//! the curve's series on /metrics. Must not know: how a curve is made, how advice is shown.

use super::stats::TierName;
use super::{Engine, refuse};
use crate::limits::{ADVICE_NAMESPACES_MAX, ADVICE_SIZES_MAX, PREFILL_REPORT_MAX};
use metrics::{describe_gauge, gauge};
use turnkv_pool::{MissRatioCurve, NamespaceIndex, NamespaceRoom, PoolError};
use turnkv_proto::{Error, NamespaceId};

const GIB: u64 = 1 << 30;
const HOURS_PER_MONTH: f64 = 730.0;
/// Steps that are advised on beside a doubling of what is there.
const STEPS: [u64; 3] = [64 * GIB, 128 * GIB, 256 * GIB];
/// Sizes on /metrics: doublings from 64 MiB to 16 TiB, so that the labels are the same on every server.
const METRIC_DOUBLINGS: std::ops::RangeInclusive<u32> = 26..=44;
/// Less than a point is not worth buying memory for.
const WORTH: f64 = 0.01;

/// What advice depends on besides the curve.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    /// What there is today.
    pub(crate) room: NamespaceRoom,
    /// Tokens prefilled in a second; 0: unknown.
    pub(crate) prefill_tokens_per_s: f64,
    /// Prices; 0: unknown.
    pub(crate) gpu_hour: f64,
    /// A GiB of DRAM for a month.
    pub(crate) dram_gib_month: f64,
    /// A GiB of NVMe for a month.
    pub(crate) nvme_gib_month: f64,
}

/// What is to be advised on, at what prices.
pub(crate) struct SizeAdvice {
    /// On one namespace; none: on all, within a bound.
    pub(crate) namespace: Option<NamespaceId>,
    /// Tokens prefilled in a second; none: what engines reported.
    pub(crate) prefill_tokens_per_s: Option<f64>,
    /// Prices; 0: unknown.
    pub(crate) gpu_hour: f64,
    /// A GiB of DRAM for a month.
    pub(crate) dram_gib_month: f64,
    /// A GiB of NVMe for a month.
    pub(crate) nvme_gib_month: f64,
}

/// Advice on some namespaces.
pub(crate) struct SizesAdvised {
    /// Each with what is advised.
    pub(crate) namespaces: Vec<(NamespaceId, NamespaceAdvice)>,
    /// Namespaces beyond the bound.
    pub(crate) left_out: u32,
}

/// Pages found at a size of the pool.
pub(crate) struct SizeAt {
    pub(crate) bytes: u64,
    /// Pages found, of the pages that turns need.
    pub(crate) hit_ratio: f64,
}

/// What so much more of a tier would buy.
pub(crate) struct Purchase {
    pub(crate) tier: TierName,
    pub(crate) bytes: u64,
    /// Pages found then, in any tier, of the pages that turns need.
    pub(crate) hit_ratio: f64,
    /// Of the pages that turns need, those found in DRAM.
    pub(crate) dram_hit_ratio: f64,
    /// Tokens that need no prefill any more, at today's traffic.
    pub(crate) tokens_per_s: f64,
    /// Seconds of prefill that these are; 0: no prefill rate is known.
    pub(crate) gpu_s_per_hour: f64,
    /// 0: no price.
    pub(crate) cost_per_month: f64,
    pub(crate) saving_per_month: f64,
}

/// A namespace's curve in sizes, tokens, seconds and money.
#[derive(Default)]
pub(crate) struct NamespaceAdvice {
    pub(crate) page_bytes: u64,
    pub(crate) page_tokens: u32,
    /// Today: what it has of DRAM, and what is free.
    pub(crate) dram_bytes: u64,
    /// Today: its part of NVMe, by its part of the traffic.
    pub(crate) nvme_bytes: u64,
    /// Measured: pages found, of the pages that turns needed.
    pub(crate) found_ratio: f64,
    /// The curve at today's size.
    pub(crate) hit_ratio: f64,
    /// The curve at today's size of DRAM.
    pub(crate) dram_hit_ratio: f64,
    /// Found at any size.
    pub(crate) hit_ratio_max: f64,
    /// The least size that finds all of that.
    pub(crate) bytes_max: u64,
    /// Beyond it a byte buys less than bytes do on average; 0: no reference yet.
    pub(crate) knee_bytes: u64,
    pub(crate) knee_hit_ratio: f64,
    /// Ascending.
    pub(crate) sizes: Vec<SizeAt>,
    pub(crate) purchases: Vec<Purchase>,
    /// Pages that turns needed; old ones count less.
    pub(crate) references: f64,
    pub(crate) references_per_s: f64,
    /// The time that these are of, fading likewise.
    pub(crate) window_s: f64,
    /// Share of pages whose distance is measured.
    pub(crate) sample_ratio: f64,
    pub(crate) sampled_pages: u64,
    /// 0: unknown.
    pub(crate) prefill_tokens_per_s: f64,
    /// In words.
    pub(crate) advice: String,
}

/// Puts a curve into sizes, tokens, seconds and money. NVMe keeps a copy of what is in DRAM, so what both reach together is what
/// the larger one does.
pub(crate) fn advise(curve: &MissRatioCurve, facts: &Facts) -> NamespaceAdvice {
    let room = facts.room;
    let knee_bytes = curve.knee_bytes();
    let mut advice = NamespaceAdvice {
        page_bytes: curve.page_bytes,
        page_tokens: curve.page_tokens,
        dram_bytes: room.dram_bytes,
        nvme_bytes: room.nvme_bytes,
        found_ratio: curve.found_ratio(),
        hit_ratio: curve.hit_ratio(reach(room)),
        dram_hit_ratio: curve.hit_ratio(room.dram_bytes),
        hit_ratio_max: curve.hit_ratio_max(),
        bytes_max: curve.bytes_max(),
        knee_bytes,
        knee_hit_ratio: curve.hit_ratio(knee_bytes),
        sizes: sizes(curve),
        references: curve.references,
        references_per_s: curve.references_per_s(),
        window_s: curve.window_ms / 1000.0,
        sample_ratio: curve.rate,
        sampled_pages: curve.samples + curve.hot,
        prefill_tokens_per_s: facts.prefill_tokens_per_s,
        ..Default::default()
    };
    for (tier, today) in [(TierName::Dram, room.dram_bytes), (TierName::Nvme, room.nvme_bytes)] {
        let doubling = Some(today).filter(|today| *today > 0 && !STEPS.contains(today));
        for bytes in doubling.into_iter().chain(STEPS) {
            advice.purchases.push(purchase(curve, facts, tier, bytes));
        }
    }
    advice.advice = in_words(&advice, facts);
    advice
}

fn reach(room: NamespaceRoom) -> u64 {
    room.dram_bytes.max(room.nvme_bytes)
}

/// Doublings from some pages to the size that finds all there is.
fn sizes(curve: &MissRatioCurve) -> Vec<SizeAt> {
    let most = curve.bytes_max().max(curve.page_bytes).next_power_of_two();
    let least = curve.page_bytes.next_power_of_two();
    let doubled = |bytes: &u64| bytes.checked_mul(2).filter(|bytes| *bytes <= most);
    let all: Vec<u64> = std::iter::successors(Some(least), doubled).collect();
    let from = all.len().saturating_sub(ADVICE_SIZES_MAX);
    all[from..].iter().map(|bytes| SizeAt { bytes: *bytes, hit_ratio: curve.hit_ratio(*bytes) }).collect()
}

fn purchase(curve: &MissRatioCurve, facts: &Facts, tier: TierName, bytes: u64) -> Purchase {
    let mut room = facts.room;
    let (part, price) = match tier {
        TierName::Nvme => (&mut room.nvme_bytes, facts.nvme_gib_month),
        TierName::Dram => (&mut room.dram_bytes, facts.dram_gib_month),
    };
    *part = part.saturating_add(bytes);
    let hit_ratio = curve.hit_ratio(reach(room));
    let gain = (hit_ratio - curve.hit_ratio(reach(facts.room))).max(0.0);
    let tokens_per_s = gain * curve.references_per_s() * f64::from(curve.page_tokens);
    let gpu_s_per_s =
        if facts.prefill_tokens_per_s > 0.0 { tokens_per_s / facts.prefill_tokens_per_s } else { 0.0 };
    Purchase {
        tier,
        bytes,
        hit_ratio,
        dram_hit_ratio: curve.hit_ratio(room.dram_bytes),
        tokens_per_s,
        gpu_s_per_hour: gpu_s_per_s * 3600.0,
        cost_per_month: price * bytes as f64 / GIB as f64,
        saving_per_month: gpu_s_per_s * HOURS_PER_MONTH * facts.gpu_hour,
    }
}

fn in_words(advice: &NamespaceAdvice, facts: &Facts) -> String {
    if advice.references < 1.0 {
        return "no turn has needed a page yet: ask again when there was traffic".to_owned();
    }
    let (percent, today) = (|ratio: f64| 100.0 * ratio, reach(facts.room));
    let left = percent(advice.hit_ratio_max - advice.hit_ratio);
    if advice.hit_ratio_max < WORTH {
        return "hardly any page is needed twice: no size of pool would find it".to_owned();
    }
    if today == 0 {
        return format!(
            "the knee is at {}: it finds {:.1} % of the {:.1} % that any size would",
            gib(advice.knee_bytes),
            percent(advice.knee_hit_ratio),
            percent(advice.hit_ratio_max)
        );
    }
    let mut words = if left < 100.0 * WORTH {
        format!("large enough: no size would find more than {left:.1} points on top of today's")
    } else if today < advice.knee_bytes {
        format!(
            "below the knee: {} more reach it and find {:.1} % instead of {:.1} %",
            gib(advice.knee_bytes - today),
            percent(advice.knee_hit_ratio),
            percent(advice.hit_ratio)
        )
    } else {
        format!("beyond the knee ({}): all that is left to find is {left:.1} points", gib(advice.knee_bytes))
    };
    let gain = |purchase: &&Purchase| purchase.saving_per_month - purchase.cost_per_month;
    let priced = |purchase: &&Purchase| purchase.cost_per_month > 0.0 && purchase.saving_per_month > 0.0;
    let best = advice.purchases.iter().filter(priced).max_by(|one, other| gain(one).total_cmp(&gain(other)));
    if let Some(best) = best {
        let tier = if best.tier == TierName::Nvme { "NVMe" } else { "DRAM" };
        words += &format!(
            "; by the prices given, {} more {tier} {} {:.0} a month",
            gib(best.bytes),
            if gain(&best) >= 0.0 {
                "is the best buy: it saves, less its cost,"
            } else {
                "is the least bad buy: it loses"
            },
            gain(&best).abs()
        );
    }
    words
}

/// Bytes in the unit that people buy memory in.
fn gib(bytes: u64) -> String {
    match bytes {
        GIB.. => format!("{:.1} GiB", bytes as f64 / GIB as f64),
        _ => format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64),
    }
}

/// The curve of a namespace, and the room that it has.
struct NamespaceCurve {
    ns: NamespaceIndex,
    id: NamespaceId,
    curve: MissRatioCurve,
    room: NamespaceRoom,
}

impl Engine {
    /// What more memory would buy, for one namespace or all.
    pub(crate) fn size_advice(&self, ask: &SizeAdvice) -> Result<SizesAdvised, Error> {
        let one = ask.namespace.as_ref().map(|id| self.find_namespace(id)).transpose()?;
        let (curves, left_out) = self.curves(one)?;
        let advise_on = |shown: NamespaceCurve| {
            let rate = ask.prefill_tokens_per_s.unwrap_or_else(|| self.prefill_tokens_per_s(shown.ns));
            let facts = Facts {
                room: shown.room,
                prefill_tokens_per_s: rate,
                gpu_hour: ask.gpu_hour,
                dram_gib_month: ask.dram_gib_month,
                nvme_gib_month: ask.nvme_gib_month,
            };
            (shown.id, advise(&shown.curve, &facts))
        };
        Ok(SizesAdvised { namespaces: curves.into_iter().map(advise_on).collect(), left_out })
    }

    /// An engine says what a prefill took.
    pub(crate) fn report_prefill(
        &self,
        namespace: &NamespaceId,
        tokens: u64,
        micros: u64,
    ) -> Result<(), Error> {
        let ns = self.find_namespace(namespace)?;
        let sane = |figure: u64| (1..=PREFILL_REPORT_MAX).contains(&figure);
        if !sane(tokens) || !sane(micros) {
            let text = format!("a prefill has from 1 to {PREFILL_REPORT_MAX} tokens and microseconds");
            return Err(Error::invalid(text));
        }
        self.decide().pool.note_prefill(ns, tokens, micros);
        Ok(())
    }

    /// Tokens prefilled in a second; 0: nobody has said.
    fn prefill_tokens_per_s(&self, ns: NamespaceIndex) -> f64 {
        const TOKENS: u64 = 1 << 20;
        let micros = self.decide().pool.prefill_us(ns, TOKENS);
        micros.map_or(0.0, |micros| TOKENS as f64 * 1e6 / micros.max(1) as f64)
    }

    /// Says the curves' series to the recorder of this thread, described: those of the namespaces that are open now.
    pub(crate) fn tell_curves(&self) {
        describe();
        let Ok((curves, _)) = self.curves(None) else { return };
        for NamespaceCurve { ns, id, curve, .. } in curves {
            let name: String = id.0.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            let set =
                |series: &'static str, value: f64| gauge!(series, "namespace" => name.clone()).set(value);
            set("turnkv_curve_found_ratio", curve.found_ratio());
            set("turnkv_curve_unbounded_hit_ratio", curve.hit_ratio_max());
            set("turnkv_curve_knee_bytes", curve.knee_bytes() as f64);
            set("turnkv_curve_page_bytes", curve.page_bytes as f64);
            set("turnkv_curve_needed_page_rate", curve.references_per_s());
            set("turnkv_curve_sample_ratio", curve.rate);
            set("turnkv_curve_prefill_token_rate", self.prefill_tokens_per_s(ns));
            for doubling in METRIC_DOUBLINGS {
                let bytes = 1u64 << doubling;
                let size =
                    if bytes < GIB { format!("{}MiB", bytes >> 20) } else { format!("{}GiB", bytes >> 30) };
                gauge!("turnkv_curve_hit_ratio", "namespace" => name.clone(), "size" => size)
                    .set(curve.hit_ratio(bytes));
            }
        }
    }

    /// The curves of one namespace or of the first so many, and how many are left out.
    fn curves(&self, one: Option<NamespaceIndex>) -> Result<(Vec<NamespaceCurve>, u32), Error> {
        let now = self.now();
        let (all, some) = {
            let core = self.decide();
            (core.pool.stats().namespaces, core.pool.open_namespaces(ADVICE_NAMESPACES_MAX))
        };
        let shown = one.map_or(some, |ns| vec![ns]);
        let left_out = if one.is_some() { 0 } else { (all as u32).saturating_sub(shown.len() as u32) };
        let mut curves = Vec::with_capacity(shown.len());
        for ns in shown {
            // The lock is taken for one at a time: turns wait for none of this.
            let core = self.decide();
            let curve = core.pool.miss_ratio_curve(ns, now).map_err(refuse)?;
            let room = core.pool.namespace_room(ns).map_err(refuse)?;
            let id = core.pool.namespace_desc(ns).map(|desc| desc.id);
            let id = id.ok_or_else(|| refuse(PoolError::NamespaceUnknown))?;
            curves.push(NamespaceCurve { ns, id, curve, room });
        }
        Ok((curves, left_out))
    }
}

fn describe() {
    describe_gauge!(
        "turnkv_curve_hit_ratio",
        "Pages that a namespace would find with so much memory, of the pages needed"
    );
    describe_gauge!(
        "turnkv_curve_found_ratio",
        "Pages found, of the pages needed: measured, at the pool's own size and policy"
    );
    describe_gauge!("turnkv_curve_unbounded_hit_ratio", "Pages that a pool of any size would find");
    describe_gauge!("turnkv_curve_knee_bytes", "Size beyond which a byte buys less than bytes do on average");
    describe_gauge!("turnkv_curve_page_bytes", "Bytes of a page, all shards");
    describe_gauge!("turnkv_curve_needed_page_rate", "Pages that turns need: found, or computed");
    describe_gauge!("turnkv_curve_sample_ratio", "Share of pages whose reuse distance is measured");
    describe_gauge!("turnkv_curve_prefill_token_rate", "Prefill rate that engines reported; 0 when none did");
}

#[cfg(test)]
mod tests;

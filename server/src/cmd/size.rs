//! `turnkv size`: what more memory would buy, from a running server or from a trace. Owns: arguments, the table, the plot.
//! Must not know: how a curve is made (the pool does that, here as in the server) or put into advice (the engine does).

use super::connect::{address_or_default, connect};
use super::simulate::has_blocks;
use super::status::{human_bytes, human_time};
use crate::doors::codec;
use crate::engine::advice::{Facts, advise};
use crate::report::misused;
use anyhow::Context;
use clap::Args;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use turnkv_pool::{CurveTuning, NamespaceRoom};
use turnkv_proto::wire::admin_client::AdminClient;
use turnkv_proto::wire::{NamespaceAdvice, Purchase, SizeAdviceRequest, TierKind};
use turnkv_sim::capacity::Capacity;
use turnkv_sim::device::Speed;
use turnkv_sim::drive::{Admission, PoolModel, replay_curve};
use turnkv_sim::exact::ExactCurve;
use turnkv_sim::grid::Workload;
use turnkv_sim::limits::CURVE_POOL_PAGES_MAX;
use turnkv_sim::plot::{Drawing, curves_svg};
use turnkv_sim::policy;
use turnkv_sim::trace::Trace;

/// Of what, and at what prices.
#[derive(Args)]
pub(crate) struct SizeArguments {
    /// A request trace instead of a running server (its form: see `turnkv simulate`).
    #[arg(long, value_name = "FILE", conflicts_with = "address", requires = "bytes_per_token")]
    trace: Option<PathBuf>,
    /// A running server: unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port; without, TURNKV_ADDRESS says which.
    // The variable is not clap's, by which it would be in the way of --trace.
    #[arg(long, visible_alias = "server")]
    address: Option<String>,
    /// Bytes of KV cache that a token of the trace's model has.
    #[arg(long)]
    bytes_per_token: Option<u64>,
    /// DRAM today, for a trace: 64GiB, 550 (blocks) or 5% (of the trace's unique blocks).
    #[arg(long, requires = "trace", default_value = "0")]
    dram: Capacity,
    /// NVMe today, for a trace.
    #[arg(long, requires = "trace", default_value = "0")]
    nvme: Capacity,
    /// Blocks of a trace to follow, at most. Fewer cost less and say less.
    #[arg(long, requires = "trace", default_value_t = CurveTuning::default().samples_max,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(turnkv_pool::limits::CURVE_SAMPLES_MAX)))]
    samples: u32,
    /// Measure every block of the trace as well, and say how far the sampled curve is off.
    #[arg(long, requires = "trace")]
    exact: bool,
    /// Tokens that the engine prefills in a second. Without: what engines reported.
    #[arg(long, default_value_t = 0.0)]
    prefill_tokens_s: f64,
    /// Price of a GPU (or of what prefills) for an hour.
    #[arg(long, default_value_t = 0.0)]
    gpu_price: f64,
    /// Price of a GiB of DRAM for a month.
    #[arg(long, default_value_t = 0.0)]
    dram_price: f64,
    /// Price of a GiB of NVMe for a month.
    #[arg(long, default_value_t = 0.0)]
    nvme_price: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Draw the curve into this file (SVG).
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// One curve with what is said about it.
struct Said {
    title: String,
    advice: NamespaceAdvice,
    /// With --exact: the exact hit ratio at each size of the advice.
    exact: Vec<f64>,
}

/// Asks, prints the table, draws.
pub(crate) async fn run(arguments: &SizeArguments) -> anyhow::Result<()> {
    let figures =
        [arguments.prefill_tokens_s, arguments.gpu_price, arguments.dram_price, arguments.nvme_price];
    if !figures.iter().all(|one| one.is_finite() && *one >= 0.0) {
        return Err(misused(
            "a price or rate is no number from 0",
            "give plain numbers, such as --gpu-price 3",
        ));
    }
    let (said, left_out) = match &arguments.trace {
        Some(path) => (vec![of_trace(arguments, path)?], 0),
        None => of_server(arguments).await?,
    };
    if let Some(path) = &arguments.plot {
        let drawings: Vec<Drawing<'_>> = said.iter().map(drawing).collect();
        std::fs::write(path, curves_svg(&drawings))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&said.iter().map(as_json).collect::<Vec<_>>())? + "\n",
        false => as_text(&said, left_out),
    };
    super::print(&text)?;
    Ok(())
}

async fn of_server(arguments: &SizeArguments) -> anyhow::Result<(Vec<Said>, u32)> {
    let named = arguments.address.clone().or_else(|| std::env::var("TURNKV_ADDRESS").ok());
    let address = address_or_default(named.as_deref());
    let mut admin = AdminClient::new(connect(&address).await?);
    let ask = SizeAdviceRequest {
        namespace: Default::default(),
        prefill_tokens_per_s: arguments.prefill_tokens_s,
        gpu_price_per_hour: arguments.gpu_price,
        dram_price_per_gib_month: arguments.dram_price,
        nvme_price_per_gib_month: arguments.nvme_price,
    };
    let reply = admin.size_advice(ask).await.context("the server did not answer SizeAdvice")?.into_inner();
    let said = |advice: NamespaceAdvice| {
        let name: String = advice.namespace.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Said { title: format!("namespace {name}"), advice, exact: Vec::new() }
    };
    Ok((reply.namespaces.into_iter().map(said).collect(), reply.left_out))
}

/// Plays the trace against the pool and reads the curve that the pool has kept.
fn of_trace(arguments: &SizeArguments, path: &Path) -> anyhow::Result<Said> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let trace = Trace::read(file).with_context(|| format!("cannot read {}", path.display()))?;
    has_blocks(&trace, path)?;
    let workload = Workload::new(trace, 1);
    let (trace, unique) = (&workload.trace, workload.unique_blocks);
    let per_token = arguments.bytes_per_token.unwrap_or(1).max(1);
    let page_bytes = per_token.saturating_mul(u64::from(trace.block_tokens));
    let policy = policy::find("lru").context("the simulator has no LRU")?;
    let speed = Speed { read_bytes_s: None, write_bytes_s: None };
    let dram_pages = unique.clamp(1, CURVE_POOL_PAGES_MAX);
    let admission = Admission::default();
    let model = PoolModel { dram_pages, nvme_pages: 0, policy, hints: None, page_bytes, speed, admission };
    let tuning = CurveTuning { samples_max: arguments.samples, half_life_ms: 0 };
    let (stream, history) = workload.pools.first().context("the trace has no requests")?;
    let (_, mut curve) = replay_curve(trace, stream, history, &model, tuning, || ())?;
    curve.page_bytes = page_bytes;
    let today = |size: &Capacity| match size.is_zero() {
        true => 0,
        false => size.pages(unique, trace.block_tokens, per_token).saturating_mul(page_bytes),
    };
    let room = NamespaceRoom { dram_bytes: today(&arguments.dram), nvme_bytes: today(&arguments.nvme) };
    let facts = Facts {
        room,
        prefill_tokens_per_s: arguments.prefill_tokens_s,
        gpu_hour: arguments.gpu_price,
        dram_gib_month: arguments.dram_price,
        nvme_gib_month: arguments.nvme_price,
    };
    let advice = codec::advice::of_namespace(Default::default(), advise(&curve, &facts));
    let exact = arguments.exact.then(|| ExactCurve::of(trace, stream));
    let at = |exact: ExactCurve| {
        advice.sizes.iter().map(|size| exact.hit_ratio(size.bytes / page_bytes)).collect()
    };
    let title = format!("{}: {} requests", trace.name, trace.requests.len());
    Ok(Said { title, exact: exact.map_or_else(Vec::new, at), advice })
}

fn as_text(said: &[Said], left_out: u32) -> String {
    let mut text = String::new();
    let mut line = |line: String| writeln!(text, "{line}").unwrap_or_default();
    if said.is_empty() {
        line("no namespace is open: ask again when an engine has connected".to_owned());
    }
    for one in said {
        let advice = &one.advice;
        line(format!(
            "{}, pages of {} tokens and {}",
            one.title,
            advice.page_tokens,
            human_bytes(advice.page_bytes)
        ));
        line(format!(
            "traffic  {:.0} pages needed in {} ({:.1}/s, old ones fade); {} followed, {:.2} % of all",
            advice.references,
            human_time((advice.window_s * 1000.0) as u64),
            advice.references_per_s,
            advice.sampled_pages,
            100.0 * advice.sample_ratio
        ));
        today(advice, &mut line);
        sizes(one, &mut line);
        purchases(advice, &mut line);
        line(format!(
            "knee     {}: finds {:.1} %; {} would find {:.1} %, all there is",
            human_bytes(advice.knee_bytes),
            100.0 * advice.knee_hit_ratio,
            human_bytes(advice.bytes_max),
            100.0 * advice.hit_ratio_max
        ));
        line(format!("advice   {}\n", advice.advice));
    }
    if left_out > 0 {
        line(format!("{left_out} more namespaces: ask SizeAdvice for each by its id"));
    }
    text
}

fn today(advice: &NamespaceAdvice, line: &mut impl FnMut(String)) {
    if advice.dram_bytes == 0 && advice.nvme_bytes == 0 {
        return;
    }
    // A trace is played against a pool that holds all of it: only a live one has found something at today's size.
    let live = !advice.namespace.is_empty();
    let found =
        if live { format!(", {:.1} % were found", 100.0 * advice.found_ratio) } else { String::new() };
    line(format!(
        "today    {} DRAM, {} NVMe: {:.1} % by the curve ({:.1} % in DRAM){found}",
        human_bytes(advice.dram_bytes),
        human_bytes(advice.nvme_bytes),
        100.0 * advice.hit_ratio,
        100.0 * advice.dram_hit_ratio
    ));
}

fn sizes(one: &Said, line: &mut impl FnMut(String)) {
    let head = if one.exact.is_empty() { "" } else { "   exact %" };
    line(format!("{:>12}  {:>6}{head}", "size", "hit %"));
    for (at, size) in one.advice.sizes.iter().enumerate() {
        let exact = one.exact.get(at).map_or_else(String::new, |exact| format!("{:>10.1}", 100.0 * exact));
        line(format!("{:>12}  {:>6.1}{exact}", human_bytes(size.bytes), 100.0 * size.hit_ratio));
    }
    if let Some(error) = mean_error(one) {
        line(format!("error    {error:.2} points on average over these sizes"));
    }
}

/// Points between the sampled curve and the exact one, mean.
fn mean_error(one: &Said) -> Option<f64> {
    let pairs = one.advice.sizes.iter().zip(&one.exact);
    let sum: f64 = pairs.map(|(size, exact)| 100.0 * (size.hit_ratio - exact).abs()).sum();
    (!one.exact.is_empty()).then(|| sum / one.exact.len() as f64)
}

fn purchases(advice: &NamespaceAdvice, line: &mut impl FnMut(String)) {
    line(format!(
        "{:>20}  {:>6}  {:>9}  {:>18}  {:>12}  {:>12}  {:>12}",
        "buying", "hit %", "in DRAM %", "tokens saved a s", "GPU s/hour", "cost/month", "saves/month"
    ));
    let known = |value: f64, known: bool| if known { format!("{value:.0}") } else { "-".to_owned() };
    for one in &advice.purchases {
        line(format!(
            "{:>20}  {:>6.1}  {:>9.1}  {:>18.0}  {:>12}  {:>12}  {:>12}",
            format!("+{} {}", human_bytes(one.bytes), tier(one)),
            100.0 * one.hit_ratio,
            100.0 * one.dram_hit_ratio,
            one.tokens_per_s,
            known(one.gpu_s_per_hour, advice.prefill_tokens_per_s > 0.0),
            known(one.cost_per_month, one.cost_per_month > 0.0),
            known(one.saving_per_month, one.saving_per_month > 0.0)
        ));
    }
}

fn tier(purchase: &Purchase) -> &'static str {
    match purchase.tier() {
        TierKind::Nvme => "NVMe",
        TierKind::Dram | TierKind::Unspecified => "DRAM",
    }
}

fn as_json(one: &Said) -> serde_json::Value {
    let advice = &one.advice;
    let sizes = advice.sizes.iter().enumerate().map(|(at, size)| {
        serde_json::json!({ "bytes": size.bytes, "hit_ratio": size.hit_ratio, "exact_hit_ratio": one.exact.get(at) })
    });
    let purchases = advice.purchases.iter().map(|one| {
        serde_json::json!({
            "tier": tier(one), "bytes": one.bytes, "hit_ratio": one.hit_ratio, "dram_hit_ratio": one.dram_hit_ratio,
            "tokens_per_s": one.tokens_per_s, "gpu_s_per_hour": one.gpu_s_per_hour,
            "cost_per_month": one.cost_per_month, "saving_per_month": one.saving_per_month,
        })
    });
    let id: String = advice.namespace.iter().map(|byte| format!("{byte:02x}")).collect();
    serde_json::json!({
        "title": one.title, "namespace": id, "page_bytes": advice.page_bytes, "page_tokens": advice.page_tokens,
        "dram_bytes": advice.dram_bytes, "nvme_bytes": advice.nvme_bytes, "found_ratio": advice.found_ratio,
        "hit_ratio": advice.hit_ratio, "dram_hit_ratio": advice.dram_hit_ratio, "hit_ratio_max": advice.hit_ratio_max,
        "bytes_max": advice.bytes_max, "knee_bytes": advice.knee_bytes, "knee_hit_ratio": advice.knee_hit_ratio,
        "references": advice.references, "references_per_s": advice.references_per_s, "window_s": advice.window_s,
        "sample_ratio": advice.sample_ratio, "sampled_pages": advice.sampled_pages,
        "prefill_tokens_per_s": advice.prefill_tokens_per_s, "error_points": mean_error(one), "advice": advice.advice,
        "sizes": sizes.collect::<Vec<_>>(), "purchases": purchases.collect::<Vec<_>>(),
    })
}

fn drawing(one: &Said) -> Drawing<'_> {
    let advice = &one.advice;
    let points = advice.sizes.iter().map(|size| (size.bytes, 100.0 * size.hit_ratio)).collect();
    let marks = [("knee", advice.knee_bytes), ("DRAM", advice.dram_bytes), ("NVMe", advice.nvme_bytes)];
    let marks = marks.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    Drawing { title: &one.title, points, most_percent: 100.0 * advice.hit_ratio_max, marks }
}

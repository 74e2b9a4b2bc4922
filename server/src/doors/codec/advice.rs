//! SizeAdvice on the wire. Owns: its messages. Must not know: how advice is made.

use super::stats::tier_kind;
use crate::access::Guest;
use crate::engine::advice::{NamespaceAdvice, Purchase, SizeAdvice, SizesAdvised};
use bytes::Bytes;
use turnkv_proto::{Error, wire};

/// Decodes a SizeAdvice.
pub(crate) fn ask(raw: &wire::SizeAdviceRequest, guest: &Guest) -> Result<SizeAdvice, Error> {
    let figures = [
        raw.prefill_tokens_per_s,
        raw.gpu_price_per_hour,
        raw.dram_price_per_gib_month,
        raw.nvme_price_per_gib_month,
    ];
    if figures.iter().any(|figure| !figure.is_finite() || *figure < 0.0) {
        return Err(Error::invalid("prices and rates must be numbers from 0; 0 means unknown"));
    }
    Ok(SizeAdvice {
        namespace: guest.optional_namespace(&raw.namespace)?,
        prefill_tokens_per_s: Some(raw.prefill_tokens_per_s).filter(|rate| *rate > 0.0),
        gpu_hour: raw.gpu_price_per_hour,
        dram_gib_month: raw.dram_price_per_gib_month,
        nvme_gib_month: raw.nvme_price_per_gib_month,
    })
}

/// Encodes its answer.
pub(crate) fn reply(advised: SizesAdvised) -> wire::SizeAdviceReply {
    let SizesAdvised { namespaces, left_out } = advised;
    let namespaces = namespaces.into_iter().map(|(id, advice)| of_namespace(id.0.to_vec().into(), advice));
    wire::SizeAdviceReply { namespaces: namespaces.collect(), left_out }
}

/// Encodes the advice on one namespace; on a trace, which has none, the id is empty.
pub(crate) fn of_namespace(namespace: Bytes, advice: NamespaceAdvice) -> wire::NamespaceAdvice {
    let sizes = advice.sizes.iter().map(|at| wire::SizeAt { bytes: at.bytes, hit_ratio: at.hit_ratio });
    wire::NamespaceAdvice {
        namespace,
        page_bytes: advice.page_bytes,
        page_tokens: advice.page_tokens,
        dram_bytes: advice.dram_bytes,
        nvme_bytes: advice.nvme_bytes,
        found_ratio: advice.found_ratio,
        hit_ratio: advice.hit_ratio,
        dram_hit_ratio: advice.dram_hit_ratio,
        hit_ratio_max: advice.hit_ratio_max,
        bytes_max: advice.bytes_max,
        knee_bytes: advice.knee_bytes,
        knee_hit_ratio: advice.knee_hit_ratio,
        sizes: sizes.collect(),
        purchases: advice.purchases.iter().map(purchase).collect(),
        references: advice.references,
        references_per_s: advice.references_per_s,
        window_s: advice.window_s,
        sample_ratio: advice.sample_ratio,
        sampled_pages: advice.sampled_pages,
        prefill_tokens_per_s: advice.prefill_tokens_per_s,
        advice: advice.advice,
    }
}

fn purchase(one: &Purchase) -> wire::Purchase {
    wire::Purchase {
        tier: tier_kind(one.tier).into(),
        bytes: one.bytes,
        hit_ratio: one.hit_ratio,
        dram_hit_ratio: one.dram_hit_ratio,
        tokens_per_s: one.tokens_per_s,
        gpu_s_per_hour: one.gpu_s_per_hour,
        cost_per_month: one.cost_per_month,
        saving_per_month: one.saving_per_month,
    }
}

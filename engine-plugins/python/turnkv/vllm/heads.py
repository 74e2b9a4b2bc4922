"""How vLLM's pages are cut into shards: by KV heads, so that every size of tensor parallelism finds the same ones.

Owns: which cuts are sure, and what says of a layer how it is stored, whatever the number of ranks. Must not know: pools,
requests, addresses.

    KV heads       0 1 2 3 4 5 6 7        eight shards of one head each
    TP=2, rank 1           4 5 6 7        holds four of them
    TP=4, rank 1       2 3                holds two

Where the heads of a block cannot be told apart for sure, a page has one shard a rank, and each size its own pages.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch

from turnkv.connector import Shards

from . import compat

SHARDS_DEFAULT = 8
"""Into as many a page is cut, or into one a head if it has fewer heads: what the usual sizes of tensor parallelism share."""
RUN_BYTES_MIN = 2048
"""Heads that lie in smaller pieces than this are not cut apart: so many copies would cost more than sharing saves."""
RANKS_OWN = frozenset({"num_kv_heads", "page_size_padded", "block_stride_alignment", "max_tp_shards", "num_head_slots"})
"""Fields of a layer's spec that say how this rank stores its part, and nothing about what one head's bytes are."""


@dataclass(frozen=True)
class Cut:
    """How the pages of one group are cut."""

    rank_shards: int = 1
    """Of a page, on every rank."""
    heads: int | None = None
    """KV heads over all ranks, if it is cut by them."""
    why_not: str | None = None
    """Why it is not, for people to read."""


def cut_of(vllm_config: Any, kv_cache_config: Any, group: int, wanted: int | None) -> Cut:
    """How a group's pages are cut, from what vLLM says of its layers. `wanted`: shards of a page, 0 for one a rank."""
    if wanted == 0:
        return Cut()
    parallel, replicas = vllm_config.parallel_config, compat.kv_tp_replicas(kv_cache_config)
    ranks = parallel.tensor_parallel_size // replicas
    specs = compat.layer_specs(kv_cache_config.kv_cache_groups[group].kv_cache_spec)
    why_not = next((reason for reason in map(_unsure, specs) if reason is not None), None)
    if why_not is not None:
        return Cut(why_not=why_not)
    if len({spec.num_kv_heads for spec in specs}) > 1:
        return Cut(why_not="its layers have different numbers of KV heads")
    if all("MLA" in type(spec).__name__ for spec in specs):
        # One vector for all heads, the same on every rank.
        return Cut(1, 1) if ranks == 1 else Cut(why_not="every rank stores the one MLA vector of a token")
    heads = specs[0].num_kv_heads * ranks
    if ranks > 1 and _are_copies(heads, ranks, vllm_config.model_config.get_total_num_kv_heads()):
        return Cut(why_not="its ranks hold copies of the same KV heads")
    usual = heads if heads <= SHARDS_DEFAULT else math.gcd(heads, SHARDS_DEFAULT)
    shards = usual if wanted is None else wanted
    if heads % shards:
        return Cut(why_not=f"{heads} KV heads cannot be cut into canonical_shards={shards}")
    if shards % ranks:
        return Cut(why_not=f"{shards} shards cannot be split among {ranks} ranks: set canonical_shards to a multiple")
    return Cut(shards // ranks, heads)


def _are_copies(heads: int, ranks: int, total: int) -> bool:
    """Whether ranks that hold one head each hold some of them twice."""
    return (heads == ranks and heads > total) or (compat.version() < (0, 31) and heads != total)


def held_by(rank: int, kv_cache_config: Any, cut: Cut) -> tuple[Shards, bool]:
    """A rank's shards, and whether it is the one of its replicas that stores them."""
    replicas = compat.kv_tp_replicas(kv_cache_config)
    return Shards(rank // replicas * cut.rank_shards, cut.rank_shards), rank % replicas == 0


def shards_of(vllm_config: Any, kv_cache_config: Any, cut: Cut) -> int:
    """Shards of a page, over all ranks. Ranks that hold the same KV share theirs."""
    return vllm_config.parallel_config.world_size // compat.kv_tp_replicas(kv_cache_config) * cut.rank_shards


def axis_of(spec: Any, cache: torch.Tensor) -> int | None:
    """The dimension of a layer's cache that is its KV heads; None where that is not sure."""
    if "MLA" in type(spec).__name__:
        return 0  # nothing to cut
    heads, tokens, size = spec.num_kv_heads, spec.block_size, spec.head_size
    value = getattr(spec, "head_size_v", None) or size
    if cache.dim() == 4 and cache.shape[1] == heads and cache.shape[3] == size + value:
        axis, rows = 1, cache.shape[2]
    elif cache.dim() == 5 and cache.shape[1] == 2 and cache.shape[3:] == (heads, size) and value == size:
        axis, rows = 3, cache.shape[2]
    else:
        return None
    return axis if tokens % rows == 0 else None


def lasting(spec: Any, cut: Cut) -> list[Any]:
    """What says how one head's bytes are stored, the same for every number of ranks."""
    return [
        [type(one).__name__, cut.heads]
        + [[field.name, repr(getattr(one, field.name))] for field in dataclasses.fields(one) if field.name not in RANKS_OWN]
        for one in compat.layer_specs(spec)
    ]


def _unsure(spec: Any) -> str | None:
    """Why a layer's heads cannot be told apart, or may depend on one another."""
    kind = type(spec).__name__
    if not dataclasses.is_dataclass(spec) or not hasattr(spec, "num_kv_heads") or not hasattr(spec, "head_size"):
        return f"{kind} layers do not say how their heads are stored"
    if getattr(getattr(spec, "kv_quant_mode", None), "is_per_token_head", False):
        return "scales of quantized heads lie elsewhere in a block"
    if getattr(spec, "num_head_slots", None) not in (None, spec.num_kv_heads):
        return "its blocks have more room than heads"
    if getattr(spec, "tokens_per_state", 1) != 1:
        return f"{kind} layers do not keep one vector a token"
    return None

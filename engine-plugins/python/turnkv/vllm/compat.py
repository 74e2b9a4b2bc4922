"""vLLM 0.30 to 0.33: what differs between them, in one place.

Owns: attributes that not every supported version has. Must not know: pools, pages, requests.
"""

from __future__ import annotations

import math
from typing import Any

import vllm
import vllm.envs
from vllm.logger import init_logger

# Loggers that are not under "vllm." stay silent in its processes.
logger = init_logger("vllm.turnkv")

SUPPORTED = ((0, 30), (0, 33))


def version() -> tuple[int, int]:
    """Major and minor version of the vLLM that runs; (0, 0) for builds that do not say."""
    try:
        major, minor = vllm.__version__.split(".")[:2]
        return int(major), int(minor)
    except ValueError:
        return 0, 0


def warn_if_untested() -> None:
    """Says so when this vLLM is not one that the connector was made for."""
    if not SUPPORTED[0] <= version() <= SUPPORTED[1]:
        logger.warning("TurnKV is made for vLLM 0.30 to 0.33, this is %s: its interface may differ", vllm.__version__)


def is_batch_invariant() -> bool:
    """Whether results must not depend on what else is in a batch."""
    return bool(getattr(vllm.envs, "VLLM_BATCH_INVARIANT", False))


def hash_block_tokens(kv_cache_config: Any, cache_config: Any) -> int:
    """Tokens that one of request.block_hashes stands for; said outright from 0.32 on."""
    said = getattr(kv_cache_config, "hash_block_size", None) or getattr(cache_config, "prefix_match_unit", None)
    if said:
        return int(said)
    return math.gcd(*(group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups))


def kv_tp_replicas(kv_cache_config: Any) -> int:
    """Consecutive tensor-parallel ranks that hold the same KV; from 0.31 on, 1 means every rank stores its own."""
    return int(getattr(kv_cache_config, "kv_tp_replicas", 1))


def layer_specs(spec: Any) -> list[Any]:
    """The layers' own specs of a group that has one for each, else the group's."""
    per_layer = getattr(spec, "kv_cache_specs", None)
    return list(per_layer.values()) if per_layer else [spec]

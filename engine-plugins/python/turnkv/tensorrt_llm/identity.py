"""Which engines may share pages: the model's weights and everything else that shapes the bytes of a block.

Owns: reading TensorRT-LLM's arguments and the checkpoint. Must not know: pools, requests, how bytes move.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from dataclasses import dataclass, field
from typing import Any

import torch

from turnkv.checkpoint import WeightsName, checkpoint_folder, weights_path
from turnkv.connector import GroupPages

from . import compat

GROUP = 0
"""TensorRT-LLM's connector has one group of layers: models with several attention windows are refused by the engine."""
_SETTINGS = (
    "dtype",
    "quant_config",
    "load_format",
    "attn_backend",
    "sparse_attention_config",
    "speculative_config",
    "enable_min_latency",
    "torch_compile_config",
    "model_kwargs",
)
"""Arguments under which the same tokens may give other K and V. One that a version lacks counts as None."""
_NVFP4 = "turnkv.tensorrt_llm does not support an NVFP4 KV cache: its scales lie in a pool of their own"
_PLACEHOLDER = re.compile(r"(image|video|audio|vision|speech).*(token_id|token_index)$")


@dataclass(frozen=True)
class Checkpoint:
    """What the model's folder says."""

    model: str | WeightsName
    """Name of the weights."""
    config: dict[str, Any] = field(default_factory=dict)
    quantization: dict[str, Any] = field(default_factory=dict)

    @property
    def placeholders(self) -> frozenset[int]:
        """Tokens that stand for a picture or a sound: what they mean is not in the tokens."""
        found: set[int] = set()
        for scope in (self.config, *(part for part in self.config.values() if isinstance(part, dict))):
            found.update(value for key, value in scope.items() if _PLACEHOLDER.search(key) and isinstance(value, int))
        return frozenset(found)

    @property
    def vocabulary(self) -> int | None:
        """Tokens from this one on are no text either."""
        text = self.config.get("text_config") or {}
        size = self.config.get("vocab_size", text.get("vocab_size"))
        return size if isinstance(size, int) else None


def check(llm_args: Any) -> None:
    """Raises ValueError for settings under which a block is not a page of tokens, or its memory cannot be found."""
    for axis in ("pipeline_parallel_size", "context_parallel_size"):
        if (getattr(llm_args, axis, 1) or 1) > 1:
            raise ValueError(f"turnkv.tensorrt_llm does not support {axis} > 1")
    if getattr(llm_args, "enable_attention_dp", False):
        raise ValueError("turnkv.tensorrt_llm does not support enable_attention_dp: requests would be a rank's own")
    if (getattr(llm_args, "max_beam_width", 1) or 1) > 1:
        raise ValueError("turnkv.tensorrt_llm does not support max_beam_width > 1: beams share no list of blocks")
    cache = llm_args.kv_cache_config
    if getattr(cache, "host_cache_size", None):
        raise ValueError(
            "turnkv.tensorrt_llm needs kv_cache_config.host_cache_size = 0: with blocks that move to the "
            "host a block's number does not say where its memory is; the pool keeps more than that cache"
        )
    if getattr(cache, "enable_partial_reuse", False):
        raise ValueError(
            "turnkv.tensorrt_llm needs kv_cache_config.enable_partial_reuse = False: part of a block is "
            "copied into another one before a connector hears of it"
        )
    windows = getattr(cache, "max_attention_window", None) or ()
    length = getattr(llm_args, "max_seq_len", None)
    if any(length is None or window < length for window in windows):
        raise ValueError(
            f"turnkv.tensorrt_llm keeps full attention only, not max_attention_window = {list(windows)}: "
            "blocks of a window are written again and again"
        )
    if "nvfp4" in str(getattr(cache, "dtype", "")).lower():
        raise ValueError(_NVFP4)


def block_tokens(llm_args: Any) -> int:
    """Tokens of a block."""
    return int(llm_args.kv_cache_config.tokens_per_block)


def checkpoint(llm_args: Any, model_id: str | None) -> Checkpoint:
    """The weights' name: what the user says, a digest of the files' bytes, or the hub's name and revision.

    Not the path: the same weights elsewhere are the same, other weights at the same place are not.
    """
    name = str(llm_args.model)
    folder = checkpoint_folder(name, getattr(llm_args, "revision", None))
    if folder is None:
        if model_id is None:
            compat.logger.warning(
                "TurnKV: no files of %s found on this host: its name and revision alone name the "
                "weights; set TURNKV_MODEL_ID when they change",
                name,
            )
        named = f"{name[-160:]}@{getattr(llm_args, 'revision', None) or 'main'}"
        return Checkpoint(model_id or named)
    config, quantization = _json(folder / "config.json"), _json(folder / "hf_quant_config.json")
    if "NVFP4" in str(quantization.get("quantization", {}).get("kv_cache_quant_algo", "")):
        raise ValueError(_NVFP4)
    if model_id is not None:
        return Checkpoint(model_id, config, quantization)
    draft = getattr(getattr(llm_args, "speculative_config", None), "speculative_model_dir", None)
    paths = [weights_path(name, getattr(llm_args, "revision", None)), weights_path(str(draft), None) if draft else None]
    found = [path for path in paths if path is not None]
    return Checkpoint(WeightsName.of("local:", found, compat.logger), config, quantization)


def group_of(llm_args: Any, known: Checkpoint, cache: torch.Tensor, shards: int) -> GroupPages:
    """The one group of layers. The salt has all that must agree for bytes to be exchangeable, but the weights."""
    settings = llm_args.kv_cache_config
    parts = {
        "format": 1,
        "tensorrt_llm": compat.version(),
        "config": {key: value for key, value in known.config.items() if key != "transformers_version"},
        "quantization": known.quantization,
        "settings": {name: str(getattr(llm_args, name, None)) for name in _SETTINGS},
        "cache_dtype": [str(getattr(settings, "dtype", None)), str(cache.dtype)],
        "block": list(cache.shape[1:]),
        "ranks": [llm_args.tensor_parallel_size, shards],
    }
    salt = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).digest()
    return GroupPages(GROUP, block_tokens(llm_args), 1, None, salt, shards)


def is_replicated(cache: torch.Tensor) -> bool:
    """Whether every rank has the same bytes. [blocks, layers, K and V, ...]: MLA has one part there, not two."""
    return cache.dim() >= 3 and cache.shape[2] == 1


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}

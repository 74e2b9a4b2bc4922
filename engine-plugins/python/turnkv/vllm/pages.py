"""vLLM's KV caches as pages: groups of layers, what makes their bytes exchangeable, where a block's bytes lie.

Owns: reading vLLM's configuration and tensors. Must not know: pools, requests, threads.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Mapping
from typing import Any

import torch
import vllm

from turnkv.checkpoint import WeightsName, weights_path
from turnkv.connector import BlockRuns, GroupPages, Shards, devices

from . import compat, heads
from .heads import Cut

VOLATILE_CONFIG_KEYS = frozenset({"_name_or_path", "transformers_version", "use_cache", "architectures"})
SEVERAL_GROUPS_FORMAT = 2
"""Of pages of models with several KV cache groups, whose groups take their blocks from one pool. Under the names before it a page
may hold what another group wrote into its block while it was being saved. Models with one group keep their names."""
ISOLATED_HASHES = ("xxhash", "xxhash_cbor")
"""Hash algorithms that vLLM seeds at random in every process."""


def groups_of(vllm_config: Any, kv_cache_config: Any, cuts: Mapping[int, Cut]) -> list[GroupPages]:
    """The groups to keep, each with its cut. Raises ValueError for models and settings whose cache cannot be kept page by
    page."""
    parallel = vllm_config.parallel_config
    for axis in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, axis, 1) > 1:
            raise ValueError(f"turnkv.vllm does not support {axis} > 1: a block would not be a run of tokens")
    hash_tokens = compat.hash_block_tokens(kv_cache_config, vllm_config.cache_config)
    groups = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = compat.layer_specs(group.kv_cache_spec)[0]
        if not getattr(group, "enable_kv_transfer", True):
            continue
        if spec.block_size % hash_tokens:
            raise ValueError(f"blocks of {spec.block_size} tokens are no multiple of the {hash_tokens} that are hashed")
        groups.append(
            GroupPages(
                group=index,
                block_tokens=spec.block_size,
                hashes_per_block=spec.block_size // hash_tokens,
                window_blocks=_window_blocks(spec),
                salt=_salt(vllm_config, kv_cache_config, index, cuts[index]),
                shards=heads.shards_of(vllm_config, kv_cache_config, cuts[index]),
            )
        )
    if not groups:
        raise ValueError("this model has no KV cache that could be kept")
    # A session belongs to the first group: one with full attention if there is one.
    return sorted(groups, key=lambda group: (group.window_blocks is not None, group.group))


def cuts_of(vllm_config: Any, kv_cache_config: Any, wanted: int | None, uncut: Collection[int] = ()) -> dict[int, Cut]:
    """How each group's pages are cut. `uncut`: groups whose memory was found not to allow it."""
    return {
        group: Cut(why_not="its blocks are stored in an unknown way")
        if group in uncut
        else heads.cut_of(vllm_config, kv_cache_config, group, wanted)
        for group in range(len(kv_cache_config.kv_cache_groups))
    }


def rank_bytes_of(group: Any) -> int:
    """Bytes of one block of all the group's layers on one rank, from its spec."""
    specs = compat.layer_specs(group.kv_cache_spec)
    repeat = len(group.layer_names) if len(specs) == 1 else 1
    sizes = [getattr(spec, "unpadded_page_size_bytes", None) or spec.page_size_bytes for spec in specs]
    return sum(sizes) * repeat


def memory_of(
    kv_cache_config: Any, group: int, kv_caches: dict[str, torch.Tensor], staging_bytes: int, shards: Shards, cut: Cut
) -> BlockRuns | None:
    """Where a group's blocks lie in this worker; None where they cannot be cut like this."""
    caches = _caches_of(kv_cache_config, group, kv_caches)
    axis = 0
    if cut.heads is not None:
        specs = _specs_of(kv_cache_config.kv_cache_groups[group])
        axes = {heads.axis_of(specs[name], cache) for name, cache in caches.items()}
        known = next(iter(axes)) if len(axes) == 1 else None
        if known is None:
            return None
        axis = known
    memory = devices.memory_of(caches, blocks=kv_cache_config.num_blocks, staging_bytes=staging_bytes, shards=shards, axis=axis)
    return None if shards.count > 1 and min(memory.lengths) < heads.RUN_BYTES_MIN else memory


def _specs_of(group: Any) -> dict[str, Any]:
    """Each layer's spec."""
    spec = group.kv_cache_spec
    return getattr(spec, "kv_cache_specs", None) or dict.fromkeys(group.layer_names, spec)


def _caches_of(kv_cache_config: Any, group: int, kv_caches: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The group's layers that have a cache of their own. Raises ValueError for caches that are not one tensor each."""
    caches = {}
    for name in kv_cache_config.kv_cache_groups[group].layer_names:
        cache = kv_caches.get(name)
        if cache is None:
            continue  # shares another layer's
        if not isinstance(cache, torch.Tensor):
            raise ValueError(f"the cache of {name} is {type(cache).__name__}, not one tensor: not supported")
        if cache.shape[0] < kv_cache_config.num_blocks or cache.shape[0] % kv_cache_config.num_blocks:
            raise ValueError(f"the cache of {name} has {cache.shape[0]} rows for {kv_cache_config.num_blocks} blocks")
        caches[name] = cache
    return caches


def weights_name(vllm_config: Any, model_id: str | None) -> str | WeightsName:
    """Name of the weights: what the user says, or a digest of the files' bytes; the hub's commit where there are no files.

    Not the path: the same weights elsewhere are the same, other weights at the same place are not.
    """
    model = vllm_config.model_config
    if model_id is not None:
        return model_id
    download_dir = getattr(vllm_config.load_config, "download_dir", None)
    main = weights_path(model.model, model.revision, download_dir)
    if main is None:
        config = getattr(model, "hf_config", None)
        revision = model.revision or getattr(config, "_commit_hash", None) or "main"
        compat.logger.warning(
            "TurnKV: no files of %s found on this host: its name and revision (%s) alone name the "
            "weights; set model_id when they change",
            model.model,
            revision,
        )
        return f"{model.model[-180:]}@{revision}"
    paths = [main]
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    if draft is not None and draft.model != model.model:
        # A drafter's layers have their K and V in the same pages.
        path = weights_path(draft.model, draft.revision, download_dir)
        paths += [path] if path is not None else []
    return WeightsName.of("local:", paths, compat.logger)


def is_isolated(vllm_config: Any) -> bool:
    """Whether block hashes mean something to this engine only."""
    return vllm_config.cache_config.prefix_caching_hash_algo in ISOLATED_HASHES


def _window_blocks(spec: Any) -> int | None:
    """Trailing blocks that attention of this kind looks back on; None: all."""
    kind = type(spec).__name__
    if "Mamba" in kind or "CrossAttention" in kind or "EncoderOnly" in kind or "CircularBuffer" in kind:
        raise ValueError(f"turnkv.vllm keeps attention caches; {kind} layers have a state that is no page of tokens")
    chunk = getattr(spec, "attention_chunk_size", None)
    if chunk is not None:
        return -(-chunk // spec.block_size)
    if "FullAttention" in kind or "MLAAttention" in kind:
        return None
    window = getattr(spec, "sliding_window", None)
    if window is None:
        return None
    return max(1, -(-(window - 1 + getattr(spec, "extra_retained_tokens", 0)) // spec.block_size))


def _salt(vllm_config: Any, kv_cache_config: Any, index: int, cut: Cut) -> bytes:
    """Digest of all that must agree for the bytes of a group's blocks to be exchangeable, but weights and tenant."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    config = model.hf_config.to_dict() if hasattr(model.hf_config, "to_dict") else {}
    group = kv_cache_config.kv_cache_groups[index]
    ranks = [parallel.tensor_parallel_size, parallel.pipeline_parallel_size]
    stored: dict[str, Any]
    if cut.heads is None:
        stored = {
            "spec": _named_spec(group.kv_cache_spec),
            "parallel": ranks,
            "replicas": compat.kv_tp_replicas(kv_cache_config),
        }
    else:
        # Other numbers of ranks add up in another order. Who asks for the same bits each time shares with its like only.
        alike = ranks if compat.is_batch_invariant() else ranks[1:]
        stored = {"spec": heads.lasting(group.kv_cache_spec, cut), "parallel": alike}
    parts = stored | {
        # What vLLM stores within a block is its own affair and may change with any minor version.
        "vllm": compat.version() if compat.version() != (0, 0) else vllm.__version__,
        "config": _lasting(config),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "weights": _other_weights(vllm_config),
        "cache_dtype": cache.cache_dtype,
        "layout": getattr(kv_cache_config, "kv_cache_layout", None),
        "layers": len(group.layer_names),
        "group": index,
        "groups": len(kv_cache_config.kv_cache_groups),
        "hash": cache.prefix_caching_hash_algo,
        # Pickled hashes follow the interpreter; CBOR ones do not.
        "python": None if cache.prefix_caching_hash_algo.endswith("_cbor") else sys.version_info[:2],
        "backend": str(getattr(getattr(vllm_config, "attention_config", None), "backend", None)),
        "platform": _platform(vllm_config),
        "engine": vllm_config.kv_transfer_config.engine_id if is_isolated(vllm_config) else None,
    }
    if compat.is_batch_invariant():
        parts["batch_invariant"] = True
    if len(kv_cache_config.kv_cache_groups) > 1:
        parts["format"] = SEVERAL_GROUPS_FORMAT
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).digest()


def _named_spec(spec: Any) -> list[str]:
    first = compat.layer_specs(spec)[0]
    return [type(first).__name__, repr(first)]


def _other_weights(vllm_config: Any) -> Any:
    """What makes weights of something else than the checkpoint's files, the name of a drafter without files included."""
    load = vllm_config.load_config
    made = vllm_config.model_config.seed if load.load_format == "dummy" else None
    extra = load.model_loader_extra_config
    draft = getattr(getattr(vllm_config, "speculative_config", None), "draft_model_config", None)
    drafter = None
    if draft is not None and weights_path(draft.model, draft.revision, load.download_dir) is None:
        drafter = [draft.model, draft.revision]
    said = [made, extra if isinstance(extra, dict) else repr(extra), drafter]
    return said if any(said) or made is not None else None


def _lasting(config: Any) -> Any:
    """A model's configuration without what says nothing about K and V, at any depth."""
    if not isinstance(config, dict):
        return config
    return {key: _lasting(value) for key, value in config.items() if key not in VOLATILE_CONFIG_KEYS}


def _platform(vllm_config: Any) -> str:
    """Kind of device; on a CPU also what its attention kernels pack K for."""
    kind = vllm.platforms.current_platform.device_type
    if kind != "cpu":
        return kind
    return f"cpu amx={torch.cpu._is_amx_tile_supported()} avx512={torch.cpu._is_avx512_supported()}"

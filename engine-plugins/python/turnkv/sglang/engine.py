"""What TurnKV takes from inside SGLang 0.5.23 beyond its plug-in interfaces; another version needs changes here only.

Owns: device pools of plain models, agreement between ranks. Must not know: the pool. What is read from the methods that call a
linker is in `callers`.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import (
    DevicePoolEntry,
    DevicePoolGroup,
    resolve_hybrid_device_pool_group,
)


def device_pool_group(kvcache: Any, params: Any, components: Any) -> DevicePoolGroup:
    """The device pools of any model. SGLang has no group for plain multi-head models, so that one is made here.

    Raises ValueError for what cannot be linked.
    """
    try:
        group = resolve_hybrid_device_pool_group(
            kvcache=kvcache, page_size=params.page_size, params=params, components=components
        )
    except (ValueError, AssertionError):  # no group for it, or no strategy at all
        if not hasattr(kvcache, "k_buffer") or not hasattr(kvcache, "v_buffer"):
            raise
        if getattr(kvcache, "k_scale_buffer", None) is not None or getattr(params, "mtp_draft_device_pools", None):
            raise
        layers = len(kvcache.k_buffer)
        entry = DevicePoolEntry(
            name=PoolName.KV,
            indices_from_pool=PoolName.KV,
            device_pool=kvcache,
            components=[[*kvcache.k_buffer, *kvcache.v_buffer]],
            layer_mapping={layer: (layer, layers + layer) for layer in range(layers)},
            page_size=params.page_size,
            rows_are_pages=False,
        )
        group = DevicePoolGroup([entry], layers, params.page_size)
    places = {buffer.device for entry in group.entries for buffer in entry.kv_buffer}
    if len(places) > 1 or next(iter(places)).type not in ("cpu", "cuda"):
        raise ValueError(
            f"turnkv.sglang.Linker cannot reach {', '.join(sorted(map(str, places)))} memory: "
            "use turnkv.sglang.HiCacheBackend there"
        )
    return group


class Agreement:
    """A yes of every rank that has to take the same branch; their scheduler threads all ask in the same order."""

    def __init__(self, params: Any) -> None:
        groups = [params.attn_tp_cache_group or params.tp_cache_group, params.attn_cp_cache_group]
        initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._groups = [
            group for group in groups if initialized and group is not None and torch.distributed.get_world_size(group) > 1
        ]

    @property
    def needed(self) -> bool:
        """Whether there is more than one rank to ask."""
        return bool(self._groups)

    def all(self, yes: bool) -> bool:
        """Whether every rank says yes."""
        if self._groups:
            answer = torch.tensor([int(yes)], dtype=torch.int)
            for group in self._groups:
                torch.distributed.all_reduce(answer, torch.distributed.ReduceOp.MIN, group)
            return bool(answer.item())
        return yes


def tensor_rank(params: Any) -> tuple[int, int]:
    """This worker's tensor parallel (rank, size) among those that share a cache."""
    group = params.attn_tp_cache_group or params.tp_cache_group
    if group is None or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(group), torch.distributed.get_world_size(group)

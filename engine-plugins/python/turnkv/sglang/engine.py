"""What TurnKV takes from inside SGLang 0.5.23 beyond its plug-in interfaces; another version needs changes here only.

Owns: device pools of plain models, the page before an offloaded one, agreement between ranks. Must not know: the pool.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import (
    DevicePoolEntry,
    DevicePoolGroup,
    resolve_hybrid_device_pool_group,
)

from .chain import ROOT, block_hash


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
        if getattr(kvcache, "k_scale_buffer", None) is not None or getattr(params, "mtp_draft_device_pools", ()):
            raise
        layers = len(kvcache.k_buffer)
        entry = DevicePoolEntry(
            name=PoolName.KV, indices_from_pool=PoolName.KV, device_pool=kvcache,
            components=[[*kvcache.k_buffer, *kvcache.v_buffer]],
            layer_mapping={layer: (layer, layers + layer) for layer in range(layers)},
            page_size=params.page_size, rows_are_pages=False,
        )
        group = DevicePoolGroup([entry], layers, params.page_size)
    places = {buffer.device for entry in group.entries for buffer in entry.kv_buffer}
    if len(places) > 1 or next(iter(places)).type not in ("cpu", "cuda"):
        raise ValueError(f"turnkv.sglang.Linker cannot reach {', '.join(sorted(map(str, places)))} memory: "
                         "use turnkv.sglang.HiCacheBackend there")
    return group


def parent_of_offload(caller: FrameType, first_key: str, tokens: int) -> bytes | None:
    """The hash of the page before a node that is being offloaded, ROOT for none; None if it cannot be told.

    SGLang hands a linker the keys of one tree node without those before it, which the pool needs. The method that calls
    `offload` has the node's number and the tree, so they are read there; where that method looks different, None.
    """
    node = caller.f_locals.get("node_id")
    tree = getattr(getattr(caller.f_locals.get("self"), "cache", None), "tree_core", None)
    if node is None or tree is None:
        return None
    state = tree.validate_buffer_backup(node, tokens)
    if state is None or first_key not in tree.get_hash_values(node)[:1]:
        return None
    if state.parent_is_root:
        return ROOT
    return block_hash(state.parent_last_hash) if state.parent_last_hash else None


def request_of_lookup(caller: FrameType, rid: str) -> Any:
    """The request that a lookup is for; None if it cannot be told.

    SGLang hands a linker its name only; what an orchestrator said with it is an attribute of the request, which is a local
    of the method that calls `lookup`.
    """
    request = caller.f_locals.get("req")
    return request if getattr(request, "rid", None) == rid else None


class Agreement:
    """A yes of every rank that has to take the same branch; their scheduler threads all ask in the same order."""

    def __init__(self, params: Any) -> None:
        groups = [params.attn_tp_cache_group or params.tp_cache_group, params.attn_cp_cache_group]
        initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._groups = [
            group for group in groups
            if initialized and group is not None and torch.distributed.get_world_size(group) > 1
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

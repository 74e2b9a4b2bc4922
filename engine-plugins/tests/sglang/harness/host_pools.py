"""HiCache's copies between host pool and device pool for a machine where both are CPU memory.

SGLang 0.5.23 has them as GPU kernels only, so these few take their names in its host pool modules, written with torch.
Owns: which rows go where. Must not know: storage.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # helper processes that never load SGLang start without it
    import torch


def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Rows between layer-first pools."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices.long()] = source[src_indices.long()]


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """One layer out of pages [page, layer, token, ...] into rows."""
    pages = src_indices.view(-1, page_size)[:, 0].long() // page_size
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices.long()] = source[pages, layer_id].reshape(-1, *target.shape[1:])


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Rows of every layer (all of K, then all of V) into pages [page, layer, token, ...]."""
    pages = dst_indices.view(-1, page_size)[:, 0].long() // page_size
    layers = len(src_ptrs) // len(dst_ptrs)
    for kind, target in enumerate(dst_ptrs):
        for layer in range(layers):
            rows = src_ptrs[kind * layers + layer][src_indices.long()]
            target[pages, layer] = rows.reshape(len(pages), page_size, *target.shape[3:])


def allocate_unpinned(
    dims: tuple[int, ...], dtype: torch.dtype, device: str, pin_memory: bool, allocator: object, **_: object
) -> torch.Tensor:
    """Host memory that no GPU has to know."""
    return allocator.allocate(dims, dtype=dtype, device=device)


def _give_copies(module: types.ModuleType) -> None:
    for function in (transfer_kv_direct, transfer_kv_per_layer_direct_pf_lf, transfer_kv_all_layer_direct_lf_pf):
        setattr(module, function.__name__, function)


def _give_allocation(module: types.ModuleType) -> None:
    module.ALLOC_MEMORY_FUNCS.default_factory = lambda: allocate_unpinned


POOLS = "sglang.srt.mem_cache.pool_host"
AFTER_LOADING = {f"{POOLS}.mha": _give_copies, f"{POOLS}.mla": _give_copies, f"{POOLS}.common": _give_allocation}


class _Finder(importlib.abc.MetaPathFinder):
    """Runs AFTER_LOADING's function once its module is loaded."""

    def __init__(self) -> None:
        self._looking: set[str] = set()

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in AFTER_LOADING or name in self._looking:
            return None
        self._looking.add(name)
        spec = importlib.util.find_spec(name)
        self._looking.discard(name)
        load = spec.loader.exec_module

        def load_and_give(module: types.ModuleType) -> None:
            load(module)
            AFTER_LOADING[name](module)

        spec.loader.exec_module = load_and_give
        return spec


def install() -> None:
    """From now on SGLang's host pools are loaded with these copies."""
    sys.meta_path.insert(0, _Finder())

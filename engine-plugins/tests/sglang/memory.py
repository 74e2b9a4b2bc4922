"""SGLang's own memory pools, without an engine: host pools of HiCache, and device pools as a linker sees them.

Owns: their sizes and contents. Must not know: TurnKV.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import DevicePoolEntry, DevicePoolGroup
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

LAYERS, HEADS, DIM, PAGE = 3, 2, 8, 4
CPU = torch.device("cpu")


def host_pool(
    layout: str,
    pages: int = 16,
    *,
    layers: int = LAYERS,
    heads: int = HEADS,
    dim: int = DIM,
    page: int = PAGE,
    dtype: torch.dtype = torch.float32,
) -> MHATokenToKVPoolHost:
    """A real HiCache host pool of `pages` pages, filled with random numbers."""
    device = tuple(torch.empty(page, heads, dim, dtype=dtype) for _ in range(layers))
    pointers = torch.tensor([buffer.data_ptr() for buffer in device], dtype=torch.uint64)
    info = MHABufferInfo(
        buffers=KVBuffers(k=device, v=device, k_data_ptrs=pointers, v_data_ptrs=pointers, layout=KVBufferLayout.NHD),
        page_size=page,
        head_num=heads,
        head_dim=dim,
        v_head_dim=dim,
        dtype=dtype,
        device=CPU,
    )
    pool = MHATokenToKVPoolHost(
        info,
        1.0,
        0,
        page,
        layout,
        pin_memory=False,
        device_capacity_tokens=page,
        start_layer=0,
        end_layer=layers,
        host_token_capacity=pages * page,
    )
    refill(pool.kv_buffer)
    return pool


def refill(buffer: torch.Tensor) -> None:
    """Other random numbers."""
    buffer.copy_(torch.randn(buffer.shape).to(buffer.dtype))


def slots(pages: list[int], page: int = PAGE) -> torch.Tensor:
    """SGLang's indices of whole pages."""
    return torch.cat([torch.arange(at * page, (at + 1) * page) for at in pages])


def page_of(pool: MHATokenToKVPoolHost, page: int) -> torch.Tensor:
    """What one page holds, as [K/V, layer, token, head, dim] whatever the layout."""
    index = slice(page * pool.page_size, (page + 1) * pool.page_size)
    if pool.layout == "layer_first":
        return pool.kv_buffer[:, :, index].clone()
    if pool.layout == "page_first":
        return pool.kv_buffer[:, index].transpose(1, 2).clone()
    return pool.kv_buffer[:, page].clone()


def storage_config(**changes: Any) -> HiCacheStorageConfig:
    """What SGLang tells a storage backend: one rank of one."""
    settings = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": False,
        "model_name": "m",
        "extra_config": {},
    }
    return HiCacheStorageConfig(**settings | changes)


def device_group(
    pages: int,
    *,
    layers: int = LAYERS,
    heads: int = HEADS,
    dim: int = DIM,
    page: int = PAGE,
    dtype: torch.dtype = torch.float32,
) -> DevicePoolGroup:
    """The device pools of a plain model, filled with random numbers."""
    buffers = [torch.randn(pages * page, heads, dim).to(dtype) for _ in range(2 * layers)]
    entry = DevicePoolEntry(
        name=PoolName.KV,
        indices_from_pool=PoolName.KV,
        device_pool=None,
        components=[buffers],
        layer_mapping={layer: (layer, layers + layer) for layer in range(layers)},
        page_size=page,
        rows_are_pages=False,
    )
    return DevicePoolGroup([entry], layers, page)


def linker_params(page: int = PAGE, **changes: Any) -> Any:
    """What SGLang tells a linker's constructor, as far as it looks."""
    settings = {
        "pp_size": 1,
        "page_size": page,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "attn_tp_cache_group": None,
        "tp_cache_group": None,
        "attn_cp_cache_group": None,
        "token_to_kv_pool_allocator": SimpleNamespace(get_kvcache=lambda: None),
    }
    return SimpleNamespace(**settings | changes)

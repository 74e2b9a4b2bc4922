"""TurnKV: keep the KV cache of LLM sessions between turns instead of prefilling it again.

    import turnkv
    pool = turnkv.Pool()                                   # a private pool of this user; or Pool("unix:/run/turnkv/turnkv.sock")
    pages = pool.open_namespace("my-model", dtype="bf16", layers=12, kv_heads=4, head_dim=64)
    pages.offload(hashes, buffers); found = pages.lookup(hashes); pages.reload(hashes, buffers)

Everything that can go wrong with a pool is a `turnkv.Error`: an engine that gets one recomputes and goes on.
Plugins: `turnkv.transformers`, `turnkv.vllm`, `turnkv.sglang`, `turnkv.tensorrt_llm`. Nothing here imports torch or numpy.
"""

import os

# Calls use `_buffers`. A module that a call imports would stay locked for ever in a child that is forked meanwhile.
from . import _buffers as _buffers
from ._turnkv import (
    Device,
    DeviceReload,
    DeviceStream,
    Error,
    GpuHit,
    GpuPagePool,
    Lease,
    Namespace,
    OffloadReport,
    OnDevice,
    Pool,
    Prefetched,
    ReloadReport,
    Runs,
    Span,
    Strided,
    TurnBegun,
    __version__,
    chain_hashes,
)

__all__ = [
    "Device",
    "DeviceReload",
    "DeviceStream",
    "Error",
    "GpuHit",
    "GpuPagePool",
    "Lease",
    "Namespace",
    "OffloadReport",
    "OnDevice",
    "Pool",
    "Prefetched",
    "ReloadReport",
    "Runs",
    "Span",
    "Strided",
    "TurnBegun",
    "__version__",
    "chain_hashes",
    "shared_device",
    "shared_pool",
]

_shared_pools: dict[tuple[int, str | None], Pool] = {}
_shared_devices: dict[tuple[int, int], Device] = {}


def shared_pool(address: str | None = None) -> Pool:
    """This process's one `Pool` for `address` (None: the embedded one), made at first use.

    Plugins that are given an address share it, so a thousand sessions use one set of connections.
    """
    key = (os.getpid(), address)
    if key not in _shared_pools:
        _shared_pools[key] = Pool(address)
    return _shared_pools[key]


def shared_device(ordinal: int = 0, staging_bytes: int | None = None) -> Device:
    """This process's one `Device` for a GPU, made at first use with `staging_bytes` (None: the default).

    Plugins share it, so that the pool's memory is registered with the GPU once.
    """
    key = (os.getpid(), ordinal)
    if key not in _shared_devices:
        _shared_devices[key] = Device(ordinal, staging_bytes=staging_bytes)
    return _shared_devices[key]

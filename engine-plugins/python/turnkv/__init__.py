"""TurnKV: keep the KV cache of LLM sessions between turns instead of prefilling it again.

    import turnkv
    pool = turnkv.Pool()                                   # a private pool of this user; or Pool("unix:/run/turnkv/turnkv.sock")
    pages = pool.open_namespace("my-model", dtype="bf16", layers=12, kv_heads=4, head_dim=64)
    pages.offload(hashes, buffers); found = pages.lookup(hashes); pages.reload(hashes, buffers)

Everything that can go wrong with a pool is a `turnkv.Error`: an engine that gets one recomputes and goes on.
Plugins: `turnkv.transformers`, `turnkv.vllm`, `turnkv.sglang`, `turnkv.tensorrt_llm`. Nothing here imports torch or numpy.
"""

from ._turnkv import (
    Error,
    Lease,
    Namespace,
    OffloadReport,
    Pool,
    Prefetched,
    ReloadReport,
    Span,
    TurnBegun,
    __version__,
    chain_hashes,
)

__all__ = [
    "Error",
    "Lease",
    "Namespace",
    "OffloadReport",
    "Pool",
    "Prefetched",
    "ReloadReport",
    "Span",
    "TurnBegun",
    "__version__",
    "chain_hashes",
    "shared_pool",
]

_shared_pools: dict[tuple[int, str | None], Pool] = {}


def shared_pool(address: str | None = None) -> Pool:
    """This process's one `Pool` for `address` (None: the embedded one), made at first use.

    Plugins that are given an address share it, so a thousand sessions use one set of connections.
    """
    import os

    key = (os.getpid(), address)
    if key not in _shared_pools:
        _shared_pools[key] = Pool(address)
    return _shared_pools[key]

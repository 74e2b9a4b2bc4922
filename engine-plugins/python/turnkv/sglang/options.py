"""What the operator may set, in SGLang's JSON for the backend or the linker.

Owns: names, bounds and defaults of options. Must not know: SGLang's own settings beyond their names, pools.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import turnkv

SGLANG_KEYS = frozenset(
    {
        "allocator",
        "backend_name",
        "class_name",
        "enable_storage_metrics",
        "hicache_storage_pass_prefix_keys",
        "interface_v1",
        "module_path",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
    }
)
"""What SGLang itself reads from the same JSON object."""
THREADS_MAX = 16
BOUNDS = {
    "deadline_ms": (1, 600_000),
    "lookup_ms": (1, 10_000),
    "load_ms": (1, 600_000),
    "wait_ms": (0, 600_000),
    "threads": (1, THREADS_MAX),
    "offloads_max": (1, 4096),
    "dram_bytes": (16 << 20, 1 << 50),
    "nvme_bytes": (0, 1 << 50),
}


@dataclass(frozen=True)
class Options:
    """Options as checked. Milliseconds and bytes are in the names."""

    pool: str | None = None
    """unix:/path, tls://host:port, tcp://host:port or http://host:port; None: the embedded pool. Several members of a cluster,
    all tls:// or all tcp://, with commas between."""
    data_plane: str = "auto"
    fabric: str = "auto"
    """To a pool of another host: verbs, libfabric, framed, or the fastest that both ends have."""
    tenant: str = ""
    """Pages are never shared between tenants."""
    model_id: str | None = None
    """Names the weights; by default a fingerprint of the checkpoint."""
    engine: str = ""
    """Linker: name of this engine, by which the pool's advice to routers knows who ran a session's last turn."""
    deadline_ms: int = 2000
    """Of each transfer between SGLang's host memory and the pool, and of each offload."""
    lookup_ms: int = 10
    """Linker: how long the scheduler thread may wait for a lookup before it is a miss."""
    load_ms: int = 500
    """Linker: how long a load may take to have its pages leased and verified before the request recomputes."""
    wait_ms: int = 0
    """How long an offload may wait for free slots."""
    threads: int = 2
    """Pieces of one load that are copied or verified at once."""
    offloads_max: int = 64
    """Linker: offloads that wait their turn; more are declined."""
    durable: bool = False
    """An offload is done only when it is on NVMe and flushed."""
    dram_bytes: int | None = None
    nvme_bytes: int | None = None
    dir: str | None = None
    server: str | None = None
    """Of the embedded pool: its memory, its disk, where, which binary."""

    def open_pool(self, call_ms: int) -> turnkv.Pool:
        """A door whose calls take at most `call_ms`. Connects at the first of them."""
        names = ("data_plane", "fabric", "dram_bytes", "nvme_bytes", "dir", "server")
        settings = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        # Ranks find pages by their hashes, whoever begins turns: with several members all of them stay at one.
        return turnkv.Pool(self.pool, call_ms=call_ms, follow_homes=False, **settings)


def parse(given: Mapping[str, Any] | None) -> Options:
    """Checks what was written. Raises ValueError that names the option: a slip must not become another tenant."""
    types = {field.name: field.type for field in dataclasses.fields(Options)}
    values = {name: value for name, value in (given or {}).items() if name not in SGLANG_KEYS}
    for name, value in values.items():
        if name not in types:
            raise ValueError(f"turnkv has no option {name!r}; it has {', '.join(sorted(types))}")
        expected = types[name].partition(" ")[0]
        if value is None and "None" in types[name]:
            continue
        if type(value).__name__ != expected:
            raise ValueError(f"turnkv's option {name} must be {expected}, not {value!r}")
        if name in BOUNDS and not BOUNDS[name][0] <= value <= BOUNDS[name][1]:
            raise ValueError(f"turnkv's option {name} must be {BOUNDS[name][0]} to {BOUNDS[name][1]}, not {value}")
        if name == "pool" and not value.startswith(("unix:/", "tls://", "tcp://", "http://")):
            forms = '"unix:/path", "tls://host:port", "tcp://host:port" or "http://host:port"'
            raise ValueError(f"turnkv's option pool must be {forms}, not {value!r}")
    return Options(**values)

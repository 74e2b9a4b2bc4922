"""What the user wrote under kv_connector_extra_config, and the same, checked.

Owns: names, defaults, bounds, clear errors. Must not know: vLLM, pools.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class Options:
    """Settings of the connector. Every field is a key of kv_connector_extra_config; all have defaults."""

    pool: str | None = None
    """Address: "unix:/path", "tls://host:port", "tcp://host:port" or "http://host:port". None: a private pool of this user.
    Several members of a cluster, all "tls://" or all "tcp://", with commas between."""
    fabric: Literal["auto", "framed", "libfabric", "verbs"] = "auto"
    """By what pages travel to a pool of another host. auto: the fastest that both ends have."""
    tenant: str = ""
    """Pages are shared among engines of one tenant only."""
    model_id: str | None = None
    """Name of the weights. None: derived from their bytes, or from the hub's commit."""
    engine: str = ""
    """Name of this engine, by which the pool's advice to routers knows who ran a session's last turn. Empty: unsaid."""
    canonical_shards: int | None = None
    """Into how many shards a page is cut by KV heads, so that engines of other sizes of tensor parallelism find it. None: 8, or
    one a head. 0: as many as there are ranks, and each size keeps pages of its own."""
    load: Literal["async", "layerwise", "off"] = "async"
    """async: pages come while other requests run. layerwise: within the forward pass, each layer just ahead of it."""
    save: Literal["filled", "finished", "off"] = "filled"
    """filled: pages are stored as they fill. finished: all at the end of the request."""
    min_tokens: int = 0
    """Do not load fewer tokens than this."""
    lookup_wait_ms: float = 5.0
    """How long the scheduler may wait for a lookup, once per request; then it goes on and asks again."""
    lookup_ms: int = 200
    """Deadline of a lookup; then the request is computed."""
    load_ms: int = 2000
    """Deadline of a load; what is not there by then is computed."""
    save_ms: int = 2000
    """Deadline of a save. A finished request's blocks are held no longer than this."""
    handover_ms: int = 500
    """How long a request that another instance prefilled may wait for the pages that are still being stored."""
    shutdown_ms: int = 3000
    """How long a stopping engine may go on saving."""
    durable: bool = False
    """A finished request's pages are on NVMe before its blocks are let go."""
    staging_bytes: int = 64 << 20
    """Pinned host memory of a worker whose cache is on a device: pages pass through it while the pool's memory is not
    registered with the device."""
    load_threads: int = 2
    save_threads: int = 2
    lookup_threads: int = 2
    events_medium: str = "CPU"
    """Medium named in KV events (with kv_events_config.enable_kv_cache_events)."""

    @staticmethod
    def parse(config: Mapping[str, Any]) -> Options:
        """Checks what the user wrote. Raises ValueError that names the key, what it may be and what it was."""
        known = [entry.name for entry in fields(Options)]
        for key in config:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
                raise ValueError(f"kv_connector_extra_config: unknown option {key!r}; {hint}")
        for key, value in config.items():
            _check(key, value)
        return Options(**config)


_CHOICES: dict[str, tuple[str, ...]] = {
    "fabric": ("auto", "framed", "libfabric", "verbs"),
    "load": ("async", "layerwise", "off"),
    "save": ("filled", "finished", "off"),
}
_BOUNDS: dict[str, tuple[float, float]] = {
    "canonical_shards": (0, 256),
    "min_tokens": (0, 1 << 31),
    "lookup_wait_ms": (0, 1000),
    "lookup_ms": (1, 60_000),
    "load_ms": (1, 600_000),
    "save_ms": (1, 600_000),
    "handover_ms": (0, 60_000),
    "shutdown_ms": (0, 600_000),
    "staging_bytes": (1 << 20, 1 << 40),
    "load_threads": (1, 64),
    "save_threads": (1, 64),
    "lookup_threads": (1, 64),
}
_TEXT_BYTES_MAX = {"tenant": 128, "engine": 128, "events_medium": 64, "pool": 4096, "model_id": 200}


def _check(key: str, value: Any) -> None:
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise ValueError(_said(key, " or ".join(map(repr, _CHOICES[key])), value))
    elif key == "canonical_shards" and value is None:
        pass
    elif key in _BOUNDS:
        least, most = _BOUNDS[key]
        kind = (int, float) if key == "lookup_wait_ms" else int
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
            raise ValueError(_said(key, f"a number from {least} to {most}", value))
    elif key == "durable":
        if not isinstance(value, bool):
            raise ValueError(_said(key, "true or false", value))
    elif not (value is None and key in ("pool", "model_id")):
        if not isinstance(value, str) or len(value.encode()) > _TEXT_BYTES_MAX[key]:
            raise ValueError(_said(key, f"a string of at most {_TEXT_BYTES_MAX[key]} bytes", value))
        if key == "pool" and not value.startswith(("unix:/", "tls://", "tcp://", "http://")):
            forms = '"unix:/path", "tls://host:port", "tcp://host:port", "http://host:port" or null'
            raise ValueError(_said(key, forms, value))


def _said(key: str, may_be: str, value: Any) -> str:
    return f"kv_connector_extra_config: {key} must be {may_be}, not {value!r}"

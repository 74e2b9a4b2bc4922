"""At which prefix lengths everything that a model needs is stored: whole prefixes, and windows that end there.

Owns: SGLang's hit policies. Must not know: the pool, transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy

from .chain import cut, pages_in

PROBES_MAX = 256
"""Pages of one window pool that one query asks for, newest boundaries first."""
BOUNDARIES_MAX = 16
"""Boundaries of one window pool that one query reports."""
Found = Callable[[str, bytes], int]
"""How many leading pages, of these packed names, a named pool has stored."""


def restorable(found: Found, hashes: bytes, transfers: Sequence[Any]) -> tuple[range | list[int], dict[Any, int]]:
    """Prefix lengths of `hashes` at which all of `transfers` can be restored, and each pool's own longest one.

    A pool of block groups never decides, so it gets no verdict.
    """
    limit, windows = pages_in(hashes), None
    hits: dict[Any, int] = {}
    for transfer in sorted(transfers, key=lambda transfer: transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES):
        name = str(transfer.name)
        if limit == 0 or transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
            continue
        if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
            own = _boundaries(found, name, cut(hashes, 0, limit), max(1, len(transfer.keys or ())))
            windows = own if windows is None else windows & own
            limit = max(windows, default=0)
        else:
            limit = found(name, cut(hashes, 0, limit))
        if limit:
            hits[transfer.name] = limit
    return (range(1, limit + 1) if windows is None else sorted(windows)), hits


def _boundaries(found: Found, name: str, hashes: bytes, window: int) -> set[int]:
    """Lengths whose last `window` pages are all stored; the longest are looked for first."""
    known: dict[int, bool] = {}
    boundaries: set[int] = set()
    for length in range(pages_in(hashes), 0, -1):
        for at in range(length - 1, max(0, length - window) - 1, -1):
            if at not in known:
                if len(known) == PROBES_MAX:
                    return boundaries
                known[at] = found(name, cut(hashes, at, at + 1)) == 1
            if not known[at]:
                break
        else:
            boundaries.add(length)
            if len(boundaries) == BOUNDARIES_MAX:
                break
    return boundaries

"""The way from a connector to its pool: one connection, a namespace for each group of layers, opened when needed.

Owns: opening, and opening again after the pool was away. Must not know: engines, blocks, requests.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from typing import Literal

import turnkv
from turnkv.checkpoint import WeightsName, name_of


@dataclass(frozen=True)
class GroupPages:
    """One group of layers that share a block table, as the pool sees it."""

    group: int
    """The engine's index of it."""
    block_tokens: int
    hashes_per_block: int
    """Engine hashes that make one block."""
    window_blocks: int | None
    """Trailing blocks that a request of this group needs to go on; None: all of them."""
    salt: bytes
    """Digest of all that must agree for the group's bytes to be exchangeable."""
    shards: int = 1
    """Of a page, over all ranks."""


@dataclass(frozen=True)
class PoolOptions:
    """Which pool, and how patiently."""

    address: str | None
    model: str | WeightsName
    """Name of the weights; no page moves before it is known."""
    tenant: str
    call_ms: int
    connect_ms: int = 250
    fabric: Literal["auto", "framed", "libfabric", "verbs"] = "auto"


class Door:
    """Namespaces of one pool. Threads may share it. No call before the first use: no pool, no delay."""

    def __init__(self, options: PoolOptions, groups: list[GroupPages], shard_bytes: dict[int, int]) -> None:
        self.options = options
        self.groups = {group.group: group for group in groups}
        self.shard_bytes = shard_bytes
        # Ranks find pages by their hashes, whoever begins turns: with several members all of them stay at one.
        self._pool = turnkv.Pool(
            options.address, call_ms=options.call_ms, connect_ms=options.connect_ms, fabric=options.fabric, follow_homes=False
        )
        self._lock = threading.Lock()
        self._opened: dict[int, turnkv.Namespace] = {}
        self.epoch = b""

    @property
    def is_shut(self) -> bool:
        """Whether the circuit breaker keeps calls away just now."""
        return self._pool.state == "breaker_open"

    def namespace(self, group: int) -> turnkv.Namespace:
        """The group's pages. Raises turnkv.Error while the pool cannot be reached, or the weights have no name."""
        opened = self._opened.get(group)
        if opened is not None:
            return opened
        spec, options, epoch = self.groups[group], self.options, self.epoch
        opened = self._pool.open_namespace(
            name_of(options.model),
            dtype="u8",
            layout="opaque",
            page_tokens=spec.block_tokens,
            tp_size=spec.shards,
            opaque_shard_bytes=self.shard_bytes[group],
            tenant=options.tenant,
            salt=hashlib.sha256(spec.salt + epoch).digest() if epoch else spec.salt,
        )
        with self._lock:
            return self._opened.setdefault(group, opened) if epoch == self.epoch else opened

    def begin_epoch(self, epoch: bytes) -> None:
        """From here on other pages: what was stored so far is not found any more (the weights changed, say)."""
        with self._lock:
            self.epoch, self._opened = epoch, {}

    def know(self, groups: list[GroupPages], shard_bytes: dict[int, int]) -> None:
        """What the memory turned out to be: before the first use."""
        with self._lock:
            self.groups = {group.group: group for group in groups}
            self.shard_bytes, self._opened = shard_bytes, {}

    def close(self) -> None:
        """Lets go of the pool."""
        self._pool.close()

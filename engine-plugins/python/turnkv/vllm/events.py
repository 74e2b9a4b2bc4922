"""KV events in vLLM's own format: routers that follow an engine's cache see what it keeps in the pool as well.

Owns: which blocks were announced, wording. Must not know: pools, workers, transport (vLLM publishes what `take` gives).

Stored is announced when all ranks have stored; removed when a lookup finds that an announced page is gone. Between the
two a router may believe in pages that the pool has evicted: the request it then sends here is computed, not loaded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

ANNOUNCED_MAX = 1 << 16
"""Announced blocks remembered; beyond them the oldest is forgotten, and announced again when stored again."""
EVENTS_MAX = 1 << 14
"""Events that wait to be taken."""


class Announcer:
    """Events of one scheduler about the first group's blocks."""

    def __init__(self, enabled: bool, medium: str, block_tokens: int) -> None:
        self.enabled, self._medium, self._block_tokens = enabled, medium, block_tokens
        self._announced: OrderedDict[bytes, None] = OrderedDict()
        self._events: list[KVCacheEvent] = []

    def stored(self, request: Any, hashes: Sequence[bytes], pages: int) -> None:
        """The leading `pages` of a request's blocks are in the pool: announces those that are news."""
        if not self.enabled:
            return
        first = next((at for at in range(pages) if hashes[at] not in self._announced), pages)
        if first == pages:
            return
        for block_hash in hashes[first:pages]:
            self._announced[block_hash] = None
            self._announced.move_to_end(block_hash)
        while len(self._announced) > ANNOUNCED_MAX:
            self._announced.popitem(last=False)
        lora = getattr(request, "lora_request", None)
        self._add(
            BlockStored(
                block_hashes=[maybe_convert_block_hash(block_hash) for block_hash in hashes[first:pages]],
                parent_block_hash=maybe_convert_block_hash(hashes[first - 1]) if first else None,
                token_ids=list(request.all_token_ids[first * self._block_tokens : pages * self._block_tokens]),
                block_size=self._block_tokens,
                lora_id=lora.adapter_id if lora else None,
                medium=self._medium,
                lora_name=lora.name if lora else None,
            )
        )

    def missing(self, hashes: Sequence[bytes], pages: int) -> None:
        """A lookup found only the leading `pages` of these."""
        if not self.enabled or not self._announced:
            return
        gone = [block_hash for block_hash in hashes[pages:] if block_hash in self._announced]
        for block_hash in gone:
            del self._announced[block_hash]
        if gone:
            said = [maybe_convert_block_hash(block_hash) for block_hash in gone]
            self._add(BlockRemoved(block_hashes=said, medium=self._medium))

    def clear(self) -> None:
        """Nothing of what was announced can be loaded any more."""
        self.missing(list(self._announced), 0)

    def take(self) -> list[KVCacheEvent]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events

    def _add(self, event: KVCacheEvent) -> None:
        if len(self._events) < EVENTS_MAX:
            self._events.append(event)

"""Pages of one rank that wait in host memory for their blocks: fetched and verified before anything is promised.

TensorRT-LLM cannot be told that a load failed. So a page counts as found when its bytes are here, checked, and ours;
what remains is a copy within this process.
Owns: that memory, who holds which part of it. Must not know: requests, schedulers, other ranks.

    fetch -> held -> place (copies enqueued) -> free once they have passed
               +---> drop -> free
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from turnkv.connector import BlockRuns, Door, LoadJob, Loader, PageRun
from turnkv.connector.runs import Part
from turnkv.connector.staging import Done, StagedRuns, host_buffer

from .identity import GROUP


@dataclass
class _Held:
    """Consecutive pages of the arena."""

    first: int
    count: int
    pages: int = 0
    """Leading ones that came."""
    placed: Done | None = None


class Fetcher:
    """One per rank. The engine's thread and the one that answers rank 0 call it."""

    def __init__(
        self, door: Door, runs: StagedRuns, *, shard: int, bytes_max: int, pinned: bool, deadline_ms: int, threads: int
    ) -> None:
        self._runs, self._page_bytes = runs, runs.page_bytes
        self.pages_max = bytes_max // self._page_bytes
        if self.pages_max == 0:
            raise ValueError(f"TURNKV_LOAD_BYTES is {bytes_max}, but one page has {self._page_bytes} bytes")
        self._arena = host_buffer(self.pages_max * self._page_bytes, pinned=pinned)
        memory = BlockRuns({"page": [Part(self._arena.data_ptr(), self._page_bytes, self._page_bytes)]})
        self._loader = Loader(door, {GROUP: memory}, shard=shard, deadline_ms=deadline_ms, threads=threads)
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        self._used = 0
        """Pages of the arena handed out since it was last empty."""

    def fetch(self, ticket: int, names: Sequence[bytes]) -> tuple[int, str | None]:
        """Leading pages that are here now, held under `ticket`, and why not more."""
        held = self._reserve(ticket, len(names))
        if held is None:
            return 0, "busy"
        rows = list(range(held.first, held.first + held.count))
        self._loader.start(LoadJob(str(ticket), [PageRun(GROUP, 0, list(names[: held.count]), rows)], 0))
        outcome = self._loader.wait(str(ticket)).outcome
        with self._lock:
            held.pages = outcome.pages
        if outcome.pages == 0:
            self.drop(ticket)
        return outcome.pages, outcome.cause

    def place(self, ticket: int, blocks: Sequence[int], stream: Any) -> None:
        """Copies the leading pages of a fetch into blocks, ahead of what `stream` (the compute stream) is given next.

        Raises RuntimeError if they are not here or cannot be copied: the engine counts on them.
        """
        with self._lock:
            held = self._held.get(ticket)
        if held is None or held.placed is not None or len(blocks) > held.pages:
            raise RuntimeError(f"turnkv: pages that were promised are not here (fetch {ticket}, {len(blocks)} pages)")
        self._runs.mark(stream)
        start = held.first * self._page_bytes
        pages = self._arena[start : start + len(blocks) * self._page_bytes]
        done = self._runs.scatter(pages, len(blocks), blocks)
        done.hold(stream)
        with self._lock:
            held.placed = done

    def drop(self, ticket: int) -> None:
        """Nobody will place these."""
        with self._lock:
            held = self._held.get(ticket)
            if held is not None and held.placed is None:
                del self._held[ticket]

    def _reserve(self, ticket: int, pages: int) -> _Held | None:
        with self._lock:
            for passed in [key for key, held in self._held.items() if held.placed is not None and held.placed.passed()]:
                del self._held[passed]
            if not self._held:
                # Loads come in bursts, one step's together, and all are placed in that step: so it soon is empty again.
                self._used = 0
            count = min(pages, self.pages_max - self._used)
            if count == 0:
                return None
            held = self._held[ticket] = _Held(self._used, count)
            self._used += count
            return held


def needs_pinning(cache: torch.Tensor) -> bool:
    """Whether host memory for this cache is copied by a device."""
    return cache.device.type != "cpu"

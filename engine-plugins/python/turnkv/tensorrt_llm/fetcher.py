"""Pages of one rank that wait in memory of its device for their blocks: fetched and verified before anything is promised.

TensorRT-LLM cannot be told that a load failed. So a page counts as found when its bytes are here, checked, and ours;
what remains is a copy within the device, which the compute stream makes itself.
Owns: that memory, who holds which part of it. Must not know: requests, schedulers, other ranks.

    fetch -> held -> place (copies enqueued) -> free once they have passed
               +---> drop -> free
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from turnkv.connector import Door, Loader, LoadJob, PageRun, Shards, devices

from .identity import GROUP


@dataclass
class _Held:
    """Consecutive pages of the arena."""

    first: int
    count: int
    pages: int = 0
    """Leading ones that came."""
    placed: _Passed | None = None


class Fetcher:
    """One per rank. The engine's thread and the one that answers rank 0 call it."""

    def __init__(
        self, door: Door, cache: torch.Tensor, *, shards: Shards, bytes_max: int, deadline_ms: int, threads: int
    ) -> None:
        """`cache`: the blocks, one contiguous tensor. Raises ValueError where there is no room for pages."""
        self._blocks = cache.view(cache.shape[0], -1).view(torch.uint8)
        page_bytes = self._blocks.shape[1]
        if page_bytes % 8 == 0:
            self._blocks = self._blocks.view(torch.int64)  # copied eight bytes at a time
        self.pages_max = bytes_max // page_bytes
        if self.pages_max == 0:
            raise ValueError(f"TURNKV_LOAD_BYTES is {bytes_max}, but one page has {page_bytes} bytes")
        try:
            self._arena = torch.empty((self.pages_max, self._blocks.shape[1]), dtype=self._blocks.dtype, device=cache.device)
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"{cache.device} has no room for TURNKV_LOAD_BYTES={bytes_max}: lower it, or the engine's "
                f"free_gpu_memory_fraction: {error}"
            ) from error
        memory = devices.memory_of({"page": self._arena}, blocks=self.pages_max, shards=shards)
        memory.mark()  # whoever had this memory before may not have ended
        self._loader = Loader(door, {GROUP: memory}, deadline_ms=deadline_ms, threads=threads)
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        self._used = 0
        """Pages of the arena handed out since it was last empty."""

    def fetch(self, ticket: int, names: Sequence[bytes]) -> tuple[int, str | None]:
        """Leading pages that are here now, held under `ticket`, and why not more: `memory` if all of ours is taken."""
        held = self._reserve(ticket, len(names))
        if held is None:
            return 0, "memory"
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
        with _on(stream, self._arena.device):
            index = torch.tensor(blocks, dtype=torch.int64).to(self._arena.device, non_blocking=True)
            # From here on the stream may read these pages: they are used again only when it has, or never.
            placed = _Passed(self._arena.device)
            with self._lock:
                held.placed = placed
            self._blocks.index_copy_(0, index, self._arena[held.first : held.first + len(blocks)])
            placed.record()

    def drop(self, ticket: int) -> None:
        """Nobody will place these."""
        with self._lock:
            held = self._held.get(ticket)
            if held is not None and held.placed is None:
                del self._held[ticket]

    def _reserve(self, ticket: int, pages: int) -> _Held | None:
        with self._lock:
            for passed in [key for key, held in self._held.items() if held.placed is not None and held.placed()]:
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


class _Passed:
    """The end of what a device's current stream was given up to `record`. On a CPU that is over when it returns."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._recorded = device, False
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def record(self) -> None:
        """All is given."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))
        self._recorded = True

    def __call__(self) -> bool:
        return self._recorded and (self._event is None or self._event.query())


def _on(stream: Any, device: torch.device) -> Any:
    """What is enqueued inside runs on this stream of the device."""
    return torch.cuda.stream(stream) if device.type == "cuda" and stream is not None else nullcontext()

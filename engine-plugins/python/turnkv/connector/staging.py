"""Pages whose blocks lie in device memory: they pass through host buffers that are pinned, few, and used again.

Owns: the ring of buffers, the streams and events between it and a device. Must not know: pools, engines, requests.

    save   compute stream --mark--> own stream: blocks -> buffer --done--> the pool reads the buffer -> back to the ring
    load   the pool fills a buffer --> own stream, after the mark: buffer -> blocks --done--> back to the ring

A buffer that a copy may still be using goes back only when the copy's event has passed. On a CPU streams and events do
nothing, and the same code is a copy there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

RING_BYTES_MAX = 256 << 20
"""Host memory of a ring, if its owner says nothing else."""
BUFFER_BYTES = 32 << 20
"""Of one buffer, unless a page is larger: no call to the pool moves more than this or one page."""
DIRECT_BYTES = 64 << 10
"""A layer's share of a block from this size on is copied by itself; smaller ones are gathered on the device first."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes are moved as integers of the same size: not every kernel knows every float."""


class StagingError(RuntimeError):
    """Pages could not pass: they count as not stored or not loaded."""

    def __init__(self, kind: str, message: str, *, settled: bool = True) -> None:
        super().__init__(message)
        self.kind = kind
        """busy: no buffer came free in time. device: a copy failed."""
        self.settled = settled
        """Whether all copies that were begun have ended."""


class Ring:
    """Host buffers of one size, made when first needed, never more than `bytes_max` in all. Threads share it."""

    def __init__(self, bytes_max: int, page_bytes: int, *, pinned: bool) -> None:
        self.buffer_bytes = max(BUFFER_BYTES, page_bytes)
        if self.buffer_bytes > bytes_max:
            raise ValueError(f"staging of {bytes_max} bytes has no room for one buffer of {self.buffer_bytes} bytes")
        self._pinned = pinned
        self._changed = threading.Condition()
        self._free: list[torch.Tensor] = []
        self._lost: list[torch.Tensor] = []
        self._unmade = bytes_max // self.buffer_bytes

    def take(self, seconds: float) -> torch.Tensor:
        """A buffer, waiting for one no longer than this. Raises StagingError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free or self._unmade, max(0.0, seconds)):
                raise StagingError("busy", f"no staging buffer came free within {seconds:.3f} s")
            if self._free:
                return self._free.pop()
            self._unmade -= 1
        try:
            return host_buffer(self.buffer_bytes, pinned=self._pinned)
        except RuntimeError as error:
            with self._changed:
                self._unmade += 1
                self._changed.notify()
            raise StagingError("device", f"no host memory for a staging buffer: {error}") from error

    def give(self, buffer: torch.Tensor) -> None:
        """The buffer is of no more use, and no copy uses it."""
        with self._changed:
            self._free.append(buffer)
            self._changed.notify()

    def lose(self, buffer: torch.Tensor) -> None:
        """Whether the device still uses the buffer nobody can say: it is neither used again nor freed."""
        with self._changed:
            self._lost.append(buffer)


def host_buffer(length: int, *, pinned: bool) -> torch.Tensor:
    """Bytes of host memory; pinned, a device copies them without the CPU's help."""
    return torch.empty(length, dtype=torch.uint8, pin_memory=pinned)


class Lane:
    """One direction's stream of a device, and the events that order it with the compute stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._runtime: Any = None if device.type == "cpu" else getattr(torch, device.type)
        self._stream: Any = None if self._runtime is None else self._runtime.Stream(device=device)

    def record(self, stream: Any = None) -> Done:
        """An event after all that `stream` (None: the current one) has been given so far."""
        if self._runtime is None:
            return Done(None)
        # Waiting for such an event sleeps; others spin.
        event = self._runtime.Event(blocking=True)
        event.record(stream if stream is not None else self._runtime.current_stream(self._device))
        return Done(event)

    def after(self, done: Done | None) -> AbstractContextManager[Any]:
        """What is enqueued inside runs on this lane, once `done` has passed."""
        if self._runtime is None:
            return nullcontext()
        if done is not None and done.event is not None:
            self._stream.wait_event(done.event)
        return self._runtime.stream(self._stream)

    def drain(self) -> bool:
        """Waits until this lane is empty. False: the device is broken, and nobody can say."""
        try:
            if self._stream is not None:
                self._stream.synchronize()
        except RuntimeError:
            return False
        return True


@dataclass(frozen=True)
class Done:
    """The end of something on a device. On a CPU it has ended when it returns."""

    event: Any

    def wait(self) -> None:
        """The calling thread waits."""
        if self.event is not None:
            self.event.synchronize()

    def hold(self, stream: Any) -> None:
        """What `stream` is given from here on waits; the calling thread does not."""
        if self.event is not None:
            stream.wait_event(self.event)

    def passed(self) -> bool:
        """Whether it has ended."""
        return self.event is None or self.event.query()


@dataclass(frozen=True)
class _Layer:
    blocks: torch.Tensor
    """[blocks, ...] as integers, dimensions in the order in which they lie in memory."""
    length: int
    """Bytes of a block."""
    rows: torch.Tensor | None
    """[blocks, length] as bytes, where a block is one piece large enough for a copy of its own."""

    def read(self, index: torch.Tensor, blocks: Sequence[int], share: torch.Tensor) -> None:
        """Blocks into their share of a buffer."""
        if self.rows is not None:
            for at, block in enumerate(blocks):
                share[at * self.length : (at + 1) * self.length].copy_(self.rows[block], non_blocking=True)
            return
        picked = self.blocks.index_select(0, index)
        share.copy_(picked.reshape(-1).view(torch.uint8), non_blocking=True)

    def write(self, index: torch.Tensor, blocks: Sequence[int], share: torch.Tensor) -> None:
        """The other way round."""
        if self.rows is not None:
            for at, block in enumerate(blocks):
                self.rows[block].copy_(share[at * self.length : (at + 1) * self.length], non_blocking=True)
            return
        brought = torch.empty((len(blocks), *self.blocks.shape[1:]), dtype=self.blocks.dtype, device=self.blocks.device)
        brought.reshape(-1).view(torch.uint8).copy_(share[: len(blocks) * self.length], non_blocking=True)
        self.blocks.index_copy_(0, index, brought)


class StagedRuns:
    """One group's blocks in device memory: the same bytes in the same order as `BlockRuns` has of them in CPU memory.

    In a buffer each layer's share of all its pages is one stretch, so that a device gathers it and copies it once.
    """

    def __init__(self, caches: Mapping[str, torch.Tensor], ring: Ring, *, blocks: int) -> None:
        """`caches`: each layer's tensor, whose leading rows are `blocks` blocks of one or more rows each."""
        if not caches:
            raise ValueError("a group of blocks needs at least one layer with memory")
        devices = {cache.device for cache in caches.values()}
        if len(devices) > 1:
            raise ValueError(f"the layers of a group lie on several devices: {', '.join(map(str, devices))}")
        self._device = devices.pop()
        self._layers = [_layer(cache, blocks) for cache in caches.values()]
        self.lengths = [layer.length for layer in self._layers]
        self.page_bytes = sum(self.lengths)
        if self.page_bytes > ring.buffer_bytes:
            raise ValueError(f"a page of {self.page_bytes} bytes does not fit a buffer of {ring.buffer_bytes}")
        self._ring = ring
        self._saves, self._loads = Lane(self._device), Lane(self._device)
        self._marked: Done | None = None

    def mark(self, stream: Any = None) -> None:
        """Copies that begin from here on come after all that the compute stream (None: the current) was given."""
        self._marked = self._saves.record(stream)

    @contextmanager
    def reading(self, blocks: Sequence[int], seconds: float) -> Iterator[np.ndarray]:
        """Copies blocks to host memory; addresses of their runs there, good inside the `with`. Raises StagingError."""
        buffer = self._ring.take(seconds)
        settled = True
        try:
            self.gather(buffer, blocks)
            yield self.addresses(buffer, len(blocks))
        except StagingError as error:
            settled = error.settled
            raise
        finally:
            (self._ring.give if settled else self._ring.lose)(buffer)

    @contextmanager
    def writing(self, blocks: Sequence[int], seconds: float) -> Iterator[Landing]:
        """Host memory to fill with pages for these blocks; `Landing.came` puts them there. Raises StagingError."""
        buffer, settled = self._ring.take(seconds), True
        try:
            yield Landing(self, buffer, blocks)
        except StagingError as error:
            settled = error.settled
            raise
        finally:
            (self._ring.give if settled else self._ring.lose)(buffer)

    def addresses(self, buffer: torch.Tensor, pages: int) -> np.ndarray:
        """Where the runs of so many pages lie in a buffer, page after page."""
        starts = np.cumsum([0, *self.lengths[:-1]], dtype=np.uint64) * np.uint64(pages)
        steps = np.arange(pages, dtype=np.uint64)[:, None] * np.array(self.lengths, dtype=np.uint64)[None, :]
        return np.ascontiguousarray(starts[None, :] + steps + np.uint64(buffer.data_ptr())).reshape(-1)

    def gather(self, buffer: torch.Tensor, blocks: Sequence[int]) -> None:
        """Blocks into a buffer; returns when they are there. Raises StagingError."""
        try:
            with self._saves.after(self._marked):
                index = torch.tensor(blocks, dtype=torch.int64, device=self._device)
                for layer, share in zip(self._layers, self._shares(buffer, len(blocks)), strict=True):
                    layer.read(index, blocks, share)
                done = self._saves.record()
            done.wait()
        except RuntimeError as error:
            raise self._failed("blocks to host memory", error, self._saves) from error

    def scatter(self, buffer: torch.Tensor, pages: int, blocks: Sequence[int]) -> Done:
        """The leading pages of `pages` in a buffer into these blocks. The buffer is in use until the end has passed."""
        try:
            with self._loads.after(self._marked):
                index = torch.tensor(blocks, dtype=torch.int64, device=self._device)
                for layer, share in zip(self._layers, self._shares(buffer, pages), strict=True):
                    layer.write(index, blocks, share)
                return self._loads.record()
        except RuntimeError as error:
            raise self._failed("pages to blocks", error, self._loads) from error

    def put(self, buffer: torch.Tensor, pages: int, blocks: Sequence[int]) -> None:
        """The same, and waits until they are there."""
        done = self.scatter(buffer, pages, blocks)
        try:
            done.wait()
        except RuntimeError as error:
            raise self._failed("pages to blocks", error, self._loads) from error

    def _failed(self, what: str, error: RuntimeError, lane: Lane) -> StagingError:
        return StagingError("device", f"copying {what} failed: {error}", settled=lane.drain())

    def _shares(self, buffer: torch.Tensor, pages: int) -> Iterator[torch.Tensor]:
        at = 0
        for length in self.lengths:
            yield buffer[at : at + pages * length]
            at += pages * length


class Landing:
    """Host memory that a load fills on its way to blocks."""

    def __init__(self, runs: StagedRuns, buffer: torch.Tensor, blocks: Sequence[int]) -> None:
        self._runs, self._buffer, self._blocks = runs, buffer, blocks
        self.addresses = runs.addresses(buffer, len(blocks))

    def came(self, pages: int) -> None:
        """The leading pages are here: puts them into their blocks, and returns when they are in place."""
        if pages:
            self._runs.put(self._buffer, len(self._blocks), self._blocks[:pages])


def _layer(cache: torch.Tensor, blocks: int) -> _Layer:
    if blocks < 1 or cache.shape[0] % blocks:
        raise ValueError(f"a cache of {cache.shape[0]} rows is not {blocks} blocks")
    rows = cache.view(_INTEGERS[cache.element_size()]).unflatten(0, (blocks, cache.shape[0] // blocks))
    inner = sorted(range(1, rows.dim()), key=lambda dim: -rows.stride(dim))
    ordered = rows.permute(0, *inner)
    length = ordered[0].numel() * cache.element_size()
    direct = length >= DIRECT_BYTES and ordered[0].is_contiguous()
    return _Layer(ordered, length, ordered.flatten(1).view(torch.uint8) if direct else None)

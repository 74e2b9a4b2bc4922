"""Loads into device memory that run beside the forward pass: a layer's attention waits for its pages on the device.

Owns: the reloads of one step, which layer is which, what came of them. Must not know: engines, schedulers, how copies are made.

    begin: what may not be leased at once is reloaded; find the other pages, enqueue all layers; where the pool has no room for
           all of them, wait for the copies that were enqueued and reload what is missing
      ->  the client's stream: layer 0, 1, 2, ...  ->  end: verified, or told
          wait(layer): the compute stream waits for the layer's copies; the calling thread does not
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import turnkv

from .devices import DeviceRuns, current
from .door import Door
from .jobs import LoadJob, PageRun
from .layers import loaded_of
from .loader import Loaded, part_of, pieces_of
from .room import LeaseRoom, divided

logger = logging.getLogger("turnkv.connector")

CALL_BYTES_MAX = 4 << 30
"""Of one reload: all layers of one come before the next one's first, so few are better."""
LAYERED_TIME_PART = 2
"""One part in so many of a load's time is for pages in layers; what the pool has no room for by then is reloaded in the rest."""
HOLDING_TIME_PART = 4
"""The same of a call while leases of an earlier one are held."""
_SHORT = ("busy", "deadline")
"""Why pages are asked for once more, now that nothing is held."""


@dataclass(eq=False)
class _Piece:
    request: str
    run: PageRun
    flight: turnkv.DeviceReload | None = None
    pages: int = 0
    """Leading pages that are in place and verified."""
    cause: str | None = None


class DeviceLayerLoader:
    """Loads of one worker, a step at a time, as `LayerLoader` does on a CPU. The engine's thread alone calls it."""

    def __init__(
        self,
        door: Door,
        runs: Mapping[int, DeviceRuns],
        *,
        deadline_ms: int,
        threads: int,
    ) -> None:
        for memory in runs.values():
            memory.check_layers()
        self._door, self._runs = door, runs
        self._deadline_seconds = deadline_ms / 1000
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="turnkv-begin")
        self._numbers = {name: at for memory in runs.values() for at, name in enumerate(memory.layers)}
        self._groups = {name: group for group, memory in runs.items() for name in memory.layers}
        self._pieces: list[_Piece] = []
        self._room = LeaseRoom()
        self._begun = self._deadline = 0.0

    def begin(self, jobs: list[LoadJob]) -> None:
        """Finds all pages and enqueues their copies, behind all that the compute stream was given so far. Whatever fails is told
        by `end`, as late as for the others: until then the blocks of all of them may be written to."""
        self._wait_all()  # of a step that never ended
        self._begun = time.monotonic()
        self._deadline = self._begun + self._deadline_seconds
        for memory in self._runs.values():
            memory.mark()
        before, held = divided(jobs, self._runs, self._room.bytes_max(self._begun))
        self._pieces = self._reloaded(before)
        layered = [
            _Piece(request, part) for request, run in held for part in pieces_of(run, self._runs[run.group], CALL_BYTES_MAX)
        ]
        self._pieces.extend(layered)
        for at, piece in enumerate(layered):
            self._begin(piece, holding=at > 0)
            if piece.flight is not None and piece.flight.pages_begun < len(piece.run.names):
                self._finish(piece)  # says why
            if piece.cause in _SHORT:
                self._complete(layered, at)
                break

    def wait(self, layer: str) -> None:
        """What the compute stream is given from here on reads this layer's pages."""
        group = self._groups.get(layer)
        if group is None:
            return  # it shares another layer's memory
        stream = current(self._runs[group].place)
        for piece in self._pieces:
            if piece.flight is None or piece.run.group != group:
                continue
            try:
                piece.flight.wait_layer(self._numbers[layer], stream)
            except turnkv.Error as error:
                piece.cause = error.kind

    def end(self) -> dict[str, Loaded]:
        """The step's work is enqueued: what came of its loads, by request. Waits for their copies, not for the step."""
        requests: dict[str, list[_Piece]] = {}
        for piece in self._wait_all():
            requests.setdefault(piece.request, []).append(piece)
        seconds = time.monotonic() - self._begun
        return {request: loaded_of(its, seconds) for request, its in requests.items()}

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _reloaded(self, runs: Iterable[tuple[str, PageRun]]) -> list[_Piece]:
        """Brings pages as a whole, a few at a time; when this returns no lease is on them."""
        pieces = [
            _Piece(request, part)
            for request, run in runs
            for part in pieces_of(run, self._runs[run.group], self._runs[run.group].load_bytes_max)
        ]
        for brought in [self._threads.submit(self._bring, piece) for piece in pieces]:
            brought.result()
        return pieces

    def _bring(self, piece: _Piece) -> None:
        """A task: reloads one piece."""
        memory, run, left_ms = self._runs[piece.run.group], piece.run, self._left_ms()
        if left_ms <= 0:
            piece.cause = "deadline"
            return
        try:
            report = memory.reload(self._door.namespace(run.group), run.names, run.blocks, deadline_ms=left_ms)
            piece.pages, piece.cause = report.pages, report.miss
        except Exception as error:
            piece.cause = _kind(error, "loading pages failed")

    def _begin(self, piece: _Piece, *, holding: bool) -> None:
        """Begins one piece in layers."""
        part = HOLDING_TIME_PART if holding else LAYERED_TIME_PART
        left_ms = min(self._left_ms(), int(self._deadline_seconds * 1000 / part))
        if left_ms <= 0:
            piece.cause = "deadline"
            return
        memory = self._runs[piece.run.group]
        try:
            piece.flight = memory.begin_layers(
                self._door.namespace(piece.run.group),
                piece.run.names,
                piece.run.blocks,
                deadline_ms=left_ms,
            )
        except Exception as error:
            piece.cause = _kind(error, "beginning to load pages failed")

    def _complete(self, layered: list[_Piece], at: int) -> None:
        """The pool had no room for a piece: waits for those before it, so that no lease is left, and reloads what is missing."""
        for piece in layered[:at]:
            self._finish(piece)
        held_bytes = sum(piece.pages * self._runs[piece.run.group].page_bytes for piece in layered)
        self._room.came_short(held_bytes, time.monotonic())
        short = layered[at]
        whole, short.run = short.run, part_of(short.run, 0, short.pages)
        missing = [(short.request, part_of(whole, short.pages, len(whole.names)))]
        for piece in layered[at + 1 :]:
            self._pieces.remove(piece)
            missing.append((piece.request, piece.run))
        self._pieces.extend(self._reloaded(missing))

    def _left_ms(self) -> int:
        return int((self._deadline - time.monotonic()) * 1000)

    def _wait_all(self) -> list[_Piece]:
        """The pieces of the step, none of which is being written to any more."""
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            self._finish(piece)
        return pieces

    def _finish(self, piece: _Piece) -> None:
        if piece.flight is None:
            return
        flight, piece.flight = piece.flight, None
        try:
            report = flight.result()
        except Exception as error:
            piece.cause = _kind(error, "loading pages failed")
            return
        if report.miss == "lease_expired":
            self._room.came_short(0, time.monotonic())
        if piece.cause is None:  # a wait that could not be enqueued: attention may have read too early
            piece.pages, piece.cause = report.pages, report.miss


def _kind(error: Exception, what: str) -> str:
    """Why pages did not come. What is no error of the pool must not keep the other pieces from being waited for."""
    if isinstance(error, turnkv.Error):
        return error.kind
    logger.error("turnkv: %s", what, exc_info=error)
    return "internal"

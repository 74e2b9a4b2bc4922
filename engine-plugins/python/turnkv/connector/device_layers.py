"""Loads into device memory that run beside the forward pass: a layer's attention waits for its pages on the device.

Owns: the reloads of one step, which layer is which, what came of them. Must not know: engines, schedulers, how copies are made.

    begin: find the pages, enqueue all layers  ->  the client's stream: layer 0, 1, 2, ...  ->  end: verified, or told
                        wait(layer): the compute stream waits for the layer's copies; the calling thread does not
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import turnkv

from .devices import DeviceRuns, current
from .door import Door
from .jobs import LoadJob, PageRun
from .layers import loaded_of
from .loader import Loaded, pieces_of

logger = logging.getLogger("turnkv.connector")

CALL_BYTES_MAX = 4 << 30
"""Of one reload: all layers of one come before the next one's first, so few are better."""


@dataclass
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
        self._begun = 0.0

    def begin(self, jobs: list[LoadJob]) -> None:
        """Finds all pages and enqueues their copies, behind all that the compute stream was given so far. Whatever fails is told
        by `end`, as late as for the others: until then the blocks of all of them may be written to."""
        self._wait_all()  # of a step that never ended
        self._begun = time.monotonic()
        deadline = self._begun + self._deadline_seconds
        for memory in self._runs.values():
            memory.mark()
        self._pieces = [
            _Piece(job.request, piece)
            for job in jobs
            for run in job.runs
            for piece in pieces_of(run, self._runs[run.group], CALL_BYTES_MAX)
        ]
        for begun in [self._threads.submit(self._begin, piece, deadline) for piece in self._pieces]:
            begun.result()

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

    def _begin(self, piece: _Piece, deadline: float) -> None:
        """A task: one piece."""
        left_ms = int((deadline - time.monotonic()) * 1000)
        if left_ms <= 0:
            piece.cause = "deadline"
            return
        memory = self._runs[piece.run.group]
        try:
            piece.flight = memory.begin_layers(
                self._door.namespace(piece.run.group), piece.run.names, piece.run.blocks, deadline_ms=left_ms,
            )
        except Exception as error:
            piece.cause = _kind(error, "beginning to load pages failed")

    def _wait_all(self) -> list[_Piece]:
        """The pieces of the step, none of which is being written to any more."""
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            self._finish(piece)
        return pieces

    def _finish(self, piece: _Piece) -> None:
        if piece.flight is None:
            return
        try:
            report = piece.flight.result()
        except Exception as error:
            piece.cause = _kind(error, "loading pages failed")
            return
        if piece.cause is None:  # a wait that could not be enqueued: attention may have read too early
            piece.pages, piece.cause = report.pages, report.miss


def _kind(error: Exception, what: str) -> str:
    """Why pages did not come. What is no error of the pool must not keep the other pieces from being waited for."""
    if isinstance(error, turnkv.Error):
        return error.kind
    logger.error("turnkv: %s", what, exc_info=error)
    return "internal"

"""Loads that run beside the forward pass: leased and verified before it, copied layer by layer just ahead of it.

Owns: the leases of one step, one copying thread, which layers are in place. Must not know: engines, schedulers.

    begin: lease, verify (a page that fails is told at once)  ->  copier: layer 0, 1, 2, ...  ->  finish the leases
                                       wait(layer): returns when the layer is in place, or copying gave up
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import turnkv

from .door import Door
from .jobs import LoadJob, PageRun
from .loader import Loaded, loaded, pieces_of
from .runs import BlockRuns

logger = logging.getLogger("turnkv.connector")

LEASE_BYTES_MAX = 64 << 20
"""What one lease covers."""


class Piece(Protocol):
    """Part of a request's load, ended."""

    run: PageRun
    pages: int
    """Leading pages that are in place and may be trusted."""
    cause: str | None
    """Why not more."""


@dataclass
class _Piece:
    request: str
    run: PageRun
    lease: turnkv.Lease | None = None
    pages: int = 0
    """Leading pages that verified and whose lease held."""
    cause: str | None = None


@dataclass
class _Step:
    """The loads of one forward pass."""

    begun: float
    deadline: float
    pieces: list[_Piece]
    ready: dict[str, threading.Event] = field(default_factory=dict)
    abandoned: bool = False
    copied: Future[None] | None = None

    def by_request(self) -> dict[str, list[_Piece]]:
        """The pieces of each request, in order."""
        requests: dict[str, list[_Piece]] = {}
        for piece in self.pieces:
            requests.setdefault(piece.request, []).append(piece)
        return requests


class LayerLoader:
    """Loads of one worker, a step at a time. The engine's thread alone calls it. Needs a pool with shared memory."""

    def __init__(
        self, door: Door, runs: Mapping[int, BlockRuns], *, deadline_ms: int, threads: int
    ) -> None:
        self._door, self._runs = door, runs
        self._deadline_seconds = deadline_ms / 1000
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="turnkv-lease")
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="turnkv-layers")
        self._step: _Step | None = None

    def begin(self, jobs: list[LoadJob]) -> None:
        """Leases and verifies all pages, then starts to copy. Returns when what can be loaded is known."""
        pieces = [
            _Piece(job.request, piece)
            for job in jobs
            for run in job.runs
            for piece in pieces_of(run, self._runs[run.group], LEASE_BYTES_MAX)
        ]
        now = time.monotonic()
        step = _Step(now, now + self._deadline_seconds, pieces)
        for leased in [self._threads.submit(self._lease, step, piece) for piece in pieces]:
            leased.result()
        step.ready = {layer: threading.Event() for runs in self._runs.values() for layer in runs.layers}
        step.copied = self._copier.submit(self._copy, step)
        self._step = step

    def wait(self, layer: str) -> None:
        """Waits until this layer's pages are in place; gives up at the deadline, and `end` tells."""
        step = self._step
        ready = step.ready.get(layer) if step is not None else None
        if step is None or ready is None or ready.is_set():
            return
        if not ready.wait(max(0.0, step.deadline - time.monotonic())):
            step.abandoned = True

    def end(self) -> dict[str, Loaded]:
        """The forward pass is over: what came of its loads, by request."""
        step, self._step = self._step, None
        if step is None or step.copied is None:
            return {}
        # The copier stops between two layers once abandoned; a copy within mapped memory ends by itself.
        step.copied.result()
        seconds = time.monotonic() - step.begun
        return {request: loaded_of(pieces, seconds) for request, pieces in step.by_request().items()}

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._copier.shutdown(wait=False, cancel_futures=True)

    def _lease(self, step: _Step, piece: _Piece) -> None:
        """A task: leases a piece and checks its bytes where they lie."""
        left_ms = int((step.deadline - time.monotonic()) * 1000)
        if left_ms <= 0:
            piece.cause = "deadline"
            return
        try:
            memory = self._runs[piece.run.group]
            pages = self._door.namespace(piece.run.group)
            piece.lease = memory.lease(pages, piece.run.names, deadline_ms=left_ms)
            whole = piece.lease.verify()
            piece.pages = whole // memory.shards.count
            if piece.pages < len(piece.run.names):
                piece.cause = "checksum" if whole < len(piece.lease) else piece.lease.miss
        except turnkv.Error as error:
            piece.cause, piece.pages = error.kind, 0

    def _copy(self, step: _Step) -> None:
        """The copier's task: layer after layer, then the leases' ends say whether what was read was valid."""
        try:
            for layer, ready in step.ready.items():
                if step.abandoned:
                    break
                for piece in step.pieces:
                    self._copy_layer(piece, layer)
                ready.set()
        except Exception:
            logger.exception("turnkv: copying a layer failed")
            step.abandoned = True
        for piece in step.pieces:
            self._finish(step, piece)
        for ready in step.ready.values():
            ready.set()

    def _copy_layer(self, piece: _Piece, layer: str) -> None:
        memory = self._runs[piece.run.group]
        if piece.lease is None or piece.pages == 0 or layer not in memory.layers:
            return
        try:
            where = memory.layer_addresses(layer, piece.run.blocks[: piece.pages])
            share = memory.layers[layer]
            piece.lease.copy_out(0, turnkv.Runs(where, share.lengths), offset=share.offset)
        except turnkv.Error as error:
            piece.cause, piece.pages = error.kind, 0

    def _finish(self, step: _Step, piece: _Piece) -> None:
        if step.abandoned and piece.pages:
            piece.cause, piece.pages = "deadline", 0
        if piece.lease is None:
            return
        try:
            piece.lease.finish()
        except turnkv.Error as error:
            piece.cause, piece.pages = error.kind, 0


def loaded_of(pieces: Sequence[Piece], seconds: float) -> Loaded:
    """What the loads of one request came to."""
    blocks = [(piece.run.group, block) for piece in pieces for block in piece.run.blocks]
    failed = [(piece.run.group, block) for piece in pieces for block in piece.run.blocks[piece.pages :]]
    cause = next((piece.cause for piece in pieces if piece.pages < len(piece.run.blocks)), None)
    return loaded(blocks, failed, cause or ("unavailable" if failed else None), seconds)

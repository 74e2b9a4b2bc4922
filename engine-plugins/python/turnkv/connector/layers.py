"""Loads that run beside the forward pass: leased and verified before it, copied layer by layer just ahead of it.

Owns: the leases of one step, one copying thread, which layers are in place. Must not know: engines, schedulers.

    begin: what may not be held is reloaded; the rest is leased and verified (a page that fails is told at once)
             |  the pool has no more to lease: what is held is copied whole and let go, what is missing is reloaded
             v
    copier: layer 0, 1, 2, ...  ->  finish the leases          wait(layer): in place, or copying gave up

Nothing waits long for the pool's memory while it holds some: two that do so wait for each other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import turnkv

from .door import Door
from .jobs import LoadJob, PageRun
from .loader import Loaded, loaded, part_of, pieces_of
from .room import LeaseRoom, divided
from .runs import BlockRuns

logger = logging.getLogger("turnkv.connector")

LEASE_BYTES_MAX = 64 << 20
"""What one lease covers."""
LEASE_SHARDS_MAX = 1024
"""The same in shards of pages: what a server gives."""
HOLDING_WAIT_PART = 4
"""One part in so many of a load's time is what a lease may wait for while others are held."""


class Piece(Protocol):
    """Part of a request's load, ended."""

    run: PageRun
    pages: int
    """Leading pages that are in place and may be trusted."""
    cause: str | None
    """Why not more."""


@dataclass(eq=False)
class _Piece:
    request: str
    run: PageRun
    lease: turnkv.Lease | None = None
    covered: int = 0
    """Leading pages that the lease is on."""
    pages: int = 0
    """Leading pages that verified and whose lease held."""
    cause: str | None = None


@dataclass
class _Step:
    """The loads of one forward pass."""

    begun: float
    deadline: float
    pieces: list[_Piece] = field(default_factory=list)
    ready: dict[str, threading.Event] = field(default_factory=dict)
    abandoned: bool = False
    hung: bool = False
    """The pool let a call's time pass without an answer: it is not asked again in this step."""
    copied: Future[None] | None = None

    def left_ms(self) -> int:
        """Until the deadline."""
        return int((self.deadline - time.monotonic()) * 1000)

    def by_request(self) -> dict[str, list[_Piece]]:
        """The pieces of each request, in order."""
        requests: dict[str, list[_Piece]] = {}
        for piece in self.pieces:
            requests.setdefault(piece.request, []).append(piece)
        return requests


class LayerLoader:
    """Loads of one worker, a step at a time. The engine's thread alone calls it. Needs a pool with shared memory."""

    def __init__(self, door: Door, runs: Mapping[int, BlockRuns], *, deadline_ms: int, threads: int) -> None:
        self._door, self._runs = door, runs
        self._deadline_ms = deadline_ms
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="turnkv-lease")
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="turnkv-layers")
        self._room = LeaseRoom()
        self._step: _Step | None = None

    def begin(self, jobs: list[LoadJob]) -> None:
        """Leases and verifies the pages that may be held, after all others are in place; then starts to copy. Returns when
        what can be loaded is known."""
        now = time.monotonic()
        step = _Step(now, now + self._deadline_ms / 1000)
        before, held = divided(jobs, self._runs, self._room.bytes_max(now))
        self._reload(step, before)
        self._lease_all(step, held)
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

    def _reload(self, step: _Step, runs: Iterable[tuple[str, PageRun]]) -> None:
        """Brings pages as a whole, a few at a time, none of which stays leased; returns when they are in place."""
        pieces = [
            _Piece(request, part)
            for request, run in runs
            for part in pieces_of(run, self._runs[run.group], self._runs[run.group].load_bytes_max)
        ]
        step.pieces.extend(pieces)
        for brought in [self._threads.submit(self._bring, step, piece) for piece in pieces]:
            brought.result()

    def _bring(self, step: _Step, piece: _Piece) -> None:
        """A task: reloads one piece."""
        left_ms, run = step.left_ms(), piece.run
        if left_ms <= 0:
            piece.cause = "deadline"
            return
        try:
            pages = self._door.namespace(run.group)
            report = self._runs[run.group].reload(pages, run.names, run.blocks, deadline_ms=left_ms)
            piece.pages, piece.cause = report.pages, report.miss
        except turnkv.Error as error:
            piece.cause = error.kind

    def _lease_all(self, step: _Step, runs: Sequence[tuple[str, PageRun]]) -> None:
        """Leases and verifies pages, until all are held or the pool has no more to give."""
        pieces = [
            _Piece(request, part)
            for request, run in runs
            for part in pieces_of(run, self._runs[run.group], _lease_bytes(self._runs[run.group]))
        ]
        verified: list[Future[None]] = []
        missing: list[tuple[str, PageRun]] = []
        lost = {piece.request: piece.cause for piece in step.pieces if piece.pages < len(piece.run.names)}
        for at, piece in enumerate(pieces):
            step.pieces.append(piece)
            if piece.request in lost:
                piece.cause = lost[piece.request]  # pages behind a missing one are of no use
                continue
            self._lease(step, piece, holding=bool(verified))
            if piece.cause == "busy":
                missing = [(rest.request, rest.run) for rest in [_cut(piece), *pieces[at + 1 :]]]
            elif piece.covered < len(piece.run.names):
                lost[piece.request] = piece.cause
            if piece.lease is not None:
                verified.append(self._threads.submit(self._verify, piece))
            if missing:
                break
        for checked in verified:
            checked.result()
        if missing:
            self._let_go(step, [piece for piece in step.pieces if piece.lease is not None])
            self._reload(step, missing)

    def _let_go(self, step: _Step, held: list[_Piece]) -> None:
        """The pool has no more to lease: what is held is copied at once, and so leaves room for the rest."""
        held_bytes = sum(piece.covered * self._runs[piece.run.group].page_bytes for piece in held)
        self._room.came_short(held_bytes, time.monotonic())
        for piece in held:
            self._copy_whole(step, piece)

    def _lease(self, step: _Step, piece: _Piece, *, holding: bool) -> None:
        """Leases a piece, or as much of it as the pool has room for (cause "busy")."""
        left_ms, memory = step.left_ms(), self._runs[piece.run.group]
        if holding:
            left_ms = min(left_ms, self._deadline_ms // HOLDING_WAIT_PART)
        if left_ms <= 0 or step.hung:
            piece.cause = "deadline"
            return
        try:
            lease = memory.lease(self._door.namespace(piece.run.group), piece.run.names, deadline_ms=left_ms)
        except turnkv.Error as error:
            piece.cause, step.hung = error.kind, error.kind == "deadline"
            return
        piece.cause, piece.covered = lease.miss, len(lease) // memory.shards.count
        if piece.covered:
            piece.lease = lease

    def _verify(self, piece: _Piece) -> None:
        """A task: checks a piece's bytes where they lie."""
        lease, memory = piece.lease, self._runs[piece.run.group]
        if lease is None:
            return
        try:
            whole = lease.verify()
        except turnkv.Error as error:
            piece.cause = error.kind
            return
        piece.pages = whole // memory.shards.count
        if whole < len(lease):
            piece.cause = "checksum"

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

    def _copy_whole(self, step: _Step, piece: _Piece) -> None:
        """Copies all layers of a piece now, and lets go of it."""
        memory = self._runs[piece.run.group]
        try:
            if piece.lease is not None and piece.pages:
                where = memory.addresses(piece.run.blocks[: piece.pages])
                piece.lease.copy_out(0, turnkv.Runs(where, memory.lengths))
        except turnkv.Error as error:
            piece.cause, piece.pages = error.kind, 0
        self._finish(step, piece)

    def _finish(self, step: _Step, piece: _Piece) -> None:
        if piece.lease is None:
            return
        if step.abandoned and piece.pages:
            piece.cause, piece.pages = "deadline", 0
        lease, piece.lease = piece.lease, None
        try:
            lease.finish()
        except turnkv.Error as error:
            piece.cause, piece.pages = error.kind, 0
            self._room.came_short(0, time.monotonic())


def _lease_bytes(memory: BlockRuns) -> int:
    """Of the largest lease on pages like these."""
    return min(LEASE_BYTES_MAX, LEASE_SHARDS_MAX * memory.shard_bytes)


def _cut(piece: _Piece) -> _Piece:
    """Leaves a piece what its lease covers; what it lacks."""
    whole, piece.run = piece.run, part_of(piece.run, 0, piece.covered)
    return _Piece(piece.request, part_of(whole, piece.covered, len(whole.names)))


def loaded_of(pieces: Sequence[Piece], seconds: float) -> Loaded:
    """What the loads of one request came to."""
    blocks = [(piece.run.group, block) for piece in pieces for block in piece.run.blocks]
    failed = [(piece.run.group, block) for piece in pieces for block in piece.run.blocks[piece.pages :]]
    cause = next((piece.cause for piece in pieces if piece.pages < len(piece.run.blocks)), None)
    return loaded(blocks, failed, cause or ("unavailable" if failed else None), seconds)

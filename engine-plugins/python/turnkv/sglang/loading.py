"""One request's pages on their way into device memory: held and verified first, then copied layer by layer.

A load that SGLang has started cannot be taken back: when it fails, the request is aborted. So nothing is promised
before every page is under a lease and has been verified; what is left after that is copying.
Owns: leases of a load. Must not know: requests, the scheduler, parents.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy
import torch

import turnkv

from .chain import cut, pages_in
from .door import Counts, Door
from .runs import DeviceRuns

T = TypeVar("T")

WINDOW_BYTES = 64 << 20
"""What one lease covers at most."""
WINDOW_PAGES = 2048
PIECE_BYTES_MIN = 4 << 20
"""Copies of a layer are split between threads only into pieces of at least this size."""


@dataclass
class DevicePages:
    """One of SGLang's device pools and its pages in the pool."""

    name: str
    door: Door
    """For transfers."""
    lookups: Door
    """For the scheduler thread: calls end soon, served or not."""
    runs: DeviceRuns
    shard: int
    device: turnkv.Device | None = None
    """Of memory that the CPU does not reach."""
    stream: Callable[[], int | None] = lambda: None
    """What the engine computes on just now: pages come after all that it was given."""

    def offload(self, space: turnkv.Namespace, hashes: bytes, indices: torch.Tensor, **settings: Any) -> turnkv.OffloadReport:
        """Stores the pages at these indices. Raises turnkv.Error."""
        source = turnkv.Runs(self.runs.addresses(indices), self.runs.lengths)
        if self.device is None:
            return space.offload(hashes, source, shard=self.shard, **settings)
        placed = turnkv.OnDevice(self.device, source, keep=self.runs)
        return space.offload(hashes, placed, shard=self.shard, **settings)

    def reload(self, space: turnkv.Namespace, hashes: bytes, indices: torch.Tensor, **settings: Any) -> turnkv.ReloadReport:
        """Fills the pages at these indices, verified, with the leading ones that are there. Raises turnkv.Error."""
        target = turnkv.Runs(self.runs.addresses(indices), self.runs.lengths)
        if self.device is None:
            return space.reload(hashes, target, shard=self.shard, **settings)
        placed = turnkv.OnDevice(self.device, target, stream=self.stream(), keep=self.runs)
        return space.reload(hashes, placed, shard=self.shard, **settings).result()

    @property
    def shard_bytes(self) -> int:
        """Bytes of a page of this rank."""
        return sum(self.runs.lengths)


@dataclass
class Wanted:
    """Pages of one pool and the device indices they go to."""

    pages: DevicePages
    hashes: bytes
    """Packed."""
    indices: torch.Tensor


@dataclass
class _Held:
    """Consecutive pages under one lease, verified; `rows` are their places in device memory."""

    pages: DevicePages
    lease: turnkv.Lease
    rows: numpy.ndarray


class Load:
    """Pages of one request, ready to be copied; empty when all of them are in place already."""

    def __init__(self, held: list[_Held]) -> None:
        self._held = held

    def copy_layer(self, layer: int, threads: ThreadPoolExecutor) -> None:
        """Brings what `layer` needs; several pieces at once where that pays."""
        copies = [copy for held in self._held for copy in _copies(held, layer)]
        if sum(size for size, _ in copies) < 2 * PIECE_BYTES_MIN:
            for _, copy in copies:
                copy()
            return
        _results([threads.submit(copy) for _, copy in copies])

    def finish(self) -> None:
        """Ends the leases. Raises turnkv.Error if one was over before: what was copied may be anything."""
        held, self._held = self._held, []
        error = None
        for piece in held:
            try:
                piece.lease.finish()
            except turnkv.Error as expired:
                error = expired
        if error is not None:
            raise error

    def cancel(self) -> None:
        """Lets go of the pages, copied or not."""
        with contextlib.suppress(turnkv.Error):  # its time was over already: nothing is held
            self.finish()


def hold(wanted: Sequence[Wanted], load_ms: int, threads: ThreadPoolExecutor, counts: Counts) -> Load | None:
    """Leases and verifies all pages, or copies them at once where they cannot be leased; None: some did not come.

    Into a device's memory they are copied at once, too: they are verified where they land, and a load that was promised
    cannot be taken back.
    """
    deadline = time.monotonic() + load_ms / 1e3
    windows = [window for want in wanted for window in _windows(want)]

    def copied() -> Load | None:
        return Load([]) if all(_results([threads.submit(_copy_window, each, deadline, counts) for each in windows])) else None

    if any(want.pages.device is not None for want in wanted):
        return copied()
    results = _results([threads.submit(_hold_window, window, deadline, counts) for window in windows])
    held = [piece for pieces, _ in results for piece in pieces]
    failures = {failure for _, failure in results if failure is not None}
    if not failures:
        return Load(held)
    Load(held).cancel()
    if "missing" in failures:
        return None
    # An inline pool leases nothing, and one with less memory than this load cannot lease all of it at once.
    return copied()


def _results(begun: Sequence[Future[T]]) -> list[T]:
    """What came of each, when all have ended: after one of them raised, the others still write to the pages' memory."""
    wait(begun)
    return [each.result() for each in begun]


def _windows(want: Wanted) -> list[Wanted]:
    """Parts that one lease can cover."""
    each = max(1, min(WINDOW_PAGES, WINDOW_BYTES // want.pages.shard_bytes))
    slots = want.pages.runs.page_slots
    return [
        Wanted(want.pages, cut(want.hashes, at, at + each), want.indices[at * slots : (at + each) * slots])
        for at in range(0, pages_in(want.hashes), each)
    ]


def _hold_window(want: Wanted, deadline: float, counts: Counts) -> tuple[list[_Held], str | None]:
    """Leases one window. With why not all of it is held: missing (a page is not there), or unleased."""
    held: list[_Held] = []
    rows, at, asked = want.pages.runs.rows(want.indices), 0, pages_in(want.hashes)
    while at < asked:
        left_ms = int((deadline - time.monotonic()) * 1e3)
        if left_ms <= 0:
            counts.add("load_late")
            return held, "missing"
        rest = cut(want.hashes, at, asked)
        refused = False

        def lease(space: turnkv.Namespace, rest: bytes = rest, left_ms: int = left_ms) -> turnkv.Lease | None:
            nonlocal refused
            try:
                return space.lease(rest, shard=want.pages.shard, deadline_ms=left_ms)
            except turnkv.Error as error:
                if error.kind != "invalid":
                    raise
                refused = True
                return None

        got = want.pages.door.call(lease, None)
        if got is None:
            return held, "unleased" if refused else "missing"
        pages = len(got)
        held.append(_Held(want.pages, got, rows[at : at + pages]))
        if got.verify() < pages:
            counts.add("miss:checksum")
            return held, "missing"
        if pages == 0 or (pages < asked - at and got.miss is not None):
            counts.add(f"miss:{got.miss}")
            return held, "unleased" if got.miss in ("busy", None) else "missing"
        at += pages
    return held, None


def _copy_window(want: Wanted, deadline: float, counts: Counts) -> bool:
    """Reloads one window straight into device memory, verified; whether all of it came."""
    left_ms = int((deadline - time.monotonic()) * 1e3)
    if left_ms <= 0:
        counts.add("load_late")
        return False
    report = want.pages.door.call(lambda space: want.pages.reload(space, want.hashes, want.indices, deadline_ms=left_ms), None)
    if report is not None and report.miss is not None:
        counts.add(f"miss:{report.miss}")
    return report is not None and report.pages == pages_in(want.hashes)


def _copies(held: _Held, layer: int) -> list[tuple[int, Callable[[], None]]]:
    """The copies that one layer of leased pages takes, with their bytes: each as large as is worth a thread."""
    copies: list[tuple[int, Callable[[], None]]] = []
    for offset, targets, length in held.pages.runs.layer(held.rows, layer):
        each = max(1, -(-PIECE_BYTES_MIN // length))
        for first in range(0, len(targets), each):
            part = turnkv.Runs(targets[first : first + each], [length])
            bytes_ = (min(first + each, len(targets)) - first) * length
            copies.append((bytes_, functools.partial(held.lease.copy_out, first, part, offset)))
    return copies

"""Loads of one worker: pages go straight into the engine's blocks while the engine does other work.

Owns: splitting a load among threads, its deadline, which blocks did not come. Must not know: engines, schedulers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import turnkv

from .door import Door
from .jobs import LoadJob, PageRun
from .outcomes import LoadOutcome
from .runs import BlockRuns

logger = logging.getLogger("turnkv.connector")


@dataclass
class Loaded:
    """One request's load, ended."""

    outcome: LoadOutcome
    failed: list[tuple[int, int]]
    """(group, block) that do not hold what they should."""


@dataclass
class _Load:
    begun: float
    deadline: float
    open_pieces: int
    blocks: list[tuple[int, int]] = field(default_factory=list)
    cause: str | None = None
    failed: list[tuple[int, int]] = field(default_factory=list)


class Loader:
    """Reloads pages from threads of its own; every load is told as ended, by its deadline, whatever happens."""

    def __init__(
        self,
        door: Door,
        runs: Mapping[int, BlockRuns],
        *,
        deadline_ms: int,
        threads: int,
    ) -> None:
        self._door, self._runs = door, runs
        self._deadline_seconds = deadline_ms / 1000
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="turnkv-load")
        self._state = threading.Condition()
        self._loads: dict[str, _Load] = {}
        self._finished: dict[str, Loaded] = {}

    def start(self, job: LoadJob) -> None:
        """Begins a load; returns at once."""
        pieces = [
            piece for run in job.runs for piece in pieces_of(run, self._runs[run.group], self._runs[run.group].load_bytes_max)
        ]
        now = time.monotonic()
        blocks = [(run.group, block) for run in job.runs for block in run.blocks]
        load = _Load(now, now + self._deadline_seconds, len(pieces), blocks)
        with self._state:
            if not pieces:
                self._finished[job.request] = _loaded(load)
                return
            self._loads[job.request] = load
        for piece in pieces:
            self._threads.submit(self._reload, job.request, load, piece)

    def take_finished(self) -> dict[str, Loaded]:
        """Loads that ended since the last call."""
        with self._state:
            finished, self._finished = self._finished, {}
        return finished

    def wait(self, request: str) -> Loaded:
        """Waits for one load, for engines that need it before they go on. Bounded by its deadline."""
        with self._state:
            self._state.wait_for(lambda: request in self._finished)
            return self._finished.pop(request)

    def close(self, seconds: float) -> None:
        """Waits for loads under way, but no longer than this."""
        with self._state:
            self._state.wait_for(lambda: not self._loads, seconds)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _reload(self, request: str, load: _Load, run: PageRun) -> None:
        """A task: one piece."""
        pages = 0
        cause: str | None = "internal"
        try:
            pages, cause = self._fetch(load, run)
        except Exception:
            # Whatever it is, a request waits for this load: it must be told.
            logger.exception("turnkv: loading a page failed")
        with self._state:
            load.failed.extend((run.group, block) for block in run.blocks[pages:])
            if pages < len(run.blocks):
                load.cause = load.cause or cause
            load.open_pieces -= 1
            if load.open_pieces == 0:
                del self._loads[request]
                self._finished[request] = _loaded(load)
                self._state.notify_all()

    def _fetch(self, load: _Load, run: PageRun) -> tuple[int, str | None]:
        """Leading pages that came, and why the others did not."""
        left_ms = int((load.deadline - time.monotonic()) * 1000)
        if left_ms <= 0:
            return 0, "deadline"
        try:
            report = self._runs[run.group].reload(self._door.namespace(run.group), run.names, run.blocks, deadline_ms=left_ms)
        except turnkv.Error as error:
            return 0, error.kind
        return report.pages, report.miss


def pieces_of(run: PageRun, memory: BlockRuns, bytes_max: int) -> list[PageRun]:
    """The run in pieces of so many bytes. Each is a call of its own: names alone find pages."""
    step = max(1, bytes_max // memory.page_bytes)
    return [part_of(run, at, at + step) for at in range(0, len(run.names), step)]


def part_of(run: PageRun, first: int, end: int) -> PageRun:
    """Pages `first` to `end` of a run that is to be loaded."""
    return PageRun(run.group, run.first + first, run.names[first:end], run.blocks[first:end])


def _loaded(load: _Load) -> Loaded:
    return loaded(load.blocks, load.failed, load.cause, time.monotonic() - load.begun)


def loaded(blocks: list[tuple[int, int]], failed: list[tuple[int, int]], cause: str | None, seconds: float) -> Loaded:
    """What a load of these blocks came to. Pages after the first failed one are of no use: they do not count."""
    missing = set(failed)
    leading = next((at for at, block in enumerate(blocks) if block in missing), len(blocks))
    return Loaded(LoadOutcome(leading, len(failed), cause, seconds), failed)

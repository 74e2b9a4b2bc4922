"""Saves of one worker: pages leave the engine's blocks while requests run, and the rest when a request is over.

Owns: the order of a request's pages, which blocks are still being read, giving up. Must not know: engines, schedulers.

    request:  idle -> queued -> sending -> idle ... -> finishing -> finished (told once)
                                   |  declined, error, deadline
                                   +-> broken: what follows waits for the finish, which sends the whole chain once more

A request has at most one task among the threads, so queues are bounded by the requests an engine runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import turnkv

from .door import Door
from .jobs import FinishJob, PageRun, SaveJob
from .outcomes import SaveOutcome
from .runs import BlockRuns

logger = logging.getLogger("turnkv.connector")

CALL_BYTES_MAX = 32 << 20
"""Of one offload: small enough to end soon after its deadline, large enough that a call's cost does not show."""
RETRY_SECONDS = 0.02
"""Before a finishing request asks again for pages that another writer is storing just now."""


@dataclass
class _Saves:
    """One request's saves."""

    session: str | None
    queue: deque[PageRun] = field(default_factory=deque)
    sending: PageRun | None = None
    has_task: bool = False
    broken: bool = False
    finish: FinishJob | None = None
    resent: bool = False
    deadline: float | None = None
    """Of the finish."""
    pages: int = 0
    """Leading pages of the first group that the pool has."""
    outcome: SaveOutcome = field(default_factory=lambda: SaveOutcome(0, 0, 0, 0, None))


class Saver:
    """Sends pages to the pool from threads of its own. The engine's thread calls everything here, and waits only in
    `settle`, no longer than one deadline."""

    def __init__(
        self,
        door: Door,
        runs: Mapping[int, BlockRuns],
        *,
        deadline_ms: int,
        durable: bool,
        threads: int,
    ) -> None:
        self._door, self._runs = door, runs
        self._deadline_ms, self._durable = deadline_ms, durable
        self._primary = next(iter(door.groups))
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="turnkv-save")
        self._state = threading.Condition()
        self._requests: dict[str, _Saves] = {}
        self._reading: Counter[int] = Counter()
        """Blocks by id alone: the groups of an engine take theirs from one pool, and lie in the same memory."""
        self._finished: dict[str, SaveOutcome] = {}

    def add(self, job: SaveJob) -> None:
        """Pages whose bytes are final now."""
        with self._state:
            saves = self._of(job.request, job.session)
            if saves.broken:
                return
            self._queue(job.request, saves, job.runs)

    def finish(self, job: FinishJob) -> None:
        """Nothing more will come of this request: send the rest, then tell."""
        with self._state:
            saves = self._of(job.request, job.session)
            saves.finish = job
            saves.deadline = time.monotonic() + self._deadline_ms / 1000
            if saves.broken and not saves.resent and not saves.has_task:
                self._resend(job.request, saves, job)
            elif not saves.has_task:
                self._end(job.request, saves)

    def abandon(self) -> None:
        """What is queued or to come of the requests so far must not reach the pool; waits for what is under way."""
        with self._state:
            for saves in self._requests.values():
                self._clear(saves)
                saves.broken = saves.resent = True
            self._state.wait_for(lambda: not self._reading)

    def settle(self, blocks: Iterable[int]) -> float:
        """Waits until none of these blocks is being read any more, for whichever group: they are about to be overwritten.

        Returns the seconds it took. What has not begun is not sent; a call under way ends at its deadline.
        """
        lost = {block for block in blocks if block in self._reading} if self._reading else set()
        if not lost:
            return 0.0
        begun = time.monotonic()
        with self._state:
            for saves in self._requests.values():
                self._lose(saves, lost)
            self._state.wait_for(lambda: not any(block in self._reading for block in lost))
        return time.monotonic() - begun

    def take_finished(self) -> dict[str, SaveOutcome]:
        """Requests that are saved, or given up, since the last call."""
        now = time.monotonic()
        with self._state:
            for request, saves in list(self._requests.items()):
                if saves.deadline is not None and now > saves.deadline and saves.queue:
                    self._decline(saves, sum(len(run.names) for run in saves.queue), "deadline")
                    self._clear(saves)
                    if not saves.has_task:
                        self._end(request, saves)
            finished, self._finished = self._finished, {}
        return finished

    def close(self, seconds: float) -> None:
        """Lets what is being sent end, but waits no longer than this."""
        with self._state:
            for saves in self._requests.values():
                saves.deadline = min(saves.deadline or float("inf"), time.monotonic() + seconds)
            self._state.wait_for(lambda: not self._reading, seconds)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _of(self, request: str, session: str | None) -> _Saves:
        return self._requests.setdefault(request, _Saves(session))

    def _queue(self, request: str, saves: _Saves, runs: list[PageRun]) -> None:
        runs = [part for run in runs for part in self._sent_alone(run)]
        saves.queue.extend(runs)
        for run in runs:
            self._reading.update(run.blocks)
        if not saves.has_task:
            saves.has_task = True
            self._threads.submit(self._send_all, request, saves)

    def _resend(self, request: str, saves: _Saves, job: FinishJob) -> None:
        """The chain broke somewhere: sends it whole, once. What counts is what this comes to."""
        saves.broken, saves.resent = False, True
        stored = saves.outcome.stored
        # Pages that this request stored itself will be found present: they are not counted a second time.
        saves.outcome = SaveOutcome(0, stored, -stored, 0, None)
        self._queue(request, saves, job.runs)

    def _sent_alone(self, run: PageRun) -> list[PageRun]:
        """What can be sent, or lost, without the rest: pages of a window one by one, of a chain all together."""
        if self._door.groups[run.group].window_blocks is None:
            return [run]
        return [
            PageRun(run.group, run.first + at, run.names[at : at + 1], run.blocks[at : at + 1]) for at in range(len(run.names))
        ]

    def _lose(self, saves: _Saves, lost: set[int]) -> None:
        """These blocks are about to be overwritten. What hangs on them in a chain cannot follow; a window's page stands alone."""
        runs = [*saves.queue, *([saves.sending] if saves.sending else [])]
        hit = [run for run in runs if not lost.isdisjoint(run.blocks)]
        if any(self._door.groups[run.group].window_blocks is None for run in hit):
            self._clear(saves)
            saves.broken = True
            return
        for run in hit:
            if run is not saves.sending:
                saves.queue.remove(run)
                self._release(run)

    def _clear(self, saves: _Saves) -> None:
        while saves.queue:
            self._release(saves.queue.popleft())

    def _release(self, run: PageRun) -> None:
        for block in run.blocks:
            if self._reading[block] > 1:
                self._reading[block] -= 1
            else:
                del self._reading[block]
        self._state.notify_all()

    def _end(self, request: str, saves: _Saves) -> None:
        saves.outcome.pages = saves.pages
        saves.outcome.present = max(0, saves.outcome.present)
        self._finished[request] = saves.outcome
        self._requests.pop(request, None)
        self._state.notify_all()

    def _decline(self, saves: _Saves, pages: int, cause: str) -> None:
        saves.outcome.declined += pages
        saves.outcome.cause = saves.outcome.cause or cause

    def _send_all(self, request: str, saves: _Saves) -> None:
        """A task: sends what is queued until nothing is."""
        while True:
            with self._state:
                if not saves.queue and not self._again(request, saves):
                    return
                run = saves.sending = saves.queue.popleft()
            try:
                cause = self._send(saves, run)
            except Exception:
                # Whatever it is, the engine waits for this request's blocks: they must come free.
                logger.exception("turnkv: saving a page failed")
                cause = "internal"
                self._decline(saves, len(run.names), cause)
            with self._state:
                saves.sending = None
                self._release(run)
                if cause is not None:
                    saves.broken = True
                    self._clear(saves)

    def _again(self, request: str, saves: _Saves) -> bool:
        """Nothing is queued: whether there is more to send all the same. Ends the request if it is over."""
        if saves.finish is not None and saves.broken and not saves.resent:
            self._resend(request, saves, saves.finish)
            if saves.queue:
                return True
        saves.has_task = False
        if saves.finish is not None:
            self._end(request, saves)
        return False

    def _send(self, saves: _Saves, run: PageRun) -> str | None:
        """One run of pages. Returns why the rest of the chain cannot follow, None when all is well."""
        window = self._door.groups[run.group].window_blocks is not None
        step = max(1, CALL_BYTES_MAX // self._runs[run.group].page_bytes)
        first = 0
        while first < len(run.names) and not saves.broken:
            end = min(first + step, len(run.names))
            parent = run.names[first - 1] if first else run.parent
            kept, cause = self._offload(saves, run, first, end, parent)
            first += kept
            if cause == "in_flight" and saves.finish is not None and self._left_ms(saves) > RETRY_SECONDS * 1000:
                time.sleep(RETRY_SECONDS)
            elif cause is not None and window:
                return None  # nothing hangs on it
            elif cause is not None:
                self._decline(saves, len(run.names) - first, cause)
                return cause
        return None

    def _offload(self, saves: _Saves, run: PageRun, first: int, end: int, parent: bytes | None) -> tuple[int, str | None]:
        """One call: how many leading pages the pool has now, and why not the others."""
        left_ms, memory = self._left_ms(saves), self._runs[run.group]
        if left_ms <= 0:
            return 0, "deadline"
        try:
            report = memory.offload(
                self._door.namespace(run.group),
                run.names[first:end],
                run.blocks[first:end],
                session=saves.session if run.group == self._primary else None,
                parent=parent,
                durable=self._durable and saves.finish is not None,
                deadline_ms=left_ms,
            )
        except turnkv.Error as error:
            return 0, error.kind
        saves.outcome.stored += report.stored
        saves.outcome.present += report.present
        saves.outcome.not_durable = report.not_durable or saves.outcome.not_durable
        kept = report.stored + report.present
        if kept and run.group == self._primary:
            # The pool is prefix-closed: what it took has all its ancestors there.
            saves.pages = max(saves.pages, run.first + first + kept)
        return kept, report.first_decline if report.declined else None

    def _left_ms(self, saves: _Saves) -> int:
        if saves.deadline is None:
            return self._deadline_ms
        return int((saves.deadline - time.monotonic()) * 1000)

"""How much of one step's loads may stay leased until their last layer is copied.

Owns: that bound, learned from the pool's answers; which pages it covers. Must not know: how pages are leased or copied.

A pool gives one client a share of its DRAM under leases. Whoever waits for more while it holds all of that waits for itself: so
what is held is bounded, and what goes beyond is brought before anything is held, a piece at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .jobs import LoadJob, PageRun
from .loader import part_of
from .runs import BlockRuns

LOWERED_SECONDS = 60.0
"""How long the bound stays down once the pool had no more to give."""


class LeaseRoom:
    """Unbounded until the pool came short, then half of what it had given, for a while. Seconds of any one clock."""

    def __init__(self) -> None:
        self._bytes, self._until = 0, float("-inf")

    def bytes_max(self, now: float) -> int | None:
        """What may be held; None: whatever the pool gives."""
        return self._bytes if now < self._until else None

    def came_short(self, held_bytes: int, now: float) -> None:
        """The pool gave no more than this, or did not let it be held for long enough."""
        self._bytes, self._until = held_bytes // 2, now + LOWERED_SECONDS


def divided(
    jobs: Sequence[LoadJob], runs: Mapping[int, BlockRuns], bytes_max: int | None
) -> tuple[list[tuple[str, PageRun]], list[tuple[str, PageRun]]]:
    """(request, pages) to bring before anything is held, and those to hold: the last ones, as many as may be."""
    before: list[tuple[str, PageRun]] = []
    held: list[tuple[str, PageRun]] = []
    left = bytes_max
    for request, run in reversed([(job.request, run) for job in jobs for run in job.runs]):
        pages = len(run.names)
        if left is not None:
            page_bytes = runs[run.group].page_bytes
            pages = min(pages, left // page_bytes)
            left = left - pages * page_bytes if pages == len(run.names) else 0
        first = len(run.names) - pages
        if pages:
            held.append((request, part_of(run, first, len(run.names))))
        if first:
            before.append((request, part_of(run, 0, first)))
    return before[::-1], held[::-1]

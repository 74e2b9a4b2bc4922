"""The way to one namespace that never raises: what the pool cannot do becomes a miss, counted by cause.

Owns: failing open, counts. Must not know: SGLang, page layouts.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import turnkv
from turnkv import _door
from turnkv.checkpoint import name_of

logger = logging.getLogger("turnkv.sglang")
T = TypeVar("T")


class Counts:
    """What became of pages and calls; any thread may add."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, number: int = 1) -> None:
        """Adds to one count; 0 leaves no trace."""
        if number:
            with self._lock:
                self._counts[name] += number

    def get(self) -> dict[str, int]:
        """All that is not zero."""
        with self._lock:
            return dict(self._counts)


class Door:
    """One namespace of one pool."""

    def __init__(self, pool: turnkv.Pool, namespace: dict[str, Any], counts: Counts) -> None:
        self._door, self._counts = _door.Door(pool, namespace), counts
        self._sick = False

    @property
    def spec(self) -> dict[str, Any]:
        """What the namespace is opened with. Raises turnkv.Error while the weights have no name."""
        return self._door.spec | {"model": name_of(self._door.spec["model"])}

    def open(self, tries: int = 1) -> bool:
        """Connects ahead of the first use, so that no request pays for it. False: not now, a later call tries again."""
        return any(self.call(lambda _: True, False) for _ in range(tries))

    def call(self, work: Callable[[turnkv.Namespace], T], otherwise: T) -> T:
        """What `work` says of the open namespace; `otherwise` when the pool cannot serve."""
        try:
            answer = self._door.call(work)
        except turnkv.Error as error:
            self._fail(error)
            return otherwise
        if self._sick:
            self._sick = False
            logger.info("turnkv: the pool answers again")
        return answer

    def _fail(self, error: turnkv.Error) -> None:
        """Counts every failure, says the first of a row."""
        self._counts.add(f"error:{error.kind}")
        if not self._sick:
            self._sick = True
            logger.warning("turnkv: the pool cannot serve, SGLang goes on without it: %s (%s)", error, error.kind)


def count_offload(counts: Counts, report: turnkv.OffloadReport) -> None:
    """Adds an offload's pages by what became of them."""
    counts.add("pages_stored", report.stored)
    counts.add("pages_present", report.present)
    counts.add("pages_declined", report.declined)
    if report.declined:
        counts.add(f"declined:{report.first_decline}", report.declined)
    if report.not_durable is not None:
        counts.add(f"not_durable:{report.not_durable}", report.stored + report.present)

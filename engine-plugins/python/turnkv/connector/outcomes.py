"""What saves and loads came to: told by each rank, trusted when all have told.

Owns: merging ranks' reports; a page missing on one rank is missing for all. Must not know: engines, pools, metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(slots=True)
class SaveOutcome:
    """One request's pages of the first group, on one rank or on all of them."""

    pages: int
    """Leading pages that the pool has."""
    stored: int
    """Of all groups: stored now."""
    present: int
    """There before."""
    declined: int
    """Not taken."""
    cause: str | None
    """Why, the first time."""
    not_durable: str | None = None
    """Why what was to be durable is not, the last time."""
    ranks: int = 1

    def merge(self, other: SaveOutcome) -> SaveOutcome:
        """Both together: what is in the pool is what every rank has put there."""
        return SaveOutcome(
            min(self.pages, other.pages),
            min(self.stored, other.stored),
            min(self.present, other.present),
            max(self.declined, other.declined),
            self.cause or other.cause,
            self.not_durable or other.not_durable,
            self.ranks + other.ranks,
        )


@dataclass(slots=True)
class LoadOutcome:
    """One request's load, on one rank or on all of them."""

    pages: int
    """Loaded and verified before the first that failed."""
    failed: int
    """Pages that did not come."""
    cause: str | None
    seconds: float
    ranks: int = 1

    def merge(self, other: LoadOutcome) -> LoadOutcome:
        """Both together: the shortest and the slowest."""
        return LoadOutcome(
            min(self.pages, other.pages),
            max(self.failed, other.failed),
            self.cause or other.cause,
            max(self.seconds, other.seconds),
            self.ranks + other.ranks,
        )


T = TypeVar("T", SaveOutcome, LoadOutcome)


class Outcomes(Generic[T]):
    """Reports that wait for the other ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._partial: dict[str, T] = {}

    def add(self, request: str, outcome: T) -> T | None:
        """Takes a report; returns the whole once every rank has told."""
        known = self._partial.pop(request, None)
        merged = outcome if known is None else known.merge(outcome)
        if merged.ranks >= self.ranks:
            return merged
        self._partial[request] = merged
        return None

    def forget(self, request: str) -> None:
        """The request is gone."""
        self._partial.pop(request, None)


def merged(one: dict[str, T], other: dict[str, T]) -> dict[str, T]:
    """Reports of two ranks from the same step."""
    both = dict(one)
    for request, outcome in other.items():
        both[request] = both[request].merge(outcome) if request in both else outcome
    return both

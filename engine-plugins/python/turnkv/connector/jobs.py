"""What the scheduler side asks of the worker sides, step by step. These objects are pickled to other processes.

Owns: the words of that talk. Must not know: pools, tensors, any engine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PageRun:
    """Consecutive pages of one group and the engine's blocks that hold them.

    Blocks that the engine does not keep (out of a sliding window) are left out at the beginning; a run has no gaps.
    """

    group: int
    first: int
    """Index of the first block in the request."""
    names: list[bytes]
    blocks: list[int]
    parent: bytes | None = None
    """Name of the page before the first; None at the root and for groups with a window, whose pages stand alone."""


@dataclass(slots=True)
class LoadJob:
    """Pages to fill a request's blocks with, before it runs."""

    request: str
    runs: list[PageRun]
    tokens: int
    """What they stand for."""


@dataclass(slots=True)
class SaveJob:
    """Pages that this step fills."""

    request: str
    session: str | None
    runs: list[PageRun]


@dataclass(slots=True)
class FinishJob:
    """A request is over: all that it has computed, so that a worker whose chain broke can send it from the root.

    The engine holds the blocks until every worker has reported the request as saved.
    """

    request: str
    session: str | None
    runs: list[PageRun]

"""What rank 0's scheduler asks of the workers in a step. TensorRT-LLM broadcasts it, so it is pickled.

Owns: the words of that talk. Must not know: pools, tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from turnkv.connector import SaveJob


@dataclass(slots=True)
class Placing:
    """Fetched pages that go into blocks before the step's forward pass."""

    ticket: int
    """Of the fetch."""
    blocks: list[int]
    """As many as were promised; a rank may have fetched more."""


@dataclass
class StepMeta:
    """One step."""

    placings: list[Placing] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    """Pages that hold their final bytes once this step has run."""
    reused: list[int] = field(default_factory=list)
    """Blocks that are given to requests in this step: about to be overwritten."""
    gone: list[int] = field(default_factory=list)
    """Requests that ended without a word."""

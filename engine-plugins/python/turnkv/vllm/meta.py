"""What vLLM carries between the two sides of the connector, each step.

Owns: the types that vLLM wants for that. Must not know: what either side does with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from turnkv.connector import FinishJob, LoadJob, LoadOutcome, SaveJob, SaveOutcome
from turnkv.connector.outcomes import merged


@dataclass
class StepMeta(KVConnectorMetadata):
    """Scheduler to workers: one step."""

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    finishes: list[FinishJob] = field(default_factory=list)
    reused: list[int] = field(default_factory=list)
    """Blocks given to requests in this step: about to be overwritten. Whose group's does not matter: a block that one group lets
    go is the next one's in the same step, and is the same memory."""
    trusted: list[str] = field(default_factory=list)
    """Requests whose failed load the scheduler knows of by now: what they compute from here on is right."""
    forward: bool = False
    """The model runs in this step."""
    forwards: int = 0
    """Steps before this one in which the model ran: a worker that ended fewer lost one half-way."""
    epoch: bytes = b""
    """Changes when everything stored so far has become worthless: workers begin anew before anything else."""


@dataclass
class WorkerMeta(KVConnectorWorkerMetadata):
    """Workers to scheduler: what ended in a step."""

    loads: dict[str, LoadOutcome] = field(default_factory=dict)
    saves: dict[str, SaveOutcome] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMeta:
        """Two ranks' reports of the same step."""
        assert isinstance(other, WorkerMeta)
        return WorkerMeta(merged(self.loads, other.loads), merged(self.saves, other.saves))


@dataclass
class PageBytes(KVConnectorHandshakeMetadata):
    """A worker to the scheduler, once: what it knows of itself."""

    shard_bytes: dict[int, int]
    """Bytes of a shard of each group's pages as they lie in its memory."""
    uncut: frozenset[int] = frozenset()
    """Groups whose heads its memory does not tell apart."""
    unfit: str | None = None
    """Why pages must be neither stored nor loaded."""

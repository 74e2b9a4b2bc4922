"""Stand-ins for the pool and for vLLM's objects, where a test wants to decide what they do and when.

Owns: a pool in a dictionary that can be slow, deaf or forgetful; requests and scheduler outputs with what is read.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy

import turnkv
from turnkv.connector import BlockRuns, GroupPages, Loader, LoadJob, Lookups, PageRun, SaveOutcome, Saver
from turnkv.connector.runs import Part

PAGE = 256
BLOCK_TOKENS = 32


class Memory:
    """Blocks of one layer with content of their own."""

    def __init__(self, blocks: int, seed: int = 1) -> None:
        self.bytes = numpy.random.default_rng(seed).integers(0, 255, (blocks, PAGE), dtype=numpy.uint8)
        self.runs = BlockRuns({"layer.0": [Part(self.bytes.ctypes.data, PAGE, PAGE)]})


def failure(kind: str) -> turnkv.Error:
    """What the binding raises."""
    error = turnkv.Error(kind)
    error.kind, error.advice, error.retry_after_ms = kind, "", 0
    return error


@dataclass
class FakeNamespace:
    """Pages in a dictionary, prefix-closed as the pool's are."""

    pages: dict[bytes, bytes] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    """Calls that move pages wait until it is set, or for their deadline."""
    fail_kind: str | None = None
    decline: str | None = None
    sessions: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def lookup(self, names: list[bytes]) -> int:
        self._enter("lookup", len(names), None)
        return next((at for at, name in enumerate(names) if name not in self.pages), len(names))

    def offload(self, names: list[bytes], pages: turnkv.Runs, **options: Any) -> Any:
        self._enter("offload", len(names), options["deadline_ms"])
        addresses, lengths = pages.addresses, pages.lengths
        stored = present = 0
        parent = options["parent"]
        for at, name in enumerate(names):
            if self.decline is not None or (parent is not None and parent not in self.pages):
                decline = self.decline or "no_parent"
                return SimpleNamespace(
                    stored=stored,
                    present=present,
                    declined=len(names) - at,
                    first_decline=decline,
                    durable=False,
                    not_durable=None,
                )
            if name in self.pages:
                present += 1
            else:
                stored += 1
                self.pages[name] = ctypes.string_at(addresses[at], lengths[0])
            parent = name
        return SimpleNamespace(stored=stored, present=present, declined=0, first_decline=None, durable=False, not_durable=None)

    def reload(self, names: list[bytes], pages: turnkv.Runs, **options: Any) -> Any:
        self._enter("reload", len(names), options["deadline_ms"])
        addresses, lengths = pages.addresses, pages.lengths
        for at, name in enumerate(names):
            if name not in self.pages:
                return SimpleNamespace(pages=at, miss="absent")
            ctypes.memmove(addresses[at], self.pages[name], lengths[0])
        return SimpleNamespace(pages=len(names), miss=None)

    def begin_turn(self, session: str, *, engine: str) -> None:
        self.sessions.append(("begin", session, engine))

    def end_turn(self, session: str, names: list[bytes], **hints: Any) -> None:
        self.sessions.append(("end", session, len(names), hints))

    def fork(self, source: str, session: str) -> None:
        self.sessions.append(("fork", source, session))

    def prefetch(self, session: str) -> None:
        self.sessions.append(("prefetch", session))

    def close(self, session: str) -> None:
        self.sessions.append(("close", session))

    def _enter(self, verb: str, pages: int, deadline_ms: int | None) -> None:
        self.calls.append((verb, pages))
        if not self.gate.wait((deadline_ms or 60_000) / 1000):
            raise failure("deadline")
        if self.fail_kind is not None:
            raise failure(self.fail_kind)


class FakeDoor:
    """A door to fake namespaces, one a group."""

    def __init__(self, *windows: int | None) -> None:
        windows = windows or (None,)
        self.groups = {at: GroupPages(at, BLOCK_TOKENS, 1, window, b"salt") for at, window in enumerate(windows)}
        self.shard_bytes = dict.fromkeys(self.groups, PAGE)
        self.namespaces = {group: FakeNamespace() for group in self.groups}
        self.is_shut, self.epoch = False, b""

    def begin_epoch(self, epoch: bytes) -> None:
        self.epoch = epoch
        self.namespaces = {group: FakeNamespace() for group in self.groups}

    def namespace(self, group: int) -> FakeNamespace:
        return self.namespaces[group]

    def close(self) -> None:
        pass


def hashes_of(blocks: int, seed: str = "") -> list[bytes]:
    """Names of a chain of blocks."""
    return [hashlib.sha256(f"{seed}{at}".encode()).digest() for at in range(blocks)]


def request_of(tokens: int, name: str = "r", **fields: Any) -> Any:
    """A request with the fields that the connector reads."""
    values = {
        "request_id": name,
        "num_tokens": tokens,
        "num_computed_tokens": 0,
        "num_in_flight_tokens": 0,
        "block_hashes": hashes_of(tokens // BLOCK_TOKENS),
        "all_token_ids": list(range(tokens)),
        "kv_transfer_params": None,
        "sampling_params": None,
        "skip_reading_prefix_cache": False,
        "lora_request": None,
    }
    return SimpleNamespace(**(values | fields))


def step_of(scheduled: dict[str, int], tables: dict[str, tuple[list[int], ...]], **fields: Any) -> Any:
    """A scheduler output with the fields that the connector reads."""
    values = {
        "num_scheduled_tokens": scheduled,
        "total_num_scheduled_tokens": sum(scheduled.values()),
        "preempted_req_ids": set(),
        "scheduled_new_reqs": [],
        "scheduled_cached_reqs": SimpleNamespace(new_block_ids=[]),
        "kv_connector_block_state": SimpleNamespace(resolve_block_ids=tables.__getitem__),
    }
    return SimpleNamespace(**(values | fields))


def wait_until(fact: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it does not become true"
        time.sleep(0.002)


def saver_of(door: FakeDoor, memory: Any, **options: Any) -> Saver:
    """A saver with short deadlines."""
    values = {"deadline_ms": 300, "durable": False, "threads": 2} | options
    return Saver(door, dict.fromkeys(door.groups, memory), **values)


def run_of(names: list[bytes], blocks: list[int], first: int = 0) -> PageRun:
    """Consecutive pages of the first group."""
    return PageRun(0, first, names[first : first + len(blocks)], blocks, names[first - 1] if first else None)


def finished(saver: Saver, request: str) -> SaveOutcome:
    """Waits until a request is reported as saved."""
    found: dict[str, SaveOutcome] = {}
    wait_until(lambda: found.update(saver.take_finished()) or request in found)
    return found[request]


def load(loader: Loader, job: LoadJob) -> Any:
    """Runs one load."""
    loader.start(job)
    found: dict[str, Any] = {}
    wait_until(lambda: found.update(loader.take_finished()) or job.request in found)
    return found[job.request]


def lookups_of(door: FakeDoor, **options: Any) -> Lookups:
    """Lookups with short deadlines."""
    return Lookups(door, **({"wait_ms": 50, "deadline_ms": 150, "threads": 2} | options))

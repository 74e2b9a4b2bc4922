"""Faults in a running engine's connector. Owns: what goes wrong and when. Must not know: what is tested."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy


def poison_loads(connector: Any) -> None:
    """Loaded blocks are overwritten with zeros after they came: what a pool without checksums might hand out."""
    loader = connector._worker.loader
    fetch = loader._fetch

    def poisoned(load: Any, run: Any) -> Any:
        result = fetch(load, run)
        memory = loader._runs[run.group]
        lengths = memory.lengths * memory.shards.count * len(run.blocks)
        for address, length in zip(memory.addresses(run.blocks), lengths, strict=True):
            ctypes.memset(int(address), 0, length)
        return result

    loader._fetch = poisoned


def fail_loads(connector: Any, every: int) -> None:
    """Every so-many-th page that is loaded turns out to be missing."""
    loader = connector._worker.loader
    fetch, counted = loader._fetch, [0]

    def failing(load: Any, run: Any) -> Any:
        pages, cause = fetch(load, run)
        for at in range(pages):
            counted[0] += 1
            if counted[0] % every == 0:
                return at, "io"
        return pages, cause

    loader._fetch = failing


def heal_loads(connector: Any) -> None:
    """Loads do what they should again."""
    connector._worker.loader.__dict__.pop("_fetch", None)


def poison_memory(connector: Any, page: int) -> None:
    """A bit of a page's slot flips in the pool's memory, just before the page is loaded; once."""
    worker = connector._worker
    start = worker.start_loads

    def poisoning(step: Any) -> None:
        for run in (job.runs[0] for job in step.loads):
            if len(run.names) > page:
                worker.start_loads = start
                with worker.door.namespace(run.group).lease(run.names) as lease:
                    at = numpy.frombuffer(lease[page], dtype=numpy.uint8).ctypes.data + 99
                    (ctypes.c_ubyte * 1).from_address(at)[0] ^= 4
        start(step)

    worker.start_loads = poisoning


def stop_pool_before_load(connector: Any, pid: int) -> None:
    """The pool stops to answer (SIGSTOP) between the next lookup and its load; once."""
    loader = connector._worker.loader
    start = loader.start

    def stopping(job: Any) -> None:
        loader.start = start
        os.kill(pid, signal.SIGSTOP)
        start(job)

    loader.start = stopping


def slow_pool(connector: Any, pid: int, seconds: float) -> None:
    """The pool stops (SIGSTOP) before each load, and goes on so much later."""
    worker = connector._worker
    start = worker.start_loads

    def slowed(step: Any) -> None:
        if step.loads:
            stops.append(len(step.loads))
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()
        start(step)

    stops: list[int] = []
    worker.start_loads, worker.stops = slowed, stops


def stops_of(scheduler: Any, connector: Any) -> list[int]:
    """Loads begun at each stop of a slow pool."""
    return list(connector._worker.stops)


def poison_layer_copies(connector: Any, layer: int) -> None:
    """A leased page turns out to be invalid once this many layers are copied: the lease did not hold. Once."""
    layers = connector._worker.layers
    copy = layers._copy_layer
    names = list(next(iter(connector._worker.runs.values())).layers)

    def failing(piece: Any, name: str) -> None:
        copy(piece, name)
        if name == names[layer] and piece.pages:
            layers._copy_layer = copy
            piece.cause, piece.pages = "lease_expired", 0

    assert layers is not None
    layers._copy_layer = failing


def fail_forward(connector: Any, layer: int, steps: int = 0) -> None:
    """After so many whole steps a forward pass ends with an exception at attention of this layer; once."""
    wait, layers, begun = connector.wait_for_layer_load, [], [0]

    def failing(name: str) -> None:
        if name not in layers:
            layers.append(name)
        begun[0] += name == layers[0]
        if begun[0] > steps and len(layers) > layer and name == layers[layer]:
            connector.wait_for_layer_load = wait
            raise KeyboardInterrupt("in the forward pass")
        wait(name)

    connector.wait_for_layer_load = failing


def slow_saves(connector: Any, seconds: float) -> None:
    """Each call that stores pages begins so much later. What the blocks held when they were given to be saved is noted."""
    worker = connector._worker
    saver, offload = worker.saver, worker.saver._offload
    noted: dict[tuple[int, bytes], set[bytes]] = {}

    def noting(call: Callable[[Any], None]) -> Callable[[Any], None]:
        def note(job: Any) -> None:
            for run in job.runs:
                for name, block in zip(run.names, run.blocks, strict=True):
                    noted.setdefault((run.group, name), set()).add(_digest(worker.runs[run.group], block))
            call(job)

        return note

    def slowed(*args: Any) -> Any:
        time.sleep(seconds)
        return offload(*args)

    saver.add, saver.finish, saver._offload = noting(saver.add), noting(saver.finish), slowed
    worker.noted = noted


def stored_pages(scheduler: Any, connector: Any) -> tuple[int, list[tuple[int, str]]]:
    """Of the pages given to slow saves: how many are in the pool, and which of them (group, name) are not what was given."""
    worker, stored, wrong = connector._worker, 0, []
    for (group, name), given in worker.noted.items():
        with worker.runs[group].lease(worker.door.namespace(group), [name]) as lease:
            positions = [bytes(lease[at]) for at in range(len(lease))]
        if positions:
            stored += 1
            if hashlib.sha256(b"".join(positions)).digest() not in given:
                wrong.append((group, name.hex()))
    return stored, wrong


def _digest(memory: Any, block: int) -> bytes:
    lengths = memory.lengths * memory.shards.count
    pieces = [ctypes.string_at(int(address), length) for address, length in zip(memory.addresses([block]), lengths, strict=True)]
    return hashlib.sha256(b"".join(pieces)).digest()

"""Layer-by-layer loads of more than the pool may lease at once, on a real server and without an engine.

Counted, not timed: calls that lease or reload, bytes read from NVMe, pages that did not come.
"""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
import torch
from conftest import common
from fakes import hashes_of

import turnkv
from turnkv.connector import BlockRuns, Door, GroupPages, LayerLoader, LoadJob, PageRun
from turnkv.connector.device_layers import DeviceLayerLoader
from turnkv.connector.devices import DeviceRuns
from turnkv.connector.door import PoolOptions
from turnkv.connector.room import LeaseRoom
from turnkv.connector.runs import Part, Shards

LAYERS, LAYER_BYTES = 4, 32 << 10
PAGE_BYTES = LAYERS * LAYER_BYTES
REQUESTS, PAGES = 6, 46
"""Of each request; all of them together are more than 32 MiB of DRAM, of which one client may lease half."""


class Counted:
    """A namespace that counts its calls."""

    def __init__(self, pages: turnkv.Namespace, calls: Counter[str]) -> None:
        self._pages, self._calls = pages, calls

    def __getattr__(self, verb: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self._calls[verb] += 1
            return getattr(self._pages, verb)(*args, **options)

        return call


class CountingDoor(Door):
    """A door whose calls are counted."""

    def __init__(self, address: str) -> None:
        group = GroupPages(0, 32, 1, None, b"layers")
        super().__init__(PoolOptions(address, "layers", "", 10_000), [group], {0: PAGE_BYTES})
        self.calls: Counter[str] = Counter()

    def namespace(self, group: int) -> Any:
        return Counted(super().namespace(group), self.calls)


class Blocks:
    """Blocks of some layers in CPU memory."""

    def __init__(self, blocks: int) -> None:
        self.layers = {f"layer.{at}": numpy.zeros((blocks, LAYER_BYTES), dtype=numpy.uint8) for at in range(LAYERS)}
        parts = {name: [Part(cache.ctypes.data, LAYER_BYTES, LAYER_BYTES)] for name, cache in self.layers.items()}
        self.runs = BlockRuns(parts)

    def fill(self) -> None:
        random = numpy.random.default_rng(3)
        for cache in self.layers.values():
            cache[:] = random.integers(0, 255, cache.shape, dtype=numpy.uint8)

    def wipe(self) -> dict[str, numpy.ndarray]:
        """What was there."""
        kept = {name: cache.copy() for name, cache in self.layers.items()}
        for cache in self.layers.values():
            cache[:] = 0
        return kept


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """One with room for everything."""
    server = common.Server(pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))).start()
    yield server
    server.kill()
    shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture
def small_pool() -> Iterator[Any]:
    """A server with less DRAM than the pages of one step."""
    server = common.Server(pathlib.Path(tempfile.mkdtemp(prefix="turnkv-")), dram="32MiB", nvme="512MiB").start()
    yield server
    server.kill()
    shutil.rmtree(server.folder, ignore_errors=True)


def jobs_of(requests: int) -> list[LoadJob]:
    return [
        LoadJob(f"r{at}", [PageRun(0, 0, hashes_of(PAGES, f"r{at}"), list(range(at * PAGES, (at + 1) * PAGES)))], PAGES * 32)
        for at in range(requests)
    ]


def store(server: Any, door: CountingDoor, memory: Blocks) -> None:
    """Every request's pages, and none of them in DRAM."""
    for job in jobs_of(REQUESTS):
        run = job.runs[0]
        report = memory.runs.offload(door.namespace(0), run.names, run.blocks, parent=None, deadline_ms=10_000)
        assert report.stored == PAGES
        server.settle()
    server.to_nvme()
    door.calls.clear()


def read_bytes(server: Any) -> int:
    """From NVMe, since the server's start."""
    return sum(tier["read_bytes"] for tier in server.pool().stats()["tiers"] if tier["tier"] == "nvme")


def step(loader: Any, jobs: list[LoadJob]) -> dict[str, Any]:
    """One forward pass."""
    loader.begin(jobs)
    for at in range(LAYERS):
        loader.wait(f"layer.{at}")
    return loader.end()


def loader_of(kind: str, door: CountingDoor, memory: Blocks) -> LayerLoader | DeviceLayerLoader:
    """On the CPU, or through a device made of threads."""
    patience = {"deadline_ms": 20_000, "threads": 2}
    if kind == "cpu":
        return LayerLoader(door, {0: memory.runs}, **patience)
    caches = {name: torch.from_numpy(cache) for name, cache in memory.layers.items()}
    runs = DeviceRuns(caches, turnkv.Device(kind="host"), blocks=REQUESTS * PAGES)
    return DeviceLayerLoader(door, {0: runs}, **patience)


@pytest.mark.parametrize("kind", ["cpu", "device"])
def test_more_than_may_be_leased_at_once(small_pool: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for more while it holds all that it may waits for itself: every page comes, and is read once."""
    door, memory = CountingDoor(small_pool.address), Blocks(REQUESTS * PAGES)
    memory.fill()
    store(small_pool, door, memory)
    stored, before = memory.wipe(), read_bytes(small_pool)
    loader, short = loader_of(kind, door, memory), []
    came_short = LeaseRoom.came_short
    monkeypatch.setattr(LeaseRoom, "came_short", lambda room, *held: short.append(held) or came_short(room, *held))
    for number in range(3):
        ended = step(loader, jobs_of(REQUESTS))
        assert {name: (loaded.failed, loaded.outcome.pages) for name, loaded in ended.items()} == {
            job.request: ([], PAGES) for job in jobs_of(REQUESTS)
        }
        assert all((cache == stored[name]).all() for name, cache in memory.layers.items())
        memory.wipe()
        if number == 0:
            # What a device has copied makes room at once.
            assert len(short) == (1 if kind == "cpu" else 0)
            short.clear()
            assert read_bytes(small_pool) - before <= 1.1 * REQUESTS * PAGES * PAGE_BYTES, "no page is read again and again"
        else:
            assert short == [], "what went beyond is not tried the same way again at once"
        assert sum(door.calls.values()) <= 2 * REQUESTS, door.calls
        door.calls.clear()
    loader.close()
    door.close()


def test_two_that_lease_more_than_there_is_together(small_pool: Any) -> None:
    """Two ranks, or engines: neither waits for the other for longer than a part of its time, and nothing is lost."""
    doors, memories = [CountingDoor(small_pool.address) for _ in range(2)], [Blocks(REQUESTS * PAGES) for _ in range(2)]
    memories[0].fill()
    store(small_pool, doors[0], memories[0])
    stored = memories[0].wipe()
    loaders = [loader_of("cpu", door, memory) for door, memory in zip(doors, memories, strict=True)]
    with ThreadPoolExecutor(2) as threads:
        for ended in threads.map(lambda loader: step(loader, jobs_of(REQUESTS)), loaders):
            assert all(loaded.outcome.pages == PAGES for loaded in ended.values()), ended
    assert all((cache == stored[name]).all() for memory in memories for name, cache in memory.layers.items())
    for loader, door in zip(loaders, doors, strict=True):
        loader.close()
        door.close()


def test_a_lease_is_on_no_more_shards_than_a_server_gives(server: Any) -> None:
    """Small pages of many shards: a run goes beyond the bound in shards long before that in bytes."""
    pages, shards, part = 300, 8, 64
    cache = numpy.random.default_rng(5).integers(0, 255, (2 * pages, shards * part), dtype=numpy.uint8)
    parts = [Part(cache.ctypes.data, shards * part, part, part)]
    memory = BlockRuns({"layer.0": parts}, Shards(0, shards))
    group = GroupPages(0, 32, 1, None, b"shards", shards)
    door = Door(PoolOptions(server.address, "layers", "", 10_000), [group], {0: part})
    names = hashes_of(pages, "shards")
    assert memory.offload(door.namespace(0), names, list(range(pages)), parent=None, deadline_ms=10_000).stored == pages
    loader = LayerLoader(door, {0: memory}, deadline_ms=10_000, threads=2)
    loader.begin([LoadJob("r", [PageRun(0, 0, names, list(range(pages, 2 * pages)))], pages * 32)])
    loader.wait("layer.0")
    assert loader.end()["r"].failed == []
    assert (cache[pages:] == cache[:pages]).all()
    loader.close()
    door.close()

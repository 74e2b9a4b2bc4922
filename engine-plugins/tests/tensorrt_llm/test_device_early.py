"""Errors in the middle of loads into device memory: nothing is told as over while copies may still come.

Owns: stand-ins for reloads under way. Must not know: engines, pools.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from turnkv.connector import LoadJob, PageRun
from turnkv.connector.device_layers import DeviceLayerLoader
from turnkv.tensorrt_llm import fetcher


class Flight:
    """A reload whose copies end when they are let go."""

    def __init__(self, pages: int, fails: Exception | None = None) -> None:
        self.pages, self.fails, self.ended = pages, fails, threading.Event()
        self.pages_begun = pages
        self.waited = False

    def wait_layer(self, layer: int, stream: int | None) -> None:
        pass

    def result(self) -> Any:
        assert self.ended.wait(10), "nobody lets the copies end"
        self.waited = True
        if self.fails is not None:
            raise self.fails
        return SimpleNamespace(pages=self.pages, miss=None)


class Memory:
    """Blocks of one group; each name's flight, or why it cannot begin."""

    page_bytes, layers, place = 4 << 30, {"a": None}, torch.device("cpu")

    def __init__(self, flights: dict[bytes, Flight | Exception]) -> None:
        self.flights = flights

    def check_layers(self) -> None:
        pass

    def mark(self) -> None:
        pass

    def begin_layers(self, pages: Any, names: list[bytes], blocks: list[int], **_: Any) -> Flight:
        flight = self.flights[names[0]]
        if isinstance(flight, Exception):
            raise flight
        return flight


def loader(flights: dict[bytes, Flight | Exception]) -> DeviceLayerLoader:
    door: Any = SimpleNamespace(namespace=lambda group: None)
    memory: Any = {0: Memory(flights)}
    return DeviceLayerLoader(door, memory, deadline_ms=60_000, threads=2)


def jobs(flights: dict[bytes, Any]) -> list[LoadJob]:
    return [LoadJob(name.decode(), [PageRun(0, 0, [name], [at])], 4) for at, name in enumerate(flights)]


def let_go_soon(*flights: Flight) -> None:
    threading.Timer(0.2, lambda: [flight.ended.set() for flight in flights]).start()


@pytest.mark.parametrize("error", [RuntimeError("torn"), MemoryError()])
def test_a_load_that_cannot_begin_does_not_hide_the_others(error: Exception) -> None:
    good = Flight(1)
    flights: dict[bytes, Flight | Exception] = {b"bad": error, b"good": good}
    layers = loader(flights)
    layers.begin(jobs(flights))
    let_go_soon(good)
    ended = layers.end()
    assert good.waited and ended["good"].failed == []
    assert ended["bad"].failed == [(0, 0)] and ended["bad"].outcome.cause == "internal"
    layers.close()


def test_a_load_that_fails_is_told_when_all_have_ended() -> None:
    bad, good = Flight(1, RuntimeError("torn")), Flight(1)
    flights: dict[bytes, Flight | Exception] = {b"bad": bad, b"good": good}
    layers = loader(flights)
    layers.begin(jobs(flights))
    bad.ended.set()
    let_go_soon(good)
    ended = layers.end()
    assert good.waited and ended["bad"].failed == [(0, 0)] and ended["good"].failed == []
    layers.close()


def test_a_step_that_never_ended_is_waited_for_by_the_next() -> None:
    lost, good = Flight(1), Flight(1)
    good.ended.set()
    layers = loader({b"lost": lost, b"good": good})
    layers.begin(jobs({b"lost": lost}))
    let_go_soon(lost)
    layers.begin(jobs({b"good": good}))
    assert lost.waited, "its blocks may be another request's by now"
    assert list(layers.end()) == ["good"]
    layers.close()


class Loaded:
    """A loader whose pages are all there at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def start(self, job: LoadJob) -> None:
        self.pages = len(job.runs[0].names)

    def wait(self, request: str) -> Any:
        return SimpleNamespace(outcome=SimpleNamespace(pages=self.pages, cause=None))


def test_pages_whose_copies_may_be_under_way_are_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure after the copies were enqueued: nobody knows when they have read the pages."""
    monkeypatch.setattr(fetcher, "Loader", Loaded)
    cache, door = torch.zeros((8, 64), dtype=torch.int64), Any
    held = fetcher.Fetcher(door, cache, shards=fetcher.Shards(), bytes_max=2 * 512, deadline_ms=100, threads=1)
    assert held.fetch(1, [b"x" * 32, b"y" * 32]) == (2, None)

    def fail(self: Any) -> None:
        raise RuntimeError("no event")

    if hasattr(fetcher._Passed, "record"):
        monkeypatch.setattr(fetcher._Passed, "record", fail)
    else:
        monkeypatch.setattr(fetcher, "_Passed", fail)
    with pytest.raises(RuntimeError, match="no event"):
        held.place(1, [3, 4], None)
    held.drop(1)
    assert held.fetch(2, [b"z" * 32]) == (0, "memory"), "pages that a stream may be reading were given to others"

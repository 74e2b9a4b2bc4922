"""What no caller can mean: settings, namespaces and arguments of every call are refused, and an error says what to do."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from conftest import Server
from test_binding import PAGE, SHAPE, chain, pages  # noqa: F401  `pages` is a fixture

import turnkv


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"address": "tcp:nonsense"}, "address"),
        ({"address": ""}, "address"),
        ({"address": "unix:"}, "address"),
        ({"address": "unix:relative/x"}, "absolute"),
        ({"address": "unix://relative"}, "absolute"),
        ({"address": "unix:/" + "x" * 200}, "longer"),
        ({"data_plane": "rdma"}, "data_plane"),
        ({"fabric": "rdma"}, "fabric"),
        ({"device_memory": "gpu"}, "device_memory"),
        ({"nics": [str(number) for number in range(9)]}, "nics"),
        ({"connect_ms": 0}, "connect_ms"),
        ({"call_ms": 10**9}, "call_ms"),
        ({"breaker_failures": 0}, "breaker"),
        ({"breaker_cooldown_ms": 0}, "breaker"),
        ({"dram_bytes": 5}, "dram"),
        ({"address": "http://127.0.0.1:1", "data_plane": "shm"}, "shm"),
    ],
)
def test_bad_settings(settings: dict, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        turnkv.Pool(**settings)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "f64"},
        {"layout": "other"},
        {"layers": 0},
        {"layers": 1 << 20},
        {"kv_heads": 0},
        {"head_dim": 0},
        {"page_tokens": 0},
        {"page_tokens": 1 << 20},
        {"head_dim": 65536, "page_tokens": 4096},
        {"tp_size": 1000},
        {"tenant": "x" * 200},
        {"salt": b"x" * 65},
        {"opaque_shard_bytes": 5},
        {"layout": "opaque"},
        {"model": ""},
        {"model": "x" * 300},
    ],
)
def test_bad_namespaces(server: Server, change: dict) -> None:
    spec = {"model": "bad", **SHAPE, **change}
    with pytest.raises((ValueError, turnkv.Error)) as raised:
        server.pool().open_namespace(spec.pop("model"), **spec)
    assert getattr(raised.value, "kind", "invalid") == "invalid"


def test_bad_input_to_every_call(pages: turnkv.Namespace) -> None:
    good, page = chain(1, seed=7000), bytes(PAGE)
    target = bytearray(PAGE)
    view = (torch.zeros(2, 64, 8, dtype=torch.bfloat16).data_ptr(), 2, 1024, 16, 16)
    invalid = (ValueError, TypeError, OverflowError, turnkv.Error)
    cases: list[Callable[[], object]] = [
        lambda: pages.lookup(b"short"),
        lambda: pages.lookup([b"x" * 31]),
        lambda: pages.lookup(["x" * 32]),
        lambda: pages.lookup(5),
        lambda: pages.offload(good, []),
        lambda: pages.offload(good, [page, page]),
        lambda: pages.offload(good, [page[1:]]),
        lambda: pages.offload(good, ["text"]),
        lambda: pages.offload(good, [None]),
        lambda: pages.offload(good, [(0, PAGE)]),
        lambda: pages.offload(good, [(1 << 63, PAGE)]),
        lambda: pages.offload(good, [(-5, PAGE)]),
        lambda: pages.offload(good, 7),
        lambda: pages.offload(good, [(1, 2, 3)]),
        lambda: pages.offload(good, [numpy.zeros((PAGE, 2), "u1")[:, 0]]),
        lambda: pages.offload(good, [torch.zeros(PAGE, 2, dtype=torch.uint8)[:, 0]]),
        lambda: pages.offload(good, [page], parent=b"x"),
        lambda: pages.offload(good, [page], shard=1),
        lambda: pages.offload(good, [page], shard=-1),
        lambda: pages.offload(good, [page], tail_tokens=16),
        lambda: pages.offload(good, [page], session=""),
        lambda: pages.offload(good, [page], session="x" * 200),
        lambda: pages.offload(good, [page], wait_ms=-1),
        lambda: pages.reload(good, [page]),
        lambda: pages.reload(good, []),
        lambda: pages.reload(good, [bytearray(3)]),
        lambda: pages.reload(good * 2, [target, target]),
        lambda: pages.reload(good, [memoryview(page)]),
        lambda: pages.reload(good, [target], shard=7),
        lambda: pages.reload(good, [target], session="\n"),
        lambda: pages.offload(good, turnkv.Strided([], 16)),
        lambda: pages.offload(good, turnkv.Strided([view], 16)),
        lambda: pages.offload(good, turnkv.Strided([view] * 4, 17)),
        lambda: pages.offload(good, turnkv.Strided([view] * 4, 0)),
        lambda: pages.offload(good, turnkv.Strided([(0, 2, 1024, 16, 16)] * 4, 16)),
        lambda: pages.offload(good, turnkv.Strided([view[:4]] * 4, 16)),
        lambda: pages.offload(good, turnkv.Strided([(view[0], 1 << 60, 1 << 60, 16, 16)] * 4, 16)),
        lambda: pages.reload(good, turnkv.Strided([view] * 5000, 16)),
        lambda: pages.reload(good, turnkv.Strided([view] * 4, 10**18)),
        lambda: pages.begin_turn(""),
        lambda: pages.begin_turn("x" * 129),
        lambda: pages.begin_turn("x", engine="e" * 129),
        lambda: pages.end_turn("nobody", good),
        lambda: pages.end_turn("x", b"ragged"),
        lambda: pages.fork("nobody", "x"),
        lambda: pages.supersede("nobody", 1),
        lambda: pages.supersede("x", -1),
        pages.prefetch,
        lambda: pages.prefetch("x", hashes=good),
        lambda: pages.close(""),
        lambda: pages.lease(b"x"),
        lambda: turnkv.chain_hashes(b"abc", 16),
        lambda: turnkv.chain_hashes(b"abcd", 0),
        lambda: turnkv.chain_hashes(b"abcd", 1, b"parent"),
    ]
    for index, call in enumerate(cases):
        with pytest.raises(invalid) as raised:
            call()
        kind = getattr(raised.value, "kind", "invalid")
        assert kind in ("invalid", "session_unknown"), (index, raised.value)
    assert pages.lookup(good) == 0  # nothing of it left a trace
    assert pages.lookup(b"") == 0 and pages.offload(b"", []).stored == 0 and pages.reload(b"", []).pages == 0


def test_error_tells_what_to_do(server: Server) -> None:
    pool = turnkv.Pool("unix:/nonexistent/turnkv.sock", breaker_failures=1, breaker_cooldown_ms=60_000)
    with pytest.raises(turnkv.Error) as raised:
        pool.stats()
    assert raised.value.kind in ("unavailable", "deadline") and "recompute" in raised.value.advice
    with pytest.raises(turnkv.Error) as raised:
        pool.stats()
    assert raised.value.kind == "breaker_open" and pool.state == "breaker_open"
    assert turnkv.Error("raised by hand").kind == "internal" and raised.value.retry_after_ms == 0

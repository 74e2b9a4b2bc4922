"""The OpenAI server over HTTP, with the engine in a process of its own as users run it."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Greedy, prompt_of, whole_blocks
from engine_http import HttpEngine, complete, wait_for


@pytest.fixture(scope="module")
def engine(models: dict[str, pathlib.Path], pool_server: Any, tmp_path_factory: Any) -> Iterator[HttpEngine]:
    """One with the module's pool."""
    engine = HttpEngine(models["plain"], tmp_path_factory.mktemp("http") / "log", pool_server.address)
    try:
        yield engine.wait()
        assert not engine.faults()
    finally:
        engine.end()


def test_second_turn_reloads_and_metrics_say_so(engine: HttpEngine, reference: Greedy) -> None:
    prompt = prompt_of(1000, seed=1)
    hints = {"turnkv": {"session": "http-1"}}
    one = complete(engine.url, prompt, kv_transfer_params=hints)
    assert [one["tokens"]] == reference([prompt]) and one["cached"] == 0
    blocks = whole_blocks(prompt, one["tokens"]) // 32
    wait_for(lambda: engine.counters().get("saved_blocks", 0) == blocks, "the turn is saved")

    again = prompt + one["tokens"] + prompt_of(80, seed=2)
    two = complete(engine.url, again, kv_transfer_params=hints)
    assert [two["tokens"]] == reference([again]) and two["cached"] == blocks * 32 == 992
    counted = engine.counters()
    assert counted["loaded_tokens"] == counted["external_prefix_cache_hits"] == 992
    assert counted["loaded_blocks"] == blocks
    assert counted["lookups:hit"] == 1 and counted["lookups:miss"] == 1
    assert counted["lookup_seconds_count"] == 2 and counted["load_seconds_count"] == 1
    assert counted["queried_tokens"] == len(prompt) + len(again)
    bad = ("failed", "declined", "session_failures")
    assert not [name for name, value in counted.items() if name.startswith(bad) and value]


def test_session_by_vllm_xargs(engine: HttpEngine, reference: Greedy) -> None:
    """The other way to name a session, for clients that cannot send kv_transfer_params."""
    prompt = prompt_of(300, seed=3)
    assert [complete(engine.url, prompt, vllm_xargs={"turnkv_session": "http-2"})["tokens"]] == reference([prompt])


def test_handover_is_told_to_a_proxy(engine: HttpEngine) -> None:
    """A proxy that separates prefill and decode marks the prefill with do_remote_decode and copies what comes back."""
    answer = complete(engine.url, prompt_of(200, seed=4), max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    assert answer["kv_transfer_params"] == {"turnkv": {"handover_tokens": 192}}

"""Engines of different sizes of tensor parallelism on the same pages."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
from conftest import Greedy, prompt_of, ranks_of, whole_blocks
from engine import Engine

FULL = os.environ.get("TURNKV_MATRIX") == "full"
"""An engine of several ranks takes half a minute to start and stop: every test run has a few of the cases."""
CASES = [("hybrid", 1, 2), *([("grouped", 2, 1), ("grouped", 1, 2), ("hybrid", 2, 1)] if FULL else [])]


def connector(pool_server: Any, **options: Any) -> dict[str, Any]:
    """More ranks than processors: what is measured in milliseconds elsewhere takes its time here."""
    return {"pool": pool_server.address, "lookup_ms": 10_000, "lookup_wait_ms": 1000, "load_ms": 30_000} | options


def turn(engine: Engine, prompt: list[int], **options: Any) -> dict[str, Any]:
    (answer,) = engine.generate([prompt], **options)
    engine.drain()
    return answer


def pages_of(pool_server: Any) -> int:
    """Pages that the pool has, of all names."""
    return int(pool_server.pool().stats()["index_pages"])


@pytest.mark.parametrize("model, prefill, decode", CASES)
def test_another_size_goes_on_from_the_same_pages(
    models: dict[str, pathlib.Path], pool_server: Any, reference: Greedy, model: str, prefill: int, decode: int
) -> None:
    """Each page is stored once, by whoever comes first, and what comes out is what one rank alone computes."""
    prompt = prompt_of(900, seed=70 + prefill)
    first = Engine(models[model], connector(pool_server), **ranks_of(prefill))
    one = turn(first, prompt)
    first.close()
    pages = pages_of(pool_server)

    second = Engine(models[model], connector(pool_server), **ranks_of(decode))
    again = turn(second, prompt)
    assert pages_of(pool_server) == pages, "the other size found all of them, and stored none a second time"
    longer = prompt + one["tokens"] + prompt_of(40, seed=80 + prefill)
    second.forget()
    two = turn(second, longer)
    second.close()
    assert [one["tokens"], again["tokens"], two["tokens"]] == [*reference([prompt, prompt, longer], model=model)]
    assert again["cached"] == 896 and two["cached"] == whole_blocks(prompt, one["tokens"])

    # And back: the first size finds what the second one added.
    third = Engine(models[model], connector(pool_server), **ranks_of(prefill))
    assert turn(third, longer)["tokens"] == two["tokens"]
    assert third.metrics()["loaded_tokens"] >= 960
    third.close()


@pytest.mark.skipif(not FULL, reason="TURNKV_MATRIX=full")
def test_four_ranks_prefill_for_two_and_one(models: dict[str, pathlib.Path], pool_server: Any, reference: Greedy) -> None:
    prompt = prompt_of(500, seed=90)
    stored: list[int] = []
    for ranks in (4, 2, 1):
        engine = Engine(models["grouped"], connector(pool_server), **ranks_of(ranks))
        answer = turn(engine, prompt)
        assert [answer["tokens"]] == reference([prompt], model="grouped")
        assert answer["cached"] == (0 if ranks == 4 else 480)
        stored.append(pages_of(pool_server))
        engine.close()
    assert len(set(stored)) == 1, "bytes are stored once"


@pytest.mark.skipif(not FULL, reason="TURNKV_MATRIX=full")
def test_a_size_that_keeps_to_itself(models: dict[str, pathlib.Path], pool_server: Any) -> None:
    """`canonical_shards` 0: the names that each size had of old."""
    prompt = prompt_of(500, seed=91)
    for ranks in (2, 1):
        engine = Engine(models["grouped"], connector(pool_server, canonical_shards=0), **ranks_of(ranks))
        assert turn(engine, prompt)["cached"] == 0
        engine.forget()
        assert turn(engine, prompt)["cached"] == 480
        engine.close()


def test_layer_by_layer_from_pages_of_another_size(models: dict[str, pathlib.Path], pool_server: Any, reference: Greedy) -> None:
    prompt = prompt_of(700, seed=92)
    two = Engine(models["grouped"], connector(pool_server), **ranks_of(2))
    turn(two, prompt)
    two.close()
    one = Engine(models["grouped"], connector(pool_server, load="layerwise"))
    answer = turn(one, prompt)
    one.close()
    assert [answer["tokens"]] == reference([prompt], model="grouped") and answer["cached"] == 672

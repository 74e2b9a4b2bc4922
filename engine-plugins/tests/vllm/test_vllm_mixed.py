"""Engines of one model with different settings on one pool, in turn: those that lay out bytes alike share, others never do."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from conftest import prompt_of
from engine import Engine

AVX_512 = "avx512f" in pathlib.Path("/proc/cpuinfo").read_text()
PROMPTS = [prompt_of(tokens, seed) for seed, tokens in enumerate((333, 96, 65), 200)]
BASE: dict[str, Any] = {}
OTHER_BYTES: list[Any] = [
    ({"block_size": 64}, {}),
    ({"dtype": "bfloat16"}, {}),
    pytest.param(
        {"kv_cache_dtype": "fp8"},
        {},
        id="fp8",
        marks=pytest.mark.skipif(not AVX_512, reason="vLLM keeps KV in fp8 on CPUs with AVX-512 only"),
    ),
    ({"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0}}}, {}),
    (BASE, {"canonical_shards": 3}),
]
"""Settings of vLLM's, and of the connector's, under which a page is another one."""
SAME_BYTES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (BASE, {}),
    (BASE, {"canonical_shards": 8, "load": "layerwise"}),
    ({"enable_prefix_caching": False}, {}),
    ({"max_model_len": 1024, "max_num_batched_tokens": 256}, {}),
]


def answers(engine: Engine) -> list[dict[str, Any]]:
    """One prompt after the other, all of it stored."""
    said = []
    for prompt in PROMPTS:
        said += engine.generate([prompt], max_tokens=8)
        engine.drain()
    return said


def tokens(said: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["tokens"] for answer in said]


@pytest.fixture(scope="module")
def base_tokens(models: dict[str, pathlib.Path], pool_server: Any) -> list[list[int]]:
    """Of an engine without a plugin; one with it has stored the prompts' pages."""
    plain = Engine(models["grouped"], enable_prefix_caching=False)
    expected = tokens(answers(plain))
    plain.close()
    stored = Engine(models["grouped"], {"pool": pool_server.address})
    assert tokens(answers(stored)) == expected
    stored.close()
    return expected


@pytest.mark.parametrize(("settings", "options"), OTHER_BYTES, ids=str)
def test_other_bytes_are_never_exchanged(
    settings: dict[str, Any],
    options: dict[str, Any],
    models: dict[str, pathlib.Path],
    pool_server: Any,
    base_tokens: list[list[int]],
) -> None:
    expected = base_tokens
    if settings:
        plain = Engine(models["grouped"], enable_prefix_caching=False, **settings)
        expected = tokens(answers(plain))
        plain.close()
        assert expected != base_tokens or settings.keys() & {"block_size", "dtype"}, "foreign pages would show in the tokens"
    engine = Engine(models["grouped"], {"pool": pool_server.address} | options, **settings)
    first = answers(engine)
    assert tokens(first) == expected and [answer["cached"] for answer in first] == [0, 0, 0]
    engine.forget()
    again = answers(engine)
    assert tokens(again) == expected and sum(answer["cached"] for answer in again) >= 320 + 64
    engine.close()


@pytest.mark.parametrize(("settings", "options"), SAME_BYTES, ids=str)
def test_alike_bytes_are_shared(
    settings: dict[str, Any],
    options: dict[str, Any],
    models: dict[str, pathlib.Path],
    pool_server: Any,
    base_tokens: list[list[int]],
) -> None:
    engine = Engine(models["grouped"], {"pool": pool_server.address} | options, **settings)
    said = answers(engine)
    assert tokens(said) == base_tokens and [answer["cached"] for answer in said] == [320, 64, 64]
    engine.close()

"""Several KV cache groups take their blocks from one pool: what leaves one group's window is another group's in the same step."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Greedy, prompt_of
from engine import Engine

PROMPTS = [prompt_of(330 + 41 * seed, 300 + seed) for seed in range(8)]
FEW_BLOCKS = {"num_gpu_blocks_override": 200, "max_model_len": 1024}
"""Less than the batch needs: requests wait for blocks, and every block is handed on at once."""


@pytest.mark.parametrize(
    ("options", "settings"),
    [({}, {}), ({}, FEW_BLOCKS), ({"save": "finished"}, FEW_BLOCKS), ({"load": "off", "role": "kv_producer"}, FEW_BLOCKS)],
    ids=str,
)
def test_batches_store_what_their_blocks_held(
    options: dict[str, Any],
    settings: dict[str, Any],
    models: dict[str, pathlib.Path],
    pool_server: Any,
    start_engine: Callable[..., Engine],
    reference: Greedy,
) -> None:
    """A batch, then the batch's next turns, which load some and save the rest, slowly; then each alone, from the pool."""
    connector = {"pool": pool_server.address, "tenant": f"{options}{settings}"[:120], "save_ms": 30_000} | options
    engine = start_engine(models["hybrid"], connector, **settings)
    engine.patch("slow_saves", seconds=0.005)
    said = batch(engine, PROMPTS)
    assert said == reference(PROMPTS, model="hybrid")
    longer = [prompt + tokens + prompt_of(150, 400 + at) for at, (prompt, tokens) in enumerate(zip(PROMPTS, said, strict=True))]
    assert batch(engine, longer) == reference(longer, model="hybrid")
    stored, wrong = engine.run("faults", "stored_pages")
    assert wrong == [] and stored > sum(len(prompt) for prompt in longer) // 32, "full pages at the least"
    engine.close()

    alone = start_engine(models["hybrid"], {key: value for key, value in connector.items() if key in ("pool", "tenant")})
    for prompt in (*PROMPTS, *longer):
        assert batch(alone, [prompt]) == reference([prompt], model="hybrid")
    assert alone.metrics()["loaded_tokens"] > 0
    alone.close()


def batch(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """Tokens; then all is stored, and the engine's own cache is empty."""
    answers = engine.generate(prompts)
    engine.drain()
    engine.forget()
    return [answer["tokens"] for answer in answers]

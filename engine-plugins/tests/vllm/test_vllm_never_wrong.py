"""Situations that once gave wrong tokens: nothing but what the model would compute may be stored, or loaded."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Greedy, prompt_of
from engine import Engine
from models import alter, write_mla


def turn(engine: Engine, prompt: list[int], **options: Any) -> dict[str, Any]:
    (answer,) = engine.generate([prompt], **options)
    engine.drain()
    return answer


def test_a_model_that_differs_in_one_tensor_has_pages_of_its_own(
    models: dict[str, pathlib.Path], pool_server: Any, start_engine: Callable[..., Engine], tmp_path: pathlib.Path
) -> None:
    other = alter(models["plain"], tmp_path / "other")
    prompt = prompt_of(900, seed=31)
    stored = start_engine(models["plain"], {"pool": pool_server.address})
    turn(stored, prompt)
    own = start_engine(other, {"pool": pool_server.address})
    truth = start_engine(other, enable_prefix_caching=False)
    answer = turn(own, prompt)
    assert answer["tokens"] == turn(truth, prompt)["tokens"] and answer["cached"] == 0
    own.forget()
    assert turn(own, prompt)["cached"] == 896
    for engine in (stored, own, truth):
        engine.close()


@pytest.mark.parametrize(("layer", "steps"), [(0, 0), (2, 0), (2, 2)])
def test_a_forward_pass_that_did_not_end_stores_nothing(
    layer: int,
    steps: int,
    models: dict[str, pathlib.Path],
    pool_server: Any,
    start_engine: Callable[..., Engine],
    reference: Greedy,
) -> None:
    """Ctrl-C within a prefill: what the layers after it should have written is not there."""
    settings = {"max_num_batched_tokens": 512, "enable_chunked_prefill": True}
    engine = start_engine(models["plain"], {"pool": pool_server.address}, **settings)
    prompt = prompt_of(1800, seed=40 + 10 * layer + steps)
    engine.patch("fail_forward", layer=layer, steps=steps)
    with pytest.raises(RuntimeError, match="in the forward pass"):
        engine.generate([prompt])
    # Whoever caught it goes on, and the engine with it (the broken request too): on blocks that hold anything.
    for one in (prompt_of(700, seed=99 + layer + steps), prompt):
        engine.generate([one])
        engine.drain()
    engine.close()
    other = start_engine(models["plain"], {"pool": pool_server.address})
    answer = turn(other, prompt)
    assert [answer["tokens"]] == reference([prompt])
    assert answer["cached"] <= steps * 512, "whole steps before it may have been stored"
    again = turn(other, prompt + answer["tokens"] + prompt_of(40, seed=3))
    assert again["cached"] >= 1792, "another engine is not in the way"
    other.close()


def test_an_exception_handled_further_up_is_not_this_steps(
    models: dict[str, pathlib.Path], pool_server: Any, start_engine: Callable[..., Engine]
) -> None:
    """A program that generates within an `except` clause stores pages like any other."""
    engine = start_engine(models["plain"], {"pool": pool_server.address})
    prompt = prompt_of(600, seed=55)
    engine.generate_while_handling(prompt)
    engine.forget()
    assert turn(engine, prompt)["cached"] == 576
    engine.close()


def test_attention_that_cannot_go_on_from_a_prefix_is_left_alone(
    pool_server: Any, start_engine: Callable[..., Engine], tmp_path: pathlib.Path
) -> None:
    """vLLM's MLA on a CPU prefills as if nothing came before: a loaded prefix would be ignored."""
    model = write_mla(tmp_path / "mla")
    prompt = prompt_of(700, seed=61)
    try:
        truth = start_engine(model)
    except RuntimeError as error:
        if "expect weight to be bfloat16" not in str(error):
            raise
        pytest.skip("on a CPU with AMX vLLM packs MLA's weights, and cannot do that with those of float32")
    engine = start_engine(model, {"pool": pool_server.address})
    first = turn(engine, prompt)
    longer = prompt + first["tokens"] + prompt_of(50, seed=62)
    second = turn(engine, longer)
    assert [first["tokens"], second["tokens"]] == [turn(truth, ids)["tokens"] for ids in (prompt, longer)]
    assert (first["cached"], second["cached"]) == (0, 0)
    counted = engine.metrics()
    assert counted.get("saved_blocks", 0) == 0 and counted.get("loaded_blocks", 0) == 0
    assert "CPU_MLA" in engine.aside()
    for one in (truth, engine):
        one.close()

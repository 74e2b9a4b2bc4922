"""Real SGLang goes on in a new pool, out of a snapshot, after the engine, its pool and the pool's disk are gone: the same tokens.

With models that no other test uses.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from checkpoints import VOCABULARY, prompt, write_model
from conftest import common
from engine_process import PAGE, Engine, hicache, linker
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}
MODELS: dict[str, tuple[int, Callable[[str], dict[str, Any]], Callable[[], PreTrainedModel]]] = {
    "llama": (700, lambda pool: linker(pool, lookup_ms=5000, load_ms=5000), lambda: LlamaForCausalLM(LlamaConfig(**SIZES))),
    "qwen2": (1800, hicache, lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES))),
    "granite": (3900, hicache, lambda: GraniteForCausalLM(GraniteConfig(**SIZES))),
}
"""Tokens of the prompt, the kind of storage, the model."""
SHOWN = MODELS if os.environ.get("TURNKV_MATRIX") == "full" else ["llama"]
"""Each takes two engines a minute and more to start and stop."""


def start_pool(archive: pathlib.Path) -> Any:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
    return common.Server(folder, dram="128MiB", nvme="256MiB", archive=archive).start()


@pytest.mark.parametrize("name", SHOWN)
def test_a_conversation_goes_on_in_a_new_pool(tmp_path: pathlib.Path, name: str) -> None:
    prompt_tokens, storage, build = MODELS[name]
    model = write_model(build(), tmp_path / "model")
    first, pools = prompt(prompt_tokens, seed=1), [start_pool(tmp_path / "archive")]

    def engine_at(pool: Any, folder: str) -> Engine:
        return Engine(tmp_path / folder, model, tokens_max=5000, **storage(pool.address))

    try:
        with engine_at(pools[0], "one") as engine:
            one = engine.generate(first)
            again = first + one["out"] + prompt(60, seed=2)
            computed = engine.generate(again, salt="computed")["out"]
            engine.settle()
        pools[0].settle()
        (namespace,) = pools[0].namespaces()
        made = pools[0].snapshot("create", "--everything", "--namespace", namespace)
        assert made["missing_pages"] == 0
        pools[0].destroy()

        pools.append(start_pool(tmp_path / "archive"))
        assert pools[1].snapshot("restore", made["snapshot"])["stored_pages"] == made["pages"]
        with engine_at(pools[1], "two") as engine:
            two = engine.generate(again)
            stored = (len(first) + len(one["out"]) - 1) // PAGE * PAGE  # the last sampled token has no K and V yet
            assert two["cached"] == stored and two["out"] == computed
    finally:
        for pool in pools:
            pool.kill()
            shutil.rmtree(pool.folder, ignore_errors=True)

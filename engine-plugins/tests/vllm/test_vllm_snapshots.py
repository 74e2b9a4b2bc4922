"""Real vLLM goes on in a new pool, out of a snapshot, after the engine, its pool and the pool's disk are gone: the same tokens.

With models that no other test uses.
"""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from conftest import common, prompt_of, whole_blocks
from engine import Engine
from models import COMMON, write
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

SIZES = COMMON | {"num_hidden_layers": 3, "num_attention_heads": 4}
MODELS: dict[str, tuple[int, Callable[[], PreTrainedModel]]] = {
    "llama": (700, lambda: LlamaForCausalLM(LlamaConfig(**SIZES))),
    "qwen2": (1800, lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES))),
    "granite": (3900, lambda: GraniteForCausalLM(GraniteConfig(**SIZES))),
}
"""Tokens of the prompt, the model."""


def start_pool(archive: pathlib.Path) -> Any:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
    return common.Server(folder, dram="128MiB", nvme="512MiB", archive=archive).start()


@pytest.mark.parametrize("name", MODELS)
def test_a_conversation_goes_on_in_a_new_pool(tmp_path: pathlib.Path, name: str) -> None:
    prompt_tokens, build = MODELS[name]
    model = write(build(), tmp_path / "model")
    prompt = prompt_of(prompt_tokens, seed=1)
    pools, engines = [start_pool(tmp_path / "archive")], []

    def engine_at(pool: Any | None, **settings: Any) -> Engine:
        options = {"pool": pool.address, "load_ms": 5000, "lookup_ms": 1000} if pool else None
        engines.append(Engine(model, options, **settings))
        return engines[-1]

    try:
        first = engine_at(pools[0])
        (one,) = first.generate([prompt])
        first.drain()
        first.process.kill()
        pools[0].settle()
        (namespace,) = pools[0].namespaces()
        made = pools[0].snapshot("create", "--everything", "--namespace", namespace)
        blocks = whole_blocks(prompt, one["tokens"]) // 32
        assert made["pages"] == blocks and made["missing_pages"] == 0
        pools[0].destroy()

        pools.append(start_pool(tmp_path / "archive"))
        back = pools[1].snapshot("restore", made["snapshot"])
        assert back["stored_pages"] == blocks
        again = prompt + one["tokens"] + prompt_of(60, seed=2)
        (two,) = engine_at(pools[1]).generate([again])
        assert two["cached"] == blocks * 32
        plain = engine_at(None, enable_prefix_caching=False)
        assert [one["tokens"], two["tokens"]] == [plain.generate([text])[0]["tokens"] for text in (prompt, again)]
    finally:
        for engine in engines:
            engine.close()
        for pool in pools:
            pool.kill()
            shutil.rmtree(pool.folder, ignore_errors=True)

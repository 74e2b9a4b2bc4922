"""What the vLLM tests share: models, pools, engines, and what an engine without a plugin says.

PYTHONPATH=engine-plugins/python .engines/vllm/bin/python -m pytest engine-plugins/tests/vllm
"""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
HAS_VLLM = importlib.util.find_spec("vllm") is not None and importlib.util.find_spec("vllm").origin is not None
collect_ignore_glob = [] if HAS_VLLM else ["test_*.py"]
if HAS_VLLM:
    sys.path.insert(0, str(HERE))
    from engine import Engine
    from models import write_grouped, write_hybrid, write_plain


def _common() -> Any:
    """The tests' common conftest as a module of its own name."""
    spec = importlib.util.spec_from_file_location("turnkv_common_conftest", HERE.parent / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


common = _common()
Greedy = Callable[..., list[list[int]]]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Model folders by name."""
    folder = tmp_path_factory.mktemp("models")
    makers = {"plain": write_plain, "hybrid": write_hybrid, "grouped": write_grouped}
    return {name: write(folder / name) for name, write in makers.items()}


@pytest.fixture(scope="module")
def pool_server() -> Iterator[Any]:
    """One pool for the tests of a module; they may stop it as long as they start it again."""
    server = common.Server(pathlib.Path(tempfile.mkdtemp(prefix="turnkv-")), dram="128MiB", nvme="512MiB").start()
    yield server
    server.kill()
    shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def start_engine() -> Iterator[Callable[..., Engine]]:
    """Starts engines that end with the module at the latest."""
    engines: list[Engine] = []

    def start(*args: Any, **settings: Any) -> Engine:
        engines.append(Engine(*args, **settings))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture(scope="session")
def reference(models: dict[str, pathlib.Path]) -> Iterator[Greedy]:
    """Tokens of an engine without any plugin and without a prefix cache: what must come out."""
    engines: dict[str, Engine] = {}
    known: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}

    def tokens(prompts: list[list[int]], max_tokens: int = 24, model: str = "plain") -> list[list[int]]:
        if model not in engines:
            engines[model] = Engine(models[model], enable_prefix_caching=False)
        for prompt in prompts:
            key = (model, max_tokens, tuple(prompt))
            if key not in known:
                known[key] = engines[model].generate([prompt], max_tokens)[0]["tokens"]
        return [known[model, max_tokens, tuple(prompt)] for prompt in prompts]

    yield tokens
    for engine in engines.values():
        engine.close()


def prompt_of(tokens: int, seed: int = 1) -> list[int]:
    """A prompt that shares no block with one of another seed."""
    return [(at * 7919 + seed * 104729 + (at * at + seed) % 131) % 4000 + 10 for at in range(tokens)]


def whole_blocks(prompt: list[int], reply: list[int], block: int = 32) -> int:
    """Tokens of the blocks that are computed when a turn ends: the last sampled token has no KV."""
    return (len(prompt) + len(reply) - 1) // block * block


def ranks_of(count: int) -> dict[str, Any]:
    """Settings of an engine with so many tensor-parallel ranks, on the two processors that there are at least."""
    if count == 1:
        return {}
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(rank % 2) for rank in range(count)),
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    }
    return {"tensor_parallel_size": count, "distributed_executor_backend": "mp", "environment": environment}

"""What the TensorRT-LLM tests share: the engine's stand-in put in its place, and engines on it.

    PYTHONPATH=engine-plugins/python .venv/bin/python -m pytest engine-plugins/tests/tensorrt_llm

Owns: that. Must not know: scripts, what is tested. (No conftest: tests of other folders import one by that name.)
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import stand_in

stand_in.install()

from player import Engine  # noqa: E402


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Callable[..., Engine]:
    """Engines on a pool; `options` are variables without their prefix."""

    def make(pool: str, options: dict[str, object] | None = None, **settings: object) -> Engine:
        for name, value in {"pool": pool, "model_id": "tiny", "load_ms": 3000, **(options or {})}.items():
            monkeypatch.setenv(f"TURNKV_{name.upper()}", str(value))
        return Engine(str(tmp_path), **settings)

    return make

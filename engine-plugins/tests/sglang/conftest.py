"""What the SGLang tests share: models, pools, engines, damage to a pool's files.

PYTHONPATH=engine-plugins/python .engines/sglang/bin/python -m pytest engine-plugins/tests/sglang
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SGLANG = importlib.util.find_spec("sglang")
HAS_SGLANG = SGLANG is not None and SGLANG.origin is not None  # this folder alone looks like a package of that name
collect_ignore_glob = [] if HAS_SGLANG else ["test_*.py"]
if HAS_SGLANG:
    sys.path[:0] = [str(HERE), str(HERE / "harness")]
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    import host_pools
    import stand_ins

    stand_ins.install()
    host_pools.install()
    from checkpoints import write_qwen3


def _common() -> Any:
    """The tests' common conftest as a module of its own name."""
    spec = importlib.util.spec_from_file_location("turnkv_common_conftest", HERE.parent / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


common = _common()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Two checkpoints that differ in their weights only."""
    folder = tmp_path_factory.mktemp("models")
    return {name: write_qwen3(folder / name, seed) for seed, name in enumerate(("one", "other"))}


@pytest.fixture(scope="session")
def pool_server() -> Iterator[Any]:
    """One pool for all engines; a test that stops it starts it again."""
    server = common.Server(pathlib.Path(tempfile.mkdtemp(prefix="turnkv-")), dram="64MiB", nvme="256MiB").start()
    yield server
    server.kill()
    shutil.rmtree(server.folder, ignore_errors=True)

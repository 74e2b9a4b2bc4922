"""docs/engines/vllm.md names every option with its default, and examples/python/vllm_turns.py runs in a real engine."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import turnkv
from turnkv.vllm.options import Options

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "engines" / "vllm.md"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(pathlib.Path(turnkv.__file__).parents[1]),
}


def test_every_option_is_in_the_table() -> None:
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    fields = {field.name for field in dataclasses.fields(Options)}
    assert fields <= named, fields - named
    for line in table:
        for name, default in re.findall(r"^\| `(\w+)` \| (\d+) \|", line):
            assert getattr(Options(), name) == int(default), line


def test_the_example_runs(models: dict[str, pathlib.Path], pool_server: Any) -> None:
    program = ROOT / "examples" / "python" / "vllm_turns.py"
    command = [sys.executable, str(program), str(models["plain"]), pool_server.address]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "turn 1: 0 of 600 prompt tokens" in done.stdout, done.stdout
    found = re.search(r"turn 2: (\d+) of 619 ", done.stdout)
    assert found and int(found[1]) >= 512, done.stdout

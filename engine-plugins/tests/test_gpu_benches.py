"""The GPU benches run to their end without a GPU: all of them small, on the CPU and the host device; correctness only."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, server_binary

import turnkv

RUN = ROOT / "benches/gpu/run.sh"


def environment() -> dict[str, str]:
    package = pathlib.Path(turnkv.__file__).parents[1]
    return os.environ | {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(package),
        "TURNKV_SERVER": str(server_binary()),
        "OMP_NUM_THREADS": "1",
    }


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(RUN), *arguments], env=environment(), capture_output=True, text=True, timeout=540, check=False)


def test_all_parts_tiny(tmp_path: pathlib.Path) -> None:
    done = run("--tiny", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["wrong"] == [] and results["conditions"]["tiny"]
    for part, rows in {"ttft": 2, "exact": 18, "turns": 3, "stalls": 4, "interference": 1}.items():
        assert len(results[part]["rows"]) == rows and "error" not in results[part], part
    ways = results["ttft"]["rows"][-1]["ttft_seconds"]
    assert set(ways) == {f"{tier}, {how}" for tier in ("DRAM", "GPU", "NVMe") for how in ("blocking", "layer by layer")}
    assert (tmp_path / "ttft.svg").read_text().startswith("<svg")


def test_pools_are_sized_from_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUN.parent))
    stage = importlib.import_module("stage")
    gib = 1 << 30
    assert stage.sizes(36 * gib, 24 * gib, 128 * gib, 60 * gib) == (36 * gib, 24 * gib)
    assert stage.sizes(36 * gib, 24 * gib, 16 * gib, 10 * gib) == (8 * gib, 5 * gib)
    assert stage.sizes(36 * gib, 24 * gib, 16 * gib, 3 * gib)[1] == 0, "no tier rather than one that holds nothing"
    monkeypatch.setenv("MEMORY_GIB", "100000")
    assert stage.memory_bytes() == 100_000 * gib, "a machine whose memory grows says too little"
    monkeypatch.setenv("MEMORY_GIB", "0")
    assert 0 < stage.memory_bytes() < 100_000 * gib


def test_a_part_that_never_ends_costs_itself_alone(tmp_path: pathlib.Path) -> None:
    shutil.copytree(RUN.parent, tmp_path / "gpu")
    (tmp_path / "gpu/exact.py").write_text(
        "import ctypes\ndef run(stage):\n    stage.row(begun=True)\n    ctypes.CDLL(None).pause()\n"
    )
    command = [sys.executable, str(tmp_path / "gpu/run.py"), "--tiny", "--out", str(tmp_path / "out"), "--grace", "30"]
    # The part that hangs is second: what the first one found is kept, and the third runs.
    command += ["--parts", "ttft,exact,interference", "--seconds", "2"]
    (tmp_path / "gpu/ttft.py").write_text("def run(stage):\n    stage.row(first=1)\n    stage.check(False, 'kept too')\n")
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 1, said
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["ttft"]["rows"] == [{"first": 1}] and results["wrong"] == ["ttft: kept too"], said
    assert results["exact"]["rows"] == [{"begun": True}] and "did not end" in results["exact"]["error"], said
    assert len(results["interference"]["rows"]) == 1 and "error" not in results["interference"], said
    assert "exact failed" in done.stdout, said


def test_without_a_gpu_they_say_so_in_one_line(tmp_path: pathlib.Path) -> None:
    if torch.cuda.is_available() and turnkv.Device.cuda_count():
        return  # here they would run for minutes
    done = run("--out", str(tmp_path))
    assert done.returncode == 0 and done.stdout.count("\n") == 1 and "no CUDA device" in done.stdout, done.stdout + done.stderr

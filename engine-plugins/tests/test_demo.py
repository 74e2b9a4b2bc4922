"""The demo's choice of model: what it counts, and that a slow CPU gets less to do, in the dtype it is faster with."""

from __future__ import annotations

import importlib
import pathlib
import sys
from types import ModuleType

import pytest
import torch
from conftest import server_binary

DEMO = pathlib.Path(__file__).resolve().parents[1] / "demo"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(DEMO))
    for name in ("calibrate", "workload"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("calibrate"), importlib.import_module("workload")


def slow(calibrate: ModuleType, monkeypatch: pytest.MonkeyPatch, factor: dict[torch.dtype, float]) -> None:
    """A CPU on which a layer's time goes with its width, and with the dtype by a factor."""

    def probe(size: object, dtype: torch.dtype) -> object:
        seconds = factor[dtype] * size.hidden / 768
        return calibrate.Speed(seconds, 2 * seconds)

    monkeypatch.setattr(calibrate, "probe", probe)


def test_the_work_is_what_a_run_computes(demo: tuple[ModuleType, ModuleType]) -> None:
    _, workload = demo
    turns = workload.turns(8192)
    work, prompts, lengths = workload.work(turns), 0, {}
    for turn in turns:
        lengths[turn.session] = lengths.get(turn.session, workload.SYSTEM_TOKENS) + len(turn.message)
        prompts += lengths[turn.session]
        lengths[turn.session] += workload.REPLY_TOKENS
    assert work.computed + work.reused == prompts
    assert work.total == sum(lengths.values()) - workload.SYSTEM_TOKENS * (workload.SESSIONS - 1)
    assert work.sampled == len(turns) * workload.REPLY_TOKENS


def test_the_faster_dtype_is_taken(demo: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate, workload = demo
    work = workload.work(workload.turns(8192))
    slow(calibrate, monkeypatch, {torch.bfloat16: 1e-6, torch.float32: 2e-6})
    assert (calibrate.choose(work).name, calibrate.choose(work).size) == ("bf16", calibrate.SIZES[0])
    slow(calibrate, monkeypatch, {torch.bfloat16: 5e-6, torch.float32: 1e-6})
    assert (calibrate.choose(work).name, calibrate.choose(work).size) == ("fp32", calibrate.SIZES[0])


def test_a_slow_cpu_gets_a_model_that_fits_its_time(demo: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate, workload = demo
    work = workload.work(workload.turns(8192))
    taken = []
    for factor in (1e-6, 1e-4, 1.6e-4, 1e-3, 1.0):
        slow(calibrate, monkeypatch, dict.fromkeys(calibrate.DTYPES, factor))
        choice = calibrate.choose(work)
        assert choice.estimate <= calibrate.SECONDS_WANTED or choice.size == calibrate.SIZES[-1]
        taken.append(calibrate.SIZES.index(choice.size))
    assert taken == sorted(taken) and taken[0] == 0 and taken[-1] == len(calibrate.SIZES) - 1
    assert len(set(taken)) > 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_the_probe_times_a_real_model(demo: tuple[ModuleType, ModuleType], dtype: torch.dtype) -> None:
    calibrate, _ = demo
    with torch.no_grad():
        speed = calibrate.probe(calibrate.SIZES[-1], dtype)
    assert 0 < speed.prefill < speed.decode


def test_the_server_of_the_demo_starts_wherever_it_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.syspath_prepend(str(DEMO))
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    for folder in (tmp_path, deep):
        monkeypatch.chdir(folder)
        server = importlib.import_module("server").Server(server_binary(), "16MiB", "64MiB")
        try:
            server.start()
            server.kill()
            server.start()
            assert "turnkv" in server.status()
        finally:
            server.stop()

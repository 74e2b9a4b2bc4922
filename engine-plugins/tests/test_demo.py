"""The demo's choice of model: what it counts, and that a slow CPU gets less to do, in the dtype it is faster with."""

from __future__ import annotations

import importlib
import pathlib
import subprocess
import sys
from types import ModuleType, SimpleNamespace

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


def test_rounds_of_the_cluster_have_every_session_once(demo: tuple[ModuleType, ModuleType]) -> None:
    _, workload = demo
    rounds = workload.rounds(8192, sessions=5, count=3)
    assert [[(turn.session, turn.number) for turn in turns] for turns in rounds] == [
        [(session, number) for session in range(5)] for number in (1, 2, 3)
    ]
    assert rounds == workload.rounds(8192, sessions=5, count=3) != workload.rounds(8192, sessions=5, count=4)
    assert all(token < 8192 for turns in rounds for turn in turns for token in turn.message)


@pytest.mark.parametrize("apart", [False, True], ids=["loopback", "namespaces"])
@pytest.mark.parametrize("etcd", [False, True], ids=["list", "etcd"])
def test_hosts_of_the_cluster_are_configured_as_the_server_wants(
    etcd: bool, apart: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.syspath_prepend(str(DEMO))
    monkeypatch.chdir(tmp_path)
    hosts = importlib.import_module("hosts")
    network = SimpleNamespace(
        apart=apart,
        host=lambda at: f"10.77.84.{at + 1}" if apart else f"127.0.0.{at + 1}",
        prefix=lambda at: ("ip", "netns", "exec", f"none-{at}") if apart else (),
    )
    known = SimpleNamespace(endpoint="http://127.0.0.1:2379") if etcd else None
    made = hosts.make(3, server_binary(), "64MiB", network, SimpleNamespace(endpoint="http://127.0.0.1:9000"), known)
    for host in made:
        command = [str(server_binary()), "config", "--config", str(host.server.config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f'id = "{host.name}"' in done.stdout and "s3://turnkv-demo/pages" in done.stdout
    assert len({host.server.address for host in made}) == 3


def test_the_host_that_is_drained_has_sessions_and_how_many_left_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEMO))
    cluster, hosts = importlib.import_module("cluster"), importlib.import_module("hosts")
    demo = object.__new__(cluster.Demo)
    demo.hosts = [SimpleNamespace(at=at) for at in range(3)]
    demo.homes = [0, 2, 2, 1, None, 2]
    assert demo.busiest() is demo.hosts[2]
    moving = "moving: 0 sessions (0 B) are with other members, 3 are here"
    said = f"{moving}\ndone: 3 sessions (5.1 MiB) are with other members, 0 are here"
    assert hosts.moved_sessions(said) == 3
    with pytest.raises(SystemExit, match="other words"):
        hosts.moved_sessions(moving)


def test_no_session_of_the_cluster_stays_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEMO))
    cluster = importlib.import_module("cluster")
    demo = object.__new__(cluster.Demo)
    every = [SimpleNamespace(at=at) for at in range(3)]
    demo.homes = [None] * cluster.SESSIONS
    for number, serving in enumerate([every, every, every[:1] + every[2:], every, every[1:], every, every], 1):
        for session in range(cluster.SESSIONS):
            host = demo.next_host(SimpleNamespace(session=session, number=number), serving)
            assert host in serving and host.at != demo.homes[session]
            demo.homes[session] = host.at

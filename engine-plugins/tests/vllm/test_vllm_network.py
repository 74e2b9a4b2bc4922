"""A pool on another host, under TLS: turns over data rails, a network that is gone for a while, a pool that dies and comes back.

The pool has a network namespace of its own where this process may make one (root, `ip`); else the loopback stands for the
network, and a stopped server for one that is gone.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Greedy, common, prompt_of, whole_blocks
from engine import Engine

NAMESPACE, OURS, THEIRS = f"turnkv-{os.getpid()}", f"tkv{os.getpid() % 100_000}", f"tkw{os.getpid() % 100_000}"
LOOKUP_MS, LOAD_MS, SAVE_MS = 300, 2000, 2000


class Network:
    """Where the pool is, and the way to it."""

    def __init__(self) -> None:
        self.apart = os.geteuid() == 0 and shutil.which("ip") is not None and self._make()
        self.host = "10.77.81.1" if self.apart else "127.0.0.1"
        self.prefix = ["ip", "netns", "exec", NAMESPACE] if self.apart else []

    def _make(self) -> bool:
        try:
            self._ip("netns", "add", NAMESPACE)
            self._ip("link", "add", OURS, "type", "veth", "peer", "name", THEIRS, "netns", NAMESPACE)
            self._ip("addr", "add", "10.77.81.2/24", "dev", OURS)
            self._ip("link", "set", OURS, "up")
            self._ip("-n", NAMESPACE, "addr", "add", "10.77.81.1/24", "dev", THEIRS)
            self._ip("-n", NAMESPACE, "link", "set", THEIRS, "up")
        except (OSError, subprocess.CalledProcessError):
            self.unmake()
            return False
        return True

    def unmake(self) -> None:
        """The namespace goes, and the link with it."""
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=False, capture_output=True)

    def cut(self, server: Any) -> None:
        """Nothing passes any more, and nobody is told."""
        self._ip("link", "set", OURS, "down") if self.apart else server.pause()

    def mend(self, server: Any) -> None:
        """The way is as it was."""
        self._ip("link", "set", OURS, "up") if self.apart else server.go_on()

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """One for the module."""
    network = Network()
    yield network
    if network.apart:
        network.unmake()


@pytest.fixture(scope="module")
def remote(network: Network) -> Iterator[Any]:
    """A pool that other hosts reach under TLS, and its certificates."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
    server = common.Server(folder, dram="128MiB", nvme="512MiB")
    server.prefix = network.prefix
    names = ["--server", network.host, "--engine", "", "--operator"]
    subprocess.run([str(common.server_binary()), "certs", str(folder / "certs"), *names], check=True, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server.tcp = f"{network.host}:{probe.getsockname()[1]}"
    files = {
        key: folder / "certs" / name for key, name in (("cert", "server.pem"), ("key", "server-key.pem"), ("client_ca", "ca.pem"))
    }
    tls = "".join(f'{key} = "{path}"\n' for key, path in files.items())
    server.config.write_text(f'tcp = "{server.tcp}"\n{server.config.read_text()}[tls]\n{tls}')
    server.start()
    yield server
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def engine(models: dict[str, pathlib.Path], remote: Any, start_engine: Callable[..., Engine]) -> Engine:
    """An engine on another host than the pool."""
    (own,) = (path for path in (remote.folder / "certs").glob("engine*.pem") if "-key" not in path.name)
    environment = {
        "TURNKV_TLS_CA": str(remote.folder / "certs/ca.pem"),
        "TURNKV_TLS_CERT": str(own),
        "TURNKV_TLS_KEY": str(own.with_name(f"{own.stem}-key.pem")),
    }
    connector = {"pool": f"tls://{remote.tcp}", "lookup_ms": LOOKUP_MS, "load_ms": LOAD_MS, "save_ms": SAVE_MS}
    return start_engine(models["plain"], connector, environment=environment)


def turn(engine: Engine, prompt: list[int]) -> dict[str, Any]:
    """One turn, to its end; then the engine's own cache is empty."""
    (answer,) = engine.generate([prompt])
    engine.drain()
    engine.forget()
    return answer


def test_two_turns_and_a_network_that_is_gone_for_a_while(
    engine: Engine, network: Network, remote: Any, reference: Greedy
) -> None:
    prompt = prompt_of(1500, seed=71)
    one = turn(engine, prompt)
    assert [one["tokens"]] == reference([prompt]) and one["cached"] == 0
    again = prompt + one["tokens"] + prompt_of(100, seed=72)
    two = turn(engine, again)
    assert [two["tokens"]] == reference([again])
    assert two["cached"] == whole_blocks(prompt, one["tokens"]), "it came over the network"

    network.cut(remote)
    third = again + two["tokens"] + prompt_of(100, seed=73)
    began = time.monotonic()
    assert [turn(engine, third)["tokens"]] == reference([third]), "the engine goes on by itself"
    assert time.monotonic() - began < 60
    network.mend(remote)
    assert until_cached(engine, reference, again) > 0, "and takes from the pool again"


def test_a_pool_that_dies_and_comes_back(engine: Engine, remote: Any, reference: Greedy) -> None:
    prompt = prompt_of(900, seed=75)
    assert [turn(engine, prompt)["tokens"]] == reference([prompt])
    remote.kill()
    assert [turn(engine, prompt)["tokens"]] == reference([prompt]), "recomputed"
    remote.start()
    assert until_cached(engine, reference, prompt) > 0


def until_cached(engine: Engine, reference: Greedy, prompt: list[int]) -> int:
    """Asks again until something comes from the pool; every answer is right."""
    until = time.monotonic() + 60
    while True:
        answer = turn(engine, prompt)
        assert [answer["tokens"]] == reference([prompt])
        if answer["cached"] or time.monotonic() > until:
            return int(answer["cached"])
        time.sleep(0.5)

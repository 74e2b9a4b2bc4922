"""Two hosts, a vLLM and a pool each, behind a proxy that knows nothing of caches: every turn of a chat is on the other host.

What vLLM itself counts shows that a turn reloads what the last one left on the other host; what comes out is what an engine
without a pool says. Then one host is gone, pool and engine, and the chats go on.
"""

from __future__ import annotations

import itertools
import pathlib
import re
import shutil
import socket
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import Greedy, common, prompt_of, whole_blocks
from engine_http import HttpEngine, complete, wait_for
from round_robin import RoundRobin

HOSTS = 2
CHATS = 3
"""An odd number: chats take turns one after another, so each comes to the other host the next time."""
TURNS = 5
WHOLE_SHARE_MIN = 3 / 4
"""Of the hops that reload all that the other host has: all of them, but where a machine is so busy that a pool does not answer
another within 20 ms. Then the turn reloads what is here and computes the rest."""
# Generous: that pages come from the other host is what is tested, not how fast.
WAITS = {"lookup_ms": 20_000, "load_ms": 60_000, "save_ms": 60_000}


@dataclass
class Host:
    """A pool, and the engine that it serves."""

    pool: Any
    metrics: str
    engine: HttpEngine | None = None

    @property
    def url(self) -> str:
        assert self.engine is not None
        return self.engine.url

    def counted(self, name: str) -> int:
        """A series of the pool, summed over labels."""
        page = urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10).read().decode()
        return int(sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)))

    def has_stored(self) -> bool:
        """Whether all that its engine offered is in the pool: stored now, or there because it came meanwhile."""
        assert self.engine is not None
        counted = self.engine.counters()
        return counted.get("saved_blocks", 0) + counted.get("present_blocks", 0) == self.offered_blocks

    offered_blocks: int = 0
    """Blocks that the engine has computed so far."""


@dataclass
class Chat:
    """A conversation, in tokens."""

    name: str
    prompt: list[int]
    held: dict[str, int] = field(default_factory=dict)
    """Tokens that each host has of it, by the host's address; the next turn finds the most of these."""
    on: list[str] = field(default_factory=list)
    """Who served its turns."""


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(scope="module")
def hosts(models: dict[str, pathlib.Path], tmp_path_factory: Any) -> Iterator[list[Host]]:
    """Two, which know each other, each with an engine."""
    doors = [free_address() for _ in range(HOSTS)]
    members = ", ".join(f'{{ id = "host-{at}", endpoint = "tcp://{door}" }}' for at, door in enumerate(doors))
    hosts: list[Host] = []
    try:
        for at, door in enumerate(doors):
            pool = common.Server(pathlib.Path(tempfile.mkdtemp(prefix="turnkv-")), dram="128MiB", nvme="512MiB")
            metrics = free_address()
            head = f'tcp = "{door}"\nmetrics = "{metrics}"\n'
            pool.config.write_text(f'{head}{pool.config.read_text()}[cluster]\nid = "host-{at}"\nmembers = [{members}]\n')
            hosts.append(Host(pool, metrics))
            pool.start()
            log = tmp_path_factory.mktemp("cluster") / f"log-{at}"
            hosts[-1].engine = HttpEngine(models["plain"], log, pool.address, **WAITS)
        for host in hosts:
            assert host.engine is not None
            host.engine.wait()
            wait_for(lambda host=host: host.counted("turnkv_cluster_view_servers") == HOSTS, "each sees the other")
        yield hosts
    finally:
        for host in hosts:
            if host.engine is not None:
                host.engine.end()
            host.pool.kill()
            shutil.rmtree(host.pool.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def proxy(hosts: list[Host]) -> Iterator[RoundRobin]:
    """What the chats talk to."""
    proxy = RoundRobin([host.url for host in hosts])
    yield proxy
    proxy.end()


def turn(chat: Chat, proxy: RoundRobin, hosts: list[Host], reference: Greedy) -> dict[str, Any]:
    """One turn of a chat; the next one is longer by the reply and a message."""
    answer = complete(proxy.url, chat.prompt, kv_transfer_params={"turnkv": {"session": chat.name}})
    assert [answer["tokens"]] == reference([chat.prompt]), f"{chat.name}: not what an engine without a pool says"
    (host,) = (host for host in hosts if host.url == answer["served_by"])
    whole = whole_blocks(chat.prompt, answer["tokens"])
    host.offered_blocks += (whole - answer["cached"]) // 32
    wait_for(host.has_stored, f"{chat.name}: {host.offered_blocks} blocks of its host's chats are in the pool")
    chat.on.append(answer["served_by"])
    chat.held[host.url] = whole
    chat.prompt = chat.prompt + answer["tokens"] + prompt_of(150, seed=len(chat.prompt))
    return answer


def test_chats_that_hop_each_turn_reload_and_go_on_without_one_host(
    hosts: list[Host], proxy: RoundRobin, reference: Greedy
) -> None:
    chats = [Chat(f"chat-{at}", prompt_of(700, seed=80 + at)) for at in range(CHATS)]
    hops, whole, hits = 0, 0, 0
    for number in range(TURNS):
        for chat in chats:
            held = dict(chat.held)
            answer = turn(chat, proxy, hosts, reference)
            most, here = max(held.values(), default=0), held.get(answer["served_by"], 0)
            assert answer["cached"] in (here, most), f"{chat.name} turn {number + 1}: {answer['cached']}, of {held}"
            hops, whole, hits = hops + (most > here), whole + (answer["cached"] == most > here), hits + answer["cached"]
    for chat in chats:
        assert all(one != two for one, two in itertools.pairwise(chat.on)), "a chat did not hop"
    assert hops == CHATS * (TURNS - 1) and whole >= hops * WHOLE_SHARE_MIN, f"{whole} of {hops} hops reloaded all"
    counted = [host.engine.counters() for host in hosts if host.engine]
    assert sum(one["external_prefix_cache_hits"] for one in counted) == hits, "vLLM's own count"
    assert not [name for one in counted for name, value in one.items() if name.startswith(("failed", "declined")) and value]
    assert all(host.counted("turnkv_cluster_pull_pages_total") > 0 for host in hosts), "pages came from the other host"

    gone, left = hosts
    assert gone.engine is not None and left.engine is not None
    gone.pool.kill()
    gone.engine.kill()
    for number in range(2):
        for chat in chats:
            had = chat.held[left.url]
            answer = turn(chat, proxy, hosts, reference)
            assert answer["served_by"] == left.url
            assert answer["cached"] == had > 500, f"{chat.name}, turn {number + 1} alone: what is here is reloaded"
    assert not left.engine.faults()

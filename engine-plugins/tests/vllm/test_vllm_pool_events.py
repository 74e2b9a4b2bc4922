"""KV events of the pool itself: read by ZeroMQ's own library and decoded by vLLM's own classes, over a restart.

What a router does: it subscribes, keeps what is stored and removed, asks again for what it missed, and forgets all of an
earlier life.
"""

from __future__ import annotations

import pathlib
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from conftest import common
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

import turnkv

PAGE_TOKENS, PAGE_BYTES = 16, 4096
WAIT_MS = 30_000
END = (-1).to_bytes(8, "big", signed=True)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Router:
    """What a router knows: names of pages by medium, of one life of the pool."""

    def __init__(self, publish: str, replay: str) -> None:
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, b"turnkv@")
        self.sub.setsockopt(zmq.RECONNECT_IVL, 50)
        self.sub.connect(f"tcp://{publish}")
        self.replay = replay
        self.life, self.number = b"", -1
        self.known: dict[str, set[bytes | int]] = {"CPU": set(), "STORAGE": set()}
        self.parents: dict[bytes | int, bytes | int | None] = {}
        self.owners: set[str] = set()

    def hear(self) -> None:
        """One message; what was missed before it is asked for."""
        assert self.sub.poll(WAIT_MS), "no message"
        topic, number, payload = self.sub.recv_multipart()
        at = int.from_bytes(number, "big")
        if topic != self.life:
            assert not self.life or int(topic.split(b"@")[1]) > int(self.life.split(b"@")[1]), "a later life has a higher number"
            self.forget()
            self.life, self.number = topic, -1
        if at > self.number + 1:
            self.catch_up()
        if at > self.number:
            self.take(at, payload)

    def catch_up(self) -> list[int]:
        """Asks for all that it has not; the numbers that came."""
        asking = self.context.socket(zmq.DEALER)
        asking.connect(f"tcp://{self.replay}")
        asking.send_multipart([b"", (self.number + 1).to_bytes(8, "big")])
        came = []
        while True:
            assert asking.poll(WAIT_MS), "no answer"
            empty, number, payload = asking.recv_multipart()
            assert empty == b""
            if number == END:
                break
            came.append(int.from_bytes(number, "big"))
            self.take(came[-1], payload)
        asking.close(0)
        return came

    def take(self, number: int, payload: bytes) -> None:
        """What one message says, by vLLM's own classes."""
        assert number == self.number + 1, f"{number} after {self.number}"
        self.number = number
        batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
        assert abs(batch.ts - time.time()) < 3600
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.forget()
            elif isinstance(event, BlockStored):
                assert event.block_size == PAGE_TOKENS and event.token_ids == []
                self.known[event.medium].update(event.block_hashes)
                for parent, name in zip([event.parent_block_hash, *event.block_hashes], event.block_hashes, strict=False):
                    self.parents[name] = parent
                self.owners.add(event.ownership)
            else:
                assert isinstance(event, BlockRemoved)
                self.known[event.medium].difference_update(event.block_hashes)

    def forget(self) -> None:
        """Nothing is known."""
        self.known = {medium: set() for medium in self.known}

    def until(self, medium: str, names: set[bytes | int]) -> None:
        """Hears until exactly these are known."""
        deadline = time.monotonic() + WAIT_MS / 1000
        while self.known[medium] != names:
            assert time.monotonic() < deadline, f"{len(self.known[medium])} of {len(names)}"
            self.hear()

    def close(self) -> None:
        self.sub.close(0)
        self.context.term()


@pytest.fixture(params=["int", "bytes"])
def pool(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A pool that tells of its pages, and names them as vLLM does, or by all of their hash."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
    server = common.Server(folder, dram="16MiB", nvme="256MiB")
    server.publish, server.replay = free_address(), free_address()
    text = f'[events]\npublish = "{server.publish}"\nreplay = "{server.replay}"\n'
    text += f'names = "{request.param}"\n' if request.param != "int" else ""
    server.said = {"int": maybe_convert_block_hash, "bytes": bytes}[request.param]
    server.config.write_text(server.config.read_text() + text)
    yield server.start()
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


def names_of(tokens: int, seed: int) -> list[bytes]:
    packed = b"".join(((at * 7 + seed) % 5000).to_bytes(4, "little") for at in range(tokens))
    chained = turnkv.chain_hashes(packed, PAGE_TOKENS)
    return [bytes(chained[at : at + 32]) for at in range(0, len(chained), 32)]


def said(pool: Any, *chains: list[bytes]) -> list[bytes | int]:
    """The same names as its events have them."""
    return [pool.said(name) for chain in chains for name in chain]


def store(pool: Any, names: list[bytes]) -> None:
    space = pool.pool().open_namespace(
        "events", dtype="bf16", page_tokens=PAGE_TOKENS, layout="opaque", opaque_shard_bytes=PAGE_BYTES
    )
    report = space.offload(b"".join(names), [bytes(PAGE_BYTES)] * len(names))
    assert report.stored + report.present == len(names), report


def test_a_router_follows_the_pool_over_a_restart(pool: Any) -> None:
    router = Router(pool.publish, pool.replay)
    first = names_of(20 * PAGE_TOKENS, seed=1)
    store(pool, first)
    assert router.catch_up()[0] == 0, "the life begins with number 0"
    router.until("CPU", set(said(pool, first)))
    assert [router.parents[name] for name in said(pool, first)] == [None, *said(pool, first[:-1])]
    router.until("STORAGE", set(said(pool, first)))
    pool.to_nvme()
    router.until("CPU", set())
    assert router.known["STORAGE"] == set(said(pool, first))
    (owner,) = router.owners
    assert owner.encode().startswith(router.life), "whose pages these are, and in which life"

    # As a router that was away: what it missed is asked for.
    router.sub.disconnect(f"tcp://{pool.publish}")
    second = names_of(10 * PAGE_TOKENS, seed=2)
    store(pool, second)
    pool.settle()
    assert router.catch_up(), "what it missed is there"
    assert set(said(pool, second)) <= router.known["CPU"]
    router.sub.connect(f"tcp://{pool.publish}")

    before = router.life
    pool.kill()
    pool.start()
    later: list[bytes] = []
    deadline = time.monotonic() + WAIT_MS / 1000
    while router.life == before:  # it connects again by itself; the next message is what shows that
        assert time.monotonic() < deadline, "no message of the new life"
        some = names_of(2 * PAGE_TOKENS, seed=1000 + len(later))
        store(pool, some)
        later += some
        if router.sub.poll(200):
            router.hear()
    assert int(router.life.split(b"@")[1]) > int(before.split(b"@")[1])
    router.until("CPU", set(said(pool, later)))
    router.until("STORAGE", set(said(pool, first, second, later)))
    assert {owner.rpartition("@")[0].encode() for owner in router.owners} == {before, router.life}
    router.close()


def test_who_does_not_speak_zeromq_harms_nobody(pool: Any) -> None:
    host, port = pool.publish.split(":")
    for words in (b"GET / HTTP/1.1\r\n\r\n" * 8, b"\xff" + b"\0" * 200, b""):
        with socket.create_connection((host, int(port)), 10) as stranger:
            stranger.sendall(words)
    names = names_of(3 * PAGE_TOKENS, seed=4)
    store(pool, names)
    router = Router(pool.publish, pool.replay)
    router.catch_up()
    router.until("CPU", set(said(pool, names)))
    router.close()

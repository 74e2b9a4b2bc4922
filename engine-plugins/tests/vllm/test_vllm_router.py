"""A router that others wrote follows an engine's cache and what it keeps in the pool: Dynamo's standalone KV indexer.

It hashes a prompt's tokens itself, so it learns of blocks from the engine's events, which have tokens; the pool's own
events name the same blocks, without tokens, and are read by it and left aside.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import prompt_of, whole_blocks
from engine import Engine
from test_vllm_pool_events import free_address, names_of, pool, store

__all__ = ["pool"]
BLOCK_TOKENS = 32
MODEL = "plain"
WAIT_S = 60


class Indexer:
    """The router's process, and what it answers."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.port = free_address().split(":")[1]
        self.log = folder / "indexer.log"
        command = [sys.executable, "-m", "dynamo.indexer", "--port", self.port]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.until(lambda: self.call("/workers") == [])

    def call(self, path: str, body: Any = None) -> Any:
        """What it answers; None: nothing yet."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.loads(answer.read())
        except ConnectionError:
            return None
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()}") from error
        except urllib.error.URLError:
            return None

    def follow(self, worker: int, publish: str, replay: str | None, block_tokens: int) -> None:
        """Has it follow an engine, or a pool."""
        said = {"instance_id": worker, "endpoint": publish, "model_name": MODEL, "block_size": block_tokens}
        self.call("/register", said | ({"replay_endpoint": replay} if replay else {}))

    def tokens(self, worker: int, prompt: list[int]) -> tuple[int, int]:
        """Leading tokens of a prompt that it believes to be in an engine's own cache, and in host memory for it."""
        found = self.call("/query", {"token_ids": prompt, "model_name": MODEL})["instances"].get(str(worker), {})
        return found.get("gpu", 0), found.get("cpu", 0)

    def until(self, fact: Callable[[], bool]) -> None:
        """Waits until something is so."""
        deadline = time.monotonic() + WAIT_S
        while not fact():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.1)


def turn(engine: Engine, prompt: list[int]) -> list[int]:
    """The tokens that follow; all that is to be in the pool is there then."""
    (answer,) = engine.generate([prompt])
    engine.drain()
    return answer["tokens"]


@pytest.fixture
def indexer(tmp_path: pathlib.Path) -> Iterator[Indexer]:
    """A router that knows nothing yet."""
    started = Indexer(tmp_path)
    yield started
    started.process.kill()
    started.process.wait()


def test_a_router_sends_a_prompt_to_where_the_pool_has_it(
    indexer: Indexer,
    models: dict[str, pathlib.Path],
    pool_server: Any,
    start_engine: Callable[..., Engine],
) -> None:
    publish = free_address()
    endpoint = publish.replace("127.0.0.1", "*")  # vLLM binds where no host is named, and connects otherwise
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://{endpoint}"}
    few = {"kv_events": events, "num_gpu_blocks_override": 24, "max_model_len": 640}
    engine = start_engine(models["plain"], {"pool": pool_server.address}, **few)
    indexer.follow(1, f"tcp://{publish}", None, BLOCK_TOKENS)
    # Who connects to a publisher misses what it says until that has noticed.
    seeds = itertools.count(100)
    indexer.until(lambda: bool(turn(engine, prompt_of(64, seed=next(seeds)))) and bool(known(indexer)))

    prompt = prompt_of(400, seed=71)
    tokens = turn(engine, prompt)
    chat, computed = prompt + tokens, whole_blocks(prompt, tokens)
    indexer.until(lambda: indexer.tokens(1, chat) == (computed, computed))
    assert indexer.tokens(1, prompt_of(400, seed=72)) == (0, 0), "another prompt is nowhere"

    # Others take its place in the engine: the pool has it still.
    indexer.until(lambda: bool(turn(engine, prompt_of(400, seed=next(seeds)))) and indexer.tokens(1, chat) == (0, computed))
    engine.close()


def known(indexer: Indexer) -> list[Any]:
    """What it has been told of, block by block."""
    return [event for tree in indexer.call("/dump").values() for event in tree["events"]]


@pytest.mark.parametrize("pool", ["int"], indirect=True)
def test_a_router_reads_the_pools_own_events_too(indexer: Indexer, pool: Any) -> None:
    indexer.follow(2, f"tcp://{pool.publish}", f"tcp://{pool.replay}", 16)
    store(pool, names_of(20 * 16, seed=5))
    # Blocks without tokens are nothing that it could find, so its log is where it shows that it read them: it came late, and asks
    # for what it missed.
    indexer.until(lambda: "Replay complete" in indexer.log.read_text())
    assert "Failed to decode" not in indexer.log.read_text()

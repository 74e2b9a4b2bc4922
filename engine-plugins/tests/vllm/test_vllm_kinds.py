"""Other kinds of engines: prefill and decode apart, two ranks, sliding windows, layer by layer, sessions, KV events."""

from __future__ import annotations

import pathlib
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq
from conftest import Greedy, common, prompt_of, ranks_of, whole_blocks
from engine import Engine
from models import WINDOW


def turn(engine: Engine, prompt: list[int], **options: Any) -> dict[str, Any]:
    (answer,) = engine.generate([prompt], **options)
    engine.drain()
    return answer


def test_prefill_hands_over_to_decode(
    models: dict[str, pathlib.Path], pool_server: Any, start_engine: Callable[..., Engine], reference: Greedy
) -> None:
    """A prefill instance stores while a decode instance is already asked; the second's reply goes back to the first."""
    prefill = start_engine(models["plain"], {"pool": pool_server.address, "role": "kv_producer"})
    decode = start_engine(models["plain"], {"pool": pool_server.address, "role": "kv_both", "handover_ms": 5000})
    prompt = prompt_of(1300, seed=1)
    (first,) = prefill.generate([prompt], max_tokens=1)
    assert first["handover"] == {"turnkv": {"handover_tokens": 1280}}
    # Nothing drives the prefill engine for a while, as in a server it would be: the decode instance waits meanwhile.
    drained = threading.Timer(0.3, prefill.drain)
    drained.start()
    handed = turn(decode, prompt, extra=[{"kv_transfer_params": first["handover"]}])
    drained.join()
    assert [handed["tokens"]] == reference([prompt]) and handed["tokens"][:1] == first["tokens"]
    assert handed["cached"] == 1280

    # No fixed roles: what the decode instance generated is in the pool for whoever prefills the next turn.
    third = start_engine(models["plain"], {"pool": pool_server.address, "role": "kv_consumer"})
    again = prompt + handed["tokens"] + prompt_of(60, seed=2)
    answer = turn(third, again)
    assert [answer["tokens"]] == reference([again]) and answer["cached"] == whole_blocks(prompt, handed["tokens"])
    assert "saved_blocks" not in third.metrics() or third.metrics()["saved_blocks"] == 0
    for engine in (prefill, decode, third):
        engine.close()


def test_two_ranks(models: dict[str, pathlib.Path], pool_server: Any) -> None:
    """Each rank stores and loads its own shard of a page."""
    engine = Engine(models["plain"], {"pool": pool_server.address}, **ranks_of(2))
    prompt = prompt_of(900, seed=11)
    computed = turn(engine, prompt)
    engine.forget()
    loaded = turn(engine, prompt)
    assert loaded["tokens"] == computed["tokens"] and (computed["cached"], loaded["cached"]) == (0, 896)
    counted = engine.metrics()
    assert (counted["saved_blocks"], counted["loaded_blocks"], counted["loaded_tokens"]) == (28, 28, 896)
    assert pool_server.pool().stats()["namespaces"] >= 1

    # What one rank cannot have, none has: the block is computed again on both.
    engine.patch_rank("fail_loads", rank=1, every=7)
    engine.forget()
    longer = prompt + computed["tokens"] + prompt_of(64, seed=12)
    partly = turn(engine, longer)
    failed = engine.metrics()
    assert (failed["failed_tokens:io"], failed["loaded_tokens"]) == (22 * 32, 896 + 6 * 32), failed
    engine.patch_rank("heal_loads", rank=1)
    engine.forget()
    whole = turn(engine, longer)
    assert whole["tokens"] == partly["tokens"] and engine.metrics()["loaded_tokens"] > failed["loaded_tokens"] + 896
    engine.close()


def test_a_private_pool(models: dict[str, pathlib.Path], reference: Greedy) -> None:
    """No address: a server of this user's own is started when it is needed, and stopped when its last client leaves."""
    with tempfile.TemporaryDirectory(prefix="turnkv-") as home:  # a socket's path must be short
        folders = {"XDG_RUNTIME_DIR": home, "XDG_CACHE_HOME": home}
        server = {"TURNKV_SERVER": str(common.server_binary().absolute())}
        engine = Engine(models["plain"], {}, environment=folders | server)
        prompt = prompt_of(700, seed=15)
        one = turn(engine, prompt)
        engine.forget()
        again = prompt + one["tokens"] + prompt_of(40, seed=16)
        two = turn(engine, again)
        assert [one["tokens"], two["tokens"]] == reference([prompt, again])
        assert two["cached"] == whole_blocks(prompt, one["tokens"])
        sockets = [path for path in pathlib.Path(home).rglob("*") if path.is_socket()]
        engine.close()
        assert sockets, "it ran in the folders it was told"
        # Not the keeper's: it waits a little for the next server after each caller, and a look is one.
        served = [path for path in sockets if path.suffix != ".keep"]
        wait_until(lambda: not any(answers(path) for path in served), seconds=60)


def answers(path: pathlib.Path) -> bool:
    """Whether somebody listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_sliding_windows(
    models: dict[str, pathlib.Path], pool_server: Any, start_engine: Callable[..., Engine], reference: Greedy
) -> None:
    """Several groups: full layers need all pages, sliding ones their window; a failed load is taken back whole."""
    engine = start_engine(models["hybrid"], {"pool": pool_server.address})
    prompt = prompt_of(800, seed=21)
    one = turn(engine, prompt)
    assert [one["tokens"]] == reference([prompt], model="hybrid") and one["cached"] == 0
    engine.forget()
    before = engine.metrics()
    again = prompt + one["tokens"] + prompt_of(70, seed=22)
    two = turn(engine, again)
    after = engine.metrics()
    assert [two["tokens"]] == reference([again], model="hybrid")
    assert two["cached"] == whole_blocks(prompt, one["tokens"]) == 800
    blocks = after["loaded_blocks"] - before.get("loaded_blocks", 0)
    assert 25 + WINDOW // 32 <= blocks < 2 * 25, "sliding groups load their windows, not everything"

    engine.patch("fail_loads", every=7)
    engine.forget()
    three = turn(engine, again)
    assert [three["tokens"]] == reference([again], model="hybrid")
    counted = engine.metrics()
    assert counted["failed_tokens:io"] > 0 and counted["loaded_tokens"] == after["loaded_tokens"]
    engine.close()


@pytest.mark.parametrize("load", ["async", "layerwise"])
def test_pages_on_a_device(
    load: str, models: dict[str, pathlib.Path], pool_server: Any, start_engine: Callable[..., Engine], reference: Greedy
) -> None:
    """The way that a GPU's memory takes, here on the host device: what one way stores the other loads."""
    direct = start_engine(models["plain"], {"pool": pool_server.address, "tenant": load})
    device = start_engine(models["plain"], {"pool": pool_server.address, "tenant": load, "load": load}, on_device=True)
    prompt = prompt_of(1100, seed=61)
    one = turn(device, prompt)
    again = prompt + one["tokens"] + prompt_of(90, seed=62)
    two = turn(direct, again)
    longer = again + two["tokens"] + prompt_of(90, seed=63)
    three = turn(device, longer)
    assert [one["tokens"], two["tokens"], three["tokens"]] == reference([prompt, again, longer])
    assert (two["cached"], three["cached"]) == (whole_blocks(prompt, one["tokens"]), whole_blocks(again, two["tokens"]))
    device.forget()
    assert turn(device, longer)["cached"] == whole_blocks(longer[:-1], [0]) and three["cached"] > 1000
    assert device.metrics()["loaded_tokens"] > 1300

    # A bit that flipped in the pool's memory: the block is named as failed, vLLM computes it, the tokens stay the same.
    device.patch("poison_memory", page=9)
    device.forget()
    four = turn(device, longer)
    assert [four["tokens"]] == reference([longer]) and device.metrics()["failed_tokens:checksum"] > 0
    direct.close()
    device.close()


def test_layer_by_layer(
    models: dict[str, pathlib.Path], pool_server: Any, start_engine: Callable[..., Engine], reference: Greedy
) -> None:
    engine = start_engine(models["plain"], {"pool": pool_server.address, "load": "layerwise"})
    prompts = [prompt_of(700, seed) for seed in (31, 32)]
    first = engine.generate(prompts)
    engine.drain()
    assert [answer["tokens"] for answer in first] == reference(prompts)
    engine.forget()
    loaded = engine.generate(prompts)
    engine.drain()
    assert [answer["tokens"] for answer in loaded] == reference(prompts)
    assert [answer["cached"] for answer in loaded] == [672, 672]
    assert engine.metrics()["loaded_tokens"] == 2 * 672

    # Pages from NVMe, verified where they lie, go the same way.
    pool_server.to_nvme()
    engine.forget()
    assert turn(engine, prompts[0])["tokens"] == first[0]["tokens"]
    assert engine.metrics()["loaded_tokens"] == 3 * 672

    # A lease that did not hold is noticed after the forward pass: its tokens are computed again, nothing is stored.
    engine.patch("poison_layer_copies", layer=2)
    engine.forget()
    longer = prompts[1] + first[1]["tokens"] + prompt_of(100, seed=33)
    answer = turn(engine, longer)
    assert [answer["tokens"]] == reference([longer])
    assert engine.metrics()["failed_tokens:lease_expired"] > 0
    engine.forget()
    assert turn(engine, longer)["tokens"] == answer["tokens"]
    engine.close()


@pytest.fixture(scope="module")
def talking(
    models: dict[str, pathlib.Path], pool_server: Any, start_engine: Callable[..., Engine], tmp_path_factory: Any
) -> tuple[Engine, str]:
    """An engine that publishes KV events, and where."""
    endpoint = f"ipc://{tmp_path_factory.mktemp('events')}/kv"
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint, "topic": "kv"}
    return start_engine(models["plain"], {"pool": pool_server.address}, kv_events=events), endpoint


def test_sessions_are_told_to_the_pool(talking: tuple[Engine, str]) -> None:
    engine, _ = talking
    prompt = prompt_of(500, seed=41)
    hints = {"session": "chat-41", "ttl_ms": 60_000, "expected_return_ms": 1000, "priority": 1}
    one = turn(engine, prompt, extra=[{"kv_transfer_params": {"turnkv": hints}}])
    pages = whole_blocks(prompt, one["tokens"]) // 32
    wait_until(lambda: engine.session("chat-41")[1] == pages)
    turns, _ = engine.session("chat-41")
    again = prompt + one["tokens"] + prompt_of(64, seed=42)
    two = turn(engine, again, extra=[{"turnkv_session": "chat-41"}])
    longer = whole_blocks(again, two["tokens"]) // 32
    wait_until(lambda: engine.session("chat-41")[1] == longer)
    assert engine.session("chat-41")[0] > turns, "a turn was begun"
    branch = again + two["tokens"] + prompt_of(32, seed=43)
    three = turn(engine, branch, extra=[{"turnkv": {"session": "branch", "fork_from": "chat-41"}}])
    wait_until(lambda: engine.session("branch")[1] == whole_blocks(branch, three["tokens"]) // 32)
    assert engine.session("chat-41")[1] == longer, "the fork left its origin alone"
    turn(engine, prompt, extra=[{"turnkv": {"session": "chat-41", "final": True}}])
    wait_until(lambda: engine.session("chat-41")[1] == 0)


def test_wrong_hints_do_no_harm(talking: tuple[Engine, str], reference: Greedy) -> None:
    engine, _ = talking
    prompt = prompt_of(200, seed=44)
    wrong = {"turnkv": {"session": 7, "ttl_ms": -1, "colour": "blue", "fork_from": "nobody"}}
    assert [turn(engine, prompt, extra=[wrong])["tokens"]] == reference([prompt])
    before = engine.metrics().get("session_failures:session_unknown", 0)
    turn(engine, prompt, extra=[{"turnkv": {"session": "orphan", "fork_from": "nobody"}}])
    wait_until(lambda: turn(engine, prompt) and engine.metrics().get("session_failures:session_unknown", 0) > before)


def test_kv_events(talking: tuple[Engine, str], pool_server: Any) -> None:
    """What goes over the wire decodes with vLLM's own types and names our tier."""
    from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch

    engine, endpoint = talking
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.connect(endpoint)
    socket.setsockopt_string(zmq.SUBSCRIBE, "kv")
    socket.setsockopt(zmq.RCVTIMEO, 300)
    time.sleep(0.2)

    def events() -> list[Any]:
        found: list[Any] = []
        while True:
            try:
                _, _, payload = socket.recv_multipart()
            except zmq.Again:
                return [event for event in found if getattr(event, "medium", None) == "CPU"]
            found.extend(msgspec.msgpack.decode(payload, type=KVEventBatch).events)

    prompt = prompt_of(400, seed=51)
    one = turn(engine, prompt)
    (stored,) = events()
    computed = whole_blocks(prompt, one["tokens"])
    assert isinstance(stored, BlockStored) and stored.parent_block_hash is None and stored.block_size == 32
    assert len(stored.block_hashes) == computed // 32
    assert stored.token_ids == (prompt + one["tokens"])[:computed]

    again = prompt + one["tokens"] + prompt_of(64, seed=52)
    two = turn(engine, again)
    (more,) = events()
    assert more.parent_block_hash == stored.block_hashes[-1], "a turn announces what it added"
    assert len(more.block_hashes) == (whole_blocks(again, two["tokens"]) - computed) // 32 > 0

    pool_server.pool().evict()
    engine.forget()
    turn(engine, prompt)
    removed = [event for event in events() if isinstance(event, BlockRemoved)]
    assert removed and set(stored.block_hashes[:12]) <= set(removed[0].block_hashes)


def wait_until(fact: Callable[[], bool], seconds: float = 5.0) -> None:
    """Sessions are told off the scheduler's thread."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it does not become true"
        time.sleep(0.02)


def test_an_orchestrators_hints_reach_the_pool(
    models: dict[str, pathlib.Path], pool_server: Any, start_engine: Callable[..., Engine]
) -> None:
    """As vLLM carries them from its request to the connector."""
    pytest.importorskip("vllm.v1.kv_hints")
    engine = start_engine(models["plain"], {"pool": pool_server.address})
    action = {"action_id": "1", "action_type": "turnkv.session", "action_version": "1.0", "payload": {"session": "hinted"}}
    prompt = prompt_of(400, seed=91)
    tokens = engine.generate_hinted(prompt, {"protocol_version": "1.0", "message_id": "m", "actions": [action]})
    wait_until(lambda: engine.session("hinted")[1] == whole_blocks(prompt, tokens) // 32)
    engine.close()

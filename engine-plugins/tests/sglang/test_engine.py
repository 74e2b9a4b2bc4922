"""The real SGLang engine over a real pool: what comes back is what was computed, and no pool can stop the engine.

Every kind of storage goes through the same turns, one engine after another over one pool, so each later engine also
finds what an earlier one stored, in another mode and memory layout.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from checkpoints import prompt
from damage import flip, some_bits
from engine_process import PAGE, Engine, hicache, linker

import turnkv

DEADLINE_MS = 500
# A look at the pool may take 10 ms by default. On a machine that builds beside the tests some take longer, and those are misses.
LINKER_PATIENCE = {"lookup_ms": DEADLINE_MS, "load_ms": 2000}
PATIENCE_SECONDS = 4
"""What a request may take longer while the pool is stopped: a few deadlines of half a second, on busy cores."""
KINDS = {
    "cache": (lambda pool: hicache(pool, "cache", "layer_first", deadline_ms=DEADLINE_MS), "storage"),
    "buffer_only": (lambda pool: hicache(pool, "buffer_only", "page_first_direct", deadline_ms=DEADLINE_MS), "storage"),
    "linker": (lambda pool: linker(pool, deadline_ms=DEADLINE_MS, **LINKER_PATIENCE), "host"),  # what SGLang calls it
}
_salts = itertools.count()


class Running:
    """One engine of a kind, its pool, and what the engines before it were asked."""

    def __init__(self, kind: str, engine: Engine, pool: Any) -> None:
        self.kind, self.engine, self.pool, self.source = kind, engine, pool, KINDS[kind][1]

    def cold(self, ids: list[int]) -> dict[str, Any]:
        """What the engine says when nothing of `ids` is cached anywhere: a salt of its own."""
        said = self.engine.generate(ids, salt=f"cold {self.kind} {next(_salts)}")
        assert said["cached"] == 0, said
        return said

    def forget(self) -> None:
        """The engine's own caches are empty, the pool's are not."""
        self.engine.settle()
        self.engine.flush()

    def reloaded(self, said: dict[str, Any]) -> int:
        """Tokens of an answer that came from the pool."""
        return said["details"].get(self.source, 0)


@pytest.fixture(scope="module")
def stories() -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) of earlier engines."""
    return []


@pytest.fixture(scope="module", params=KINDS)
def running(
    request: pytest.FixtureRequest,
    models: dict[str, pathlib.Path],
    pool_server: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    """An engine of each kind, one after another."""
    settings = KINDS[request.param][0](pool_server.address)
    with Engine(tmp_path_factory.mktemp(request.param), models["one"], tokens_max=1024, **settings) as engine:
        yield Running(request.param, engine, pool_server)


def whole_pages(tokens: int) -> int:
    """Tokens of the pages that a prompt can take from a cache: the last token is always computed."""
    return (tokens - 1) // PAGE * PAGE


def test_new_engine_finds_what_others_stored(running: Running, stories: list[tuple[list[int], list[int]]]) -> None:
    if running.kind == "cache":
        pytest.skip("the first engine")
    assert stories
    for ids, answer in stories:
        said = running.engine.generate(ids)
        assert running.reloaded(said) == said["cached"] == whole_pages(len(ids)), (said, running.engine.counts())
        assert said["out"] == answer == running.cold(ids)["out"]


def test_turn_two_after_flush(running: Running, stories: list[tuple[list[int], list[int]]]) -> None:
    seed = list(KINDS).index(running.kind)
    first = prompt(400, seed=10 + seed)
    one = running.engine.generate(first, new=24)
    assert one["cached"] == 0, one
    second = first + one["out"] + prompt(40, seed=20)
    computed = running.cold(second)["out"]
    running.forget()
    two = running.engine.generate(second)
    stored = (len(first) + 24 - 1) // PAGE * PAGE  # the last sampled token has no K and V yet
    assert running.reloaded(two) == two["cached"] == stored, two
    assert two["out"] == computed
    running.forget()
    again = running.engine.generate(second)
    assert running.reloaded(again) == again["cached"] == whole_pages(len(second)), again
    assert again["out"] == computed
    assert "callers_unread" not in running.engine.counts(), "SGLang calls a linker in another way: see turnkv.sglang.callers"
    stories.append((second, computed))


def test_turn_two_from_nvme(running: Running) -> None:
    ids = prompt(300, seed=30)
    computed = running.engine.generate(ids)["out"]
    running.forget()
    running.pool.to_nvme()
    said = running.engine.generate(ids)
    assert running.reloaded(said) == whole_pages(len(ids)), said
    assert said["out"] == computed == running.cold(ids)["out"]


def test_wrong_bytes_would_show(running: Running) -> None:
    """The comparisons of this file are sensitive: K and V spoilt after their verification change what it says."""
    ids = prompt(300, seed=31)
    computed = running.engine.generate(ids)["out"]
    running.forget()
    running.engine.spoil()
    said = running.engine.generate(ids)
    running.engine.spoil(False)
    assert running.reloaded(said) == whole_pages(len(ids)), said
    assert said["out"] != computed
    running.forget()  # nor has the engine stored the spoilt pages over the good ones
    assert running.engine.generate(ids)["out"] == computed


def test_flipped_bits_on_disk_are_recomputed(running: Running) -> None:
    ids = prompt(320, seed=32)
    computed = running.engine.generate(ids)["out"]
    running.forget()
    running.pool.to_nvme()
    bits = some_bits(running.pool.folder / "nvme")
    assert len(bits) > 20
    flip(bits)
    try:
        said = running.engine.generate(ids)
        assert said["cached"] < PAGE * 4, said
        assert said["finish"] == "length" and said["out"] == computed
    finally:
        flip(bits)
    assert running.pool.pool().stats()["corrupt_pages"] > 0
    running.forget()
    if running.kind == "buffer_only":  # believes its pages stored until a query says otherwise, then stores them anew
        assert running.engine.generate(ids)["cached"] == 0
        running.forget()
    # The recomputed pages have taken the place of the lost ones.
    again = running.engine.generate(ids)
    assert running.reloaded(again) == whole_pages(len(ids)) and again["out"] == computed, again


def test_natural_eviction(running: Running) -> None:
    ids = prompt(400, seed=33)
    computed = running.engine.generate(ids)["out"]
    running.engine.settle()
    for filler in range(5):
        running.engine.generate(prompt(600, seed=100 + filler), new=1)
        running.engine.settle()
    said = running.engine.generate(ids)
    assert running.reloaded(said) > 200 and said["cached"] == whole_pages(len(ids)), said
    assert said["out"] == computed


def test_sessions_reach_the_pool(running: Running) -> None:
    if running.kind != "linker":
        pytest.skip("HiCache does not tell a storage backend about sessions")
    session = "chat-1"
    first = prompt(200, seed=34)
    one = running.engine.generate(first, new=24, session=session)
    running.engine.settle()
    spec = json.loads((running.engine.folder / "namespace").read_text())
    pages = running.pool.pool().open_namespace(**spec | {"salt": bytes.fromhex(spec["salt"])})
    begun = pages.begin_turn(session)
    assert begun.pages == (200 + 23) // PAGE and begun.turn >= 2, (begun.pages, begun.turn)
    second = first + one["out"] + prompt(60, seed=35)
    running.engine.generate(second, session=session)
    running.engine.settle()
    assert pages.begin_turn(session).pages >= len(second) // PAGE
    counts = running.engine.counts()
    assert "sessions_without_prefix" not in counts and "error:session_unknown" not in counts, counts


def test_an_orchestrators_hints_reach_the_pool(running: Running) -> None:
    if running.kind != "linker":
        pytest.skip("SGLang 0.5.23 hands no hints on to a storage backend")
    payload = {"session": "ours", "priority": 1, "ttl_ms": 60_000}
    action = {"action_id": "1", "action_type": "turnkv.session", "action_version": "1.0", "payload": payload}
    hints = {"protocol_version": "1.0", "message_id": "m", "actions": [action]}
    first = prompt(300, seed=36)
    running.engine.generate(first, session="theirs", hints=hints)
    running.engine.settle()
    spec = json.loads((running.engine.folder / "namespace").read_text())
    pages = running.pool.pool().open_namespace(**spec | {"salt": bytes.fromhex(spec["salt"])})
    assert pages.begin_turn("ours").pages >= len(first) // PAGE and pages.begin_turn("theirs").pages == 0
    # The counts are written now and then.
    assert running.engine.wait_for(lambda counts: "hints_heard" in counts)["hints_heard"] == 1


def test_stopped_pool(running: Running) -> None:
    known, new = prompt(300, seed=36), prompt(300, seed=37)
    computed = running.engine.generate(known)["out"]
    running.forget()
    usual = running.cold(new)
    running.engine.settle()
    running.pool.pause()
    try:
        for ids, expected in ((known, computed), (new, usual["out"]), (known, computed)):
            said = running.engine.generate(ids)
            assert said["out"] == expected and said["finish"] == "length"
            assert said["seconds"] < usual["seconds"] + PATIENCE_SECONDS, said
    finally:
        running.pool.go_on()
    assert any(name.startswith("error:") for name in running.engine.counts())


def test_dead_pool_and_its_return(running: Running) -> None:
    known = prompt(300, seed=38)
    computed = running.engine.generate(known)["out"]
    running.forget()
    running.pool.settle()
    running.pool.kill()
    try:
        said = running.engine.generate(known)
        assert said["out"] == computed and said["cached"] == 0, said
        running.engine.flush()
    finally:
        running.pool.start()
    running.engine.wait_for(lambda _: _open(running.pool))
    for _ in range(20):  # until the breaker lets a call through again
        said = running.engine.generate(known)
        if running.reloaded(said):
            break
        running.forget()
    assert running.reloaded(said) == whole_pages(len(known)) and said["out"] == computed, said


def _open(server: Any) -> bool:
    try:
        return server.pool(call_ms=500).stats() is not None
    except turnkv.Error:
        return False


def test_other_weights_share_nothing(
    models: dict[str, pathlib.Path],
    pool_server: Any,
    tmp_path: pathlib.Path,
    stories: list[tuple[list[int], list[int]]],
) -> None:
    """The same tokens, layout, dtype and settings: only the weights differ."""
    ids, answer = stories[0]
    with Engine(tmp_path, models["other"], tokens_max=1024, **linker(pool_server.address, **LINKER_PATIENCE)) as engine:
        said = engine.generate(ids)
        assert said["cached"] == 0 and said["out"] != answer, said
        for _ in range(10):  # on a busy machine a look at the pool may come too late, and then it is computed again
            engine.settle()
            engine.flush()
            again = engine.generate(ids)
            if "host" in again["details"]:
                break
        assert again["details"].get("host") == whole_pages(len(ids)) and again["out"] == said["out"], again

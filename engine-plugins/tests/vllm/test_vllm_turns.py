"""Turns on real engines: a second turn in a new process, interleaved sessions, faults, a pool that stops and dies."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Greedy, prompt_of, whole_blocks
from engine import Engine

LOOKUP_MS, LOAD_MS, SAVE_MS = 200, 1000, 1000
BLOCKS = 150
"""Of the engine's own cache: 4,800 tokens, less than three sessions need."""


def connector(server: Any, **options: Any) -> dict[str, Any]:
    return {"pool": server.address, "lookup_ms": LOOKUP_MS, "load_ms": LOAD_MS, "save_ms": SAVE_MS} | options


@pytest.fixture(scope="module")
def engine(models: dict[str, pathlib.Path], pool_server: Any, start_engine: Callable[..., Engine]) -> Engine:
    """The engine that most tests share; each uses prompts of its own."""
    return start_engine(models["plain"], connector(pool_server), num_gpu_blocks_override=BLOCKS)


def turn(engine: Engine, prompt: list[int], **options: Any) -> dict[str, Any]:
    (answer,) = engine.generate([prompt], **options)
    engine.drain()
    return answer


def test_second_turn_in_another_process(
    models: dict[str, pathlib.Path], pool_server: Any, engine: Engine, reference: Greedy
) -> None:
    first = Engine(models["plain"], connector(pool_server))
    prompt = prompt_of(1500, seed=1)
    one = turn(first, prompt)
    counted = first.metrics()
    first.close()
    assert [one["tokens"]] == reference([prompt]) and one["cached"] == 0
    blocks = whole_blocks(prompt, one["tokens"]) // 32
    assert counted["saved_blocks"] == blocks and counted["lookups:miss"] == 1

    again = prompt + one["tokens"] + prompt_of(100, seed=2)
    before = engine.metrics()
    two = turn(engine, again)
    after = engine.metrics()
    assert [two["tokens"]] == reference([again])
    assert two["cached"] == blocks * 32 == 1504
    assert after["loaded_tokens"] - before.get("loaded_tokens", 0) == blocks * 32
    assert after["loaded_blocks"] - before.get("loaded_blocks", 0) == blocks
    assert after["lookups:hit"] == 1 and "failed_tokens" not in after


def test_poisoned_pages_change_the_tokens(
    models: dict[str, pathlib.Path], pool_server: Any, engine: Engine, reference: Greedy
) -> None:
    """The comparison of tokens above can fail."""
    prompt = prompt_of(700, seed=3)
    turn(engine, prompt)
    victim = Engine(models["plain"], connector(pool_server, save="off"))
    victim.patch("poison_loads")
    poisoned = turn(victim, prompt)
    victim.close()
    assert poisoned["cached"] == 672 and [poisoned["tokens"]] != reference([prompt])


def test_three_sessions_take_turns_in_a_small_cache(engine: Engine, reference: Greedy) -> None:
    sessions = {name: prompt_of(1800, seed) for name, seed in (("a", 11), ("b", 12), ("c", 13))}
    expected = dict.fromkeys(sessions, 0)
    for number in range(3):
        before = engine.metrics()
        answers = engine.generate(list(sessions.values()))
        engine.drain()
        assert [answer["tokens"] for answer in answers] == reference(list(sessions.values()))
        for (name, prompt), answer in zip(list(sessions.items()), answers, strict=True):
            assert answer["cached"] == expected[name], (number, name)
            expected[name] = whole_blocks(prompt, answer["tokens"])
            sessions[name] = prompt + answer["tokens"] + prompt_of(150, seed=20 + number)
        if number:
            assert engine.metrics()["loaded_tokens"] > before["loaded_tokens"], "the engine's own cache was enough"
    assert engine.free_blocks() == BLOCKS - 1


def test_preempted_requests_come_back_right(engine: Engine, reference: Greedy) -> None:
    """More running requests than the cache holds: blocks change hands while their saves are under way."""
    prompts = [prompt_of(900, seed) for seed in range(31, 38)]
    answers = engine.generate(prompts, max_tokens=160)
    engine.drain()
    assert [answer["tokens"] for answer in answers] == reference(prompts, max_tokens=160)
    engine.forget()
    again = engine.generate(prompts[:3], max_tokens=160)
    engine.drain()
    assert [answer["tokens"] for answer in again] == reference(prompts[:3], max_tokens=160)
    assert all(answer["cached"] == 896 for answer in again)


def test_every_seventh_page_fails(engine: Engine, reference: Greedy) -> None:
    prompt = prompt_of(1200, seed=41)
    turn(engine, prompt)
    engine.patch("fail_loads", every=7)
    for _ in range(3):
        engine.forget()
        before = engine.metrics()
        answer = turn(engine, prompt)
        after = engine.metrics()
        assert [answer["tokens"]] == reference([prompt])
        loaded, failed = (after[name] - before.get(name, 0) for name in ("loaded_tokens", "failed_tokens:io"))
        assert failed > 0 and loaded + failed == 1184, "what failed is not counted as loaded"
        assert loaded <= 6 * 32
    engine.patch("heal_loads")


def test_bytes_flipped_on_disk_are_computed_again(pool_server: Any, engine: Engine, reference: Greedy) -> None:
    prompt = prompt_of(1200, seed=45)
    turn(engine, prompt)
    pool_server.to_nvme()
    flipped = flip_bytes(pathlib.Path(pool_server.folder) / "nvme", every=150_000)
    assert flipped > 5
    engine.forget()
    before = engine.metrics()
    answer = turn(engine, prompt)
    after = engine.metrics()
    assert [answer["tokens"]] == reference([prompt])
    assert sum(after.get(name, 0) - before.get(name, 0) for name in after if name.startswith("failed_tokens")) > 0


def test_pool_stops_between_lookup_and_load(pool_server: Any, engine: Engine, reference: Greedy) -> None:
    prompt = prompt_of(1000, seed=51)
    turn(engine, prompt)
    engine.forget()
    engine.patch("stop_pool_before_load", pid=pool_server.process.pid)
    try:
        begun = time.monotonic()
        answer = turn(engine, prompt)
        seconds = time.monotonic() - begun
    finally:
        pool_server.go_on()
    assert [answer["tokens"]] == reference([prompt])
    assert seconds < (LOOKUP_MS + LOAD_MS + SAVE_MS) / 1000 + 3, "an engine waited beyond its deadlines"
    assert engine.free_blocks() == BLOCKS - 1


@pytest.mark.parametrize("load", ["async", "layerwise"])
def test_a_pool_that_is_always_late_is_waited_for_once(
    load: str, models: dict[str, pathlib.Path], pool_server: Any, start_engine: Callable[..., Engine], reference: Greedy
) -> None:
    """It answers lookups, and each load comes too late: one request pays for that, the others are computed."""
    engine = start_engine(models["plain"], connector(pool_server, load=load, lookup_ms=5000, tenant=f"late {load}"))
    prompts = [prompt_of(500, seed) for seed in (55, 56, 57, 58)]
    for prompt in prompts:
        turn(engine, prompt)
    engine.patch("slow_pool", pid=pool_server.process.pid, seconds=1.5 * LOAD_MS / 1000)
    for prompt in prompts:
        engine.forget()
        assert [turn(engine, prompt)["tokens"]] == reference([prompt])
        time.sleep(1.5 * LOAD_MS / 1000)  # the pool is well again when the next one asks
    # On a busy machine the pause may be over before the last one comes: then that one tries.
    assert len(engine.run("faults", "stops_of")) <= 2
    assert engine.metrics()["lookups:paused"] >= 2
    engine.close()


def test_pool_stopped_then_killed_then_back(pool_server: Any, engine: Engine, reference: Greedy) -> None:
    prompts = [prompt_of(600, seed) for seed in (61, 62, 63, 64)]
    pool_server.pause()
    try:
        slowest = 0.0
        for prompt in prompts:
            begun = time.monotonic()
            answer = turn(engine, prompt)
            slowest = max(slowest, time.monotonic() - begun)
            assert [answer["tokens"]] == reference([prompt])
    finally:
        pool_server.go_on()
    assert slowest < (LOOKUP_MS + SAVE_MS) / 1000 + 2
    pool_server.settle()
    pool_server.kill()
    for prompt in prompts:
        engine.forget()
        assert [turn(engine, prompt)["tokens"]] == reference([prompt])
    assert engine.free_blocks() == BLOCKS - 1, "blocks are held for a pool that is gone"
    pool_server.start()
    prompt = prompt_of(640, seed=65)
    for _ in range(50):
        turn(engine, prompt)
        engine.forget()
        answer = turn(engine, prompt)
        assert [answer["tokens"]] == reference([prompt])
        if answer["cached"] == 608:
            return
        time.sleep(0.1)
    pytest.fail(f"the engine does not use the pool that is back: {engine.metrics()} {pool_server.log()}")


def flip_bytes(folder: pathlib.Path, every: int) -> int:
    """Inverts a byte of every so many, where pages are. Returns how many."""
    flipped = 0
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 1 << 20):
        with open(file, "r+b") as data:
            for at in range(every, file.stat().st_size, every):
                data.seek(at)
                byte = data.read(1)
                if byte != b"\0":
                    data.seek(at)
                    data.write(bytes([byte[0] ^ 0xFF]))
                    flipped += 1
    return flipped

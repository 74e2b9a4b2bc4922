"""What happens when a load or the pool fails: TensorRT-LLM cannot be told of it, so it must not have been promised.

Owns: faults. Must not know: the plugin's files, but for where a fault is made to happen.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from engines import make_engine  # noqa: F401  (a fixture; it also puts the stand-in in place)
from player import Engine, Request, Step
from scripts import CHUNKED, next_turn, pages, prompt

import turnkv.tensorrt_llm
from turnkv.connector import PageRun, SaveJob
from turnkv.tensorrt_llm.options import Options, slips

MakeEngine = Callable[..., Engine]


def poison(folder: pathlib.Path, page: bytes) -> int:
    """Flips one bit in the middle of every copy of `page` in the tier's files; how many there were."""
    found = 0
    for path in (path for path in folder.rglob("*") if path.is_file()):
        at = path.read_bytes().find(page)
        if at >= 0:
            found += 1
            with open(path, "r+b") as file:
                file.seek(at + len(page) // 2)
                file.write(bytes([page[len(page) // 2] ^ 0x10]))
                file.flush()
                os.fsync(file.fileno())
    return found


def test_a_page_that_rotted_on_disk_is_computed(make_server: Callable[..., Any], make_engine: MakeEngine) -> None:
    """Not promised, so recomputed; the pages before it are loaded; and it is stored anew."""
    server = make_server()
    engine = make_engine(server.address)
    one = engine.play({"a": Request(1, prompt(21, 1), 6)}, CHUNKED)["a"]
    third = b"".join(engine._item(0, layer, one, at, part) for layer in range(2) for part in range(2) for at in range(8, 12))
    server.to_nvme()
    assert poison(server.folder / "nvme", third) == 1
    second = make_engine(server.address)
    two = second.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    assert two.matched == 8 and second.scheduler.counts["missed_checksum"] == 1
    assert server.pool().stats()["corrupt_pages"] == 1
    three = make_engine(server.address).play({"c": next_turn(two, 3)}, [Step(arrive=("c",))])["c"]
    assert three.matched == pages(len(two.tokens))


def test_the_byte_check_can_fail(server: Any, make_engine: MakeEngine) -> None:
    """One bit of a loaded page, flipped past the pool's checksum, is seen."""
    one = make_engine(server.address).play({"a": Request(1, prompt(21, 2), 6)}, CHUNKED)["a"]
    engine = make_engine(server.address)
    place = engine.workers[0]._fetcher.place

    def flipping(ticket: int, blocks: list[int], stream: object) -> None:
        place(ticket, blocks, stream)
        engine.caches[0][blocks[-1]].view(-1)[3] = -engine.caches[0][blocks[-1]].view(-1)[3]

    engine.workers[0]._fetcher.place = flipping
    with pytest.raises(AssertionError, match="wrong KV"):
        engine.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])


def test_a_broken_promise_raises(server: Any, make_engine: MakeEngine) -> None:
    """It cannot happen but by a bug or a broken device; then no token may come of it."""
    one = make_engine(server.address).play({"a": Request(1, prompt(21, 3), 6)}, CHUNKED)["a"]
    engine = make_engine(server.address)
    fetcher = engine.workers[0]._fetcher
    fetch = fetcher.fetch

    def losing(ticket: int, names: list[bytes]) -> tuple[int, str | None]:
        found = fetch(ticket, names)
        fetcher.drop(ticket)
        return found

    fetcher.fetch = losing
    with pytest.raises(RuntimeError, match="promised are not here"):
        engine.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])


def test_loads_that_fail_for_a_while(server: Any, make_engine: MakeEngine) -> None:
    """Every page that a call brings but the first two is lost on the way: less is promised, nothing is wrong."""
    one = make_engine(server.address).play({"a": Request(1, prompt(21, 4), 6)}, CHUNKED)["a"]
    engine = make_engine(server.address)
    loader = engine.workers[0]._fetcher._loader
    fetch = loader._fetch
    loader._fetch = lambda load, run: (min(2, fetch(load, run)[0]), "io")
    two = engine.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    assert two.matched == 8 and engine.scheduler.counts["missed_io"] == 1


def test_a_pool_that_is_always_late_is_not_waited_for_by_every_request(server: Any, make_engine: MakeEngine) -> None:
    """A load keeps the whole engine waiting. After one that came too late requests are computed; later one of them tries."""
    one = make_engine(server.address).play({"a": Request(1, prompt(21, 4), 6)}, CHUNKED)["a"]
    engine = make_engine(server.address)
    fetcher, counts = engine.workers[0]._fetcher, engine.scheduler.counts
    fetch, asked = fetcher.fetch, []

    def late(ticket: int, names: list[bytes]) -> tuple[int, str | None]:
        asked.append(ticket)
        time.sleep(0.5)
        return 0, "deadline"

    fetcher.fetch = late
    for number, name in enumerate("bcd"):
        assert engine.play({name: next_turn(one, 2 + number)}, [Step(arrive=(name,))])[name].matched == 0
    assert len(asked) == 1, "the others did not wait"
    assert (counts["missed_deadline"], counts["missed_paused"]) == (1, 2)
    assert engine.scheduler._pause._pause >= 5, "for a multiple of what was lost"
    fetcher.fetch = fetch
    engine.scheduler._pause._until = 0.0
    five = engine.play({"e": next_turn(one, 5)}, [Step(arrive=("e",))])["e"]
    assert five.matched == pages(27), "one tries, and all load again"
    assert engine.play({"f": next_turn(one, 6)}, [Step(arrive=("f",))])["f"].matched == pages(27)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_dead_pool_costs_time_only(make_server: Callable[..., Any], make_engine: MakeEngine, ranks: int) -> None:
    server = make_server()
    engine = make_engine(server.address, ranks=ranks)
    one = engine.play({"a": Request(1, prompt(21, 5), 6)}, CHUNKED)["a"]
    server.kill()
    begun = time.monotonic()
    two = engine.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    three = engine.play({"c": next_turn(one, 3)}, [Step(arrive=("c",))])["c"]
    assert (two.matched, three.matched) == (0, 0) and engine.pinned == {}
    assert time.monotonic() - begun < 5
    server.start()
    time.sleep(1.2)  # the breaker tries again
    make_engine(server.address, ranks=ranks).play({"d": next_turn(two, 4)}, [Step(arrive=("d",))])


def test_a_pool_that_never_was_delays_no_start(make_engine: MakeEngine, tmp_path: pathlib.Path) -> None:
    engine = make_engine(f"unix:{tmp_path}/nobody.sock")
    done = engine.play({"a": Request(1, prompt(21, 6), 6)}, CHUNKED)["a"]
    assert done.matched == 0 and engine.pinned == {}


def test_a_silent_pool_stalls_one_step_until_the_deadline(make_server: Callable[..., Any], make_engine: MakeEngine) -> None:
    server = make_server()
    engine = make_engine(server.address, {"load_ms": 300, "save_ms": 300})
    one = engine.play({"a": Request(1, prompt(21, 7), 6)}, CHUNKED)["a"]
    server.pause()
    try:
        request = Request(2, one.tokens + prompt(5, 8), 1)
        request.tokens = list(request.prompt)
        begun = time.monotonic()
        assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
        assert time.monotonic() - begun < 1.0
    finally:
        server.go_on()


def test_a_silent_rank_stalls_one_step_until_the_deadline(server: Any, make_engine: MakeEngine) -> None:
    one = make_engine(server.address, ranks=2).play({"a": Request(1, prompt(21, 9), 6)}, CHUNKED)["a"]
    engine = make_engine(server.address, {"load_ms": 300}, ranks=2)
    fetcher = engine.workers[1]._fetcher
    fetch = fetcher.fetch

    def slow(ticket: int, names: list[bytes]) -> tuple[int, str | None]:
        time.sleep(0.8)
        return fetch(ticket, names)

    fetcher.fetch = slow
    begun = time.monotonic()
    two = engine.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    assert two.matched == 0 and time.monotonic() - begun < 3
    fetcher.fetch = fetch
    time.sleep(1.0)  # its late answer is on the line, before the next one
    three = engine.play({"c": next_turn(one, 3)}, [Step(arrive=("c",))])["c"]
    assert three.matched == pages(27)
    assert all(not worker._fetcher._held or worker._fetcher._reserve(99, 1) for worker in engine.workers)


def test_loads_take_no_more_memory_than_they_may(server: Any, make_engine: MakeEngine) -> None:
    """Pages of 64 KiB, memory for 16 of 18: so many come, and no others until those are in place."""
    engine = make_engine(server.address, {"load_bytes": 1 << 20}, block_tokens=1024, blocks=40)
    fetcher, saver, cache = engine.workers[0]._fetcher, engine.workers[0]._saver, engine.caches[0]
    names = [bytes([at]) * 32 for at in range(18)]
    cache.random_(0, 100)
    saver.add(SaveJob("x", None, [PageRun(0, 0, names, list(range(18)))]))
    with saver._state:
        assert saver._state.wait_for(lambda: not saver._reading, 10)
    assert fetcher.fetch(1, names) == (16, None)
    assert fetcher.fetch(2, names) == (0, "memory")
    fetcher.place(1, list(range(20, 36)), None)
    assert (cache[20:36] == cache[:16]).all()
    assert fetcher.fetch(3, names[2:]) == (16, None)
    fetcher.place(3, list(range(20, 35)), None)
    assert (cache[20:35] == cache[2:17]).all(), "fewer blocks than pages: the promise of another rank was shorter"


def test_pages_with_placeholders_are_neither_kept_nor_loaded(
    server: Any, make_engine: MakeEngine, tmp_path: pathlib.Path
) -> None:
    """A picture's place in the prompt looks the same for all pictures; the text before it may be shared."""
    (tmp_path / "config.json").write_text(json.dumps({"image_token_id": 7, "text_config": {"vocab_size": 60000}}))
    for seed, foreign in ((11, 7), (12, 60001)):
        words = prompt(30, seed)
        words[13] = foreign
        make_engine(server.address).play({"a": Request(1, words, 6)}, [Step(arrive=("a",), chunks={"a": 6})])
        engine = make_engine(server.address)
        assert engine.play({"b": Request(2, words, 6)}, [Step(arrive=("b",))])["b"].matched == 12
        assert engine.scheduler.counts["stored_pages"] == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"enable_attention_dp": True}, "enable_attention_dp"),
        ({"max_beam_width": 4}, "max_beam_width"),
        ({"cache": {"host_cache_size": 1 << 30}}, "host_cache_size = 0"),
        ({"cache": {"enable_partial_reuse": True}}, "enable_partial_reuse = False"),
        ({"cache": {"max_attention_window": [1024]}}, "max_attention_window"),
        ({"cache": {"dtype": "nvfp4"}}, "NVFP4"),
    ],
)
def test_settings_that_would_be_wrong_are_refused(make_engine: MakeEngine, settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_engine("unix:/nowhere", **settings)


def test_options_are_checked() -> None:
    assert Options.of({"TURNKV_LOAD": "off", "TRTLLM_TURNKV_TENANT": "x", "TURNKV_SERVER": "/bin/x"}) == Options(
        load=False, tenant="x"
    )
    wrong = (("LOAD_MS", "soon"), ("LOAD_MS", "0"), ("SAVE", "maybe"), ("POOL", "localhost"), ("TENANT", "x" * 129))
    for name, text in wrong:
        with pytest.raises(ValueError, match=f"TURNKV_{name} must"):
            Options.of({f"TURNKV_{name}": text})


def test_a_misspelt_variable_is_found() -> None:
    others = ("LOG", "NICS", "RDMA", "FABRIC", "SERVER", "ADDRESS", "CONFIG", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME")
    known = {f"TURNKV_{name}": "" for name in (*others, "LOAD_MS", "TENANT")} | {"TRTLLM_TURNKV_POOL": "", "PATH": ""}
    assert slips(known) == []
    assert slips(known | {"TURNKV_LODA_MS": "5"}) == ["TURNKV_LODA_MS (did you mean TURNKV_LOAD_MS?)"]
    assert slips({"TRTLLM_TURNKV_TENNANT": "x"}) == ["TRTLLM_TURNKV_TENNANT (did you mean TRTLLM_TURNKV_TENANT?)"]


@pytest.mark.parametrize("option", ["load", "save"])
def test_either_direction_can_be_off(server: Any, make_engine: MakeEngine, option: str) -> None:
    request = {"a": Request(1, prompt(21, 20 + len(option) + (option == "save")), 6)}
    make_engine(server.address, {option: "off"}).play(request, CHUNKED)
    engine = make_engine(server.address, {option: "on"})
    two = engine.play({"b": next_turn(request["a"], 2)}, [Step(arrive=("b",))])["b"]
    assert two.matched == (24 if option == "load" else 0)


def test_the_module_names_its_classes() -> None:
    assert turnkv.tensorrt_llm.Scheduler.__module__ == "turnkv.tensorrt_llm.scheduler"
    with pytest.raises(AttributeError, match="Connector"):
        turnkv.tensorrt_llm.Connector  # noqa: B018


@pytest.mark.parametrize("layer", [0, 1])
def test_a_forward_pass_that_did_not_end_stores_nothing(server: Any, make_engine: MakeEngine, layer: int) -> None:
    """The executor goes on after it, and reuses blocks that the failed pass left half written."""
    engine = make_engine(server.address, reuse=True)
    tokens = prompt(24, 400 + layer)
    script = [Step(arrive=("a",), chunks={"a": 8}), Step(fails_at=layer)]
    engine.play({"a": Request(1, tokens, 4)}, script)
    again = engine.play({"b": Request(2, tokens, 4)}, [Step(arrive=("b",))])["b"]
    assert again.prepopulated > 8, "it reuses what the failed pass should have written"
    other = make_engine(server.address)
    found = other.play({"c": Request(3, tokens + again.tokens[24:], 4)}, [Step(arrive=("c",))])["c"]
    assert found.matched == 8, "the step before it came to its end"

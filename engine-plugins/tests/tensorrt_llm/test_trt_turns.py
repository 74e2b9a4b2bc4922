"""The connector under TensorRT-LLM's call sequence, with the real server: what attention reads is checked.

Owns: turns, chunks, ranks, aborts. Must not know: how the plugin does it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import stand_in
from engines import make_engine  # noqa: F401  (a fixture; it also puts the stand-in in place)
from player import Engine, Request, Step
from scripts import CHUNKED, INTERLEAVED, next_turn, pages, prompt

MakeEngine = Callable[..., Engine]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("reply", [1, 2, 7, 8])
def test_second_turn_in_a_new_engine_reloads_prompt_and_reply(
    server: Any, make_engine: MakeEngine, overlap: bool, reply: int
) -> None:
    first = make_engine(server.address, overlap=overlap)
    one = first.play({"a": Request(1, prompt(21, 10 + reply + 100 * overlap), reply)}, CHUNKED)["a"]
    assert one.matched == 0 and len(one.tokens) == 21 + reply
    second = make_engine(server.address, overlap=overlap)
    two = second.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    assert second.cached_tokens(two) == (0, pages(21 + reply))


def test_calls_come_in_the_recorded_order(server: Any, make_engine: MakeEngine) -> None:
    """The player's own order, as read from the executor; and every request that holds blocks lets go of them."""
    engine = make_engine(server.address)
    engine.play({"a": Request(7, prompt(10, 20), 2)}, [Step(arrive=("a",), chunks={"a": 4})])
    held = ("request_finished", 7, True)
    assert engine.calls == [
        ("get_num_new_matched_tokens", 7, 0),
        ("update_state_after_alloc", 7),
        *[("build_connector_meta", "a")] * 3,
        held,
        ("released", 7),
    ]


def test_two_requests_interleaved(server: Any, make_engine: MakeEngine) -> None:
    first = make_engine(server.address)
    done = first.play({"a": Request(1, prompt(19, 30), 6), "b": Request(2, prompt(22, 31), 9)}, INTERLEAVED)
    second = make_engine(server.address)
    again = {"a": next_turn(done["a"], 3), "b": next_turn(done["b"], 4)}
    again = second.play(again, [Step(arrive=("b", "a"), chunks={"b": 2}), Step(chunks={"b": 1})])
    assert [again[name].matched for name in "ab"] == [pages(25), pages(31)]
    assert second.scheduler.counts["loaded_tokens"] == pages(25) + pages(31)


def test_one_token_is_left_to_compute(server: Any, make_engine: MakeEngine) -> None:
    engine = make_engine(server.address)
    engine.play({"a": Request(1, prompt(16, 40), 4)}, [Step(arrive=("a",))])
    same = make_engine(server.address).play({"a": Request(2, prompt(16, 40), 4)}, [Step(arrive=("a",))])
    assert same["a"].matched == 12


def test_what_the_device_still_has_is_not_loaded(server: Any, make_engine: MakeEngine) -> None:
    engine = make_engine(server.address, reuse=True)
    one = engine.play({"a": Request(1, prompt(21, 50), 6)}, CHUNKED)["a"]
    two = engine.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    assert engine.cached_tokens(two) == (24, 0)
    # Another engine adds to the chain; this one has its beginning on the device and brings the rest.
    other = make_engine(server.address)
    three = other.play({"c": next_turn(two, 3, more=8)}, [Step(arrive=("c",))])["c"]
    assert three.matched == pages(len(two.tokens))
    four = engine.play({"d": next_turn(three, 4)}, [Step(arrive=("d",), chunks={"d": 3})])["d"]
    on_device, brought = engine.cached_tokens(four)
    assert on_device == pages(len(two.tokens)) and on_device + brought == pages(len(three.tokens))


def test_a_chain_whose_beginning_the_pool_lost_is_stored_again(server: Any, make_engine: MakeEngine) -> None:
    engine = make_engine(server.address, reuse=True)
    one = engine.play({"a": Request(1, prompt(21, 60), 6)}, CHUNKED)["a"]
    assert server.pool().evict() > 0
    two = engine.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    assert two.prepopulated == 24
    three = make_engine(server.address).play({"c": next_turn(two, 3)}, [Step(arrive=("c",))])["c"]
    assert three.matched == pages(len(two.tokens))


def test_a_chain_that_breaks_is_stored_by_the_next_turn(server: Any, make_engine: MakeEngine) -> None:
    """The pool loses the beginning while the request runs: pages that follow have no parent there."""
    engine = make_engine(server.address, reuse=True)
    requests = {"a": Request(1, prompt(21, 65), 12)}
    for step in CHUNKED:
        engine.step(requests, step)
    assert settled_pages(engine) == 5
    server.pool().evict()
    one = engine.play(requests, [])["a"]
    two = engine.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    assert engine.cached_tokens(two) == (32, 0)
    three = make_engine(server.address).play({"c": next_turn(two, 3)}, [Step(arrive=("c",))])["c"]
    assert three.matched == pages(len(two.tokens))


def settled_pages(engine: Engine) -> int:
    """Pages stored so far, once nothing is being sent."""
    saver = engine.workers[0]._saver
    with saver._state:
        assert saver._state.wait_for(lambda: not saver._reading, 10)
        return sum(saves.outcome.stored for saves in saver._requests.values())


@pytest.mark.parametrize("silent", [False, True], ids=["told", "silent"])
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_an_aborted_prefill_keeps_what_it_filled(server: Any, make_engine: MakeEngine, overlap: bool, silent: bool) -> None:
    engine = make_engine(server.address, overlap=overlap, silent=silent)
    script = [Step(arrive=("a",), chunks={"a": 9}), Step(chunks={"a": 4}, cancel=("a",))]
    seed = 70 + overlap + 2 * silent
    one = engine.play({"a": Request(1, prompt(40, seed), 6)}, script)["a"]
    assert one.position == 13
    settled_pages(engine)
    two = make_engine(server.address).play({"b": Request(2, prompt(40, seed), 6)}, [Step(arrive=("b",))])["b"]
    assert two.matched == 12


def test_blocks_are_held_while_they_are_read(make_server: Callable[..., Any], make_engine: MakeEngine) -> None:
    """The pool stops during a save; what the engine overwrites afterwards must not be what is stored."""
    server = make_server()
    engine = make_engine(server.address, {"save_ms": 700})
    requests = {"a": Request(1, prompt(41, 80), 2)}
    engine.step(requests, Step(arrive=("a",)))
    server.pause()
    try:
        one = engine.play(requests, [])["a"]
    finally:
        server.go_on()
    assert engine.steps_held > 5 and engine.pinned == {}
    two = make_engine(server.address).play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    assert two.matched % 4 == 0


@pytest.mark.parametrize("settles", [True, False], ids=["settled", "not settled"])
@pytest.mark.parametrize("kind", ["cancelled", "computed twice"])
def test_blocks_that_nobody_holds_are_not_read_once_they_have_a_new_owner(
    make_server: Callable[..., Any], make_engine: MakeEngine, kind: str, settles: bool
) -> None:
    """A save waits, while its blocks go to a new request. Left unsettled, wrong bytes are stored, and seen."""
    server, twice = make_server(), kind == "computed twice"
    engine = make_engine(server.address, {"save_threads": 1}, blocks=17, reuse=twice, silent=not twice)
    saver, words = engine.workers[0]._saver, prompt(13, 85)
    gate = hold_up(saver)
    if not settles:
        saver.settle = lambda blocks: 0.0
    requests = {
        "first": Request(1, prompt(5, 84), 9),
        "a": Request(2, words, 2),
        "b": Request(3, words, 2 if twice else 9),
        "c": Request(4, prompt(29, 86), 2),
    }
    engine.step(requests, Step(arrive=("first", "a", "b") if twice else ("first", "b")))
    if twice:
        # Both have computed the same pages. `a` ends first and its blocks stay in the reuse tree, so those of `b` are
        # held by nobody; and of the two it is `b`'s copies that get their turn.
        engine.step(requests, Step())
        with saver._state:
            saver._clear(saver._requests["2"])
    else:
        engine.step(requests, Step(cancel=("b",)))
    lost = set(requests["b"].blocks) & set(engine.free)
    engine.free.sort(key=lambda block: block not in lost)
    engine.step(requests, Step(arrive=("c",)))
    assert len(lost & set(requests["c"].blocks)) >= 3
    gate.set()
    settled_pages(engine)
    again = make_engine(server.address)
    if settles:
        assert again.play({"b": Request(5, words, 3)}, [Step(arrive=("b",))])["b"].matched == 0
    else:
        with pytest.raises(AssertionError, match="wrong KV"):
            again.play({"b": Request(5, words, 3)}, [Step(arrive=("b",))])


def hold_up(saver: Any) -> threading.Event:
    """The saver's thread stays in its first call until this is set."""
    gate, send = threading.Event(), saver._send

    def waiting(saves: object, run: object) -> object:
        assert gate.wait(20)
        return send(saves, run)

    saver._send = waiting
    return gate


def test_requests_that_end_without_a_word_are_forgotten(
    server: Any, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkv.tensorrt_llm.scheduler.TRACKED_MAX", 4)
    engine = make_engine(server.address, silent=True)
    for at in range(12):
        engine.play({"a": Request(at + 1, prompt(9, 200 + at), 9)}, [Step(arrive=("a",), cancel=("a",))])
    engine.play({"a": Request(20, prompt(9, 220), 3)}, [Step(arrive=("a",))])
    saver = engine.workers[0]._saver
    assert settled_pages(engine) >= 0 and len(engine.scheduler._tracked) <= 4 and len(saver._requests) <= 4


def test_salt_adapter_and_pictures_are_kept_apart(server: Any, make_engine: MakeEngine) -> None:
    engine = make_engine(server.address, {"lora_names": "5=five@1"})
    words = prompt(21, 90)
    runs = [
        ({}, 0),
        ({}, 20),
        ({"cache_salt_id": 5}, 0),
        ({"cache_salt_id": 5}, 20),
        ({"cache_salt_id": 6}, 0),
        ({"lora_task_id": 5}, 0),
        ({"lora_task_id": 5}, 20),
        ({"cache_salt_id": 5, "lora_task_id": 5}, 0),
        ({"multimodal_hashes": [[1, 2]]}, 0),
        ({"multimodal_hashes": [[1, 2]]}, 0),
        ({"is_dummy_request": True}, 0),
    ]
    for at, (settings, matched) in enumerate(runs):
        done = engine.play({"a": Request(at + 1, words, 2, **settings)}, [Step(arrive=("a",))])["a"]
        assert done.matched == matched, (settings, done.matched)
    assert ("request_finished", 9, False) in engine.calls, "a request with pictures was kept"


def test_partly_reused_blocks_are_left_to_the_engine(server: Any, make_engine: MakeEngine) -> None:
    engine = make_engine(server.address)
    engine.play({"a": Request(1, prompt(21, 95), 2)}, [Step(arrive=("a",))])
    request = Request(2, prompt(21, 95), 2, tokens=prompt(21, 95))
    assert engine.scheduler.get_num_new_matched_tokens(request, 6) == (0, False)
    assert engine.scheduler.get_num_new_matched_tokens(request, 8) == (12, False)


@pytest.mark.parametrize("lag", [False, True], ids=["plain", "speculative"])
def test_pages_are_not_stored_before_a_drafter_has_filled_them(server: Any, make_engine: MakeEngine, lag: bool) -> None:
    settings = {"speculative_config": "mtp"} if lag else {}
    engine = make_engine(server.address, **settings)
    engine.step({"a": Request(1, prompt(17, 97), 1)}, Step(arrive=("a",)))
    assert engine.scheduler.counts["stored_pages"] == (3 if lag else 4)
    engine.drain()


@pytest.mark.parametrize("mla", [False, True], ids=["shards", "mla"])
def test_two_ranks(server: Any, make_engine: MakeEngine, mla: bool) -> None:
    first = make_engine(server.address, ranks=2, mla=mla)
    stored = [counted(worker) for worker in first.workers]
    one = first.play({"a": Request(1, prompt(21, 100 + mla), 6)}, CHUNKED)["a"]
    second = make_engine(server.address, ranks=2, mla=mla)
    two = second.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    assert two.matched == pages(27)
    # MLA's bytes are the same on all ranks: one stores them, all load them.
    assert [sum(calls) for calls in stored] == [6, 0 if mla else 6]


def counted(worker: object) -> list[int]:
    """Pages that a worker's saver sends, call by call."""
    calls: list[int] = []
    offload = worker._saver._offload

    def counting(saves: object, run: object, first: int, end: int, parent: bytes | None) -> object:
        kept, cause = offload(saves, run, first, end, parent)
        calls.append(kept)
        return kept, cause

    worker._saver._offload = counting
    return calls


def test_a_page_missing_on_one_rank_is_missing_for_all(server: Any, make_engine: MakeEngine) -> None:
    first = make_engine(server.address, ranks=2)
    one = first.play({"a": Request(1, prompt(21, 110), 6)}, CHUNKED)["a"]
    second = make_engine(server.address, ranks=2)
    fetcher = second.workers[1]._fetcher
    fetch = fetcher.fetch
    fetcher.fetch = lambda ticket, names: (min(2, fetch(ticket, names)[0]), "io")
    two = second.play({"b": next_turn(one, 2)}, [Step(arrive=("b",))])["b"]
    assert two.matched == 8 and second.scheduler.counts["missed_rank"] == 1
    fetcher.fetch = fetch
    three = second.play({"c": next_turn(one, 3)}, [Step(arrive=("c",))])["c"]
    assert three.matched == pages(27)


def test_ranks_on_several_hosts_are_refused(server: Any, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: f"host-{stand_in.ranks.rank()}")
    with pytest.raises(ValueError, match="one host, not on host-0, host-1"):
        make_engine(server.address, ranks=2)


def test_other_weights_settings_and_tenants_share_nothing(server: Any, make_engine: MakeEngine) -> None:
    request = lambda at: {"a": Request(at, prompt(21, 120), 2)}  # noqa: E731
    arrive = [Step(arrive=("a",))]
    make_engine(server.address).play(request(1), arrive)
    assert make_engine(server.address).play(request(2), arrive)["a"].matched == 20
    for options, settings in (
        ({"model_id": "other"}, {}),
        ({"tenant": "other"}, {}),
        ({}, {"dtype": "float16"}),
        ({}, {"attn_backend": "FLASHINFER"}),
        ({}, {"quant_config": "fp8"}),
        ({}, {"cache": {"dtype": "fp8"}}),
        ({}, {"block_tokens": 8}),
        ({}, {"ranks": 2}),
    ):
        done = make_engine(server.address, {"model_id": "tiny", "tenant": "", **options}, salt="x", **settings)
        assert done.play(request(3), arrive)["a"].matched == 0, (options, settings)


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_an_orchestrators_hints_make_sessions(server: Any, make_engine: MakeEngine, overlap: bool) -> None:
    """In the versions whose requests carry an envelope: the session has its pages once they are stored."""
    engine = make_engine(server.address, overlap=overlap)
    envelope = {
        "protocol_version": "1.0",
        "message_id": "m",
        "actions": [
            {
                "action_id": "1",
                "action_type": "kv.retain",
                "action_version": "1.0",
                "payload": {"session_id": f"s-{overlap}", "priority": 1, "ttl_seconds": 60},
            },
        ],
    }
    request = Request(1, prompt(21, 500 + overlap), 6)
    request.kv_hints = envelope
    done = engine.play({"a": request}, CHUNKED)["a"]
    door = engine.workers[0]._crew._door
    wait_until(lambda: door.namespace(0).begin_turn(f"s-{overlap}").pages == pages(len(done.tokens)) // 4)
    again = make_engine(server.address, overlap=overlap)
    second = next_turn(done, 2)
    second.kv_hints = envelope
    more = again.play({"b": second}, [Step(arrive=("b",))])["b"]
    wait_until(lambda: door.namespace(0).begin_turn(f"s-{overlap}").pages == pages(len(more.tokens)) // 4)


def wait_until(fact: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it does not become true"
        time.sleep(0.01)

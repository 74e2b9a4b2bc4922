"""The connector's two sides without an engine: what the scheduler decides, what a worker does."""

from __future__ import annotations

import pathlib
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import BLOCK_TOKENS, FakeDoor, Memory, finished, hashes_of, request_of, run_of, step_of, wait_until
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from turnkv.connector import FinishJob, LoadOutcome, LoadPause, Outcomes, PageRun, PrefillClock, SaveJob, SaveOutcome
from turnkv.vllm.connector import TurnKVConnector, fitting, loading
from turnkv.vllm.events import Announcer
from turnkv.vllm.meta import StepMeta, WorkerMeta
from turnkv.vllm.metrics import TurnKVStats
from turnkv.vllm.options import Options
from turnkv.vllm.scheduler import Scheduler
from turnkv.vllm.worker import Worker

# ---- the scheduler's side


def scheduler_of(door: FakeDoor, **options: Any) -> Scheduler:
    fields = {name: options.pop(name) for name in ("loads", "saves", "handover", "ranks") if name in options}
    values = {"loads": True, "saves": True, "ranks": 1} | fields
    return Scheduler(
        options=Options.parse(options),
        groups=list(door.groups.values()),
        door=door,
        announcer=Announcer(True, "CPU", BLOCK_TOKENS),
        hash_tokens=BLOCK_TOKENS,
        **values,
    )


def test_a_turn_through_the_scheduler() -> None:
    door = FakeDoor()
    scheduler = scheduler_of(door, engine="gpu-7")
    request = request_of(200, kv_transfer_params={"turnkv_session": "s"})
    door.namespaces[0].pages = dict.fromkeys(request.block_hashes[:3], b"")
    scheduler.new_request(request)
    assert scheduler.matched_tokens(request, 0) == scheduler.matched_tokens(request, 0) == (96, True)
    scheduler.allocated(request, ([1, 2, 3],), 96)
    step = scheduler.build_meta(step_of({}, {}))
    assert [run.blocks for run in step.loads[0].runs] == [[1, 2, 3]] and step.reused == [1, 2, 3]
    scheduler.worker_output(WorkerMeta(loads={"r": LoadOutcome(3, 0, None, 0.1)}))

    request.num_computed_tokens = 96
    tables = {"r": ([1, 2, 3, 4, 5, 6, 7],)}
    step = scheduler.build_meta(step_of({"r": 60}, tables))
    (save,) = step.saves
    assert save.runs == [PageRun(0, 3, [request.block_hashes[3]], [4], request.block_hashes[2])], "156 tokens: one more"
    request.num_computed_tokens = 199
    held, params = scheduler.finished(request, tables["r"])
    assert held and params is None
    step = scheduler.build_meta(step_of({}, {}))
    assert [run.blocks for run in step.saves[0].runs] == [[5, 6]]
    assert step.finishes[0].runs[0].blocks == [1, 2, 3, 4, 5, 6], "the last token has no KV"
    scheduler.worker_output(WorkerMeta(saves={"r": SaveOutcome(6, 3, 0, 0, None)}))
    wait_until(lambda: ("end", "s", 6) in [call[:3] for call in door.namespaces[0].sessions])
    assert door.namespaces[0].sessions[0] == ("begin", "s", "gpu-7")
    stats = scheduler.take_stats()
    assert (stats.total("loaded_tokens"), stats.total("saved_blocks"), stats.total("failed_tokens")) == (96, 3, 0)
    assert stats.data["counts"]["lookups"] == {"hit": 1} and scheduler.take_stats() is None
    assert not scheduler.tracked and not scheduler.ending
    scheduler.close()


def test_an_orchestrators_envelope_in_vllms_own_type() -> None:
    kv_hints = pytest.importorskip("vllm.v1.kv_hints")
    door = FakeDoor()
    scheduler = scheduler_of(door)
    actions = [
        kv_hints.KvHintAction("1", "kv.retain", "1.0", {"session_id": "s", "priority": 3, "ttl_seconds": 2.5}),
        kv_hints.KvHintAction("2", "kv.prefetch", "1.0", {"session_id": "other"}),
        kv_hints.KvHintAction("3", "kv.fetch", "1.0", {"source_control_endpoint": "h:1", "block_hashes": [1]}),
    ]
    envelope = kv_hints.KvHintsEnvelope("0.1", "m", actions)
    request = request_of(200, kv_hints=envelope, session_id="engines-own")
    scheduler.new_request(request)
    request.num_computed_tokens = 199
    scheduler.finished(request, ([1, 2, 3, 4, 5, 6, 7],))
    scheduler.build_meta(step_of({}, {}))
    scheduler.worker_output(WorkerMeta(saves={"r": SaveOutcome(6, 6, 0, 0, None)}))
    wait_until(lambda: len(door.namespaces[0].sessions) == 3)
    told, begun, ended = door.namespaces[0].sessions
    assert (told, begun[:2]) == (("prefetch", "other"), ("begin", "s"))
    assert ended[:3] == ("end", "s", 6) and (ended[3]["priority"], ended[3]["ttl_ms"]) == (3, 2500)
    scheduler.close()


def test_an_adapter_with_other_weights_has_pages_of_its_own(tmp_path: pathlib.Path) -> None:
    """vLLM hashes an adapter's name and path: after a restart other weights may lie there."""
    door, adapter = FakeDoor(), tmp_path / "adapter_model.safetensors"
    lora = SimpleNamespace(lora_name="a", lora_int_id=1, lora_path=str(tmp_path))
    found = []
    for content in (b"one", b"one", b"two"):
        adapter.write_bytes(content)
        scheduler, request = scheduler_of(door), request_of(200, lora_request=lora, kv_transfer_params={"turnkv_session": "s"})
        scheduler.new_request(request)
        found.append(scheduler.matched_tokens(request, 0)[0])
        request.num_computed_tokens = 199
        scheduler.finished(request, ([1, 2, 3, 4, 5, 6, 7],))
        for job in scheduler.build_meta(step_of({}, {})).saves:
            door.namespaces[0].pages.update(dict.fromkeys(job.runs[0].names, b""))
        scheduler.close()
    assert found == [0, 192, 0] and len(door.namespaces[0].pages) == 12
    plain = scheduler_of(door)
    request = request_of(200)
    plain.new_request(request)
    assert plain.matched_tokens(request, 0) == (0, False), "nor the model without an adapter"


def test_an_engine_that_cannot_use_pages_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("turnkv.vllm.scheduler.logger.warning", lambda text, *values: said.append(text % values))
    door = FakeDoor()
    scheduler, request = scheduler_of(door), request_of(200)
    door.namespaces[0].pages = dict.fromkeys(request.block_hashes, b"")
    for reason in ("attention back end X: it cannot", "another one"):
        scheduler.stand_aside(reason)
    scheduler.new_request(request)
    assert scheduler.matched_tokens(request, 0) == (0, False)
    request.num_computed_tokens = 199
    assert scheduler.finished(request, ([1, 2, 3, 4, 5, 6, 7],)) == (False, None)
    assert scheduler.build_meta(step_of({}, {})).saves == []
    assert said == ["TurnKV neither stores nor loads anything in this engine: attention back end X: it cannot"]


def test_whole_blocks_and_one_token_to_compute() -> None:
    door = FakeDoor()
    scheduler, request = scheduler_of(door), request_of(96)
    door.namespaces[0].pages = dict.fromkeys(request.block_hashes, b"")
    scheduler.new_request(request)
    assert scheduler.matched_tokens(request, 0) == (64, True)
    assert scheduler.matched_tokens(request, 64) == (0, False)
    few = scheduler_of(door, min_tokens=100)
    few.new_request(request)
    assert few.matched_tokens(request, 0) == (0, False)


def test_a_failed_load_is_no_hit_and_not_tried_again() -> None:
    door = FakeDoor()
    scheduler, request = scheduler_of(door), request_of(200)
    door.namespaces[0].pages = dict.fromkeys(request.block_hashes, b"")
    scheduler.new_request(request)
    scheduler.matched_tokens(request, 0)
    scheduler.allocated(request, ([1, 2, 3, 4, 5, 6],), 192)
    scheduler.build_meta(step_of({}, {}))
    scheduler.worker_output(WorkerMeta(loads={"r": LoadOutcome(2, 4, "checksum", 0.1)}))
    stats = scheduler.take_stats()
    assert stats.total("loaded_tokens") == 64 and stats.data["counts"]["failed_tokens"] == {"checksum": 128}
    assert scheduler.matched_tokens(request, 0) == (0, False)
    request.num_computed_tokens = 64
    step = scheduler.build_meta(step_of({"r": 128}, {"r": ([1, 2, 3, 4, 5, 6],)}))
    assert step.trusted == ["r"] and step.saves[0].runs[0].first == 2, "what failed is stored again"


def test_loads_that_come_too_late_are_not_waited_for_again_and_again() -> None:
    """One pays its deadline; after ten times as long one tries again, and only one."""
    pause = LoadPause()
    pause.begun("a")
    pause.begun("b")
    assert pause.ended("a", "deadline", 2.0, 10.0) == 20.0
    assert pause.ended("b", "busy", 1.5, 10.5) == 0.0, "it began before the pause did"
    assert not pause.allows("c", 29.9) and pause.allows("c", 30.0)
    pause.begun("c")
    assert pause.allows("c", 30.0) and not pause.allows("d", 30.1)
    assert pause.ended("c", "lease_expired", 0.5, 31.0) == 40.0, "twice as long as before"
    pause.begun("d")
    pause.forget("d")
    assert pause.allows("e", 71.0)
    pause.begun("e")
    assert pause.ended("e", "checksum", 0.1, 72.0) == 0.0 and pause.allows("f", 72.0)
    assert pause.ended("f", "deadline", 100.0, 200.0) == 60.0


def test_a_late_load_pauses_loads_of_all_requests() -> None:
    door = FakeDoor()
    scheduler = scheduler_of(door)
    door.namespaces[0].pages = dict.fromkeys(hashes_of(6), b"")
    late, next_one = request_of(200, "late"), request_of(200, "next")
    for request in (late, next_one):
        scheduler.new_request(request)
    assert scheduler.matched_tokens(late, 0) == (192, True)
    scheduler.allocated(late, ([1, 2, 3, 4, 5, 6],), 192)
    scheduler.build_meta(step_of({}, {}))
    scheduler.worker_output(WorkerMeta(loads={"late": LoadOutcome(2, 4, "deadline", 2.0)}))
    assert scheduler.matched_tokens(next_one, 0) == (0, False)
    scheduler.allocated(next_one, ([7, 8, 9, 10, 11, 12],), 0)
    assert scheduler.take_stats().data["counts"]["lookups"] == {"hit": 1, "paused": 1}
    assert scheduler.tracked["next"].known == 6, "what the pool has is not stored again"


def test_ranks_are_waited_for_and_the_shortest_counts() -> None:
    outcomes: Outcomes[SaveOutcome] = Outcomes(2)
    assert outcomes.add("r", SaveOutcome(5, 5, 0, 0, None)) is None
    both = outcomes.add("r", SaveOutcome(3, 3, 0, 2, "no_space", "timeout"))
    assert (both.pages, both.declined, both.cause, both.not_durable) == (3, 2, "no_space", "timeout")
    one_step = WorkerMeta(loads={"r": LoadOutcome(4, 0, None, 0.1)}).aggregate(
        WorkerMeta(loads={"r": LoadOutcome(1, 3, "io", 0.2)}, saves={"q": SaveOutcome(1, 1, 0, 0, None)})
    )
    assert one_step.loads["r"] == LoadOutcome(1, 3, "io", 0.2, ranks=2) and one_step.saves["q"].ranks == 1


def test_an_aborted_load_is_not_saved() -> None:
    door = FakeDoor()
    scheduler, request = scheduler_of(door), request_of(200)
    door.namespaces[0].pages = dict.fromkeys(request.block_hashes, b"")
    scheduler.new_request(request)
    scheduler.matched_tokens(request, 0)
    scheduler.allocated(request, ([1, 2, 3, 4, 5, 6],), 192)
    request.num_computed_tokens = 192
    assert scheduler.finished(request, ([1, 2, 3, 4, 5, 6],)) == (False, None)
    step = scheduler.build_meta(step_of({}, {}))
    assert not step.saves and not step.finishes


def test_roles() -> None:
    door, request = FakeDoor(), request_of(200)
    door.namespaces[0].pages = dict.fromkeys(request.block_hashes, b"")
    producer = scheduler_of(door, loads=False, handover=True)
    producer.new_request(request)
    assert producer.matched_tokens(request, 0) == (0, False)
    request.num_computed_tokens = 200
    assert producer.finished(request, (list(range(1, 7)),)) == (True, {"turnkv": {"handover_tokens": 192}})
    consumer = scheduler_of(door, saves=False)
    consumer.new_request(request)
    assert consumer.matched_tokens(request, 0) == (192, True)
    assert consumer.finished(request, (list(range(1, 7)),)) == (False, None)


def test_a_handover_is_waited_for_but_not_for_ever() -> None:
    door = FakeDoor()
    scheduler = scheduler_of(door, handover_ms=150)
    request = request_of(200, kv_transfer_params={"turnkv": {"handover_tokens": 192}})
    pages = door.namespaces[0].pages
    pages.update(dict.fromkeys(request.block_hashes[:2], b""))
    scheduler.new_request(request)
    assert scheduler.matched_tokens(request, 0) == (None, False)
    pages.update(dict.fromkeys(request.block_hashes, b""))
    wait_until(lambda: scheduler.matched_tokens(request, 0) == (192, True))
    late = request_of(200, "late", block_hashes=hashes_of(6, "x"), kv_transfer_params=request.kv_transfer_params)
    scheduler.new_request(late)
    assert scheduler.matched_tokens(late, 0) == (None, False)
    time.sleep(0.2)
    assert scheduler.matched_tokens(late, 0) == (0, False)


def test_preempted_requests_save_from_what_the_pool_has() -> None:
    door = FakeDoor()
    scheduler, request = scheduler_of(door), request_of(200)
    scheduler.new_request(request)
    assert scheduler.matched_tokens(request, 0) == (0, False)
    scheduler.allocated(request, ([1, 2, 3, 4, 5, 6, 7],), 0)
    tables = {"r": ([1, 2, 3, 4, 5, 6, 7],)}
    assert scheduler.build_meta(step_of({"r": 100}, tables)).saves[0].runs[0].blocks == [1, 2, 3]
    scheduler.build_meta(step_of({}, tables, preempted_req_ids={"r"}))
    tables = {"r": ([9, 8, 7, 6, 5, 4, 3],)}
    again = scheduler.build_meta(step_of({"r": 100}, tables)).saves[0].runs[0]
    assert (again.first, again.blocks) == (0, [9, 8, 7])


def test_events_are_told_once() -> None:
    announcer, request = Announcer(True, "TURNKV", BLOCK_TOKENS), request_of(200)
    announcer.stored(request, request.block_hashes, 2)
    announcer.stored(request, request.block_hashes, 4)
    announcer.stored(request, request.block_hashes, 4)
    first, second = announcer.take()
    said = [maybe_convert_block_hash(block_hash) for block_hash in request.block_hashes]
    assert first.parent_block_hash is None and second.block_hashes == said[2:4]
    assert second.token_ids == list(range(64, 128)) and second.parent_block_hash == said[1]
    announcer.missing(request.block_hashes, 3)
    (removed,) = announcer.take()
    assert removed.block_hashes == [said[3]] and removed.medium == "TURNKV"
    announcer.missing(request.block_hashes, 3)
    assert announcer.take() == []


def test_stats_travel_and_add_up() -> None:
    one, other = TurnKVStats(), TurnKVStats()
    one.count("loaded_tokens", 64)
    one.observe("load_seconds", 0.5)
    other.count("loaded_tokens", 32)
    other.count("failed_tokens", 32, "io")
    both = TurnKVStats(one.data).aggregate(TurnKVStats(other.data))
    assert both.reduce() == {"loaded_tokens": 96, "failed_tokens": 32, "load_seconds_p50": 0.5, "load_seconds_max": 0.5}
    assert TurnKVStats().is_empty() and not both.is_empty()


# ---- the worker's side


def test_what_ran_on_a_failed_layerwise_load_is_not_stored() -> None:
    door, memory, names = FakeDoor(), Memory(8), hashes_of(4)
    worker = Worker(Options.parse({}), door, {0: memory.runs}, stores=True)
    ended = {"r": SimpleNamespace(outcome=LoadOutcome(1, 1, "checksum", 0.1), failed=[(0, 2)])}
    worker.layers = SimpleNamespace(end=lambda: {**ended, **(ended.clear() or {})}, close=lambda: None)
    step = scheduler_of(door).step
    step.saves = [SaveJob("r", None, [run_of(names, [3], first=0)])]
    worker.end_step(step)
    worker.end_step(step)
    assert worker.take_failed_blocks() == {2} and not worker.saver._requests
    step.trusted = ["r"]
    worker.before_step(step)
    worker.end_step(step)
    wait_until(lambda: names[0] in door.namespaces[0].pages)


def test_a_block_that_another_group_gets_is_not_saved_any_more() -> None:
    """All groups take their blocks from one pool: what slid out of one group's window is another group's in the same step."""
    door, scheduler, memory = FakeDoor(None, 2), scheduler_of(FakeDoor(None, 2)), Memory(32)
    worker = Worker(Options.parse({"save_threads": 1}), door, dict.fromkeys(door.groups, memory.runs), stores=True)
    request, tables = request_of(200, "a"), {"a": ([1, 2, 3, 4, 5, 6, 7], [11, 12, 13, 14, 15, 16, 17])}
    scheduler.new_request(request)
    assert scheduler.matched_tokens(request, 0) == (0, False)
    scheduler.allocated(request, tables["a"], 0)
    for namespace in door.namespaces.values():
        namespace.gate.clear()

    def step(output: Any) -> None:
        meta = scheduler.build_meta(output)
        worker.before_step(meta)
        worker.end_step(meta)

    step(step_of({"a": 200}, tables, scheduled_new_reqs=[SimpleNamespace(num_computed_tokens=0, block_ids=tables["a"])]))
    wait_until(lambda: door.namespaces[0].calls)
    was = memory.bytes.copy()
    # Group 2 is one that the connector does not keep; what is computed already (block 16) is not written again.
    new = SimpleNamespace(num_computed_tokens=BLOCK_TOKENS, block_ids=([16, 12, 20], [21, 13], [14]))
    step(step_of({"b": 64}, {}, scheduled_new_reqs=[new], scheduled_cached_reqs=SimpleNamespace(new_block_ids=[([11], [], [])])))
    memory.bytes[[11, 12, 13, 14]] = 0
    for namespace in door.namespaces.values():
        namespace.gate.set()
    worker.saver.finish(FinishJob("a", None, []))
    assert finished(worker.saver, "a").stored == 8
    stored, names = door.namespaces[1].pages, request.block_hashes
    assert {name: page for name, page in stored.items() if page not in {block.tobytes() for block in was}} == {}
    assert list(stored) == names[4:6], "what nobody else got is saved"


def test_an_engine_that_zeroes_blocks_saves_when_it_holds_them() -> None:
    zeroes, does_not = SimpleNamespace(needs_kv_cache_zeroing=True), SimpleNamespace()
    assert fitting(Options(), zeroes) == Options(save="finished") and fitting(Options(save="off"), zeroes).save == "off"
    assert fitting(Options(), does_not) == Options()


def test_a_replica_stores_nothing_and_holds_nothing_up() -> None:
    door, names = FakeDoor(), hashes_of(2)
    worker = Worker(Options.parse({}), door, {0: Memory(4).runs}, stores=False)
    step = scheduler_of(door).step
    step.saves = [SaveJob("r", None, [run_of(names, [1])])]
    step.finishes = [FinishJob("r", None, [run_of(names, [1])])]
    worker.end_step(step)
    assert worker.results()[0] == {"r"} and door.namespaces[0].calls == []
    assert worker.take_report().saves["r"].merge(SaveOutcome(1, 1, 0, 0, None)).pages == 1


@pytest.mark.parametrize("told", [True, False], ids=["told of the end", "not told"])
def test_a_step_lost_half_way_ends_storing_until_a_reset(told: bool) -> None:
    """vLLM's model runners differ: one calls `wait_for_save` after an exception too, the other leaves it out."""
    door, names = FakeDoor(), hashes_of(4)
    worker = Worker(Options.parse({}), door, {0: Memory(8).runs}, stores=True)
    scheduler, output = scheduler_of(FakeDoor()), step_of({"r": 1}, {})

    def step(save: int, finish: bool = False, whole: bool | None = True) -> None:
        meta = scheduler.build_meta(output)
        meta.saves = [SaveJob("r", None, [run_of(names, [save + 1], first=save)])]
        meta.finishes = [FinishJob("r", None, [run_of(names, [1, 2, 3, 4])])] if finish else []
        worker.before_step(meta)
        if whole is not None:
            worker.end_step(meta, whole)

    step(0)
    wait_until(lambda: names[0] in door.namespaces[0].pages)
    step(1, whole=False if told else None)
    step(2)
    step(3, finish=True)
    assert finished(worker.saver, "r").pages == 1 and list(door.namespaces[0].pages) == names[:1]
    scheduler.reset()
    meta = scheduler.build_meta(output)
    meta.saves = [SaveJob("q", None, [run_of(names, [1])])]
    worker.before_step(meta)
    worker.end_step(meta)
    wait_until(lambda: list(door.namespaces[0].pages) == names[:1])


def test_nothing_old_reaches_a_new_epoch() -> None:
    """Weights were changed: a save under way ends in the old namespace, what is queued goes nowhere."""
    door, names = FakeDoor(), hashes_of(4)
    worker = Worker(Options.parse({"save_threads": 1}), door, {0: Memory(8).runs}, stores=True)
    old = door.namespaces[0]
    old.gate.clear()
    worker.saver.add(SaveJob("r", None, [run_of(names, [1])]))
    wait_until(lambda: old.calls)
    worker.saver.add(SaveJob("r", None, [run_of(names, [2], first=1)]))
    step = scheduler_of(FakeDoor()).step
    step.epoch = b"new"
    threading.Timer(0.1, old.gate.set).start()
    worker.before_step(step)
    assert list(old.pages) == names[:1] and door.epoch == b"new"
    worker.saver.finish(FinishJob("r", None, [run_of(names, [1, 2])]))
    assert finished(worker.saver, "r").stored == 1 and door.namespaces[0].pages == {}


def test_a_reset_forgets_what_was_found() -> None:
    door = FakeDoor()
    scheduler, request = scheduler_of(door), request_of(200)
    door.namespaces[0].pages = dict.fromkeys(request.block_hashes, b"")
    scheduler.new_request(request)
    assert scheduler.matched_tokens(request, 0) == (192, True)
    scheduler.reset()
    assert scheduler.matched_tokens(request, 0) == (0, False)
    assert scheduler.build_meta(step_of({}, {})).epoch == door.epoch != b""


def test_a_step_without_a_forward_pass_ends_once_whoever_says_so() -> None:
    """vLLM 0.30 never calls wait_for_save in it: what the step finishes would be lost, and its blocks held for ever."""
    ended: list[StepMeta] = []
    connector = object.__new__(TurnKVConnector)
    connector._worker = SimpleNamespace(end_step=lambda step, whole: ended.append(step), results=lambda: (set(), set(), set()))
    for forward, says_so, times in ((False, False, 1), (False, True, 1), (True, False, 0), (True, True, 1)):
        connector._ended, step = None, StepMeta(forward=forward)
        connector.bind_connector_metadata(step)
        if says_so:
            connector.wait_for_save()
        connector.get_finished(set())
        connector.clear_connector_metadata()
        assert len(ended) == times, (forward, says_so)
        ended.clear()
    connector.get_finished(set())  # between steps


def test_prefill_is_timed_by_steps_of_prompts() -> None:
    clock, told = PrefillClock(), []
    for step in range(40):  # scheduled one ahead: a step begins before the one before it ends
        clock.begin([512] if step % 2 else [1] * 100, 10.0 + step)
        if step:
            told.append(clock.end(11.5 + step - 1))
    told = [entry for entry in told if entry is not None]
    assert told == [(8192, 16.0)], told  # 16 steps of 512 tokens, each a second after the one before; decoding left out
    for _ in range(100):
        clock.begin([512], 60.0)  # nobody says that steps end
    assert clock.end(61.0) is None
    clock = PrefillClock()
    assert clock.end(1.0) is None


@pytest.mark.parametrize("ahead, second, load", [(False, False, "layerwise"), (True, False, "async"), (None, True, "async")])
def test_layers_are_not_loaded_within_a_step_that_vllm_cannot_take_back(ahead: bool | None, second: bool, load: str) -> None:
    scheduler = SimpleNamespace(async_scheduling=ahead)
    config: Any = SimpleNamespace(scheduler_config=scheduler, use_v2_model_runner=second)
    assert loading(Options(load="layerwise"), config).load == load
    assert loading(Options(load="off"), config).load == "off"

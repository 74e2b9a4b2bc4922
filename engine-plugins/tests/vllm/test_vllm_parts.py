"""The connector's parts without an engine: options, hints, memory geometry, saver, loader, lookups."""

from __future__ import annotations

import ctypes
import threading
import time
import types
from typing import Any

import numpy
import pytest
import torch
from fakes import (
    BLOCK_TOKENS,
    PAGE,
    FakeDoor,
    Memory,
    failure,
    finished,
    hashes_of,
    load,
    lookups_of,
    run_of,
    saver_of,
    wait_until,
)

from turnkv.connector import BlockRuns, FinishJob, Hints, Loader, LoadJob, PageRun, SaveJob, names_of
from turnkv.connector.devices import DeviceRuns
from turnkv.connector.runs import Shards, parts_of
from turnkv.vllm.options import Options

# ---- options and hints


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"pol": "unix:/x"}, "did you mean 'pool'"),
        ({"pool": "/x"}, 'pool must be "unix:/path"'),
        ({"load": "eager"}, "load must be 'async' or 'layerwise' or 'off'"),
        ({"save_ms": 0}, "save_ms must be a number from 1 to 600000, not 0"),
        ({"save_ms": True}, "save_ms must be"),
        ({"load_threads": 2.5}, "load_threads must be"),
        ({"durable": "yes"}, "durable must be true or false"),
        ({"tenant": "x" * 200}, "at most 128 bytes"),
        ({"tenant": None}, "tenant must be"),
    ],
)
def test_options_say_what_is_wrong(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="kv_connector_extra_config") as caught:
        Options.parse(config)
    assert said in str(caught.value)


def test_options_have_defaults() -> None:
    assert Options.parse({}) == Options() and Options().pool is None
    assert Options.parse({"lookup_wait_ms": 2.5, "pool": "unix:/x"}).lookup_wait_ms == 2.5


def test_hints() -> None:
    said = {"turnkv_session": "b", "do_remote_decode": True}
    hints, wrong = Hints.parse({"turnkv": {"session": "a", "ttl_ms": 5}}, said)
    assert (hints.session, hints.ttl_ms, wrong) == ("b", 5, [])
    said = {"turnkv": {"session": "a", "priority": -1, "final": 1, "hue": 3, "fork_from": None}}
    hints, wrong = Hints.parse(said, None)
    assert hints == Hints(session="a") and len(wrong) == 3
    assert Hints.parse({"turnkv": "a"})[1] == ["turnkv must be an object, not str"]


# ---- memory


@pytest.mark.parametrize("order", ["LBHNC", "BLHNC", "BHLNC", "LHBNC"])
def test_runs_cover_a_block_whatever_the_layout(order: str) -> None:
    """The bytes of block 3 gathered run by run are the bytes that the tensors' own indexing gives."""
    sizes = {"L": 2, "B": 5, "H": 3, "N": 4, "C": 8}
    raw = torch.arange(2 * 5 * 3 * 4 * 8, dtype=torch.int16).reshape([sizes[dim] for dim in order])
    canonical = raw.permute([order.index(dim) for dim in "LBHNC"])
    layers = {}
    for layer in range(2):
        cache = canonical[layer]
        layers[f"layer.{layer}"] = parts_of(cache.data_ptr(), cache.shape, cache.stride(), cache.element_size())
    runs = BlockRuns(layers)
    gathered = gather(runs.addresses([3, 1]), runs.lengths, 2)
    for page, block in zip(gathered, (3, 1), strict=True):
        values = numpy.sort(numpy.frombuffer(page, dtype=numpy.int16))
        assert (values == numpy.sort(canonical[:, block].reshape(-1).numpy())).all()
    if order == "BLHNC":
        assert runs.lengths == [runs.page_bytes], "blocks outermost: one run"
    share = runs.layers["layer.1"]
    own = gather(runs.layer_addresses("layer.1", [3]), share.lengths, 1)[0]
    assert own == gathered[0][share.offset : share.offset + len(own)], "a layer's share lies at its offset"


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC", "BLNHC", "BHLNC", "LHBNC"])
@pytest.mark.parametrize("rows", [1, 2], ids=["whole", "kernel-blocks"])
def test_shards_are_the_same_bytes_whatever_the_ranks(order: str, rows: int) -> None:
    """Eight heads in four shards: what one rank has of a block is what two and four ranks have of it, shard by shard."""
    sizes = {"L": 2, "B": 5 * rows, "H": 8, "N": 4, "C": 16}
    raw = torch.arange(2 * 5 * rows * 8 * 4 * 16, dtype=torch.int32).reshape([sizes[dim] for dim in order])
    whole = raw.permute([order.index(dim) for dim in "LBHNC"])

    def of_rank(rank: int, ranks: int) -> tuple[BlockRuns, torch.Tensor]:
        # A rank's own memory, in the same order of dimensions.
        heads = 8 // ranks
        own = whole[:, :, rank * heads : (rank + 1) * heads].permute(["LBHNC".index(dim) for dim in order]).contiguous()
        own = own.permute([order.index(dim) for dim in "LBHNC"])
        count = 4 // ranks
        layers = {
            f"layer.{at}": parts_of(own[at].data_ptr(), own[at].shape, own[at].stride(), 4, rows, cut=(1, count))
            for at in range(2)
        }
        return BlockRuns(layers, Shards(rank * count, count)), own

    pages: dict[int, list[bytes]] = {}
    shares: dict[int, list[bytes]] = {}
    for ranks in (1, 2, 4):
        pages[ranks], shares[ranks] = [], []
        for rank in range(ranks):
            runs, own = of_rank(rank, ranks)
            assert runs.shard_bytes * 4 == whole[:, :rows].numel() * 4 and runs.page_bytes * ranks == runs.shard_bytes * 4
            pages[ranks] += gather(runs.addresses([3]), runs.lengths, runs.shards.count)
            share = runs.layers["layer.1"]
            shares[ranks] += gather(runs.layer_addresses("layer.1", [3]), share.lengths, runs.shards.count)
            own_shares, own_pages = shares[ranks][-runs.shards.count :], pages[ranks][-runs.shards.count :]
            assert all(one in page[share.offset :] for one, page in zip(own_shares, own_pages, strict=True))
            del own
    assert pages[1] == pages[2] == pages[4] and shares[1] == shares[2] == shares[4]
    values = numpy.sort(numpy.frombuffer(b"".join(pages[1]), dtype=numpy.int32))
    assert (values == numpy.sort(whole[:, 3 * rows : 4 * rows].reshape(-1).numpy())).all(), "all of the block, once"


def test_kernel_blocks_within_a_block() -> None:
    cache = torch.arange(6 * 2 * 4 * 8, dtype=torch.int16).reshape(6, 2, 4, 8)
    (part,) = parts_of(cache.data_ptr(), cache.shape, cache.stride(), 2, per_block=2)
    assert part.length == 2 * 2 * 4 * 8 * 2 and part.stride == part.length


def gather(addresses: Any, lengths: list[int], pages: int) -> list[bytes]:
    each = len(lengths)
    return [
        b"".join(ctypes.string_at(int(addresses[page * each + at]), length) for at, length in enumerate(lengths))
        for page in range(pages)
    ]


def test_names() -> None:
    hashes = hashes_of(6)
    assert names_of(hashes, 1, 3) == hashes[1:3]
    assert names_of(hashes, 1, 3, hashes_per_block=2) == [hashes[3], hashes[5]], "the last hash within a block names it"
    assert len(names_of([b"short"], 0, 1)[0]) == 32


# ---- saver


def test_saves_as_blocks_fill_then_the_rest() -> None:
    door, memory, names = FakeDoor(), Memory(8), hashes_of(4)
    saver = saver_of(door, memory.runs)
    saver.add(SaveJob("r", "s", [run_of(names, [3, 4])]))
    saver.add(SaveJob("r", "s", [run_of(names, [5], first=2)]))
    assert saver.take_finished() == {}
    saver.finish(FinishJob("r", "s", [run_of(names, [3, 4, 5])]))
    outcome = finished(saver, "r")
    assert (outcome.pages, outcome.stored, outcome.declined) == (3, 3, 0)
    assert [door.namespaces[0].pages[name] for name in names[:3]] == [memory.bytes[at].tobytes() for at in (3, 4, 5)]
    assert not saver._requests and not saver._reading


def test_a_broken_chain_is_sent_again_from_the_root() -> None:
    door, names = FakeDoor(), hashes_of(4)
    saver = saver_of(door, Memory(8).runs)
    saver.add(SaveJob("r", None, [run_of(names, [3, 4], first=2)]))  # its ancestors were evicted meanwhile
    wait_until(lambda: saver._requests["r"].broken)
    saver.add(SaveJob("r", None, [run_of(names, [5], first=3)]))  # nothing to gain until the finish
    saver.finish(FinishJob("r", None, [run_of(names, [1, 2, 3, 4])]))
    outcome = finished(saver, "r")
    assert outcome.pages == 4 and list(door.namespaces[0].pages) == names


def test_blocks_are_let_go_at_the_deadline() -> None:
    door, names = FakeDoor(), hashes_of(4)
    door.namespaces[0].gate.clear()
    saver = saver_of(door, Memory(8).runs, deadline_ms=200, threads=1)
    begun = time.monotonic()
    for request in ("a", "b", "c"):
        saver.add(SaveJob(request, None, [run_of(names, [1, 2])]))
        saver.finish(FinishJob(request, None, [run_of(names, [1, 2])]))
    outcomes = [finished(saver, request) for request in ("a",)]
    wait_until(lambda: saver.take_finished() is not None and not saver._requests)
    assert time.monotonic() - begun < 0.6, "three stuck requests wait one deadline, not three"
    assert outcomes[0].cause == "deadline" and outcomes[0].declined == 2


def test_settle_waits_for_readers_and_no_longer() -> None:
    door, names = FakeDoor(), hashes_of(4)
    saver = saver_of(door, Memory(8).runs, deadline_ms=5000)
    door.namespaces[0].gate.clear()
    saver.add(SaveJob("r", None, [run_of(names, [1, 2])]))
    wait_until(lambda: door.namespaces[0].calls)
    saver.add(SaveJob("r", None, [run_of(names, [3], first=2)]))
    assert saver.settle([7]) == 0.0
    threading.Timer(0.1, door.namespaces[0].gate.set).start()
    assert 0.05 < saver.settle([2]) < 2
    assert saver.settle([3]) == 0.0, "what had not begun is not sent any more"
    assert names[2] not in door.namespaces[0].pages


def test_pages_of_a_window_stand_alone() -> None:
    door, names = FakeDoor(None, 2), hashes_of(6)
    saver = saver_of(door, Memory(8).runs)
    window = PageRun(1, 4, names[4:6], [5, 6], None)
    saver.add(SaveJob("r", None, [run_of(names, [1]), window]))
    saver.finish(FinishJob("r", None, []))
    assert finished(saver, "r").stored == 3
    assert list(door.namespaces[1].pages) == names[4:6]


def test_a_block_that_left_its_window_costs_its_own_page_only() -> None:
    """A running request's queue: the engine takes a block back that slid out of the window, and nothing else is lost."""
    door, names = FakeDoor(None, 2), hashes_of(8)
    saver = saver_of(door, Memory(16).runs, deadline_ms=5000, threads=1)
    for namespace in door.namespaces.values():
        namespace.gate.clear()
    saver.add(SaveJob("r", None, [run_of(names, [1, 2]), PageRun(1, 0, names[:3], [11, 12, 13])]))
    wait_until(lambda: door.namespaces[0].calls)
    assert saver.settle([11, 13]) < 1, "what was not begun is not waited for"
    saver.add(SaveJob("r", None, [run_of(names, [3], first=2), PageRun(1, 3, names[3:4], [14])]))
    assert not saver._requests["r"].broken
    for namespace in door.namespaces.values():
        namespace.gate.set()
    saver.finish(FinishJob("r", None, []))
    outcome = finished(saver, "r")
    assert (outcome.pages, outcome.stored) == (3, 5) and not saver._reading
    assert list(door.namespaces[1].pages) == [names[1], names[3]]


def test_an_unexpected_exception_still_frees_the_blocks(caplog: pytest.LogCaptureFixture) -> None:
    door, names = FakeDoor(), hashes_of(2)
    door.namespaces[0].offload = lambda *_, **__: 1 / 0
    saver = saver_of(door, Memory(8).runs)
    saver.add(SaveJob("r", None, [run_of(names, [1])]))
    saver.finish(FinishJob("r", None, [run_of(names, [1])]))
    assert finished(saver, "r").cause == "internal" and "ZeroDivisionError" in caplog.text


# ---- loader


@pytest.mark.parametrize(("memory", "calls"), [(BlockRuns, [16] * 37 + [8]), (DeviceRuns, [256, 256, 88])])
def test_a_load_is_cut_into_calls_that_suit_its_memory(memory: type[BlockRuns], calls: list[int]) -> None:
    """On a CPU a call copies with one thread; on a device it is one request and one wait, and the device copies by itself."""

    class Noting:
        page_bytes = 1 << 20
        load_bytes_max = memory.load_bytes_max

        def __init__(self) -> None:
            self.made: list[int] = []

        def reload(self, pages: Any, names: list[bytes], blocks: list[int], **settings: Any) -> Any:
            self.made.append(len(names))
            return types.SimpleNamespace(pages=len(names), miss=None)

    noting = Noting()
    loader = Loader(FakeDoor(), {0: noting}, deadline_ms=10_000, threads=1)  # type: ignore[dict-item]
    done = load(loader, LoadJob("r", [PageRun(0, 0, [bytes(32)] * 600, list(range(600)))], 9600))
    assert noting.made == calls and done.outcome.pages == 600
    loader.close(1)


def test_loads_fill_blocks_and_name_those_that_did_not_come() -> None:
    door, memory, names = FakeDoor(), Memory(8), hashes_of(4)
    content = [bytes([at]) * PAGE for at in range(4)]
    door.namespaces[0].pages = dict(zip(names[:3], content[:3], strict=True))
    loader = Loader(door, {0: memory.runs}, deadline_ms=300, threads=2)
    loaded = load(loader, LoadJob("r", [run_of(names, [2, 3, 4])], 96))
    assert (loaded.outcome.pages, loaded.outcome.failed, loaded.failed) == (3, 0, [])
    assert [memory.bytes[block].tobytes() for block in (2, 3, 4)] == content[:3]
    loaded = load(loader, LoadJob("q", [run_of(names, [2, 3, 4, 5])], 128))
    assert (loaded.outcome.pages, loaded.failed, loaded.outcome.cause) == (3, [(0, 5)], "absent")


def test_a_load_is_told_by_its_deadline() -> None:
    door, names = FakeDoor(), hashes_of(2)
    door.namespaces[0].gate.clear()
    loader = Loader(door, {0: Memory(4).runs}, deadline_ms=150, threads=1)
    for request in ("a", "b"):
        loader.start(LoadJob(request, [run_of(names, [1, 2])], 64))
    found: dict[str, Any] = {}
    begun = time.monotonic()
    wait_until(lambda: found.update(loader.take_finished()) or len(found) == 2)
    assert time.monotonic() - begun < 0.4
    assert {ended.outcome.cause for ended in found.values()} == {"deadline"}


# ---- lookups


def test_lookup_answers_again_and_again_alike() -> None:
    door, names = FakeDoor(), hashes_of(5)
    door.namespaces[0].pages = dict.fromkeys(names[:3], b"")
    lookups = lookups_of(door)
    answers = [lookups.answer("r", lambda: names) for _ in range(3)]
    assert [answer.tokens for answer in answers] == [96, 96, 96]
    assert len(door.namespaces[0].calls) == 1, "asked once"


def test_a_slow_lookup_waits_little_and_gives_up() -> None:
    door, names = FakeDoor(), hashes_of(5)
    door.namespaces[0].gate.clear()
    lookups = lookups_of(door, wait_ms=10)
    begun = time.monotonic()
    assert lookups.answer("r", lambda: names) is None
    assert time.monotonic() - begun < 0.1
    begun = time.monotonic()
    assert lookups.answer("r", lambda: names) is None and time.monotonic() - begun < 0.005, "waits the first time only"
    time.sleep(0.2)
    assert lookups.answer("r", lambda: names).cause == "deadline"
    door.namespaces[0].gate.set()


def test_nobody_waits_for_an_open_breaker_but_one_call_probes() -> None:
    """A breaker closes only if it is called: somebody has to, and no request waits for that call."""
    door, names = FakeDoor(), hashes_of(5)
    door.is_shut = True
    door.namespaces[0].gate.clear()
    lookups = lookups_of(door)
    begun = time.monotonic()
    answers = [lookups.answer(name, lambda: names) for name in ("a", "b", "c")]
    assert time.monotonic() - begun < 0.04
    assert {(answer.tokens, answer.cause) for answer in answers} == {(0, "breaker_open")}
    wait_until(lambda: door.namespaces[0].calls)
    assert door.namespaces[0].calls == [("lookup", 1)], "one probe at a time"
    door.namespaces[0].gate.set()


def test_errors_are_answers() -> None:
    door = FakeDoor()
    door.namespaces[0].fail_kind = "unavailable"
    assert lookups_of(door).answer("r", lambda: hashes_of(5)).cause == "unavailable"
    assert str(failure("busy")) == "busy"


def test_windows_shorten_a_prefix() -> None:
    """A full group has 6 pages, a sliding one lost its page 4: a window of 2 pages fits up to page 4 only."""
    door, names = FakeDoor(None, 2), hashes_of(6)
    door.namespaces[0].pages = dict.fromkeys(names, b"")
    door.namespaces[1].pages = dict.fromkeys([*names[:4], names[5]], b"")
    assert lookups_of(door).answer("r", lambda: names).tokens == 4 * BLOCK_TOKENS
    door.namespaces[1].pages = {}
    assert lookups_of(door).answer("r", lambda: names).tokens == 0

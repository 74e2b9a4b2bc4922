"""`Linker` on SGLang's device pool group and a real TurnKV pool, without an engine."""

from __future__ import annotations

import ctypes
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from damage import flip, some_bits
from memory import LAYERS, device_group, host_pool, linker_params, page_of, slots, storage_config
from sglang.srt.managers import kv_hints
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolName, PoolTransfer
from test_keys import keys

import turnkv
from turnkv.connector import devices
from turnkv.sglang import HiCacheBackend, Linker, engine, identity, loading
from turnkv.sglang.chain import block_hashes

SECONDS_MAX = 20


class Tree:
    """What a linker's caller in SGLang is: it knows each node's parent, and the node is a local of what calls."""

    def __init__(self, linker: Linker) -> None:
        self.linker, self.nodes = linker, {}
        self.cache = SimpleNamespace(tree_core=self)

    def validate_buffer_backup(self, node_id: int, tokens: int) -> Any:
        """As SGLang's tree core."""
        parent = self.nodes[node_id][1]
        return SimpleNamespace(parent_is_root=parent is None, parent_last_hash=parent)

    def get_hash_values(self, node_id: int) -> list[str]:
        """As SGLang's tree core."""
        return self.nodes[node_id][0]

    def offload(self, some: list[str], pages: list[int], parent: str | None, session: str | None = None) -> bool:
        """Stores one node and waits for the result."""
        node_id = len(self.nodes)
        self.nodes[node_id] = (some, parent)
        assert self.linker.offload([transfer(some, pages)], session_id=session)
        return self.result()

    def result(self) -> bool:
        """The oldest result, waited for."""
        deadline = time.monotonic() + SECONDS_MAX
        while not self.linker.num_completed_offloads():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self.linker.pop_completed_offload()


Make = Callable[..., Tree]


@pytest.fixture
def make(pool_server: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Linkers whose pages no other test shares; each over device pools of its own. They wait as long as a busy machine needs."""
    monkeypatch.setattr(identity, "engine_settings", dict)
    trees: list[Tree] = []

    def make(pages: int = 16, shape: dict | None = None, **options: Any) -> Tree:
        group = device_group(pages, **shape or {})
        monkeypatch.setattr(engine, "device_pool_group", lambda *_: group)
        patience = {"lookup_ms": 5000, "load_ms": 10_000, "deadline_ms": 10_000}
        extra = {"pool": pool_server.address, "model_id": request.node.name} | patience | options
        trees.append(Tree(Linker(None, linker_params(page=group.page_size), components=set(), extra_config=extra)))
        return trees[-1]

    yield make
    for tree in trees:
        tree.linker.close()


def transfer(some: list[str], pages: list[int] | None = None) -> PoolTransfer:
    """The KV pages of a request or a node."""
    return PoolTransfer(name=PoolName.KV, keys=some, device_indices=None if pages is None else slots(pages))


def device_page(tree: Tree, page: int) -> torch.Tensor:
    """What lies in one device page, as [buffer, token, head, dim]."""
    entry = tree.linker.pools[PoolName.KV]
    index = slice(page * entry.page_size, (page + 1) * entry.page_size)
    return torch.stack([buffer[index] for buffer in entry.kv_buffer])


def run_load(tree: Tree, rid: str = "r") -> bool:
    """Starts what is queued and waits, layer by layer, as a forward does."""
    index = tree.linker.start_layer_wise_loading()
    assert index >= 0
    tree.linker.layer_done_counter.set_consumer(index)
    for layer in range(LAYERS):
        tree.linker.layer_done_counter.wait_until(layer)
    return tree.linker.finish_layer_wise_loading(index)


def wait_for_no_leases(pool_server: Any) -> None:
    """The client ends leases behind the caller's back."""
    deadline = time.monotonic() + SECONDS_MAX
    while pool_server.pool().stats()["leases"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stop(pool_server: Any) -> None:
    """SIGSTOP, and every thread of it has stopped."""
    pool_server.pause()
    tasks = pathlib.Path(f"/proc/{pool_server.process.pid}/task")
    deadline = time.monotonic() + SECONDS_MAX
    while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_pages_come_back_layer_by_layer(make: Make) -> None:
    one, other, some = make(), make(), keys(6)
    assert one.offload(some[:4], [3, 1, 4, 15], None) and one.offload(some[4:], [9, 2], some[3])
    assert other.linker.lookup("r", [transfer(some)]) == [6]
    assert other.linker.load("r", [transfer(some, [0, 1, 2, 3, 4, 5])])
    assert run_load(other)
    for at, page in enumerate([3, 1, 4, 15, 9, 2]):
        assert torch.equal(device_page(one, page), device_page(other, at))
    assert other.linker.start_layer_wise_loading() == -1


def on_device(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """From here on linkers take SGLang's pages for memory of a device: the host device copies them."""
    device = turnkv.Device(kind="host", **settings)
    monkeypatch.setattr(devices, "device_of", lambda tensor: device)


def test_pages_on_a_device(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a linker stores from one kind of memory the other loads; all is verified before a load is promised."""
    one, some = make(), keys(6)
    on_device(monkeypatch, delay_ms_max=1, seed=2)
    two, three = make(), make()
    assert one.offload(some[:4], [3, 1, 4, 15], None)
    assert two.linker.load("r", [transfer(some[:4], [0, 1, 2, 3])])
    for at, page in enumerate([3, 1, 4, 15]):
        assert torch.equal(device_page(one, page), device_page(two, at)), "promised, but not in place"
    assert run_load(two)
    assert two.offload(some[4:], [9, 2], some[3])
    for at, reader in enumerate((three, one)):
        assert reader.linker.load("r", [transfer(some[4:], [5 + at, 7 + at])]) and run_load(reader)
        assert torch.equal(device_page(two, 9), device_page(reader, 5 + at))
        assert torch.equal(device_page(two, 2), device_page(reader, 7 + at))


def test_a_damaged_page_is_not_promised_on_a_device(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    on_device(monkeypatch)
    one, two, some = make(), make(), keys(4)
    assert one.offload(some, [0, 1, 2, 3], None)
    space = one.linker._pages[str(PoolName.KV)].door.call(lambda space: space, None)
    with space.lease(block_hashes(some)) as lease:
        at = numpy.frombuffer(lease[2], dtype=numpy.uint8).ctypes.data + 17
        (ctypes.c_ubyte * 1).from_address(at)[0] ^= 8
    assert not two.linker.load("r", [transfer(some, [4, 5, 6, 7])])
    assert two.linker.counts.get()["miss:checksum"] == 1 and two.linker.start_layer_wise_loading() == -1


def test_a_layer_is_done_when_its_bytes_are_there_and_not_before(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, some = make(), make(), keys(3)
    one.offload(some, [0, 1, 2], None)
    arrived: list[list[bool]] = []
    complete = other.linker.layer_done_counter.complete

    def look(index: int, layer: int) -> None:
        equal = [torch.equal(device_page(one, 1)[run], device_page(other, 8)[run]) for run in range(2 * LAYERS)]
        arrived.append(equal)
        complete(index, layer)

    monkeypatch.setattr(other.linker.layer_done_counter, "complete", look)
    assert other.linker.load("r", [transfer(some, [7, 8, 9])]) and run_load(other)
    assert arrived == [[run % LAYERS <= layer for run in range(2 * LAYERS)] for layer in range(LAYERS)]


def test_pages_that_came_back_are_not_stored_twice(make: Make) -> None:
    tree, some = make(), keys(4)
    assert tree.offload(some, [0, 1, 2, 3], None) and tree.offload(some, [4, 5, 6, 7], None)
    counts = tree.linker.counts.get()
    assert (counts["pages_stored"], counts["pages_present"]) == (4, 4)


def test_a_hicache_engine_and_a_linker_share_pages(make: Make, pool_server: Any, request: pytest.FixtureRequest) -> None:
    tree, some = make(), keys(3)
    extra = {"interface_v1": 1, "pool": pool_server.address, "model_id": request.node.name}
    backend = HiCacheBackend(storage_config(extra_config=extra), {})
    backend.register_mem_pool_host(host_pool("layer_first"))
    assert backend.batch_set_v1(some, slots([5, 6, 7]), HiCacheStorageExtraInfo(prefix_keys=[])) == [True] * 3
    assert tree.linker.load("r", [transfer(some, [1, 2, 3])]) and run_load(tree)
    assert torch.equal(device_page(tree, 2), page_of(backend.mem_pool_host, 6).flatten(0, 1))
    backend.close()


def test_a_page_that_is_not_there_means_recompute_not_abort(make: Make, pool_server: Any) -> None:
    tree, some = make(), keys(4)
    tree.offload(some[:3], [0, 1, 2], None)
    assert tree.linker.lookup("r", [transfer(some)]) == [3]
    assert not tree.linker.load("r", [transfer(some, [4, 5, 6, 7])])
    assert tree.linker.start_layer_wise_loading() == -1
    assert tree.linker.counts.get()["loads_refused"] == 1
    wait_for_no_leases(pool_server)


def test_flipped_bit_on_disk_is_found_before_the_load_is_promised(make: Make, pool_server: Any) -> None:
    tree, some = make(), keys(12)
    tree.offload(some, list(range(12)), None)
    pool_server.to_nvme()
    bits = some_bits(pool_server.folder / "nvme", step_bytes=1024)
    flip(bits)
    try:
        assert tree.linker.lookup("r", [transfer(some)]) == [12]  # the index does not know yet
        assert not tree.linker.load("r", [transfer(some, list(range(12)))])
    finally:
        flip(bits)
    assert tree.linker.start_layer_wise_loading() == -1


def test_cancelled_load_lets_go_of_its_pages(make: Make, pool_server: Any) -> None:
    tree, some = make(), keys(3)
    tree.offload(some, [0, 1, 2], None)
    assert tree.linker.load("r", [transfer(some, [4, 5, 6])])
    assert pool_server.pool().stats()["leases"] == 1
    assert tree.linker.cancel_queued_load("r") and not tree.linker.cancel_queued_load("r")
    assert tree.linker.load("r", [transfer(some, [4, 5, 6])])
    tree.linker.reset()
    wait_for_no_leases(pool_server)
    assert tree.linker.start_layer_wise_loading() == -1


def test_pool_that_cannot_lease_is_copied_from(make: Make) -> None:
    one, other, some = make(), make(data_plane="inline"), keys(4)
    one.offload(some, [0, 1, 2, 3], None)
    assert other.linker.lookup("r", [transfer(some)]) == [4]
    assert other.linker.load("r", [transfer(some, [8, 9, 10, 11])]) and run_load(other)
    assert all(torch.equal(device_page(one, at), device_page(other, 8 + at)) for at in range(4))


def test_more_pages_than_the_pools_memory_holds(make: Make, make_server: Any) -> None:
    server = make_server(dram="16MiB", nvme="128MiB")
    shape, some = {"layers": 3, "heads": 8, "dim": 512, "page": 16}, keys(24)  # 1.5 MiB a page
    tree = make(48, shape, pool=server.address, wait_ms=5000)
    for at in range(0, 24, 4):
        node_id, parent = len(tree.nodes), some[at - 1] if at else None
        tree.nodes[node_id] = (some[at : at + 4], parent)
        indices = torch.arange(at * 16, (at + 4) * 16)
        node = PoolTransfer(name=PoolName.KV, keys=some[at : at + 4], device_indices=indices)
        assert _offload_node(tree, node_id, node)
        assert tree.result()
    assert tree.linker.lookup("r", [transfer(some)]) == [24]
    wanted = PoolTransfer(name=PoolName.KV, keys=some, device_indices=torch.arange(24 * 16, 48 * 16))
    assert tree.linker.load("r", [wanted]) and run_load(tree)
    assert all(torch.equal(device_page(tree, at), device_page(tree, 24 + at)) for at in range(24))


def _offload_node(self: Tree, node_id: int, transfer: PoolTransfer) -> bool:
    """Named and shaped like SGLang's own caller: `self` and `node_id` are what the linker reads."""
    return self.linker.offload([transfer])


def test_the_page_before_is_read_where_sglang_has_it(make: Make) -> None:
    tree, some = make(), keys(4)
    assert tree.offload(some[:2], [0, 1], None)
    assert tree.linker.offload([transfer(some[2:], [2, 3])])  # this caller has no node
    assert tree.result() is False and tree.linker.counts.get()["dropped:no_parent"] == 2
    assert tree.offload(some[2:], [2, 3], some[1])
    assert tree.linker.offload([transfer(some[2:], [2, 3])]) and tree.result() is True  # by now it is remembered


def test_sessions_hold_all_their_pages(make: Make, pool_server: Any) -> None:
    tree, some = make(), keys(6)
    tree.offload(some[:3], [0, 1, 2], None, session="chat")
    spec = tree.linker._pages["kv"].door.spec
    pages = pool_server.pool().open_namespace(**spec)
    assert pages.begin_turn("chat").pages == 3
    tree.offload(some[3:5], [3, 4], some[2], session="chat")
    assert pages.begin_turn("chat").pages == 5
    tree.offload(keys(2, seed=1), [6, 7], some[1], session="chat")  # another branch, from page 2 on
    assert pages.begin_turn("chat").pages == 4
    before = pool_server.pool().stats()["sessions"]
    for unfit in ("", "x" * 129, "a\nb"):  # a user's choice: pages are stored all the same
        assert tree.offload(keys(1, seed=len(unfit) + 7), [8], None, session=unfit)
    assert pool_server.pool().stats()["sessions"] == before and tree.linker.counts.get()["sessions_unfit"] == 3


class HintedRequest:
    """What SGLang's scheduler has of a request, as far as a lookup's caller and we look."""

    rid = "r"

    def __init__(self, session: str | None, *actions: tuple[str, dict[str, Any]]) -> None:
        self.session_id = session
        self.kv_hints = kv_hints.decode_kv_hints_envelope(
            {
                "protocol_version": "1.0",
                "message_id": "m",
                "actions": [
                    {"action_id": str(at), "action_type": kind, "action_version": "1.0", "payload": payload}
                    for at, (kind, payload) in enumerate(actions)
                ],
            }
        )


def look_up(linker: Linker, req: HintedRequest, some: list[str]) -> list[int]:
    """As SGLang's cache does: the request is a local of what calls."""
    return linker.lookup(req.rid, [transfer(some, [0] * len(some))])


def test_an_orchestrators_hints_reach_the_sessions(make: Make, pool_server: Any) -> None:
    tree, some = make(), keys(4)
    pages = pool_server.pool().open_namespace(**tree.linker._pages["kv"].door.spec)
    tree.offload(some[:1], [0], None, session="left")
    retain = ("kv.retain", {"priority": 2, "ttl_seconds": 60})
    look_up(tree.linker, HintedRequest("hinted", retain, ("kv.evict", {"session_id": "left"})), some[:2])
    tree.offload(some[1:3], [1, 2], some[0], session="hinted")
    assert pages.begin_turn("hinted").pages == 3
    hints = tree.linker._advice.of("hinted")
    assert (hints.priority, hints.ttl_ms, hints.close) == (2, 60_000, ("left",))
    look_up(tree.linker, HintedRequest("mine", ("turnkv.session", {"session": "ours", "expected_return_ms": 5})), some[:2])
    tree.offload(some[3:], [3], some[2], session="mine")
    assert pages.begin_turn("ours").pages == 4 and pages.begin_turn("mine").pages == 0
    look_up(tree.linker, HintedRequest(None, ("kv.prefetch", {"sessions": ["hinted"]})), some[:2])
    deadline = time.monotonic() + SECONDS_MAX
    while (left := pages.begin_turn("left")).turn > 1:  # closed: it begins anew
        assert time.monotonic() < deadline, left.turn
        time.sleep(0.01)
    assert tree.linker.counts.get()["hints_heard"] == 3 and "hints_wrong" not in tree.linker.counts.get()


def test_results_keep_the_order_of_calls_when_some_are_declined(make: Make, pool_server: Any) -> None:
    tree = make(offloads_max=2, deadline_ms=400)
    stop(pool_server)
    try:
        nodes = [(keys(1, seed=at), [at]) for at in range(5)]
        for at, (some, pages) in enumerate(nodes):
            tree.nodes[at] = (some, None)
            assert _offload_node(tree, at, transfer(some, pages))
        assert tree.linker.counts.get()["offloads_declined"] == 3
    finally:
        pool_server.go_on()
    results = [tree.result() for _ in nodes]
    assert results[2:] == [False] * 3


def test_stopped_pool_is_a_miss_within_the_deadline(make: Make, pool_server: Any) -> None:
    tree, some = make(lookup_ms=20, load_ms=100), keys(4)
    tree.offload(some, [0, 1, 2, 3], None)
    assert tree.linker.lookup("r", [transfer(some)]) == [4]
    stop(pool_server)
    try:
        seconds = []
        for _ in range(20):
            started = time.perf_counter()
            assert tree.linker.lookup("r", [transfer(some)]) == []
            seconds.append(time.perf_counter() - started)
        assert max(seconds) < 0.2 and sum(seconds) < 1 and sorted(seconds)[10] < 0.002, seconds
        started = time.perf_counter()
        assert not tree.linker.load("r", [transfer(some, [4, 5, 6, 7])])
        assert time.perf_counter() - started < 1
    finally:
        pool_server.go_on()


def test_ranks_take_one_branch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank could not take hold of its shard: this one lets go of its own."""
    tree, some = make(), keys(2)
    tree.offload(some, [0, 1], None)
    monkeypatch.setattr(tree.linker._agreement, "all", lambda yes: False)
    assert not tree.linker.load("r", [transfer(some, [4, 5])])
    assert tree.linker.start_layer_wise_loading() == -1


def test_what_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="pipeline"):
        Linker(None, linker_params(pp_size=2), components=set(), extra_config={})
    with pytest.raises(ValueError, match="tenat"):
        Linker(None, linker_params(), components=set(), extra_config={"tenat": "a"})
    group = device_group(2)
    for buffer in range(2 * LAYERS):
        group.entries[0].kv_buffer[buffer] = group.entries[0].kv_buffer[buffer].to("meta")
    monkeypatch.setattr(engine, "resolve_hybrid_device_pool_group", lambda **_: group)
    with pytest.raises(ValueError, match="HiCacheBackend"):
        engine.device_pool_group(None, linker_params(), set())


def test_a_window_that_raises_does_not_end_a_load_while_others_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang gives the pages to another request once it is told."""
    copying, let_go, ended = threading.Event(), threading.Event(), threading.Event()

    def copy(want: Any, deadline: float, counts: Any) -> bool:
        if want == "first":
            copying.wait(10)
            threading.Timer(0.2, let_go.set).start()
            raise MemoryError
        copying.set()
        let_go.wait(10)
        ended.set()
        return True

    monkeypatch.setattr(loading, "_windows", lambda want: ["first", "second"])
    monkeypatch.setattr(loading, "_copy_window", copy)
    pages: Any = SimpleNamespace(device=object())
    with ThreadPoolExecutor(2) as threads, pytest.raises(MemoryError):
        try:
            loading.hold([loading.Wanted(pages, b"", torch.empty(0))], 1000, threads, loading.Counts())
        finally:
            assert ended.is_set(), "told while bytes were on their way"

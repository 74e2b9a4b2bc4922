"""The binding against the real server: every verb, every kind of buffer, bad input, forks, threads, the embedded pool."""

from __future__ import annotations

import array
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch
from conftest import Server, server_binary

import turnkv

PAGE = 2 * 2 * 2 * 16 * 8 * 2
"""Bytes of a page below: 2 layers, K and V, 2 heads, 16 tokens, dim 8, bf16."""
SHAPE = {"dtype": "bf16", "layers": 2, "kv_heads": 2, "head_dim": 8}


def chain(pages: int, seed: int, parent: bytes | None = None) -> bytes:
    return turnkv.chain_hashes(array.array("I", range(seed, seed + 16 * pages)).tobytes(), 16, parent)


def content(pages: int, seed: int) -> list[bytes]:
    rng = numpy.random.default_rng(seed)
    return [rng.bytes(PAGE) for _ in range(pages)]


@pytest.fixture(params=["shm", "inline"])
def pages(server: Server, request: pytest.FixtureRequest) -> turnkv.Namespace:
    return server.pool(data_plane=request.param).open_namespace("binding-" + request.param, **SHAPE)


def test_namespace_says_what_its_pages_are(pages: turnkv.Namespace) -> None:
    assert pages.shard_bytes == PAGE and pages.page_tokens == 16 and len(pages.id) == 32
    assert "binding" in repr(pages)


def test_offload_lookup_reload(pages: turnkv.Namespace) -> None:
    hashes, data = chain(5, seed=1000), content(5, seed=1)
    assert pages.lookup(hashes) == 0
    report = pages.offload(hashes, data)
    assert (report.stored, report.present, report.declined, report.first_decline) == (5, 0, 0, None)
    again = pages.offload(hashes, data)
    assert (again.stored, again.present) == (0, 5)
    assert pages.lookup(hashes) == 5 and pages.lookup([hashes[:32], hashes[32:64]]) == 2
    targets = [bytearray(PAGE) for _ in range(5)]
    loaded = pages.reload(hashes, targets)
    assert (loaded.pages, loaded.from_dram + loaded.from_nvme, loaded.miss) == (5, 5, None)
    assert targets == data
    more = hashes + chain(1, seed=5, parent=hashes[-32:])
    loaded = pages.reload(more, [bytearray(PAGE) for _ in range(6)])
    assert (loaded.pages, loaded.miss) == (5, "absent")
    assert "ReloadReport(pages=5" in repr(loaded)


def test_every_kind_of_buffer(pages: turnkv.Namespace) -> None:
    data = content(7, seed=2)
    whole = torch.frombuffer(bytearray(data[2]), dtype=torch.uint8)
    array_page = numpy.frombuffer(data[1], dtype=numpy.int16).reshape(2, -1)
    unsigned = array.array("B", data[3])
    pinned = bytearray(data[5])
    kinds = [
        data[0],
        array_page,
        whole,
        unsigned,
        memoryview(data[4]),
        (torch.frombuffer(pinned, dtype=torch.uint8).data_ptr(), PAGE),
        bytearray(data[6]),
    ]
    hashes = chain(7, seed=2000)
    assert pages.offload(hashes, kinds).stored == 7
    targets = [
        bytearray(PAGE),
        numpy.empty((4, PAGE // 8), dtype=numpy.int16),
        torch.empty(PAGE // 2, dtype=torch.bfloat16),
        array.array("B", bytes(PAGE)),
        memoryview(bytearray(PAGE)),
        torch.empty(PAGE, dtype=torch.uint8),
        numpy.empty(PAGE, dtype="u1"),
    ]
    assert pages.reload(hashes, targets).pages == 7
    read = [
        bytes(targets[0]),
        targets[1].tobytes(),
        targets[2].view(torch.uint8).numpy().tobytes(),
        targets[3].tobytes(),
        bytes(targets[4]),
        targets[5].numpy().tobytes(),
        targets[6].tobytes(),
    ]
    assert read == data


@pytest.mark.parametrize("tokens", [48, 41, 5])
@pytest.mark.parametrize("layout", ["layer_kv_head_token", "layer_kv_token_head"])
def test_strided_tensors_are_pages(server: Server, layout: str, tokens: int) -> None:
    pages = server.pool().open_namespace(f"strided-{tokens}", layout=layout, **SHAPE)
    stack = torch.randn(2, 2, 2, 64, 8).to(torch.bfloat16)  # [layer, K/V, head, token (longer than needed), dim]
    views = [(part.data_ptr(), 2, part.stride(0) * 2, part.stride(1) * 2, 16) for layer in stack for part in layer]
    count = -(-tokens // 16)
    hashes = chain(count, seed=3000 + tokens)
    assert pages.offload(hashes, turnkv.Strided(views, tokens)).stored == count
    flat = [torch.empty(PAGE // 2, dtype=torch.bfloat16) for _ in range(count)]
    assert pages.reload(hashes, flat).pages == count
    for index, page in enumerate(flat):
        here = stack[..., index * 16 : min(tokens, index * 16 + 16), :]
        if layout == "layer_kv_head_token":
            assert torch.equal(page.view(2, 2, 2, 16, 8)[..., : here.shape[-2], :], here)
        else:
            assert torch.equal(page.view(2, 2, 16, 2, 8)[:, :, : here.shape[-2]], here.transpose(2, 3))
    back = torch.zeros_like(stack)
    views = [(part.data_ptr(), 2, part.stride(0) * 2, part.stride(1) * 2, 16) for layer in back for part in layer]
    assert pages.reload(hashes, turnkv.Strided(views, tokens)).pages == count
    assert torch.equal(back[..., :tokens, :], stack[..., :tokens, :])
    assert not back[..., tokens:, :].any()  # nothing is written past the tail


def test_lease_reads_in_place(server: Server) -> None:
    pages = server.pool(data_plane="shm").open_namespace("lease", **SHAPE)
    hashes, data = chain(3, seed=4000), content(3, seed=4)
    pages.offload(hashes, data)
    with pages.lease(hashes) as lease:
        assert len(lease) == 3 and lease.miss is None and lease.left_ms > 0
        assert [bytes(page) for page in lease] == data and bytes(lease[-1]) == data[2]
        assert numpy.frombuffer(lease[0], dtype="u1").tobytes() == data[0]
        with pytest.raises(TypeError):
            lease[0][0] = 1
        for index in (3, -4):
            with pytest.raises(IndexError):
                lease[index]
        view = lease[1]
        lease.finish()
    assert bytes(view) == data[1]  # a view outlives its lease as memory; what it shows is no longer promised
    with pytest.raises(ValueError, match="finished"):
        lease[0]
    with pytest.raises(ValueError, match="finished"):
        lease.finish()
    with pytest.raises(turnkv.Error) as raised:
        server.pool(data_plane="inline").open_namespace("lease", **SHAPE).lease(hashes)
    assert raised.value.kind == "invalid"


def runs_of(memory: numpy.ndarray, pages: int) -> numpy.ndarray:
    """Addresses of [pages, 4 runs]: run r of page p lies in row r of `memory`, pages in reverse order, with gaps."""
    rows, row_bytes, step = numpy.arange(4, dtype=numpy.uint64), memory.shape[1], PAGE // 4 + 64
    order = numpy.arange(pages - 1, -1, -1, dtype=numpy.uint64)
    return memory.ctypes.data + rows[None, :] * numpy.uint64(row_bytes) + order[:, None] * numpy.uint64(step)


def scattered(pages: int) -> numpy.ndarray:
    return numpy.zeros((4, pages * (PAGE // 4 + 64)), dtype=numpy.uint8)


def test_runs_all_over_memory_are_pages(pages: turnkv.Namespace) -> None:
    hashes, data, lengths = chain(6, seed=17000), content(6, seed=7), [PAGE // 4] * 4
    source, target = scattered(6), scattered(6)
    step = PAGE // 4 + 64
    for page, bytes_ in enumerate(data):
        for run in range(4):
            at = (5 - page) * step
            source[run, at : at + PAGE // 4] = numpy.frombuffer(bytes_, numpy.uint8)[run * PAGE // 4 : (run + 1) * PAGE // 4]
    assert pages.offload(hashes, turnkv.Runs(runs_of(source, 6), lengths)).stored == 6
    whole = [bytearray(PAGE) for _ in range(6)]
    assert pages.reload(hashes, whole).pages == 6 and whole == data
    assert pages.reload(hashes, turnkv.Runs(runs_of(target, 6), lengths)).pages == 6
    assert (source == target).all(), "the gaps between the runs stay as they were"
    tail = pages.offload(
        chain(1, 9, hashes[-32:]), turnkv.Runs(array.array("Q", runs_of(source, 6)[0].tolist()), lengths), parent=hashes[-32:]
    )
    assert tail.stored == 1
    for addresses, sizes in [
        (runs_of(source, 5), lengths),
        (runs_of(source, 6), [PAGE // 4] * 3),
        (runs_of(source, 6), []),
        (runs_of(source, 6), [PAGE // 4 - 1] * 4),
        (numpy.zeros((6, 4), numpy.uint64), lengths),
    ]:
        with pytest.raises(ValueError):
            pages.offload(hashes, turnkv.Runs(addresses, sizes))
        with pytest.raises(ValueError):
            pages.reload(hashes, turnkv.Runs(addresses, sizes))


def test_a_lease_is_verified_and_taken_apart(server: Server) -> None:
    pages = server.pool().open_namespace("taken-apart", **SHAPE)
    hashes, data = chain(6, seed=18000), content(6, seed=8)
    pages.offload(hashes, data)
    lease = pages.lease(hashes)
    assert lease.verify() == 6
    target = scattered(4)
    for run in range(4):  # a layer at a time: the run'th quarter of pages 2 to 5
        quarter = turnkv.Runs(numpy.ascontiguousarray(runs_of(target, 4)[:, run]), [PAGE // 4])
        lease.copy_out(2, quarter, run * PAGE // 4)
    with pytest.raises(IndexError):
        lease.copy_out(3, turnkv.Runs(runs_of(target, 4), [PAGE // 4] * 4))
    with pytest.raises(turnkv.Error, match="past the end"):
        lease.copy_out(0, turnkv.Runs(numpy.ascontiguousarray(runs_of(target, 4)[:, 0]), [PAGE // 4]), PAGE - 1)
    lease.finish()
    for page in range(4):
        at = (3 - page) * (PAGE // 4 + 64)
        got = b"".join(target[run, at : at + PAGE // 4].tobytes() for run in range(4))
        assert got == data[page + 2]


def test_sessions(pages: turnkv.Namespace) -> None:
    hashes = chain(3, seed=5000)
    tail = turnkv.chain_hashes(array.array("I", range(7)).tobytes(), 7, hashes[-32:])
    assert pages.begin_turn("talk").turn == 1
    pages.offload(hashes + tail, content(4, seed=5), session="talk", tail_tokens=7)
    assert pages.end_turn("talk", hashes + tail, tail_tokens=7, expected_return_ms=100, ttl_ms=60_000, priority=2) == 4
    begun = pages.begin_turn("talk", engine="gpu-7")
    assert (begun.turn, begun.pages, begun.tail, begun.tail_tokens) == (2, 4, tail, 7), begun
    assert pages.fork("talk", "talk-2") >= 3 and pages.begin_turn("talk-2").tail == tail
    assert pages.fork("talk", "talk-3", 2) == 2
    pages.end_turn("talk", b"", keep=3)
    assert pages.supersede("talk", 1) >= 1
    assert pages.prefetch("talk").ready + pages.prefetch(hashes=hashes[:32]).ready >= 1
    pages.close("talk")
    pages.report_prefill(1000, 0.5)
    for tokens, seconds in ((1000, -1.0), (0, 1.0)):
        with pytest.raises((ValueError, turnkv.Error), match=r"second|prefill"):
            pages.report_prefill(tokens, seconds)


def test_a_pool_says_why_pages_are_not_durable(server: Server, make_server: Callable[..., Server]) -> None:
    kept = server.pool().open_namespace("durable", **SHAPE).offload(chain(2, seed=61), content(2, seed=6), durable=True)
    assert kept.durable and kept.not_durable is None
    pages = make_server(nvme=None).pool().open_namespace("durable", **SHAPE)
    report = pages.offload(chain(2, seed=62), content(2, seed=6), durable=True)
    assert (report.stored, report.durable, report.not_durable) == (2, False, "no_tier"), report
    assert "not_durable='no_tier'" in repr(report)
    assert pages.offload(chain(2, seed=63), content(2, seed=6)).not_durable is None, "nobody asked"


def test_stats_and_evict(server: Server) -> None:
    pool = server.pool()
    pages = pool.open_namespace("stats", **SHAPE)
    hashes = chain(2, seed=6000)
    assert pages.offload(hashes, content(2, seed=6), durable=True).durable
    stats = pool.stats()
    tiers = {tier["tier"]: tier for tier in stats["tiers"]}
    assert tiers["nvme"]["pages"] >= 2 and tiers["dram"]["capacity_bytes"] == 64 << 20 and stats["version"]
    server.to_nvme()
    report = pages.reload(hashes, [bytearray(PAGE), bytearray(PAGE)])
    assert (report.from_dram, report.from_nvme) == (0, 2)
    assert pool.state in ("connected", "idle") and pool.address == server.address
    other = pool.open_namespace("stats of another", **SHAPE)
    other.offload(hashes, content(2, seed=7))
    assert pages.evict() == 2 and (pages.lookup(hashes), other.lookup(hashes)) == (0, 2), "one namespace only"
    with pytest.raises(ValueError, match="dram"):
        pages.evict("nvme")


def test_chain_hashes_are_sha256_chained() -> None:
    import hashlib

    tokens = array.array("I", range(40)).tobytes()
    first = hashlib.sha256(tokens[:64]).digest()
    second = hashlib.sha256(first + tokens[64:128]).digest()
    assert turnkv.chain_hashes(tokens, 16) == first + second
    assert turnkv.chain_hashes(tokens[64:], 16, first) == second
    assert turnkv.chain_hashes(b"", 16) == b""


def test_threads_run_beside_one_another(server: Server) -> None:
    """The GIL is released: a transfer that waits does not stop other Python threads."""
    pages = server.pool().open_namespace("threads", **SHAPE)
    failures: list[object] = []

    def work(number: int) -> None:
        for turn in range(20):
            seed = 100_000 + number * 1000 + turn * 50
            hashes, data = chain(3, seed), content(3, seed)
            pages.offload(hashes, data)
            targets = [bytearray(PAGE) for _ in range(3)]
            if pages.reload(hashes, targets).pages != 3 or targets != data:
                failures.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_stopped_server_keeps_the_deadline_and_frees_the_gil(make_server: Callable[..., Server]) -> None:
    server = make_server()
    pages = server.pool(call_ms=600).open_namespace("stopped", **SHAPE)
    hashes = chain(2, seed=8000)
    pages.offload(hashes, content(2, seed=8))
    server.pause()
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.wait(0.01):
            ticks[0] += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        started = time.monotonic()
        with pytest.raises(turnkv.Error) as raised:
            pages.reload(hashes, [bytearray(PAGE), bytearray(PAGE)])
        assert 0.3 < time.monotonic() - started < 2 and raised.value.kind in ("deadline", "unavailable")
        assert ticks[0] > 10
        started = time.monotonic()
        with pytest.raises(turnkv.Error):
            pages.offload(chain(1, seed=8100), content(1, seed=9), deadline_ms=100)
        assert time.monotonic() - started < 1
    finally:
        stop.set()
        ticker.join()
        server.go_on()


@pytest.mark.parametrize("plane", ["auto", "inline"])
def test_a_deadline_holds_where_the_call_connects_anew(make_server: Callable[..., Server], plane: str) -> None:
    server = make_server()
    pool = server.pool(data_plane=plane)
    pages, hashes = pool.open_namespace("anew", **SHAPE), chain(2, seed=8200)
    pages.offload(hashes, content(2, seed=8))
    calls: list[Callable[[], object]] = [
        lambda: pages.reload(hashes, [bytearray(PAGE), bytearray(PAGE)], deadline_ms=100),
        lambda: pages.offload(hashes, content(2, seed=8), deadline_ms=100),
    ]
    server.pause()
    try:
        for call in calls:
            pool.close()
            started = time.monotonic()
            with pytest.raises(turnkv.Error):
                call()
            assert time.monotonic() - started < 1
    finally:
        server.go_on()
    assert pages.reload(hashes, [bytearray(PAGE), bytearray(PAGE)]).pages == 2


def test_fork_gets_connections_of_its_own(server: Server) -> None:
    pages = server.pool().open_namespace("fork", **SHAPE)
    hashes, data = chain(4, seed=9000), content(4, seed=10)
    pages.offload(hashes, data)
    lease = pages.lease(hashes)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                targets = [bytearray(PAGE) for _ in range(4)]
                status = 0 if pages.reload(hashes, targets).pages == 4 and targets == data else 2
                del lease  # the parent's: ending it is not this process's business
            finally:
                os._exit(status)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(lease[0]) == data[0]
    lease.finish()
    targets = [bytearray(PAGE) for _ in range(4)]
    assert pages.reload(hashes, targets).pages == 4 and targets == data


FORKED_AT_FIRST_USE = """
import os, sys, threading, time, turnkv
pool = turnkv.Pool(sys.argv[1])
pages = pool.open_namespace("fork-first", dtype="u8", layout="opaque", page_tokens=16, opaque_shard_bytes=4096)
hashes, before = bytes(range(32)) * 4, set(sys.modules)
def first_use():
    return pages.reload(hashes, [bytearray(4096) for _ in range(4)], deadline_ms=20_000).pages
threads = [threading.Thread(target=first_use) for _ in range(3)]
for thread in threads:
    thread.start()
child = os.fork()
if child == 0:
    os._exit(first_use())
for thread in threads:
    thread.join()
deadline = time.monotonic() + 60
while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
    time.sleep(0.01)
if ended[0] == 0:
    os.kill(child, 9)
    sys.exit("the child hangs")
assert os.waitstatus_to_exitcode(ended[1]) == 0, ended
lease = pages.lease(hashes)
turnkv.chain_hashes(b"abcd", 1)
assert set(sys.modules) == before, set(sys.modules) - before
"""


def test_a_child_forked_at_first_use_goes_on(server: Server) -> None:
    """A module that a call imports would stay locked in the child for ever, by a thread that is not there."""
    for _ in range(3):
        command = [sys.executable, "-c", FORKED_AT_FIRST_USE, server.address]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr


def test_import_needs_neither_torch_nor_numpy() -> None:
    script = "import sys, turnkv; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.fixture
def home() -> Iterator[pathlib.Path]:
    """A folder for an embedded pool, with a short name."""
    with tempfile.TemporaryDirectory(prefix="tkv-") as folder:
        yield pathlib.Path(folder)


EMBEDDED = """
import sys, turnkv
pool = turnkv.Pool(dir=sys.argv[1], server=sys.argv[2], dram_bytes=16 << 20, nvme_bytes=64 << 20, connect_ms=20000)
pages = pool.open_namespace("embedded", dtype="u8", layout="opaque", opaque_shard_bytes=4096)
hashes = turnkv.chain_hashes(bytes(128), 16)
print(pages.lookup(hashes), pages.offload(hashes, [bytes(4096)] * 2, durable=True).durable, flush=True)
sys.stdin.read()
"""


def test_embedded_pool_is_found_by_all_and_stops_with_the_last(home: pathlib.Path) -> None:
    clients: list[subprocess.Popen[str]] = []

    def client() -> tuple[subprocess.Popen[str], list[str]]:
        command = [sys.executable, "-c", EMBEDDED, str(home), str(server_binary().absolute())]
        clients.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return clients[-1], clients[-1].stdout.readline().split()

    try:
        first, said = client()
        assert said == ["0", "True"]
        second, said = client()
        assert said[0] == "2" and servers_of(home) == 1
        first.communicate("")
        time.sleep(0.2)
        assert servers_of(home) == 1
        second.communicate("")
        deadline = time.monotonic() + 30
        while servers_of(home) or servers_of(home, "keep"):
            assert time.monotonic() < deadline, "the embedded server, or what keeps its memory, stays after its last client"
            time.sleep(0.1)
        third, said = client()
        assert said[0] == "2"  # its pages were on NVMe
        third.communicate("")
    finally:
        for process in clients:
            process.kill()
            process.wait()


def servers_of(home: pathlib.Path, command: str = "serve") -> int:
    """Server processes that use this folder, or those of another command."""
    count = 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        is_it = pathlib.Path(arguments[0]).name == "turnkv" and arguments[1:2] == [command]
        count += is_it and any(str(home) in argument for argument in arguments)
    return count


def test_a_wrong_server_is_refused_when_the_pool_is_made(home: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKV_SERVER", str(home / "nowhere"))
    with pytest.raises(ValueError, match=r"TURNKV_SERVER names .*nowhere"):
        turnkv.Pool(dir=str(home))
    monkeypatch.delenv("TURNKV_SERVER")
    with pytest.raises(ValueError, match="`server` names"):
        turnkv.Pool(dir=str(home), server=str(home))
    monkeypatch.setenv("TURNKV_SERVER", "nowhere")
    turnkv.Pool(f"unix:{home}/sock")  # a pool with an address starts no server

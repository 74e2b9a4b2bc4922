"""The binding's device calls on the host device, against the real server: same bytes as the CPU's calls, order, loss, errors.

Torch's CPU tensors stand for device memory: the host device copies them from threads of its own, as a GPU would.
"""

from __future__ import annotations

import array
import ctypes
import gc
import os
import time
import weakref
from collections.abc import Callable

import numpy
import pytest
import torch
from conftest import Server
from slab import eventually

import turnkv

LAYERS, HEADS, DIM, SIZE = 3, 2, 8, 16
SHAPE = {"dtype": "bf16", "layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM, "page_tokens": SIZE}
PAGE = LAYERS * 2 * HEADS * SIZE * DIM * 2
LAYOUTS = pytest.mark.parametrize("layout", ["layer_kv_head_token", "layer_kv_token_head"])


@pytest.fixture(scope="module")
def device() -> turnkv.Device:
    return turnkv.Device(kind="host")


def chain(pages: int, seed: int) -> bytes:
    return turnkv.chain_hashes(array.array("I", range(seed, seed + SIZE * pages)).tobytes(), SIZE)


def stack_of(tokens: int, fill: bool = True) -> torch.Tensor:
    """[layer, K/V, head, token, dim]."""
    shape = (LAYERS, 2, HEADS, tokens, DIM)
    return torch.randn(shape).to(torch.bfloat16) if fill else torch.zeros(shape, dtype=torch.bfloat16)


def views(stack: torch.Tensor) -> list[tuple[int, int, int, int, int]]:
    return [(part.data_ptr(), HEADS, part.stride(0) * 2, part.stride(1) * 2, DIM * 2) for layer in stack for part in layer]


def poison(pages: turnkv.Namespace, hashes: bytes, page: int) -> None:
    """Flips a bit in a page's slot, as failing memory would."""
    with pages.lease(hashes) as lease:
        at = numpy.frombuffer(lease[page], dtype=numpy.uint8).ctypes.data + PAGE // 2
        (ctypes.c_ubyte * 1).from_address(at)[0] ^= 0x40


@LAYOUTS
@pytest.mark.parametrize("tokens", [64, 41, 5])
def test_strided_both_ways_as_the_cpu_does(server: Server, device: turnkv.Device, layout: str, tokens: int) -> None:
    pages = server.pool().open_namespace(f"device-strided-{tokens}", layout=layout, **SHAPE)
    count, stack = -(-tokens // SIZE), stack_of(80)
    hashes = chain(count, seed=1000 + tokens)
    report = pages.offload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack), tokens)))
    assert (report.stored, report.present, report.declined) == (count, 0, 0)
    assert pages.offload(hashes, turnkv.Strided(views(stack), tokens)).present == count
    on_cpu, on_device = stack_of(80, fill=False), stack_of(80, fill=False)
    assert pages.reload(hashes, turnkv.Strided(views(on_cpu), tokens)).pages == count
    flight = pages.reload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(on_device), tokens)))
    report = flight.result()
    assert (flight.pages_begun, report.pages, report.from_dram, report.miss) == (count, count, count, None)
    assert torch.equal(on_device, on_cpu) and torch.equal(on_device[..., :tokens, :], stack[..., :tokens, :])
    assert not on_device[..., tokens:, :].any(), "something was written behind the tail"
    # What the CPU stores the device loads, checksums taken by either are the same.
    other = chain(count, seed=5000 + tokens)
    assert pages.offload(other, turnkv.Strided(views(stack), tokens)).stored == count
    back = stack_of(80, fill=False)
    assert (
        pages.reload(other, turnkv.OnDevice(device, turnkv.Strided(views(back), tokens), layers=LAYERS)).result().pages == count
    )
    assert torch.equal(back, on_cpu)


def test_runs(server: Server, device: turnkv.Device) -> None:
    pages = server.pool().open_namespace("device-runs", dtype="u8", layout="opaque", opaque_shard_bytes=3000)
    data = torch.randint(0, 256, (7, 3000), dtype=torch.uint8)
    lengths, starts = [1000, 8, 1992], numpy.array([0, 1000, 1008], numpy.uint64)
    rows = numpy.arange(7, dtype=numpy.uint64) * numpy.uint64(3000)

    def addresses(memory: torch.Tensor) -> numpy.ndarray:
        return (numpy.uint64(memory.data_ptr()) + rows[:, None] + starts[None, :]).reshape(-1)

    hashes = chain(7, seed=2000)
    assert pages.offload(hashes, turnkv.OnDevice(device, turnkv.Runs(addresses(data), lengths), keep=data)).stored == 7
    flat = [bytearray(3000) for _ in range(7)]
    assert pages.reload(hashes, flat).pages == 7 and [bytes(page) for page in flat] == [row.numpy().tobytes() for row in data]
    back = torch.zeros_like(data)
    flight = pages.reload(hashes, turnkv.OnDevice(device, turnkv.Runs(addresses(back), lengths), layers=3, keep=back))
    for layer in (2, 0, 1):  # in whatever order they are asked for
        flight.wait_layer(layer, None)
        at = int(starts[layer])
        assert torch.equal(back[:, at : at + lengths[layer]], data[:, at : at + lengths[layer]]), layer
    assert flight.result().pages == 7 and flight.done() and torch.equal(back, data)
    more = hashes + turnkv.chain_hashes(array.array("I", range(SIZE)).tobytes(), SIZE, hashes[-32:])
    elsewhere = torch.zeros(3000, dtype=torch.uint8)
    places = numpy.concatenate([addresses(back), starts + numpy.uint64(elsewhere.data_ptr())])
    short = pages.reload(more, turnkv.OnDevice(device, turnkv.Runs(places, lengths))).result()
    assert (short.pages, short.miss) == (7, "absent") and not elsewhere.any()


@pytest.mark.parametrize("layers", [0, LAYERS])
def test_a_poisoned_page_is_a_miss(server: Server, device: turnkv.Device, layers: int) -> None:
    pages = server.pool().open_namespace(f"device-poison-{layers}", **SHAPE)
    hashes, stack = chain(5, seed=3000), stack_of(80)
    assert pages.offload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack), 80))).stored == 5
    before = server.pool().stats()["corrupt_pages"]
    poison(pages, hashes, 2)
    back = stack_of(80, fill=False)
    report = pages.reload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(back), 80), layers=layers)).result()
    # Who writes pages to NVMe looks at them, too, and may have found it first.
    assert report.pages == 2 and report.miss in ("checksum", "absent")
    assert torch.equal(back[..., :32, :], stack[..., :32, :])
    eventually(lambda: server.pool().stats()["corrupt_pages"] > before, "the pool was not told")


def test_from_nvme(make_server: Callable[..., Server], device: turnkv.Device) -> None:
    server = make_server()
    pages = server.pool().open_namespace("device-nvme", **SHAPE)
    hashes, stack = chain(5, seed=4000), stack_of(80)
    assert pages.offload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack), 80)), durable=True).durable
    server.to_nvme()
    back = stack_of(80, fill=False)
    report = pages.reload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(back), 80), layers=LAYERS)).result()
    assert (report.pages, report.from_nvme) == (5, 5) and torch.equal(back, stack)


def test_dropped_in_mid_flight_its_tensors_live_until_the_copies_end(server: Server) -> None:
    slow = turnkv.Device(kind="host", delay_ms_max=4, seed=7)
    pages = server.pool().open_namespace("device-drop", **SHAPE)
    hashes, stack = chain(64, seed=6000), stack_of(1024)
    assert pages.offload(hashes, turnkv.OnDevice(slow, turnkv.Strided(views(stack), 1024))).stored == 64
    back = stack_of(1024, fill=False)
    places = views(back)
    memory = back.untyped_storage()
    watched = weakref.ref(back)
    gc.collect()  # may take longer than the copies, where much was left behind: not while they are under way
    flight = pages.reload(hashes, turnkv.OnDevice(slow, turnkv.Strided(places, 1024), layers=LAYERS, keep=(back, memory)))
    del back
    assert not flight.done() and watched() is not None
    del flight
    assert watched() is not None, "the tensor was freed while copies into it were under way"
    deadline = time.monotonic() + 20
    while watched() is not None:
        assert time.monotonic() < deadline, "the tensor is kept for ever"
        slow.memory()  # what a thread without the GIL let go of is dropped when the next call comes
        time.sleep(0.01)
    assert pages.reload(hashes, turnkv.OnDevice(slow, turnkv.Strided(views(stack_of(1024)), 1024))).result().pages == 64


def test_a_dead_pool_is_an_error_not_a_hang(make_server: Callable[..., Server], device: turnkv.Device) -> None:
    server = make_server()
    pages = server.pool(call_ms=500, connect_ms=200).open_namespace("device-dead", **SHAPE)
    hashes, stack = chain(2, seed=7000), stack_of(32)
    assert pages.offload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack), 32))).stored == 2
    server.kill()
    begun = time.monotonic()
    with pytest.raises(turnkv.Error) as raised:
        pages.reload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack), 32))).result()
    assert raised.value.kind in ("unavailable", "deadline", "breaker_open") and time.monotonic() - begun < 5


def test_staged_where_memory_cannot_be_registered(server: Server) -> None:
    device = turnkv.Device(kind="host", pinned_bytes_max=0)
    pages = server.pool().open_namespace("device-staged", **SHAPE)
    hashes, stack = chain(5, seed=8000), stack_of(80)
    assert pages.offload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack), 80))).stored == 5
    back = stack_of(80, fill=False)
    assert pages.reload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(back), 80))).result().pages == 5
    stats = device.stats()
    assert torch.equal(back, stack) and stats["registered_bytes"] == 0 and stats["staged_bytes"] >= 10 * PAGE, stats


@pytest.mark.parametrize("copy", ["engine", "batch", "kernel"])
def test_every_way_to_copy(server: Server, copy: str) -> None:
    device = turnkv.Device(kind="host", copy=copy, chunk_bytes=64 << 10)
    pages = server.pool().open_namespace(f"device-{copy}", **SHAPE)
    hashes, stack = chain(5, seed=9000), stack_of(80)
    assert pages.offload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack), 73))).stored == 5
    back = stack_of(80, fill=False)
    assert pages.reload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(back), 73), layers=LAYERS)).result().pages == 5
    assert torch.equal(back[..., :73, :], stack[..., :73, :])


def test_what_cannot_be_meant(server: Server, device: turnkv.Device) -> None:
    pages = server.pool().open_namespace("device-input", **SHAPE)
    hashes, stack = chain(2, seed=10_000), stack_of(32)
    with pytest.raises(ValueError, match="kind must be"):
        turnkv.Device(kind="tpu")
    with pytest.raises(ValueError, match="copy must be"):
        turnkv.Device(kind="host", copy="fast")
    with pytest.raises(ValueError, match="2 pages of 16, there are 1 hashes"):
        pages.offload(hashes[:32], turnkv.OnDevice(device, turnkv.Strided(views(stack), 32)))
    with pytest.raises(ValueError, match="pages here have"):
        pages.offload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack)[:2], 32)))
    with pytest.raises(ValueError, match="pages here have"):
        pages.reload(hashes, turnkv.OnDevice(device, turnkv.Runs(numpy.array([4096, 8192], numpy.uint64), [64])))
    with pytest.raises((ValueError, turnkv.Error)):
        pages.reload(hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack), 32), layers=5))
    with pytest.raises(TypeError):
        pages.offload(hashes, turnkv.OnDevice(None, turnkv.Strided(views(stack), 32)))
    if turnkv.Device.cuda_count() == 0:
        with pytest.raises(turnkv.Error) as raised:
            turnkv.Device()
        assert raised.value.kind == "device" and "CUDA" in str(raised.value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_kept_out(server: Server, device: turnkv.Device) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            device.memory()
        except RuntimeError as error:
            status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    free, total = device.memory()
    assert 0 < free <= total


def test_gpu_page_pool(server: Server, device: turnkv.Device) -> None:
    """Pages kept in device memory: in, out, through to the pool, a partial tail, the first to give way."""
    pages = server.pool().open_namespace("gpu-pool", **SHAPE)
    near, stack = turnkv.GpuPagePool(device, PAGE, 8), stack_of(80)
    hashes = chain(5, seed=11_000)
    assert (
        near.lookup(hashes)
        == 0
        == near.get(pages, hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack_of(80)), 80))).result()
    )
    assert near.put(pages, hashes, turnkv.OnDevice(device, turnkv.Strided(views(stack), 73))) == 5 == near.lookup(hashes)
    back = stack_of(80, fill=False)
    hit = near.get(pages, hashes, turnkv.OnDevice(device, turnkv.Strided(views(back), 73), layers=LAYERS))
    hit.wait_layer(1, None)
    assert torch.equal(back[1][..., :73, :], stack[1][..., :73, :])
    assert hit.pages == 5 == hit.result() and torch.equal(back[..., :73, :], stack[..., :73, :]) and not back[..., 73:, :].any()
    report = near.write_through(pages, hashes, tail_tokens=9)
    assert (report.stored, report.declined) == (5, 0)
    on_cpu = stack_of(80, fill=False)
    assert pages.reload(hashes, turnkv.Strided(views(on_cpu), 73)).pages == 5
    assert torch.equal(on_cpu[..., :73, :], stack[..., :73, :]), "the tier wrote other bytes through than it was given"
    near.retire(hashes)
    other = chain(6, seed=12_000)
    assert near.put(pages, other, turnkv.OnDevice(device, turnkv.Strided(views(stack_of(96)), 96))) == 6
    stats = near.stats()
    assert (stats["capacity_pages"], stats["pages"], stats["evicted"]) == (8, 8, 3) and near.lookup(hashes) == 2
    with pytest.raises(turnkv.Error, match="pages of"):
        turnkv.GpuPagePool(device, PAGE, 0)
    with pytest.raises(turnkv.Error, match="device memory are wanted"):
        turnkv.GpuPagePool(device, 1 << 30, 1 << 10)


def test_a_pool_of_another_host(make_server: Callable[..., Server], device: turnkv.Device) -> None:
    """Over TCP: the pool's memory is not this process's, and pages go through memory that is lent to the server."""
    server = make_server()
    address = server.on_network()
    far, near = turnkv.Pool(f"tcp://{address}"), server.pool()
    tokens, count = 41 * SIZE, 41
    hashes, stack = chain(count, seed=7000), stack_of(tokens)

    def to(memory: torch.Tensor, layers: int = 0) -> turnkv.OnDevice:
        return turnkv.OnDevice(device, turnkv.Strided(views(memory), tokens), layers=layers, keep=memory)

    report = far.open_namespace("far", **SHAPE).offload(hashes, to(stack))
    assert (report.stored, report.declined, report.plane) == (count, 0, "framed")
    for pool, plane in ((far, "framed"), (near, "shm")):
        pages = pool.open_namespace("far", **SHAPE)
        for layers in (0, LAYERS):
            back = stack_of(tokens, fill=False)
            came = pages.reload(hashes, to(back, layers=layers)).result()
            assert (came.pages, came.miss, came.plane) == (count, None, plane)
            assert torch.equal(back, stack)
    inline = turnkv.Pool(f"http://{address}").open_namespace("far", **SHAPE)
    with pytest.raises(turnkv.Error, match="speaks frames"):
        inline.reload(hashes, to(stack))

"""The binding's device calls on a real GPU, against the real server: bytes, order, captures, faults. Skipped where no GPU is.

A fault that ends the CUDA context, or takes all of the device's memory, happens in a process of its own.
"""

from __future__ import annotations

import array
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch
from conftest import Server
from slab import eventually

import turnkv

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or turnkv.Device.cuda_count() == 0, reason="no CUDA device is usable here"
)

LAYERS, HEADS, DIM, SIZE = 6, 4, 64, 16
SHAPE = {"dtype": "bf16", "layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM, "page_tokens": SIZE}
PAGE = LAYERS * 2 * HEADS * SIZE * DIM * 2
GPU = "cuda:0"
CHILD_SECONDS = 90
LAYOUTS = pytest.mark.parametrize("layout", ["layer_kv_head_token", "layer_kv_token_head"])
COPIES = pytest.mark.parametrize("copy", ["auto", "engine", "batch", "kernel"])


@pytest.fixture(scope="module", params=["registered", "staged"])
def device(request: pytest.FixtureRequest) -> Iterator[turnkv.Device]:
    """One that registers the pool's memory, and one that may not."""
    yield turnkv.Device(pinned_bytes_max=0 if request.param == "staged" else None)


@pytest.fixture(scope="module")
def usual() -> turnkv.Device:
    return turnkv.Device()


def chain(pages: int, seed: int) -> bytes:
    return turnkv.chain_hashes(array.array("I", range(seed, seed + SIZE * pages)).tobytes(), SIZE)


def stack_of(tokens: int, fill: bool = True, place: str = GPU) -> torch.Tensor:
    """[layer, K/V, head, token, dim]."""
    shape = (LAYERS, 2, HEADS, tokens, DIM)
    made = torch.randn(shape, device=place).to(torch.bfloat16) if fill else torch.zeros(shape, dtype=torch.bfloat16, device=place)
    if place == GPU:
        torch.cuda.synchronize()
    return made


def on(device: turnkv.Device, stack: torch.Tensor, tokens: int, **settings: object) -> turnkv.OnDevice:
    return turnkv.OnDevice(device, turnkv.Strided(views(stack), tokens), keep=stack, **settings)


def views(stack: torch.Tensor) -> list[tuple[int, int, int, int, int]]:
    return [(part.data_ptr(), HEADS, part.stride(0) * 2, part.stride(1) * 2, DIM * 2) for layer in stack for part in layer]


def on_cpu(pages: turnkv.Namespace, hashes: bytes, tokens: int) -> torch.Tensor:
    """What the pool has, as the CPU reads it."""
    found = stack_of(tokens, fill=False, place="cpu")
    assert pages.reload(hashes, turnkv.Strided(views(found), tokens)).pages == len(hashes) // 32
    return found


def busy(milliseconds: float) -> None:
    """The current stream has something to do for about so long."""
    torch.cuda._sleep(int(milliseconds * 1.7e6))


@LAYOUTS
@pytest.mark.parametrize("tokens", [1024, 41, 5])
def test_bytes_are_those_that_the_cpu_reads(server: Server, device: turnkv.Device, layout: str, tokens: int) -> None:
    pages = server.pool().open_namespace(f"gpu-{tokens}", layout=layout, **SHAPE)
    count, stack, unique = -(-tokens // SIZE), stack_of(tokens + 40), os.urandom(4)
    hashes = turnkv.chain_hashes(unique * SIZE * count, SIZE)
    report = pages.offload(hashes, on(device, stack, tokens))
    assert (report.stored, report.present, report.declined) == (count, 0, 0)
    assert torch.equal(on_cpu(pages, hashes, tokens), stack[..., :tokens, :].cpu())
    for layers in (0, LAYERS):
        back = stack_of(tokens + 40, fill=False)
        assert pages.reload(hashes, on(device, back, tokens, layers=layers)).result().pages == count
        assert torch.equal(back[..., :tokens, :], stack[..., :tokens, :]) and not back[..., tokens:, :].any()
    # What the CPU stores the device loads: the sums of either are the same.
    host = stack.cpu()
    other = turnkv.chain_hashes(unique[::-1] * SIZE * count, SIZE)
    assert pages.offload(other, turnkv.Strided(views(host), tokens)).stored == count
    back = stack_of(tokens + 40, fill=False)
    assert pages.reload(other, on(device, back, tokens)).result().pages == count
    assert torch.equal(back[..., :tokens, :].cpu(), host[..., :tokens, :])


@COPIES
def test_every_way_to_copy(make_server: Callable[..., Server], copy: str) -> None:
    device = turnkv.Device(copy=copy, chunk_bytes=1 << 20)
    pages = make_server(dram="1GiB", nvme=None).pool().open_namespace("gpu-copy", **SHAPE)
    tokens = 16 * SIZE * 16
    for turn in range(4):  # through the ring at first, then registered
        hashes, stack = chain(tokens // SIZE, seed=100_000 * (turn + 1)), stack_of(tokens)
        assert pages.offload(hashes, on(device, stack, tokens)).stored == tokens // SIZE
        for layers in (0, LAYERS):
            back = stack_of(tokens, fill=False)
            assert pages.reload(hashes, on(device, back, tokens, layers=layers)).result().pages == tokens // SIZE
            assert torch.equal(back, stack)
        time.sleep(0.5)
    stats = device.stats()
    assert stats["direct_bytes"] > 0 and stats["refused"] == 0, stats


def test_a_pool_of_another_host(make_server: Callable[..., Server], device: turnkv.Device) -> None:
    """Over TCP, through memory that is lent to the server: registered with the device, or not."""
    server = make_server(dram="1GiB", nvme=None)
    address = server.on_network()
    far, near = turnkv.Pool(f"tcp://{address}").open_namespace("far", **SHAPE), server.pool().open_namespace("far", **SHAPE)
    tokens = 16 * SIZE * 16
    for turn in range(4):  # memory that is lent is registered behind its first use
        hashes, stack = chain(tokens // SIZE, seed=900_000 * (turn + 1)), stack_of(tokens)
        report = far.offload(hashes, on(device, stack, tokens))
        assert (report.stored, report.plane) == (tokens // SIZE, "framed")
        for pages, plane in ((far, "framed"), (near, "shm")):
            for layers in (0, LAYERS):
                back = stack_of(tokens, fill=False)
                came = pages.reload(hashes, on(device, back, tokens, layers=layers)).result()
                assert (came.pages, came.plane) == (tokens // SIZE, plane)
                assert torch.equal(back, stack)
        time.sleep(0.3)


def test_an_offload_reads_after_the_stream_and_a_reload_writes_after_it(server: Server, usual: turnkv.Device) -> None:
    pages, tokens = server.pool().open_namespace("gpu-order", **SHAPE), 512
    hashes, old, new = chain(tokens // SIZE, seed=1), stack_of(tokens), stack_of(tokens)
    memory, stream = old.clone(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        busy(60)
        memory.copy_(new)
    assert pages.offload(hashes, on(usual, memory, tokens, stream=stream.cuda_stream)).stored == tokens // SIZE
    assert torch.equal(on_cpu(pages, hashes, tokens), new.cpu()), "an offload read what the stream had not written yet"
    memory.copy_(old)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        busy(60)
        seen = memory.clone()
    flight = pages.reload(hashes, on(usual, memory, tokens, stream=stream.cuda_stream, layers=LAYERS))
    with torch.cuda.stream(stream):
        parts = []
        for layer in range(LAYERS):
            flight.wait_layer(layer, stream.cuda_stream)
            parts.append(memory[layer].clone())
    assert flight.result().pages == tokens // SIZE
    torch.cuda.synchronize()
    assert torch.equal(seen, old), "a reload wrote before the stream had read"
    assert torch.equal(torch.stack(parts), new), "a layer was used before it was there"


def test_graphs_are_captured_beside_offloads(make_server: Callable[..., Server], usual: turnkv.Device) -> None:
    """Other threads' copies do not spoil a capture in torch's usual, strictest mode; a capturing stream itself is refused."""
    pages = make_server(dram="512MiB", nvme=None).pool().open_namespace("gpu-capture", **SHAPE)
    stack, tokens, stop, failed = stack_of(256), 256, threading.Event(), []

    def offload() -> None:
        seed = 1
        while not stop.is_set():
            seed += 1000
            try:
                pages.offload(chain(tokens // SIZE, seed), on(usual, stack, tokens))
                pages.reload(chain(tokens // SIZE, seed), on(usual, stack, tokens)).result()
            except turnkv.Error as error:
                failed.append(error)
                return

    thread = threading.Thread(target=offload)
    thread.start()
    try:
        left, right = torch.randn(512, 512, device=GPU), torch.randn(512, 512, device=GPU)
        for _ in range(10):
            left @ right
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(50):
                    out = left @ right
                with pytest.raises(turnkv.Error) as raised:
                    stream = torch.cuda.current_stream().cuda_stream
                    pages.offload(chain(1, seed=9_000_000), on(usual, stack, SIZE, stream=stream))
                assert raised.value.kind == "invalid", raised.value
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, left @ right)
    finally:
        stop.set()
        thread.join()
    assert not failed, failed
    assert pages.offload(chain(1, seed=9_500_000), on(usual, stack, SIZE)).stored == 1


@pytest.mark.parametrize("layers", [0, LAYERS])
def test_a_poisoned_page_is_a_miss(server: Server, device: turnkv.Device, layers: int) -> None:
    pages = server.pool().open_namespace(f"gpu-poison-{layers}", **SHAPE)
    hashes, stack = turnkv.chain_hashes(os.urandom(4) * SIZE * 5, SIZE), stack_of(80)
    assert pages.offload(hashes, on(device, stack, 80)).stored == 5
    with pages.lease(hashes) as lease:
        at = numpy.frombuffer(lease[2], dtype=numpy.uint8).ctypes.data + PAGE // 2
        (ctypes.c_ubyte * 1).from_address(at)[0] ^= 0x40
    back = stack_of(80, fill=False)
    report = pages.reload(hashes, on(device, back, 80, layers=layers)).result()
    assert report.pages == 2 and report.miss in ("checksum", "absent")
    assert torch.equal(back[..., :32, :], stack[..., :32, :])


def test_from_nvme(make_server: Callable[..., Server], device: turnkv.Device) -> None:
    server = make_server()
    pages = server.pool().open_namespace("gpu-nvme", **SHAPE)
    hashes, stack = chain(16, seed=4000), stack_of(256)
    assert pages.offload(hashes, on(device, stack, 256), durable=True).durable
    server.to_nvme()
    back = stack_of(256, fill=False)
    report = pages.reload(hashes, on(device, back, 256, layers=LAYERS)).result()
    assert (report.pages, report.from_nvme) == (16, 16) and torch.equal(back, stack)


def test_a_killed_server_is_an_error_and_the_next_one_serves(make_server: Callable[..., Server], device: turnkv.Device) -> None:
    server = make_server(dram="512MiB", nvme=None)
    pages = server.pool(call_ms=1000, connect_ms=200).open_namespace("gpu-dead", **SHAPE)
    stack, errors, calls = stack_of(1024), [], 0

    def kill() -> None:
        time.sleep(0.3)
        server.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    begun = time.monotonic()
    while not errors and time.monotonic() - begun < 20:
        calls += 1
        try:
            pages.offload(chain(64, seed=20_000 * calls), on(device, stack, 1024))
            pages.reload(chain(64, seed=20_000 * calls), on(device, stack.clone(), 1024)).result()
        except turnkv.Error as error:
            errors.append(error)
    thread.join()
    assert errors and errors[0].kind in ("unavailable", "deadline", "breaker_open"), errors
    server.start()
    back = stack_of(1024, fill=False)

    def served() -> bool:
        try:
            hashes = chain(64, seed=7_000_000)
            return (
                pages.offload(hashes, on(device, stack, 1024)).declined == 0
                and pages.reload(hashes, on(device, back, 1024)).result().pages == 64
            )
        except turnkv.Error:
            return False

    eventually(served, "the server that came after it does not serve")
    assert torch.equal(back, stack) and device.stats()["quarantined_bytes"] == 0


def test_gpu_page_pool(server: Server, usual: turnkv.Device) -> None:
    pages = server.pool().open_namespace("gpu-tier", **SHAPE)
    near, stack, hashes = turnkv.GpuPagePool(usual, PAGE, 40), stack_of(512), chain(32, seed=11_000)
    assert near.put(pages, hashes, on(usual, stack, 505)) == 32 == near.lookup(hashes)
    for layers in (0, LAYERS):
        back = stack_of(512, fill=False)
        hit = near.get(pages, hashes, on(usual, back, 505, layers=layers))
        assert hit.result() == 32 and torch.equal(back[..., :505, :], stack[..., :505, :]) and not back[..., 505:, :].any()
    assert near.write_through(pages, hashes, tail_tokens=9).stored == 32
    assert torch.equal(on_cpu(pages, hashes, 505), stack[..., :505, :].cpu())
    with pytest.raises(turnkv.Error, match="device memory are wanted"):
        turnkv.GpuPagePool(usual, 1 << 30, 1 << 10)


def test_an_engine_that_is_killed_leaves_the_pool_to_others(make_server: Callable[..., Server], usual: turnkv.Device) -> None:
    server = make_server(dram="512MiB", nvme=None)
    child = start("loop", server)
    assert child.stdout is not None and child.stdout.readline().strip() == "begun"
    time.sleep(1)
    child.send_signal(signal.SIGKILL)
    child.wait(30)
    pages = server.pool().open_namespace("gpu-after", **SHAPE)
    hashes, stack, back = chain(64, seed=1), stack_of(1024), stack_of(1024, fill=False)
    assert pages.offload(hashes, on(usual, stack, 1024)).stored == 64
    assert pages.reload(hashes, on(usual, back, 1024)).result().pages == 64 and torch.equal(back, stack)


@pytest.mark.parametrize("what", ["lost_context", "out_of_memory"])
def test_in_a_process_of_its_own(make_server: Callable[..., Server], what: str) -> None:
    child = start(what, make_server(dram="512MiB", nvme=None))
    said, _ = child.communicate(timeout=CHILD_SECONDS)
    assert child.returncode == 0 and "as documented" in said, f"{child.returncode}: {said}"


def start(what: str, server: Server) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, what, server.address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def loop(pages: turnkv.Namespace, device: turnkv.Device) -> None:
    """Offloads and reloads until it is killed."""
    stack, seed = stack_of(1024), 0
    print("begun", flush=True)
    while True:
        seed += 20_000
        pages.offload(chain(64, seed), on(device, stack, 1024))
        pages.reload(chain(64, seed), on(device, stack, 1024)).result()


def lost_context(pages: turnkv.Namespace, device: turnkv.Device) -> None:
    """A kernel of the engine's faults while copies are under way: they end with an error, and so do later calls, at once."""
    stack = stack_of(1024)
    assert pages.offload(chain(64, seed=1), on(device, stack, 1024)).stored == 64
    kinds: list[str] = []
    stop = threading.Event()

    def calls() -> None:
        while not stop.is_set():
            try:
                pages.reload(chain(64, seed=1), on(device, stack, 1024)).result()
            except turnkv.Error as error:
                kinds.append(error.kind)
                return

    thread = threading.Thread(target=calls)
    thread.start()
    time.sleep(0.2)
    torch.zeros(4, device=GPU)[torch.tensor([1 << 20], device=GPU)]  # ends in an assertion on the device
    thread.join(20)
    stop.set()
    assert not thread.is_alive(), "a reload waits for a device that is gone"
    begun = time.monotonic()
    for call in (
        lambda: pages.offload(chain(64, seed=90_000), on(device, stack, 1024)),
        lambda: pages.reload(chain(64, seed=1), on(device, stack, 1024)).result(),
    ):
        try:
            call()
            raise AssertionError("a device that is gone is said to have copied")
        except turnkv.Error as error:
            kinds.append(error.kind)
    assert kinds == ["device"] * 3, kinds
    assert time.monotonic() - begun < 1, "a device that is gone refuses at once"
    on_cpu(pages, chain(64, seed=1), 1024)  # the pool itself goes on


def out_of_memory(pages: turnkv.Namespace, device: turnkv.Device) -> None:
    """A device that is open needs no more memory; one that is opened without any says so."""
    stack = stack_of(1024)
    hog = []
    for size in (1 << 30, 64 << 20, 1 << 20):
        try:
            while True:
                hog.append(torch.empty(size, dtype=torch.uint8, device=GPU))
        except torch.cuda.OutOfMemoryError:
            continue
    for seed in (1, 90_000):
        assert pages.offload(chain(64, seed), on(device, stack, 1024)).stored == 64
        assert pages.reload(chain(64, seed), on(device, stack, 1024, layers=LAYERS)).result().pages == 64
    try:
        turnkv.GpuPagePool(device, PAGE, 10_000)
        raise AssertionError("a tier without memory")
    except turnkv.Error as error:
        assert error.kind == "device", error
    try:
        turnkv.Device()
        print("a second device found memory")
    except turnkv.Error as error:
        assert error.kind == "device", error
        print(f"a second device: {error}")


if __name__ == "__main__":
    opened = turnkv.Device()
    space = turnkv.Pool(sys.argv[2], call_ms=3000).open_namespace("gpu-child", **SHAPE)
    globals()[sys.argv[1]](space, opened)
    print("as documented", flush=True)
    os._exit(0)  # a context that is lost cannot be ended in order

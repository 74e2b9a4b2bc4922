"""Blocks in device memory: the same bytes as the CPU's calls have of them, in order with the compute stream.

Owns: DeviceRuns beside BlockRuns, on CPU tensors and the host device; loads layer by layer. Must not know: engines.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import turnkv
from turnkv.connector import BlockRuns, Door, FinishJob, GroupPages, Loader, LoadJob, PageRun, SaveJob, Saver, devices
from turnkv.connector.device_layers import DeviceLayerLoader
from turnkv.connector.devices import DeviceRuns, Marker
from turnkv.connector.door import PoolOptions
from turnkv.connector.runs import parts_of

BLOCKS = 12


def bytes_at(addresses: np.ndarray, lengths: list[int]) -> bytes:
    per_page = len(lengths)
    return b"".join(ctypes.string_at(int(at), lengths[i % per_page]) for i, at in enumerate(addresses))


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    raw = torch.randint(0, 256, (int(np.prod(shape)) * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype).view(shape)


def caches_of(kind: str) -> dict[str, torch.Tensor]:
    """Layers as engines lay them out; blocks are the leading rows."""
    match kind:
        case "dense":
            return {"a": filled((BLOCKS, 2, 4, 16), torch.bfloat16), "b": filled((BLOCKS, 2, 4, 16), torch.bfloat16)}
        case "blocks outermost":
            whole = filled((BLOCKS, 3, 2, 4, 16), torch.float16)
            return {str(layer): whole[:, layer] for layer in range(3)}
        case "heads before tokens":
            return {"a": filled((BLOCKS, 16, 4, 32), torch.float32).transpose(1, 2)}
        case "K and V apart":
            return {"a": filled((2, BLOCKS, 4, 16), torch.bfloat16).transpose(0, 1)}
        case "rows smaller than blocks":
            return {"a": filled((BLOCKS * 4, 2, 16), torch.bfloat16), "b": filled((BLOCKS * 2, 8), torch.float8_e4m3fn)}
        case "large blocks":
            return {"a": filled((BLOCKS, 2, 64, 512), torch.bfloat16), "b": filled((BLOCKS, 5), torch.uint8)}
    raise AssertionError(kind)


KINDS = ["dense", "blocks outermost", "heads before tokens", "K and V apart", "rows smaller than blocks", "large blocks"]


def in_place(caches: dict[str, torch.Tensor]) -> BlockRuns:
    return BlockRuns(
        {
            name: parts_of(cache.data_ptr(), cache.shape, cache.stride(), cache.element_size(), cache.shape[0] // BLOCKS)
            for name, cache in caches.items()
        }
    )


@pytest.fixture(scope="module")
def device() -> turnkv.Device:
    return turnkv.Device(kind="host")


def on_device(caches: dict[str, torch.Tensor], device: turnkv.Device) -> DeviceRuns:
    return DeviceRuns(caches, device, blocks=BLOCKS)


@pytest.fixture
def door(server: Any) -> Any:
    """Opens a namespace for pages of one size; new names each time."""

    def open_door(shard_bytes: int) -> Door:
        group = GroupPages(0, 4, 1, None, turnkv.chain_hashes(b"\0\0\0\0", 1)[:8] + np.random.bytes(8))
        return Door(PoolOptions(server.address, "on-device", "", 3000), [group], {0: shard_bytes})

    return open_door


@pytest.mark.parametrize("kind", KINDS)
def test_what_either_way_writes_the_other_reads(door: Any, device: turnkv.Device, kind: str) -> None:
    """Through a real pool, by the saver and the loader."""
    caches = caches_of(kind)
    straight, ours = in_place(caches), on_device(caches, device)
    assert (ours.page_bytes, ours.lengths) == (straight.page_bytes, straight.lengths)
    names = [bytes([at]) * 32 for at in range(5)]
    opened = door(straight.shard_bytes)
    for at, (source, target) in enumerate(((ours, straight), (straight, ours), (ours, ours))):
        sending = Saver(opened, {0: source}, deadline_ms=3000, durable=False, threads=2)
        bringing = Loader(opened, {0: target}, deadline_ms=3000, threads=2)
        run = PageRun(0, 0, [bytes([at]) + name[1:] for name in names], [0, 1, 2, 3, 4])
        source.mark()
        sending.add(SaveJob("r", None, [run]))
        sending.finish(FinishJob("r", None, [run]))
        sending.close(5)
        assert sending.take_finished()["r"].pages == 5
        expected = bytes_at(straight.addresses([0, 1, 2, 3, 4]), straight.lengths)
        untouched = bytes_at(straight.addresses([10]), straight.lengths)
        target.mark()
        bringing.start(LoadJob("r", [PageRun(0, 0, run.names, [5, 6, 7, 8, 9])], 20))
        assert bringing.wait("r").outcome.pages == 5
        assert bytes_at(straight.addresses([5, 6, 7, 8, 9]), straight.lengths) == expected
        assert bytes_at(straight.addresses([10]), straight.lengths) == untouched
        bringing.close(1)


def test_a_save_says_why_it_is_not_durable(make_server: Any) -> None:
    memory = in_place(caches_of(KINDS[0]))
    group = GroupPages(0, 4, 1, None, b"fleeting" + bytes(16))
    opened = Door(PoolOptions(make_server(nvme=None).address, "durable", "", 3000), [group], {0: memory.shard_bytes})
    run = PageRun(0, 0, [bytes([at]) * 32 for at in range(2)], [0, 1])
    for durable, why in ((False, None), (True, "no_tier")):
        sending = Saver(opened, {0: memory}, deadline_ms=3000, durable=durable, threads=1)
        with sending._state:  # only what a request still has to store when it ends is waited for
            sending.add(SaveJob("r", None, [run]))
            sending.finish(FinishJob("r", None, [run]))
        sending.close(5)
        outcome = sending.take_finished()["r"]
        assert (outcome.pages, outcome.not_durable) == (2, why)


def poison(opened: Door, name: bytes) -> None:
    """Flips a bit of a page in the pool's memory."""
    with opened.namespace(0).lease([name]) as lease:
        at = np.frombuffer(lease[0], dtype=np.uint8).ctypes.data + 7
        (ctypes.c_ubyte * 1).from_address(at)[0] ^= 1


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit: random floats are not all numbers."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("kind", ["dense", "blocks outermost"])
@pytest.mark.parametrize("damaged", [False, True])
def test_layer_by_layer(door: Any, device: turnkv.Device, kind: str, damaged: bool) -> None:
    """A layer is in place once it was waited for; a damaged page is told as failed at the end of the step."""
    caches = caches_of(kind)
    ours = on_device(caches, device)
    opened = door(ours.shard_bytes)
    names = [bytes([page]) * 32 for page in range(6)]
    sending = Saver(opened, {0: ours}, deadline_ms=3000, durable=False, threads=2)
    for request, at in (("a", 0), ("b", 3)):
        run = PageRun(0, 0, names[at : at + 3], [at, at + 1, at + 2])
        sending.add(SaveJob(request, None, [run]))
        sending.finish(FinishJob(request, None, [run]))
    sending.close(5)
    if damaged:
        poison(opened, names[4])
    layers = DeviceLayerLoader(opened, {0: ours}, deadline_ms=3000, threads=2)
    jobs = [
        LoadJob(request, [PageRun(0, 0, names[at : at + 3], [at + 6, at + 7, at + 8])], 12)
        for request, at in (("a", 0), ("b", 3))
    ]
    layers.begin(jobs)
    for name, cache in caches.items():
        layers.wait(name)
        assert alike(cache[6:9], cache[0:3]), name
    ended = layers.end()
    assert (ended["a"].outcome.pages, ended["a"].failed) == (3, [])
    if damaged:
        # Write-behind may find the damage first: the page is gone then.
        assert ended["b"].outcome.pages == 1 and ended["b"].outcome.cause in ("checksum", "absent")
        assert ended["b"].failed == [(0, 10), (0, 11)], "a page that did not verify was not told"
    else:
        assert ended["b"].outcome.pages == 3
        assert all(alike(cache[9:12], cache[3:6]) for cache in caches.values())
    assert layers.end() == {} and not layers.wait("none of ours")
    layers.close()


def test_layers_that_lie_differently_are_refused(door: Any, device: turnkv.Device) -> None:
    caches = {"a": filled((BLOCKS, 2, 4, 16), torch.bfloat16), "b": filled((2, BLOCKS, 4, 16), torch.bfloat16).transpose(0, 1)}
    with pytest.raises(ValueError, match='use load="async"'):
        DeviceLayerLoader(door(512), {0: on_device(caches, device)}, deadline_ms=100, threads=1)


def test_memory_that_nobody_reaches_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be reached"):
        devices.memory_of({"a": torch.empty((4, 4), device="meta")}, blocks=4)
    caches = {"a": torch.empty((4, 4)), "b": torch.empty((4, 4), device="meta")}
    with pytest.raises(ValueError, match="several devices"):
        DeviceRuns(caches, turnkv.Device(kind="host"), blocks=4)
    with pytest.raises(ValueError, match="not 3 blocks"):
        devices.memory_of({"a": torch.empty((4, 4))}, blocks=3)


def test_a_broken_device_stores_and_loads_nothing(door: Any) -> None:
    broken = turnkv.Device(kind="host", fail_after=0)
    ours = on_device(caches_of("dense"), broken)
    opened = door(ours.shard_bytes)
    sending = Saver(opened, {0: ours}, deadline_ms=500, durable=False, threads=1)
    run = PageRun(0, 0, [b"x" * 32], [0])
    sending.add(SaveJob("r", None, [run]))
    sending.finish(FinishJob("r", None, [run]))
    sending.close(3)
    outcome = sending.take_finished()["r"]
    assert outcome.pages == 0 and outcome.cause is not None
    assert opened.namespace(0).lookup([b"x" * 32]) == 0, "a page was committed that no copy filled"


class Ours:
    """A stream that only notes what it waits for."""

    handle = 77

    def __init__(self, device: Any) -> None:
        self.waits: list[int] = []
        self.refuses: turnkv.Error | None = None

    def wait(self, stream: int) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.waits.append(stream)


def test_the_marker_waits_for_the_compute_stream_as_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread waits: the copies come after the marker, and it after what was enqueued when it was set. Torch's own streams
    come from a pool that others' work shares: none of them is the marker."""
    monkeypatch.setattr(turnkv, "DeviceStream", Ours)
    monkeypatch.setattr(torch.cuda, "Stream", None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=5))
    device: Any = None
    marker = Marker(torch.device("cuda:0"), device)
    marker.mark()
    marker.mark(SimpleNamespace(cuda_stream=6))
    ours: Any = marker._stream
    assert ours.waits == [5, 6] and marker.handle == 77
    assert Marker(torch.device("cpu"), device).handle is None


def test_nothing_moves_after_a_mark_that_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is captured into a graph: the copies would come at any time."""
    monkeypatch.setattr(turnkv, "DeviceStream", Ours)
    device: Any = None
    marker, compute = Marker(torch.device("cuda:0"), device), SimpleNamespace(cuda_stream=5)
    ours: Any = marker._stream
    ours.refuses = turnkv.Error("captured")
    marker.mark(compute)
    with pytest.raises(turnkv.Error, match="captured"):
        _ = marker.handle
    ours.refuses = None
    marker.mark(compute)
    assert marker.handle == 77


def test_a_stream_of_ours_comes_after_another(device: turnkv.Device) -> None:
    one, other = turnkv.DeviceStream(device), turnkv.DeviceStream(device)
    assert one.handle != other.handle
    one.wait(other.handle)
    del other
    one.wait(one.handle)

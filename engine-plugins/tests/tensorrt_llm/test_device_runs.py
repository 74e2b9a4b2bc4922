"""Pages through host buffers: the same bytes as straight from memory, bounded, in order with a device's streams.

Owns: StagedRuns beside BlockRuns, on CPU tensors and on a runtime that only takes notes. Must not know: engines.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
import torch

import turnkv
from turnkv.connector import loader, saver
from turnkv.connector import BlockRuns, Door, FinishJob, GroupPages, LoadJob, Loader, PageRun, SaveJob, Saver
from turnkv.connector.door import PoolOptions
from turnkv.connector.runs import parts_of
from turnkv.connector.staging import BUFFER_BYTES, Done, Lane, Ring, StagedRuns, StagingError

BLOCKS = 12
MIB = 1 << 20


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


KINDS = ["dense", "blocks outermost", "heads before tokens", "K and V apart", "rows smaller than blocks",
         "large blocks"]


def in_place(caches: dict[str, torch.Tensor]) -> BlockRuns:
    return BlockRuns({
        name: parts_of(cache.data_ptr(), cache.shape, cache.stride(), cache.element_size(), cache.shape[0] // BLOCKS)
        for name, cache in caches.items()
    })


def staged(caches: dict[str, torch.Tensor], bytes_max: int = 64 * MIB) -> StagedRuns:
    page_bytes = sum(cache[0].numel() * cache.element_size() * cache.shape[0] // BLOCKS for cache in caches.values())
    return StagedRuns(caches, Ring(bytes_max, page_bytes, pinned=False), blocks=BLOCKS)


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_have_the_same_bytes_in_the_same_order(kind: str) -> None:
    caches = caches_of(kind)
    straight, through = in_place(caches), staged(caches)
    assert through.page_bytes == straight.page_bytes
    blocks = [7, 0, 3, 11]
    expected = bytes_at(straight.addresses(blocks), straight.lengths)
    with through.reading(blocks, 1) as addresses:
        assert bytes_at(addresses, through.lengths) == expected
    before = bytes_at(straight.addresses([2]), straight.lengths)
    with through.writing([5, 1, 2, 9], 1) as landing:
        for at in range(4):
            page, offset = expected[at * through.page_bytes : (at + 1) * through.page_bytes], 0
            for run, length in enumerate(through.lengths):
                ctypes.memmove(int(landing.addresses[at * len(through.lengths) + run]), page[offset:], length)
                offset += length
        landing.came(2)
    assert bytes_at(straight.addresses([5, 1]), straight.lengths) == expected[: 2 * through.page_bytes]
    assert bytes_at(straight.addresses([2]), straight.lengths) == before, "a page that did not come was written"


@pytest.fixture
def door(server: Any) -> Any:
    """Opens a namespace for pages of one size; new names each time."""

    def open_door(page_bytes: int) -> Door:
        group = GroupPages(0, 4, 1, None, turnkv.chain_hashes(b"\0\0\0\0", 1)[:8] + np.random.bytes(8))
        return Door(PoolOptions(server.address, "staged", "", 1, 3000), [group], {0: page_bytes})

    return open_door


@pytest.mark.parametrize("kind", KINDS)
def test_saved_through_buffers_loaded_in_place_and_back(door: Any, kind: str) -> None:
    """What either writes the other reads, through a real pool."""
    caches = caches_of(kind)
    straight, through = in_place(caches), staged(caches)
    names = [bytes([at]) * 32 for at in range(5)]
    opened = door(straight.page_bytes)
    for at, (source, target) in enumerate(((through, straight), (straight, through))):
        sending = Saver(opened, {0: source}, shard=0, deadline_ms=3000, durable=False, threads=2)
        bringing = Loader(opened, {0: target}, shard=0, deadline_ms=3000, threads=2)
        run = PageRun(0, 0, [bytes([at]) + name[1:] for name in names], [0, 1, 2, 3, 4])
        sending.add(SaveJob("r", None, [run]))
        sending.finish(FinishJob("r", None, [run]))
        sending.close(5)
        assert sending.take_finished()["r"].pages == 5
        expected = bytes_at(straight.addresses([0, 1, 2, 3, 4]), straight.lengths)
        bringing.start(LoadJob("r", [PageRun(0, 0, run.names, [5, 6, 7, 8, 9])], 20))
        assert bringing.wait("r").outcome.pages == 5
        assert bytes_at(straight.addresses([5, 6, 7, 8, 9]), straight.lengths) == expected
        bringing.close(1)


def test_many_threads_share_a_ring_of_one_buffer(door: Any) -> None:
    """Slower, not larger, and nobody is turned away before the deadline."""
    caches = caches_of("large blocks")
    through = staged(caches, bytes_max=BUFFER_BYTES)
    opened = door(through.page_bytes)
    sending = Saver(opened, {0: through}, shard=0, deadline_ms=5000, durable=False, threads=4)
    for at in range(8):
        run = PageRun(0, 0, [bytes([at, page]) * 16 for page in range(3)], [at, (at + 1) % BLOCKS, (at + 2) % BLOCKS])
        sending.add(SaveJob(str(at), None, [run]))
        sending.finish(FinishJob(str(at), None, [run]))
    sending.close(5)
    assert [outcome.pages for outcome in sending.take_finished().values()] == [3] * 8
    assert through._ring._unmade == 0 and len(through._ring._free) == 1


def test_a_ring_is_bounded_and_waits() -> None:
    ring = Ring(BUFFER_BYTES, 40, pinned=False)
    buffer = ring.take(0)
    with pytest.raises(StagingError, match="no staging buffer") as raised:
        ring.take(0.01)
    assert raised.value.kind == "busy"
    threading.Timer(0.05, ring.give, [buffer]).start()
    assert ring.take(5) is buffer
    with pytest.raises(ValueError, match="no room for one buffer"):
        Ring(BUFFER_BYTES, BUFFER_BYTES + 1, pinned=False)
    assert BUFFER_BYTES >= max(saver.CALL_BYTES_MAX, loader.CALL_BYTES_MAX), "a call moves more than a buffer holds"


@pytest.mark.parametrize("settled", [True, False], ids=["out of memory", "broken device"])
def test_a_failed_copy_moves_nothing(door: Any, monkeypatch: pytest.MonkeyPatch, settled: bool) -> None:
    """A buffer that a broken device may still be writing into is neither used again nor freed."""
    through = staged(caches_of("dense"), bytes_max=4 * BUFFER_BYTES)
    sending = Saver(door(through.page_bytes), {0: through}, shard=0, deadline_ms=500, durable=False, threads=1)

    def failing(*_: object) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr("turnkv.connector.staging._Layer.read", failing)
    monkeypatch.setattr("turnkv.connector.staging._Layer.write", failing)
    monkeypatch.setattr(Lane, "drain", lambda lane: settled)
    run = PageRun(0, 0, [b"x" * 32], [0])
    sending.add(SaveJob("r", None, [run]))
    sending.finish(FinishJob("r", None, [run]))
    sending.close(2)
    outcome = sending.take_finished()["r"]
    assert (outcome.pages, outcome.cause) == (0, "device")
    with pytest.raises(StagingError, match="copying pages"), through.writing([1], 1) as landing:
        landing.came(1)
    ring = through._ring
    if settled:
        assert (len(ring._lost), len(ring._free), ring._unmade) == (0, 1, 3)
    else:
        assert len(ring._lost) == 4 - ring._unmade >= 2 and not ring._free


class Notes:
    """A device's runtime that only notes what it is told, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []
        self.made = 0
        notes = self

        class Event:
            def __init__(self, blocking: bool) -> None:
                assert blocking, "waiting for an event must sleep"
                notes.made += 1
                self.name = f"event {notes.made}"

            def record(self, stream: object) -> None:
                notes.said.append(("record", self.name, str(stream)))

            def synchronize(self) -> None:
                notes.said.append(("synchronize", self.name))

            def query(self) -> bool:
                return True

        class Stream:
            def __init__(self, device: object = None, name: str = "own") -> None:
                self.name = name

            def wait_event(self, event: Event) -> None:
                notes.said.append(("wait", self.name, event.name))

            def __str__(self) -> str:
                return self.name

        self.Event, self.Stream = Event, Stream
        self._now: list[Any] = [Stream(name="compute")]

    def current_stream(self, device: object) -> Any:
        return self._now[-1]

    def stream(self, stream: Any) -> Any:
        notes = self

        class Within:
            def __enter__(self) -> None:
                notes._now.append(stream)

            def __exit__(self, *_: object) -> None:
                notes._now.pop()

        return Within()


def lane(notes: Notes) -> Lane:
    made = Lane(torch.device("cpu"))
    made._runtime, made._stream = notes, notes.Stream()
    return made


def test_copies_wait_for_the_compute_stream_and_it_for_them() -> None:
    notes, through = Notes(), staged(caches_of("dense"))
    through._saves, through._loads = lane(notes), lane(notes)
    buffer = through._ring.take(0)
    through.mark()
    through.gather(buffer, [1, 2])
    saved = [("record", "event 1", "compute"), ("wait", "own", "event 1"), ("record", "event 2", "own")]
    assert notes.said == [*saved, ("synchronize", "event 2")]
    notes.said.clear()
    compute = notes.Stream(name="forward")
    through.mark(compute)
    done = through.scatter(buffer, 2, [3, 4])
    done.hold(compute)
    assert notes.said == [
        ("record", "event 3", "forward"), ("wait", "own", "event 3"), ("record", "event 4", "own"),
        ("wait", "forward", "event 4"),
    ]
    assert done.passed() and Done(None).passed()

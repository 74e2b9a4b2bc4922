"""What an engine's work costs beside an offload: decode steps, and kernels that fill the device, alone and with pages leaving.

Owns: an offload at a rate, the alternation of blocks with and without it. Must not know: how servers and models are made, what
the work is (`decode`, `stand_in`). Alternating blocks, so that drift of clocks and temperatures falls on both alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy
import torch
from decode import Decode
from stage import GIB, Served, Stage, percentile, table
from stand_in import StandIn

import turnkv

CONTEXT_TOKENS = 4096
BLOCK_STEPS, BLOCKS = 60, 8
RATE = 20e9
"""Bytes a second."""
PAGE_BYTES = 2 << 20
CALL_PAGES = 48
DRAM_BYTES = 12 * GIB
WANTED = 1.05


class Offloads:
    """A thread that offloads the same device memory under new names, at a rate, while it is told to."""

    def __init__(self, stage: Stage, served: Served, device: turnkv.Device, model: str) -> None:
        self._device = device
        self._page_bytes, self._pages = (4096, 4) if stage.tiny else (PAGE_BYTES, CALL_PAGES)
        self._space = served.door.open_namespace(model, dtype="u8", layout="opaque", opaque_shard_bytes=self._page_bytes)
        self._memory = torch.randint(0, 256, (self._pages, self._page_bytes), dtype=torch.uint8, device=stage.place)
        stage.sync()
        step = numpy.arange(self._pages, dtype=numpy.uint64) * numpy.uint64(self._page_bytes)
        self._addresses = step + numpy.uint64(self._memory.data_ptr())
        self._on, self._stop, self._call = threading.Event(), False, 0
        self.bytes, self.seconds, self.declined, self.failure = 0, 0.0, 0, None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def set(self, on: bool) -> None:
        """Begins, or pauses after the call under way."""
        (self._on.set if on else self._on.clear)()

    def close(self) -> None:
        """Ends the thread."""
        self._stop = True
        self._on.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop:
            self._on.wait()
            begun = time.perf_counter()
            try:
                self._offload()
            except turnkv.Error as error:
                self.failure = f"{error.kind}: {error}"
                return
            due = begun + self._pages * self._page_bytes / RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            self.seconds += time.perf_counter() - begun

    def _offload(self) -> None:
        self._call += 1
        hashes = turnkv.chain_hashes(numpy.full(self._pages, self._call, dtype=numpy.uint32).tobytes(), 1)
        report = self._space.offload(
            hashes, turnkv.OnDevice(self._device, turnkv.Runs(self._addresses, [self._page_bytes]), keep=self._memory)
        )
        self.bytes += report.stored * self._page_bytes
        self.declined += report.declined


def run(stage: Stage) -> None:
    """Prints the tables: decode steps beside what the planner chooses, kernels that fill the device beside that and a kernel."""
    decode = Decode(stage, 64 if stage.tiny else CONTEXT_TOKENS)
    with stage.pool(DRAM_BYTES) as served:
        _beside(
            stage,
            served,
            stage.device,
            f"decode steps of {CONTEXT_TOKENS} tokens of context, one CUDA graph each",
            decode.seconds,
        )
        if stage.place.type != "cuda":
            return
        stand_in = StandIn()
        for copy in ("auto", "batch", "kernel"):
            stage.need(5)
            device = stage.device if copy == "auto" else turnkv.Device(0, copy=copy)
            what = f"kernels of one block a multiprocessor with {stand_in.shared_bytes >> 10} KiB, copies by {copy}"
            _beside(stage, served, device, what, stand_in.seconds)


def _beside(stage: Stage, served: Served, device: turnkv.Device, what: str, work: Callable[[int], list[float]]) -> None:
    """Seconds of pieces of work, alone and beside an offload through that device."""
    steps, blocks = (5, 2) if stage.tiny else (BLOCK_STEPS, BLOCKS)
    offloads = Offloads(stage, served, device, what)  # under a name of its own: what is there already is not stored again
    offloads.set(True)
    time.sleep(0.2)  # the first calls map and register
    stage.registered(30, device)
    offloads.set(False)
    offloads.bytes, offloads.seconds, offloads.declined = 0, 0.0, 0
    alone: list[float] = []
    beside: list[float] = []
    work(steps)
    for block in range(blocks):
        if block and not stage.tiny and stage.left() < 2.5 * sum(alone[-steps:]):
            break
        alone += work(steps)
        offloads.set(True)
        beside += work(steps)
        offloads.set(False)
    offloads.close()
    rate = offloads.bytes / offloads.seconds if offloads.seconds else 0.0
    stage.check(offloads.failure is None, f"the offload goes on: {offloads.failure}")
    stage.check(offloads.bytes > 0, "pages are stored meanwhile")
    ratio = {name: percentile(beside, at) / percentile(alone, at) for name, at in (("p50", 50), ("p99", 99))}
    stage.row(
        what=what,
        alone=alone,
        beside=beside,
        offload_bytes_per_second=rate,
        declined_pages=offloads.declined,
        ratio=ratio,
        wanted={"p99": [ratio["p99"], f"<= {WANTED}"]},
    )
    table(
        f"{what}, beside an offload at {rate / 1e9:.1f} GB/s (asked: {RATE / 1e9:.0f})",
        ["", "p50, ms", "p99, ms"],
        [
            ["alone", percentile(alone, 50) * 1e3, percentile(alone, 99) * 1e3],
            ["beside the offload", percentile(beside, 50) * 1e3, percentile(beside, 99) * 1e3],
            ["ratio", ratio["p50"], ratio["p99"]],
        ],
    )

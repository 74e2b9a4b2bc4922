"""What decoding beside an offload costs: step times of a real decode, alone and with pages leaving at a fixed rate.

Owns: the decode loop, an offload at a rate, their alternation. Must not know: how servers and models are made.
Alternating blocks of steps, so that drift of clocks and temperatures falls on both alike.
"""

from __future__ import annotations

import threading
import time

import numpy
import torch

import turnkv
from stage import GIB, Served, Stage, percentile, table

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

    def __init__(self, stage: Stage, served: Served) -> None:
        self._stage = stage
        self._page_bytes, self._pages = (4096, 4) if stage.tiny else (PAGE_BYTES, CALL_PAGES)
        self._space = served.door.open_namespace(
            "interference", dtype="u8", layout="opaque", opaque_shard_bytes=self._page_bytes
        )
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
        report = self._space.offload_device_runs(
            self._stage.device, hashes, self._addresses, [self._page_bytes], keep=self._memory
        )
        self.bytes += report.stored * self._page_bytes
        self.declined += report.declined


def run(stage: Stage) -> None:
    """Prints the table."""
    ids = stage.tokens(64 if stage.tiny else CONTEXT_TOKENS, seed=7)
    steps, blocks = (5, 2) if stage.tiny else (BLOCK_STEPS, BLOCKS)
    with stage.pool(DRAM_BYTES) as served:
        offloads = Offloads(stage, served)
        offloads.set(True)
        time.sleep(0.2)  # the first calls map and register
        stage.registered(30)
        offloads.set(False)
        offloads.bytes, offloads.seconds, offloads.declined = 0, 0.0, 0
        alone: list[float] = []
        beside: list[float] = []
        _steps(stage, ids, steps)
        for block in range(blocks):
            if block and not stage.tiny and stage.left() < 2.5 * sum(alone[-steps:]):
                break
            alone += _steps(stage, ids, steps)
            offloads.set(True)
            beside += _steps(stage, ids, steps)
            offloads.set(False)
        offloads.close()
    rate = offloads.bytes / offloads.seconds if offloads.seconds else 0.0
    stage.check(offloads.failure is None, f"the offload goes on: {offloads.failure}")
    stage.check(offloads.bytes > 0, "pages are stored meanwhile")
    ratio = {name: percentile(beside, at) / percentile(alone, at) for name, at in (("p50", 50), ("p99", 99))}
    stage.row(alone=alone, beside=beside, offload_bytes_per_second=rate, declined_pages=offloads.declined, ratio=ratio)
    stage.note(wanted={"p99": [ratio["p99"], f"<= {WANTED}"]})
    table(f"decode steps of {ids.shape[1]} tokens of context beside an offload at {rate / 1e9:.1f} GB/s (asked: {RATE / 1e9:.0f})",
          ["", "p50, ms", "p99, ms"], [
              ["alone", percentile(alone, 50) * 1e3, percentile(alone, 99) * 1e3],
              ["beside the offload", percentile(beside, 50) * 1e3, percentile(beside, 99) * 1e3],
              ["ratio", ratio["p50"], ratio["p99"]],
          ])


def _steps(stage: Stage, ids: torch.Tensor, count: int) -> list[float]:
    """Seconds of each step of a reply, after one that is not counted."""
    cache = stage.plain_cache()
    ids = stage.reply(ids, cache, 2)
    seconds = []
    for _ in range(count):
        took, ids = stage.timed(lambda: stage.reply(ids, cache, 1))
        seconds.append(took)
    return seconds

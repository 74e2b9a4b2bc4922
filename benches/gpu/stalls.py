"""What an engine's launches wait while a device is opened, a pool's memory is pinned for it, and pages leave.

Owns: a loop of short kernels whose launch calls are timed, and what happens beside it. Must not know: how servers are made.
The queue is kept short, so that a launch never waits for room in it: what it waits for is a lock of the driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
from interference import Offloads
from stage import GIB, Stage, percentile, table

import turnkv

SECONDS = 2.0
QUEUED_MAX = 4
SIZE = 1024
"""Of the matrices multiplied: 2 G operations, a few microseconds of a large device."""
DRAM_BYTES = 6 * GIB
LATE_SECONDS = 1e-3


def run(stage: Stage) -> None:
    """Prints the table: launches alone, while a device opens, while slabs are pinned, and with all of it done."""
    launches = _Launches(stage)
    seconds = 0.1 if stage.tiny else SECONDS
    with stage.pool(DRAM_BYTES) as served:
        opened: list[turnkv.Device] = []

        def open_device() -> None:
            opened.append(turnkv.Device(kind="host") if stage.tiny else turnkv.Device(0))
            time.sleep(seconds / 4)

        _phase(stage, launches, "alone", lambda: time.sleep(seconds))
        _phase(stage, launches, "a device opens", open_device)
        offloads = Offloads(stage, served, opened[0], "stalls")

        def pin() -> None:
            offloads.set(True)
            time.sleep(seconds)  # the first calls map the slabs
            stage.registered(30, opened[0])

        _phase(stage, launches, "first offloads, and slabs are pinned", pin)
        stage.note(pinned_gib=round(opened[0].stats()["registered_bytes"] / GIB, 2))
        _phase(stage, launches, "offloads, all is pinned", lambda: time.sleep(seconds))
        offloads.close()
        stage.check(offloads.failure is None, f"the offload goes on: {offloads.failure}")
    rows = stage.results["stalls"]["rows"]
    table(
        "launch calls of a loop of short kernels",
        ["beside", "launches", "p50, us", "p99, us", "p99.9, us", "longest, ms", f"longer than {LATE_SECONDS * 1e3:.0f} ms"],
        [
            [
                row["beside"],
                row["launches"],
                row["p50"] * 1e6,
                row["p99"] * 1e6,
                row["p999"] * 1e6,
                row["longest"] * 1e3,
                row["late"],
            ]
            for row in rows
        ],
    )


def _phase(stage: Stage, launches: _Launches, beside: str, work: Callable[[], None]) -> None:
    """Launches for as long as some work takes on another thread."""
    failed: list[Exception] = []

    def guarded() -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    took = launches.until(lambda: not thread.is_alive())
    thread.join()
    if failed:
        raise failed[0]
    stage.row(
        beside=beside,
        launches=len(took),
        p50=percentile(took, 50),
        p99=percentile(took, 99),
        p999=percentile(took, 99.9),
        longest=max(took),
        late=sum(seconds > LATE_SECONDS for seconds in took),
    )


class _Launches:
    """Matrix products on a stream, launched one after another."""

    def __init__(self, stage: Stage) -> None:
        size = 16 if stage.tiny else SIZE
        self._left, self._right, self._out = (torch.randn(size, size, device=stage.place, dtype=torch.bfloat16) for _ in range(3))
        self._on_gpu = stage.place.type == "cuda"
        for _ in range(10):
            torch.mm(self._left, self._right, out=self._out)
        stage.sync()

    def until(self, over: Callable[[], bool]) -> list[float]:
        """Seconds of every launch call until then, one at least."""
        took: list[float] = []
        marks: list[torch.cuda.Event] = []
        while not took or not over():
            begun = time.perf_counter()
            torch.mm(self._left, self._right, out=self._out)
            took.append(time.perf_counter() - begun)
            if self._on_gpu:
                marks.append(torch.cuda.Event())
                marks[-1].record()
                if len(marks) > QUEUED_MAX:
                    marks.pop(0).synchronize()
        return took

"""How long calls of the binding hold the interpreter's lock, at the sizes that engines use.

    TURNKV_SERVER=target/release/turnkv .venv/bin/python benches/engines/gil.py [--rounds 9]

A second thread counts in a loop of pure Python. What it loses while calls run back to back, against the same time in which the
caller sleeps, is how long the lock was held, waits for it among that: an upper bound. Rounds of both alternate; the result is the
median. Sizes: pages of 2 MiB in 48 runs, as of 24 layers whose K and V lie apart.
Owns: the calls and the counting. Must not know: an engine.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import hashlib
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "engine-plugins/tests"))

from conftest import Server

import turnkv

PAGES, RUNS, RUN_BYTES = 32, 48, (2 << 20) // 48 // 64 * 64
SECONDS = 0.5


class Counter(threading.Thread):
    """Counts as fast as the lock lets it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count, self.over = 0, False

    def run(self) -> None:
        while not self.over:
            self.count += 1


def share_held(work: Callable[[], None], counter: Counter, rounds: int) -> tuple[float, float]:
    """Seconds a call, and the part of them in which nobody else could run Python."""
    lost, spans = [], []
    for _ in range(rounds):
        rates = []
        for busy in (False, True):
            began, before, calls = time.perf_counter(), counter.count, 0
            if busy:
                while time.perf_counter() - began < SECONDS:
                    work()
                    calls += 1
            else:
                time.sleep(SECONDS)
            seconds = time.perf_counter() - began
            rates.append((counter.count - before) / seconds)
        lost.append(max(0.0, 1 - rates[1] / rates[0]))
        spans.append(seconds / calls)
    return statistics.median(spans), statistics.median(lost)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    sys.setswitchinterval(1e-5)  # a call that comes back gets the lock at once: the wait for it is not what is measured
    with tempfile.TemporaryDirectory(prefix="turnkv-") as home:
        server = Server(pathlib.Path(home), dram="1GiB", nvme="4GiB").start()
        pool = turnkv.Pool(server.address)
        pages = pool.open_namespace("gil", dtype="u8", page_tokens=16, layout="opaque", opaque_shard_bytes=RUNS * RUN_BYTES)
        hashes = b"".join(hashlib.sha256(b"%d" % at).digest() for at in range(8900))
        memory = bytearray(PAGES * RUNS * RUN_BYTES)
        start = ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
        addresses = array.array("Q", [start + at * RUN_BYTES for at in range(PAGES * RUNS)])
        lengths, some = [RUN_BYTES] * RUNS, hashes[: PAGES * 32]
        pages.offload(some, turnkv.Runs(addresses, lengths))
        turn = [0]

        def fresh() -> None:
            turn[0] += 1
            names = b"".join(hashlib.sha256(b"%d/%d" % (turn[0], at)).digest() for at in range(PAGES))
            pages.offload(names, turnkv.Runs(addresses, lengths), wait_ms=5000, deadline_ms=6000)

        counter = Counter()
        counter.start()
        calls: dict[str, Callable[[], None]] = {
            f"lookup of {len(hashes) // 32} hashes": lambda: pages.lookup(hashes),
            f"reload of {PAGES} pages": lambda: pages.reload(some, turnkv.Runs(addresses, lengths)),
            f"offload of {PAGES} new pages": fresh,
        }
        print(f"| call | a call ms | lock held of it ms (medians of {rounds} rounds) |\n|---|---|---|")
        for name, work in calls.items():
            seconds, held = share_held(work, counter, rounds)
            print(f"| {name} | {seconds * 1e3:.3f} | {seconds * held * 1e3:.3f} ({held:.1%}) |", flush=True)
        counter.over = True
        server.terminate()


if __name__ == "__main__":
    main()

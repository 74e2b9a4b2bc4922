"""Another client of a server, in a process of its own: offloads and reloads pages until it is told to stop, and times each call.

Owns: the calls and their times. Must not know: what else the server does meanwhile.

python neighbour.py ADDRESS   says a line when it has begun; ends at the end of its input, and says its times as JSON.
"""

from __future__ import annotations

import array
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

PAGES, PAUSE_SECONDS = 8, 0.05
"""10 MB/s: a pool of 2 GiB keeps what others stored for as long as an engine's test takes, beside four of these."""
SHAPE = {"dtype": "bf16", "layers": 2, "kv_heads": 8, "head_dim": 64}


class Neighbour:
    """The process, from outside."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), address]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "begun\n"

    def seconds(self) -> list[float]:
        """Ends it; how long its calls took."""
        out, _ = self.process.communicate("", timeout=60)
        assert self.process.returncode == 0
        times = json.loads(out)
        assert len(times) > 50, "it was held up"
        return times


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def main(address: str) -> None:
    import turnkv

    pages = turnkv.Pool(address).open_namespace("neighbour", **SHAPE)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    data = [bytes([at]) * pages.shard_bytes for at in range(PAGES)]
    targets, times = [bytearray(pages.shard_bytes) for _ in range(PAGES)], []
    seed = os.getpid() % 1000 * 4_000_000  # pages that no other neighbour had
    print("begun", flush=True)
    while not stop.is_set():
        seed += 16 * PAGES
        hashes = turnkv.chain_hashes(array.array("I", range(seed, seed + 16 * PAGES)).tobytes(), 16)
        began = time.perf_counter()
        stored = pages.offload(hashes, data, wait_ms=2000)
        offloaded = time.perf_counter()
        loaded = pages.reload(hashes, targets)
        times += [offloaded - began, time.perf_counter() - offloaded]
        assert stored.stored == loaded.pages == PAGES and targets == data, (stored, loaded)
        time.sleep(PAUSE_SECONDS)
    print(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1])

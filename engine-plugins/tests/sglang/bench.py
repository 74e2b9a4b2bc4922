"""What the SGLang plugins cost and bring: copy rates, lookup latency, time to first token. Not a test.

export PYTHONPATH=engine-plugins/python
.engines/sglang/bin/python engine-plugins/tests/sglang/bench.py copies lookups turns
"""

from __future__ import annotations

import functools
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import conftest  # noqa: F401  (makes SGLang importable here)
import torch
from checkpoints import prompt, write_qwen3
from conftest import common
from engine_process import Engine, hicache, linker
from memory import device_group, host_pool, linker_params, slots, storage_config
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolName, PoolTransfer
from test_keys import keys

from turnkv.sglang import HiCacheBackend, Linker, engine, identity

ROUNDS = 7
PAGES = 64  # of 2 MiB: 32 layers, 8 heads of 128, 16 tokens, bf16
SHAPE = {"layers": 32, "heads": 8, "dim": 128, "page": 16, "dtype": torch.bfloat16}
LOOKUPS = 400


def timed(work: Callable[[], Any]) -> float:
    """Seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median(work: Callable[[], Any]) -> float:
    """Of ROUNDS."""
    return statistics.median(timed(work) for _ in range(ROUNDS))


def copies(address: str) -> None:
    """One batch call of 64 pages against memcpy of as many bytes, one thread; rounds of all of them interleaved."""
    torch.set_num_threads(1)
    for layout in ("page_first_direct", "layer_first"):
        for threads in (1, 2):
            extra = {
                "interface_v1": 1,
                "pool": address,
                "model_id": f"bench {layout} {threads}",
                "threads": threads,
                "wait_ms": 5000,
                "deadline_ms": 20_000,
            }
            backend = HiCacheBackend(storage_config(extra_config=extra), {})
            pool = host_pool(layout, 2 * PAGES, **SHAPE)
            backend.register_mem_pool_host(pool)
            size = PAGES * sum(backend._pages["kv"].runs.lengths)
            source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
            there, back = slots(range(PAGES), 16), slots(range(PAGES, 2 * PAGES), 16)
            root = HiCacheStorageExtraInfo(prefix_keys=[])
            seconds: dict[str, list[float]] = {"memcpy": [], "set": [], "get": []}
            for round in range(ROUNDS + 1):
                some = keys(PAGES, seed=round)
                took = {
                    "memcpy": timed(functools.partial(target.copy_, source)),
                    "set": timed(functools.partial(backend.batch_set_v1, some, there, root)),
                    "get": timed(functools.partial(backend.batch_get_v1, some, back)),
                }
                assert all(backend.batch_get_v1(some, back)), backend.counts.get()
                for name, value in took.items():
                    if round:  # the first fills memory that nobody has touched
                        seconds[name].append(value)
            rates = {name: size / statistics.median(took) / 1e9 for name, took in seconds.items()}
            print(
                f"{layout:18} threads {threads}: "
                + ", ".join(f"{name} {rate:.2f} GB/s ({rate / rates['memcpy']:.2f}x)" for name, rate in rates.items())
            )
            backend.close()


def lookups(address: str) -> None:
    """What a lookup of a prompt's pages takes of the scheduler thread, names included."""
    group = device_group(8)
    engine.device_pool_group = lambda *_: group
    extra = {"pool": address, "model_id": "bench lookups", "lookup_ms": 1000}
    linked = Linker(None, linker_params(), components=set(), extra_config=extra)
    for pages in (64, 1024, 8900):
        for known in (0, pages):
            some = keys(pages, seed=pages)
            if known:
                _store(linked, some)
            transfer = PoolTransfer(name=PoolName.KV, keys=some)
            found: list[int] = []

            def look(transfer: PoolTransfer = transfer, found: list[int] = found) -> None:
                found.append(max(linked.lookup("r", [transfer]), default=0))

            took = sorted(timed(look) for _ in range(LOOKUPS))
            assert set(found) == {known}, set(found)
            print(
                f"lookup of {pages:5} pages, {known:5} there: p50 {took[LOOKUPS // 2] * 1e3:.3f} ms, "
                f"p99 {took[LOOKUPS * 99 // 100] * 1e3:.3f} ms"
            )
    linked.close()


def _store(linked: Linker, some: list[str]) -> None:
    """Stores pages of a prompt, all of them from one device page."""
    pages, parent = linked._pages["kv"], b""
    for at in range(0, len(some), 512):
        part = some[at : at + 512]
        hashes = b"".join(map(bytes.fromhex, part))
        assert linked._store_run(pages, hashes, slots([0] * len(part)), parent)
        parent = hashes[-32:]


def turns(address: str, folder: pathlib.Path) -> None:
    """Time to the first token of turn 2: reloaded, and computed anew. A 12-layer model, 2,000 tokens of history."""
    model = write_qwen3(folder / "model", seed=0, layers=12, hidden=768)
    kinds = {
        "hicache": hicache(address, "cache", "layer_first"),
        "buffer_only": hicache(address, "buffer_only"),
        "linker": linker(address, load_ms=5000),
    }
    for kind, settings in kinds.items():
        with Engine(folder / kind, model, tokens_max=8192, **settings) as running:
            running.generate(prompt(64, seed=9))
            took: dict[str, list[float]] = {"computed": [], "reloaded": [], "kept in the engine": []}
            for round in range(3):
                ids = prompt(2000, seed=50 + round)
                took["computed"].append(running.generate(ids, new=1, salt=f"{kind} {round}")["seconds"])
                running.generate(ids, new=1)
                running.settle()
                running.flush()
                said = running.generate(ids, new=1)
                assert said["cached"] == 1984, said
                took["reloaded"].append(said["seconds"])
                took["kept in the engine"].append(running.generate(ids, new=1)["seconds"])
            print(
                f"{kind:12} first token of 2,000 tokens: "
                + ", ".join(f"{name} {statistics.median(values) * 1e3:.0f} ms" for name, values in took.items())
            )


def main() -> None:
    """Runs what is named."""
    identity.engine_settings = dict
    folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
    server = common.Server(folder, dram="2GiB", nvme="4GiB").start()
    try:
        for name in sys.argv[1:]:
            {"copies": copies, "lookups": lookups, "turns": lambda at: turns(at, folder)}[name](server.address)
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

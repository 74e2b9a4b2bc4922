"""The pool is upgraded again and again while an engine generates and four other clients offload and reload.

`TURNKV_UPGRADES` sets how many upgrades there are (5 unless told).
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Greedy, common, prompt_of, whole_blocks
from engine import Engine

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from neighbour import Neighbour, p99

UPGRADES = int(os.environ.get("TURNKV_UPGRADES", "5"))
PAUSE_SECONDS = 0.5
"""Between two upgrades: a turn or two begin in it."""
BLOCKS = 150
"""Of the engine's own cache: 4,800 tokens, about half of what the sessions need, so that most turns reload."""
CALL_MS = 5000


@pytest.fixture
def kept() -> Iterator[Any]:
    """A pool whose DRAM and sockets a keeper has."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
    server = common.Server(folder, dram="256MiB", nvme="2GiB", keep="auto").start()
    yield server
    server.terminate()
    shutil.rmtree(folder, ignore_errors=True)


class Upgrades(threading.Thread):
    """Upgrades a pool, one after the other, and keeps what went wrong."""

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server, self.seconds, self.refused = server, [], []

    def run(self) -> None:
        for _ in range(UPGRADES):
            time.sleep(PAUSE_SECONDS)
            began = time.monotonic()
            command = [str(common.server_binary()), "upgrade", "--address", self.server.address]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            self.seconds.append(time.monotonic() - began)
            if done.returncode:
                self.refused.append(done.stderr)


def turns(engine: Engine, number: int, reference: Greedy) -> tuple[int, int]:
    """Six sessions of three turns each, side by side. Returns turns, and prompt tokens that did not have to be computed."""
    sessions = {name: prompt_of(1400, seed=10 * number + at) for at, name in enumerate("abcdef")}
    expected, cached = dict.fromkeys(sessions, 0), 0
    for turn in range(3):
        answers = engine.generate(list(sessions.values()))
        engine.drain()
        assert [answer["tokens"] for answer in answers] == reference(list(sessions.values())), (number, turn)
        for (name, prompt), answer in zip(list(sessions.items()), answers, strict=True):
            assert answer["cached"] == expected[name], (number, turn, name)
            cached += answer["cached"]
            expected[name] = whole_blocks(prompt, answer["tokens"])
            sessions[name] = prompt + answer["tokens"] + prompt_of(150, seed=10 * number + turn)
    return 18, cached


def test_upgrades_change_no_token_and_fail_no_call(
    models: dict[str, pathlib.Path], kept: Any, start_engine: Callable[..., Engine], reference: Greedy
) -> None:
    options = {"pool": kept.address, "lookup_ms": CALL_MS, "load_ms": CALL_MS, "save_ms": CALL_MS}
    engine = start_engine(models["plain"], options, num_gpu_blocks_override=BLOCKS)
    others = [Neighbour(kept.address) for _ in range(4)]
    upgrades, number, done, cached = Upgrades(kept), 0, 0, 0
    upgrades.start()
    while upgrades.is_alive():
        number += 1
        more, tokens = turns(engine, number, reference)
        done, cached = done + more, cached + tokens
    times = sorted(seconds for other in others for seconds in other.seconds())
    assert not upgrades.refused, upgrades.refused
    assert kept.process.poll() is None, kept.log()
    counted = engine.metrics()
    failed = {name: value for name, value in counted.items() if "fail" in name or "lookups" in name}
    assert set(failed) <= {"lookups:hit", "lookups:miss", "lookups:local"}, failed
    assert counted["loaded_tokens"] > 0 and max(times) < CALL_MS / 1000
    print(
        f"{UPGRADES} upgrades, the longest {max(upgrades.seconds):.2f} s; "
        f"{done} turns of the engine, {cached} tokens not computed again; "
        f"{len(times)} calls of four others: p50 {1000 * times[len(times) // 2]:.1f}, p99 {1000 * p99(times):.0f}, "
        f"longest {1000 * times[-1]:.0f} ms"
    )

"""What TurnKV costs a vLLM that never reuses anything.

    TURNKV_SERVER=target/release/turnkv .engines/vllm/bin/python benches/engines/vllm_cost.py

Time of the engine's threads in the connector; tokens per second and processor time with and without it, rounds interleaved.
Owns: running and printing. Must not know: how anything of it works.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "engine-plugins/tests"
sys.path[:0] = [str(TESTS / "vllm"), str(HERE)]
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

from conftest import common, prompt_of  # noqa: E402
from engine import Engine  # noqa: E402
from models import write_wide  # noqa: E402

ROUNDS, REQUESTS, PROMPT, REPLY = 10, 6, 320, 32


def main() -> None:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-bench-"))
    try:
        cost(write_wide(folder / "wide"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def pool() -> Any:
    """A pool of its own, with room for everything."""
    home = pathlib.Path(tempfile.mkdtemp(prefix="turnkv-"))
    return common.Server(home, dram="1GiB", nvme="4GiB").start()


def cost(model: pathlib.Path) -> None:
    """Both engines live through the whole run and take turns, so that the machine's moods hit them alike."""
    server = pool()
    engines = {"plain": Engine(model), "turnkv": Engine(model, {"pool": server.address})}
    engines["turnkv"].run("vllm_probe", "install")
    rates: dict[str, list[float]] = {name: [] for name in engines}
    processor: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(ROUNDS + 1):
        order = list(engines.items())
        for name, engine in order if number % 2 else reversed(order):
            prompts = [prompt_of(PROMPT, seed=1 + number * REQUESTS + at) for at in range(REQUESTS)]
            used, begun = engine.processor_seconds(), time.monotonic()
            engine.generate(prompts, max_tokens=REPLY)
            seconds = time.monotonic() - begun
            engine.drain()
            if number:  # the first round warms up
                processor[name].append(engine.processor_seconds() - used)
                rates[name].append(REQUESTS * (PROMPT + REPLY) / seconds)
    for name, values in rates.items():
        rounds = [round(value) for value in values]
        say(bench="throughput", engine=name, tokens_per_s=statistics.median(rounds), rounds=rounds)
    pairs = [with_ / without for with_, without in zip(rates["turnkv"], rates["plain"], strict=True)]
    say(bench="throughput", ratio_median=round(statistics.median(pairs), 4), ratios=[round(pair, 3) for pair in pairs])
    more = [with_ / without for with_, without in zip(processor["turnkv"], processor["plain"], strict=True)]
    ratios = [round(pair, 3) for pair in more]
    say(bench="processor_time", ratio_median=round(statistics.median(more), 4), ratios=ratios)
    for name, values in engines["turnkv"].run("vllm_probe", "read").items():
        say(bench="connector_us", of=name, **values)
    say(bench="pages", **{key: value for key, value in engines["turnkv"].metrics().items() if "blocks" in key})
    for engine in engines.values():
        engine.close()
    server.kill()
    shutil.rmtree(server.folder, ignore_errors=True)


if __name__ == "__main__":
    main()

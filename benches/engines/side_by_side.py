"""Turn-2 time to first token on CPU vLLM with TurnKV, LMCache, vLLM's own tiering to files and with nothing; then one byte in
every 64 KiB on disk flips, and the tokens tell who notices.

    .venv/bin/python benches/engines/side_by_side.py [--rounds 3] [--sessions 4] [--tokens 3000] [--only turnkv,nothing]

Every round starts each system afresh, in turn: engine and store (turn 1, turn 2 from memory), both again (turn 2 from disk),
both again on damaged files. Tokens are compared with those of an engine that stores nothing.
Owns: the systems and their files. Must not know: how an engine is timed (`engine_turns.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VLLM, LMCACHE = ROOT / ".engines/vllm/bin/python", ROOT / ".engines/lmcache/bin/python"
MEMORY_BYTES, DISK_BYTES = 1 << 30, 4 << 30
FLIP_EVERY_BYTES = 64 << 10
ENGINE_SECONDS_MAX = 600
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_TRACK_USAGE": "false",
}


class System:
    """One way to keep KV. `transfer` is what vLLM is told; `store` runs what stands beside the engine."""

    name, python = "nothing", VLLM

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.files = folder / "files"
        self.files.mkdir(parents=True)

    @property
    def transfer(self) -> dict | None:
        return None

    @contextmanager
    def store(self) -> Iterator[None]:
        yield


class TurnKV(System):
    name = "turnkv"

    @property
    def transfer(self) -> dict:
        return transfer("TurnKVConnector", "turnkv.vllm", {"pool": f"unix:{self.folder}/turnkv.sock"})

    @contextmanager
    def store(self) -> Iterator[None]:
        config = self.folder / "turnkv.toml"
        config.write_text(
            f'listen = "unix:{self.folder}/turnkv.sock"\n[dram]\nbytes = "{MEMORY_BYTES >> 20}MiB"\n'
            f'[nvme]\npath = "{self.files}"\nbytes = "{DISK_BYTES >> 20}MiB"\n[keep]\ndram = "off"\n'
        )
        server = os.environ.get("TURNKV_SERVER", str(ROOT / "target/release/turnkv"))
        with running([server, "serve", "--config", str(config)], self.folder / "server.log"):
            until((self.folder / "turnkv.sock.local").exists)
            yield


class LMCache(System):
    name, python = "lmcache", LMCACHE

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.port, self.http = free_port(), free_port()

    @property
    def transfer(self) -> dict:
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port}
        return transfer("LMCacheMPConnector", "lmcache.integration.vllm.lmcache_mp_connector", extra)

    @contextmanager
    def store(self) -> Iterator[None]:
        adapter = json.dumps({"type": "fs", "base_path": str(self.files)})
        command = [
            str(LMCACHE.parent / "lmcache"),
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--http-host",
            "127.0.0.1",
            "--http-port",
            str(self.http),
            "--chunk-size",
            "256",
            "--l1-size-gb",
            str(MEMORY_BYTES >> 30),
            "--eviction-policy",
            "LRU",
            "--supported-transfer-mode",
            "engine_driven",
            "--shm-name",
            f"turnkv-bench-{os.getpid()}",
            "--max-workers",
            "2",
            "--l2-adapter",
            adapter,
        ]
        with running(command, self.folder / "server.log"):
            until(lambda: urllib.request.urlopen(f"http://127.0.0.1:{self.http}/healthcheck", timeout=1))
            yield


class VllmFiles(System):
    name = "vllm files"

    @property
    def transfer(self) -> dict:
        extra = {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "vllm_cpu_tiering",
            "cpu_bytes_to_use": MEMORY_BYTES,
            "offload_prompt_only": False,
            "secondary_tiers": [{"type": "fs", "root_dir": str(self.files)}],
        }
        return transfer("OffloadingConnector", None, extra)


SYSTEMS = {system.name: system for system in (System, TurnKV, LMCache, VllmFiles)}


def transfer(connector: str, module: str | None, extra: dict) -> dict:
    """vLLM's KVTransferConfig."""
    config = {"kv_connector": connector, "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    return config | {"kv_connector_extra_config": extra} | ({"kv_connector_module_path": module} if module else {})


@contextmanager
def running(command: list[str], log: pathlib.Path) -> Iterator[None]:
    with open(log, "ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | ENVIRONMENT, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until(ready: object, seconds: float = 90) -> None:
    """Waits until `ready()` is true and raises nothing."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if ready():
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            sys.exit("a store did not start: see its server.log")
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def play(system: System, model: pathlib.Path, turn: str, sessions: list[list[int]]) -> list[dict]:
    """One engine process beside its store; what it saw of every session."""
    spec, out, log = system.folder / "spec.json", system.folder / "out.json", system.folder / "engine.log"
    spec.write_text(json.dumps({"transfer": system.transfer, "turn": turn, "sessions": sessions}))
    out.unlink(missing_ok=True)
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(HERE)}
    with system.store(), open(log, "ab") as writer:
        command = [str(system.python), str(HERE / "engine_turns.py"), str(model), str(spec), str(out)]
        done = subprocess.run(command, stdout=writer, stderr=writer, env=environment, timeout=ENGINE_SECONDS_MAX, check=False)
    if done.returncode != 0 or not out.is_file():
        sys.exit(f"{system.name}: the engine ended with {done.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
    return json.loads(out.read_text())


def flip(files: pathlib.Path) -> int:
    """Flips an exponent bit in every stretch of every file; how many."""
    flipped = 0
    for path in files.rglob("*"):
        if not path.is_file() or path.stat().st_size < FLIP_EVERY_BYTES or path.suffix == ".redb":
            continue
        with open(path, "r+b") as file:
            for at in range(FLIP_EVERY_BYTES // 2 + 3, path.stat().st_size, FLIP_EVERY_BYTES):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 0x40]))
                flipped += 1
    return flipped


def round_of(kind: type[System], model: pathlib.Path, prompts: list[list[int]], truth: dict) -> dict:
    """All three runs of one system."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kv-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    system = kind(folder / "s")
    try:
        first = play(system, model, "first", prompts)
        grown = [prompt + turn["tokens"] + [11] * 64 for prompt, turn in zip(prompts, first, strict=True)]
        disk = play(system, model, "second", grown)
        if kind is System:
            truth["tokens"] = [turn["tokens"] for turn in disk]
        flipped = flip(system.files)
        damaged = play(system, model, "second", grown) if flipped else disk
        wrong = [turn["tokens"] != right for turn, right in zip(damaged, truth["tokens"], strict=True)]
        right = [turn["tokens"] == right for turn, right in zip(disk, truth["tokens"], strict=True)]
        return {
            "memory_ms": statistics.median(turn["again_ms"] for turn in first),
            "memory_cached": statistics.mean(
                turn["again_cached"] / len(tokens) for turn, tokens in zip(first, grown, strict=True)
            ),
            "disk_ms": statistics.median(turn["ttft_ms"] for turn in disk),
            "disk_cached": statistics.mean(turn["cached"] / len(tokens) for turn, tokens in zip(disk, grown, strict=True)),
            "disk_right": sum(right),
            "flipped": flipped,
            "wrong": sum(wrong),
            "sessions": len(prompts),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--only", default=",".join(SYSTEMS))
    options = parser.parse_args()
    kinds = [SYSTEMS[name] for name in dict.fromkeys(["nothing", *options.only.split(",")])]
    if LMCache in kinds and not LMCACHE.exists():
        sys.exit("no .engines/lmcache: run benches/engines/make_lmcache_env.sh, or leave it out with --only")
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model"
        subprocess.run([str(VLLM), str(HERE / "make_model.py"), str(model)], check=True)
        prompts = [
            [(i * 7919 + s * 104729 + (i * i) % 131) % 4000 + 10 for i in range(options.tokens)] for s in range(options.sessions)
        ]
        results: dict[str, list[dict]] = {kind.name: [] for kind in kinds}
        truth: dict = {}
        for number in range(options.rounds):
            for kind in kinds:
                results[kind.name].append(round_of(kind, model, prompts, truth))
                print(f"round {number + 1}: {kind.name}: {results[kind.name][-1]}", file=sys.stderr, flush=True)
    print(f"\n### turn 2 on CPU vLLM: {options.sessions} sessions of {options.tokens} tokens, {options.rounds} rounds\n")
    print(
        "| system | TTFT from memory ms | prefix found | TTFT from disk ms | prefix found | tokens right | bytes flipped "
        "| sessions with wrong tokens |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, rounds in results.items():
        middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        total = sum(one["sessions"] for one in rounds)
        print(
            f"| {name} | {middle['memory_ms']:.0f} | {middle['memory_cached']:.0%} | {middle['disk_ms']:.0f} "
            f"| {middle['disk_cached']:.0%} "
            f"| {sum(one['disk_right'] for one in rounds)} of {total} | {middle['flipped']:.0f} "
            f"| {sum(one['wrong'] for one in rounds)} of {total} |"
        )


if __name__ == "__main__":
    main()

"""One real SGLang engine in a process of its own, driven by a test; run as a script it is that process.

Owns: the engine's settings for two CPU cores, commands over a pipe. Must not know: pools, what is tested.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import subprocess
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS_MAX = 240
ANSWER_SECONDS_MAX = 120
PAGE = 16
SETTINGS = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "skip_tokenizer_init": True,
    "skip_server_warmup": True,
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "page_size": PAGE,
    "context_length": 8192,
    "max_running_requests": 4,
    "tp_size": 1,
    "random_seed": 1,
    "enable_cache_report": True,
    "log_level": "info",
}
HICACHE = {
    "enable_hierarchical_cache": True,
    "hicache_io_backend": "direct",
    "hicache_write_policy": "write_through",
    "hicache_storage_backend": "dynamic",
    "hicache_storage_prefetch_policy": "wait_complete",
}


def hicache(
    pool: str, mode: str = "cache", layout: str = "page_first_direct", ratio: float = 1.2, **options: Any
) -> dict[str, Any]:
    """Settings of HiCache over TurnKV."""
    extra = {
        "backend_name": "turnkv",
        "module_path": "watched",
        "class_name": "WatchedBackend",
        "interface_v1": 1,
        "hicache_storage_pass_prefix_keys": True,
        "prefetch_threshold": 2 * PAGE,
        "pool": pool,
        **options,
    }
    return HICACHE | {
        "hicache_host_memory_mode": mode,
        "hicache_mem_layout": layout,
        "hicache_ratio": ratio,
        "hicache_storage_backend_extra_config": json.dumps(extra),
    }


def linker(pool: str, **options: Any) -> dict[str, Any]:
    """Settings of the direct linker over TurnKV."""
    return {
        "enable_unified_cache_external_linker": True,
        "unified_cache_external_linker_backend": "dynamic",
        "unified_cache_external_linker_config": {
            "linker": "WatchedLinker",
            "linker_module_path": "watched",
            "linker_extra_config": {"pool": pool, **options},
        },
    }


class Engine:
    """A running engine. A context manager; ends with its process group."""

    def __init__(self, folder: pathlib.Path, model: pathlib.Path, tokens_max: int = 2048, **settings: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        python = pathlib.Path(sys.executable)
        given = os.environ.get("PYTHONPATH", "")  # turnkv's sources, when not its wheel is tested
        settings = SETTINGS | {"model_path": str(model), "max_total_tokens": tokens_max} | settings
        answers, theirs = os.pipe()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE / "harness"), given, str(HERE)))),
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "TURNKV_TEST_WATCH": str(folder),
        }
        with open(folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(python), __file__, str(theirs), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[theirs],
                start_new_session=True,
            )
        os.close(theirs)
        self._answers = os.fdopen(answers, "rb")
        try:
            self._answer(START_SECONDS_MAX)
        except BaseException:
            self.close()
            raise

    def generate(
        self,
        ids: list[int],
        new: int = 8,
        salt: str | None = None,
        session: str | None = None,
        hints: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """One greedy generation: out, cached (tokens), details (of the cached ones), seconds; or error."""
        return self._do({"do": "generate", "ids": ids, "new": new, "salt": salt, "session": session, "hints": hints})

    def flush(self) -> None:
        """Empties the engine's own caches, after what is being stored."""
        deadline = time.monotonic() + 20
        while not self._do({"do": "flush"})["done"]:
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def settle(self) -> None:
        """Waits until what the engine wanted to store is stored."""
        self.wait_for(lambda counts: counts.get("under_way", 0) == 0 and counts.get("quiet_ms", 0) > 300)

    def counts(self) -> dict[str, int]:
        """What the plugin in the engine's scheduler counted."""
        try:
            return json.loads((self.folder / "counts").read_text())
        except FileNotFoundError:
            return {}

    def wait_for(self, condition: Any, seconds: float = 20) -> dict[str, int]:
        """Waits until the plugin's counts are as wanted."""
        deadline = time.monotonic() + seconds
        while not condition(counts := self.counts()):
            assert time.monotonic() < deadline, f"{counts}\n{self.log()}"
            time.sleep(0.05)
        return counts

    def spoil(self, on: bool = True) -> None:
        """From now on loaded pages are overwritten after they were verified: proof that wrong bytes would show."""
        flag = self.folder / "spoil"
        flag.touch() if on else flag.unlink(missing_ok=True)

    def log(self) -> str:
        """The end of what it said."""
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    def close(self) -> None:
        """Ends it and its children."""
        if self._process.poll() is None:
            try:
                self._process.stdin.close()
                self._process.wait(20)
            except (subprocess.TimeoutExpired, OSError):
                pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        self._answers.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _do(self, command: dict[str, Any]) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer(ANSWER_SECONDS_MAX)

    def _answer(self, seconds: float) -> dict[str, Any]:
        ready, _, _ = select.select([self._answers], [], [], seconds)
        line = self._answers.readline() if ready else b""
        assert line, f"no answer from the engine: {self.log()}"
        return json.loads(line)


def _generate(engine: Any, command: dict[str, Any]) -> dict[str, Any]:
    extra = {"cache_salt": command["salt"]} if command["salt"] else {}
    started = time.perf_counter()
    said = engine.generate(
        input_ids=[command["ids"]],
        session_id=command["session"],
        kv_hints=command["hints"],
        **extra,
        sampling_params={"temperature": 0, "max_new_tokens": command["new"], "ignore_eos": True},
    )[0]
    meta = said["meta_info"]
    return {
        "out": said["output_ids"],
        "cached": meta["cached_tokens"],
        "details": meta.get("cached_tokens_details") or {},
        "seconds": time.perf_counter() - started,
        "finish": meta["finish_reason"]["type"],
    }


def main() -> None:
    """The engine's process: answers one line of JSON for each line of JSON on its standard input."""
    import sglang

    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    os.set_inheritable(answers.fileno(), False)
    engine = sglang.Engine(**json.loads(sys.argv[2]))
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "generate":
                answer = _generate(engine, command)
            else:
                done = engine.flush_cache()
                answer = {"done": bool(getattr(done, "success", done))}
        except Exception as error:  # a failed request is an answer too
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=answers)
    engine.shutdown()


if __name__ == "__main__":
    main()

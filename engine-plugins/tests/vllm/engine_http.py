"""vLLM's OpenAI server in a process of its own, as users run it, and what is asked of it over HTTP.

Owns: starting, requests, counters, ending. Must not know: what is tested.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

START_SECONDS_MAX = 600
"""Two that start beside each other take about a minute of two cores; others may have most of these."""
ANSWER_SECONDS_MAX = 120


class HttpEngine:
    """One server without a prefix cache of its own: what is cached comes from the pool. `start`, then `wait`."""

    def __init__(self, model: pathlib.Path, log: pathlib.Path, pool: str, **options: Any) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        transfer = {
            "kv_connector": "TurnKVConnector",
            "kv_connector_module_path": "turnkv.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"pool": pool, **options},
        }
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            "--served-model-name", "tiny", "--skip-tokenizer-init", "--enforce-eager", "--dtype", "float32",
            "--max-model-len", "4096", "--block-size", "32", "--host", "127.0.0.1", "--port", str(port),
            "--no-enable-prefix-caching", "--enable-prompt-tokens-details", "--prefix-caching-hash-algo", "sha256_cbor",
            "--kv-transfer-config", json.dumps(transfer),
        ]  # fmt: skip
        environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
        with open(log, "wb") as output:
            # A group of its own: the engine proper is a child of this process, and ends with the group.
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)

    def wait(self) -> HttpEngine:
        """Until it serves."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_healthy():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.5)
        return self

    def faults(self) -> str:
        """What it said of faults since it served."""
        said = self.log.read_text().split("Application startup complete")[-1]
        return said if "Traceback" in said else ""

    def counters(self) -> dict[str, float]:
        """Our metrics and vLLM's of external caches, from /metrics."""
        text = urllib.request.urlopen(self.url + "/metrics", timeout=10).read().decode()
        found: dict[str, float] = {}
        for name, labels, value in re.findall(r"^vllm:(\w+)\{(.*?)\} (\S+)$", text, re.MULTILINE):
            if name.startswith(("turnkv_", "external_prefix")) and not name.endswith(("_bucket", "_created")):
                own = re.search(r'(?:cause|result|kind)="(\w+)"', labels)
                short = name.removeprefix("turnkv_").removesuffix("_total")
                found[short + (f":{own[1]}" if own else "")] = float(value)
        return found

    def kill(self) -> None:
        """kill -9 of it and of its engine."""
        os.killpg(self.process.pid, 9)
        self.process.wait()

    def end(self) -> None:
        """An orderly end, then a forced one."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def _is_healthy(self) -> bool:
        try:
            return bool(urllib.request.urlopen(self.url + "/health", timeout=1).status == 200)
        except (urllib.error.URLError, OSError):
            return False


def complete(url: str, prompt: list[int], max_tokens: int = 24, **fields: Any) -> dict[str, Any]:
    """Greedy tokens of a prompt, and how many of its tokens came from a cache."""
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body | fields).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as reply:
        answer, served = json.load(reply), reply.headers.get("X-Served-By")
    details = answer["usage"].get("prompt_tokens_details") or {}
    return {
        "tokens": answer["choices"][0]["token_ids"],
        "cached": details.get("cached_tokens") or 0,
        "kv_transfer_params": answer.get("kv_transfer_params"),
        "served_by": served,
    }


def wait_for(fact: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Until something is so."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, f"it does not become true: {what}"
        time.sleep(0.05)

"""The OpenAI server over HTTP, with the engine in a process of its own as users run it."""

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
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Greedy, prompt_of, whole_blocks

START_SECONDS_MAX = 120


@pytest.fixture(scope="module")
def url(models: dict[str, pathlib.Path], pool_server: Any, tmp_path_factory: Any) -> Iterator[str]:
    """A server without a prefix cache of its own: what is cached comes from the pool."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    transfer = {
        "kv_connector": "TurnKVConnector",
        "kv_connector_module_path": "turnkv.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"pool": pool_server.address},
    }
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models["plain"]),
        "--served-model-name", "tiny", "--skip-tokenizer-init", "--enforce-eager", "--dtype", "float32",
        "--max-model-len", "4096", "--block-size", "32", "--host", "127.0.0.1", "--port", str(port),
        "--no-enable-prefix-caching", "--enable-prompt-tokens-details", "--prefix-caching-hash-algo", "sha256_cbor",
        "--kv-transfer-config", json.dumps(transfer),
    ]  # fmt: skip
    log = tmp_path_factory.mktemp("http") / "log"
    with open(log, "wb") as output:
        environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not healthy(address):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield address
        assert "Traceback" not in log.read_text().split("Application startup complete")[-1]
    finally:
        server.terminate()
        server.wait(30)


def test_second_turn_reloads_and_metrics_say_so(url: str, reference: Greedy) -> None:
    prompt = prompt_of(1000, seed=1)
    hints = {"turnkv": {"session": "http-1"}}
    one = complete(url, prompt, kv_transfer_params=hints)
    assert [one["tokens"]] == reference([prompt]) and one["cached"] == 0
    blocks = whole_blocks(prompt, one["tokens"]) // 32
    wait_for(lambda: counters(url).get("saved_blocks", 0) == blocks)

    again = prompt + one["tokens"] + prompt_of(80, seed=2)
    two = complete(url, again, kv_transfer_params=hints)
    assert [two["tokens"]] == reference([again]) and two["cached"] == blocks * 32 == 992
    counted = counters(url)
    assert counted["loaded_tokens"] == counted["external_prefix_cache_hits"] == 992
    assert counted["loaded_blocks"] == blocks
    assert counted["lookups:hit"] == 1 and counted["lookups:miss"] == 1
    assert counted["lookup_seconds_count"] == 2 and counted["load_seconds_count"] == 1
    assert counted["queried_tokens"] == len(prompt) + len(again)
    bad = ("failed", "declined", "session_failures")
    assert not [name for name, value in counted.items() if name.startswith(bad) and value]


def test_session_by_vllm_xargs(url: str, reference: Greedy) -> None:
    """The other way to name a session, for clients that cannot send kv_transfer_params."""
    prompt = prompt_of(300, seed=3)
    assert [complete(url, prompt, vllm_xargs={"turnkv_session": "http-2"})["tokens"]] == reference([prompt])


def test_handover_is_told_to_a_proxy(url: str) -> None:
    """A proxy that separates prefill and decode marks the prefill with do_remote_decode and copies what comes back."""
    answer = complete(url, prompt_of(200, seed=4), max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    assert answer["kv_transfer_params"] == {"turnkv": {"handover_tokens": 192}}


def complete(url: str, prompt: list[int], max_tokens: int = 24, **fields: Any) -> dict[str, Any]:
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body | fields).encode(), {"Content-Type": "application/json"}
    )
    answer = json.load(urllib.request.urlopen(request, timeout=60))
    details = answer["usage"].get("prompt_tokens_details") or {}
    return {
        "tokens": answer["choices"][0]["token_ids"],
        "cached": details.get("cached_tokens") or 0,
        "kv_transfer_params": answer.get("kv_transfer_params"),
    }


def counters(url: str) -> dict[str, float]:
    """Our metrics and vLLM's of external caches, from /metrics."""
    text = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode()
    found: dict[str, float] = {}
    for name, labels, value in re.findall(r"^vllm:(\w+)\{(.*?)\} (\S+)$", text, re.MULTILINE):
        if name.startswith(("turnkv_", "external_prefix")) and not name.endswith(("_bucket", "_created")):
            own = re.search(r'(?:cause|result|kind)="(\w+)"', labels)
            short = name.removeprefix("turnkv_").removesuffix("_total")
            found[short + (f":{own[1]}" if own else "")] = float(value)
    return found


def healthy(url: str) -> bool:
    try:
        return urllib.request.urlopen(url + "/health", timeout=1).status == 200
    except (urllib.error.URLError, OSError):
        return False


def wait_for(fact: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it does not become true"
        time.sleep(0.05)

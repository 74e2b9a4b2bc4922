"""Without a server TurnKVCache works as a plain cache, and says so, once, with what to do."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import warnings

import pytest
from conftest import Server, tiny_model
from slab import same, say, tokens
from transformers import DynamicCache

import turnkv
from turnkv.transformers import TurnKVCache

SETTINGS = {"slab": {}, "copying": {"legacy": True}, "device": {"device": turnkv.Device(kind="host")}}


def ending_server(folder: pathlib.Path) -> pathlib.Path:
    """A server that cannot start, and says why."""
    script = folder / "turnkv"
    script.write_text("#!/bin/sh\necho no such key >&2\nexit 3\n")
    script.chmod(0o700)
    return script


@pytest.mark.parametrize("form", SETTINGS)
def test_a_server_that_does_not_start_is_said(form: str, tmp_path: pathlib.Path) -> None:
    model, prompt = tiny_model(), tokens(60, seed=1)
    pool = turnkv.Pool(dir=str(tmp_path), server=str(ending_server(tmp_path)), breaker_cooldown_ms=50)
    cache = TurnKVCache(model, "nobody", pool, page_tokens=16, **SETTINGS[form])
    with pytest.warns(UserWarning, match=r"(?s)no pool.*ended at once.*no such key"):
        assert cache.begin(prompt) == 0
    ours = say(model, prompt, cache, 4)
    assert same(ours, say(model, prompt, DynamicCache(config=model.config), 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # begin has said it
        report = cache.end_turn(ours.sequences)
    assert report.tokens_offloaded == 0 and any(miss.startswith("error:") for miss in report.misses), report


def test_a_user_reads_it_once(tmp_path: pathlib.Path) -> None:
    """As in a fresh environment, where nobody configured warnings."""
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import torch; from conftest import tiny_model; from turnkv.transformers import TurnKVCache\n"
        "torch.set_grad_enabled(False); model = tiny_model(); ids = torch.arange(60)[None]\n"
        "for turn in range(3):\n"
        "    cache = TurnKVCache(model, 'chat'); cache.begin(ids)\n"
        "    said = model.generate(ids, past_key_values=cache, max_new_tokens=3, attention_mask=torch.ones_like(ids))\n"
        "    cache.end_turn(said)\n"
    )
    paths = [str(pathlib.Path(__file__).parent), str(pathlib.Path(turnkv.__file__).parents[1])]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKV", "XDG", "PYTHONWARNINGS"))}
    environment = {**kept, "HOME": str(tmp_path), "TURNKV_SERVER": str(ending_server(tmp_path))}
    ran = subprocess.run(
        [sys.executable, "-c", code, *paths], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert ran.stderr.count("there is no pool") == 1 and "no such key" in ran.stderr, ran.stderr


@pytest.mark.parametrize("form", SETTINGS)
def test_a_pool_that_refuses_its_caller_is_said_once(form: str, tmp_path: pathlib.Path) -> None:
    """As where a certificate names a tenant and the cache names none."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = Server(tmp_path, nvme=None)
    text = server.config.read_text()
    server.config.write_text(f'tcp = "{address}"\n{text}[access]\nplain = "engine/acme"\n')
    model, prompt = tiny_model(), tokens(60, seed=1)
    try:
        pool = turnkv.Pool(f"tcp://{address}")
        server.start()
        cache = TurnKVCache(model, "stranger", pool, page_tokens=16, **SETTINGS[form])
        with pytest.warns(UserWarning, match="refuses this caller.*engine/acme.*tenant") as said:
            assert cache.begin(prompt) == 0
        assert len(said) == 1, [str(warning.message) for warning in said]
        ours = say(model, prompt, cache, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # begin has said it
            report = cache.end_turn(ours.sequences)
        assert report.tokens_offloaded == 0 and report.misses["error:permission_denied"], report
        named = TurnKVCache(model, "friend", pool, tenant="acme", page_tokens=16, **SETTINGS[form])
        assert named.begin(prompt) == 0 and set(named.turn.misses) == {"absent"}, named.turn
    finally:
        server.kill()


@pytest.mark.parametrize("legacy", [False, True])
def test_memory_of_a_gpu_is_refused_where_there_is_none(legacy: bool, tmp_path: pathlib.Path) -> None:
    pool = turnkv.Pool(f"unix:{tmp_path}/nobody.sock")
    with pytest.raises(ValueError, match="gpu_bytes is of the device form"):
        TurnKVCache(tiny_model(), "s", pool, legacy=legacy, gpu_bytes=1 << 20)

"""Without a server TurnKVCache works as a plain cache, and says so, once, with what to do."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import warnings

import pytest
from conftest import tiny_model
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

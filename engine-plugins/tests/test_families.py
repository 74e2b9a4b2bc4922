"""Many families of models in every form of TurnKVCache: exact or refused, and nothing of a forward that did not end is kept.

TURNKV_MATRIX=full    every family, form, place and kind of interruption (some minutes); else each of them somewhere
"""

from __future__ import annotations

import hashlib
import itertools
import os

import families
import pytest
import torch
from conftest import Server
from interruptions import KINDS, PLACES, interrupted
from slab import say, tokens
from transformers import DynamicCache

import turnkv
from turnkv.transformers import TurnKVCache, Unsupported

FORMS = {"slab": {}, "copying": {"legacy": True}, "device": {"device": turnkv.Device(kind="host")}}
SLIDING = ("gemma2", "gemma3", "gemma4", "gemma4-k-is-v", "gemma4-shared", "mistral", "gpt-oss")
"""Only the slab form serves these."""
REFUSED = ("deepseek-mla", "mimo")
"""K and V of different sizes."""
SERVED = [
    (name, form) for name in families.MODELS if name not in REFUSED for form in FORMS if form == "slab" or name not in SLIDING
]
PAGE = 64
"""The smallest page of all of these whose K of one layer is a memory page."""
_models: dict[str, torch.nn.Module] = {}


def model_of(name: str) -> torch.nn.Module:
    if name not in _models:
        _models[name] = families.family(name)
    return _models[name]


def make(name: str, form: str, server: Server, session: str | None, salt: object) -> TurnKVCache:
    digest = hashlib.sha256(repr((form, salt)).encode()).digest()
    return TurnKVCache(model_of(name), session, server.pool(), page_tokens=PAGE, salt=digest, **FORMS[form])


def logits(model, prompt: torch.Tensor, cache) -> torch.Tensor:
    """Of the last token, what the cache lacks computed now."""
    return model(input_ids=prompt[:, cache.get_seq_length() :], past_key_values=cache).logits[:, -1]


def equal(ours, theirs) -> bool:
    return torch.equal(ours.sequences, theirs.sequences) and all(map(torch.equal, ours.logits, theirs.logits))


def converse(name: str, form: str, server: Server, places: list[tuple[str, str, int]]) -> None:
    """Three turns, each after as many that do not end: the tokens and logits are a plain cache's, and the pool's pages too."""
    model, kept, prompt = model_of(name), DynamicCache(config=model_of(name).config), tokens(150, seed=1)
    cache = make(name, form, server, "family", (name, places))
    for turn in range(3):
        for place, kind, forward in places[turn::3]:
            loaded = cache.begin(prompt)
            assert loaded == kept.get_seq_length(), (turn, place, kind, cache.turn)
            with interrupted(model, cache, place, kind, forward):
                say(model, prompt, cache, 5)
            with pytest.warns(UserWarning, match="did not end"):
                report = cache.end_turn(torch.cat([prompt, tokens(5, seed=9)], dim=1))
            assert report.pages_stored == report.tokens_offloaded == 0, (turn, place, kind, report)
        loaded = cache.begin(prompt)
        assert loaded == kept.get_seq_length(), (turn, cache.turn)
        ours = say(model, prompt, cache, 5)
        assert equal(ours, say(model, prompt, kept, 5)), (turn, cache.turn)
        report = cache.end_turn(ours.sequences)
        assert report.pages_stored > 0 and not set(report.misses) - {"absent"}, report
        prompt = torch.cat([ours.sequences, tokens(20, seed=turn)], dim=1)
    other = make(name, form, server, None, (name, places))
    found, plain = other.begin(prompt), DynamicCache(config=model.config)
    assert found == (0 if name == "mistral" else prompt.shape[1] // PAGE * PAGE), other.turn  # windows end with a session
    torch.testing.assert_close(logits(model, prompt, other), logits(model, prompt, plain), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "form"), SERVED)
def test_every_family_is_exact_and_keeps_nothing_unfinished(roomy_server: Server, name: str, form: str) -> None:
    every = list(itertools.product(PLACES, KINDS, (0, 2)))
    if os.environ.get("TURNKV_MATRIX") == "full":
        for at in range(0, len(every), 3):
            converse(name, form, roomy_server, every[at : at + 3])
    else:
        number = SERVED.index((name, form))
        converse(name, form, roomy_server, [every[(number * 5 + turn * 13) % len(every)] for turn in range(2)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*REFUSED, *SLIDING])
def test_what_a_form_cannot_keep_is_refused_with_what_to_do(roomy_server: Server, name: str, form: str) -> None:
    if form == "slab" and name in SLIDING:
        return
    with pytest.raises(Unsupported, match="DynamicCache"):
        make(name, form, roomy_server, "refused", "")


def test_trimming_needs_layers_of_one_size(roomy_server: Server) -> None:
    with pytest.raises(Unsupported, match="sink and window"):
        TurnKVCache(model_of("gemma4"), "refused", roomy_server.pool(), page_tokens=PAGE, sink=16, window=64)


def test_one_head_takes_the_memory_of_one_head(roomy_server: Server) -> None:
    """Falcon's one K for all heads."""
    cache, prompt = make("falcon-mqa", "slab", roomy_server, "one-head", ""), tokens(128, seed=2)
    cache.begin(prompt)
    model_of("falcon-mqa")(input_ids=prompt, past_key_values=cache)
    assert cache.layers[0].keys.shape == (1, 1, 128, 16) and cache.layers[0].shape.token_bytes == 64


def test_k_of_another_size_than_was_seen_is_refused(roomy_server: Server) -> None:
    """Nothing is broadcast into place."""
    cache = make("llama", "slab", roomy_server, "sizes", "")
    cache.begin(tokens(4, seed=3))
    with pytest.raises(Unsupported, match="for layers of"):
        cache.update(torch.zeros(1, 1, 4, 16), torch.zeros(1, 1, 4, 16), 0)

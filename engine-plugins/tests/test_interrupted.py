"""A forward that does not end leaves nothing in the pool, in any form of TurnKVCache, and begin() makes all well again."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from conftest import Server, tiny_model
from interruptions import KINDS, PLACES, interrupted
from slab import same, say, tokens
from transformers import DynamicCache

import turnkv
from turnkv.transformers import TurnKVCache

FORMS = ("slab", "batch", "trimmed", "copying", "device")
say = functools.partial(say, new_tokens=6)


@pytest.fixture(scope="module")
def device() -> turnkv.Device:
    return turnkv.Device(kind="host")


def make(form: str, model, pool, device: turnkv.Device, session: str | None, salt: str) -> TurnKVCache:
    rows = [f"{session}-{row}" for row in range(2)] if form == "batch" else session
    settings = {
        "slab": {},
        "batch": {},
        "trimmed": {"sink": 16, "window": 64},
        "copying": {"legacy": True},
        "device": {"device": device},
    }[form]
    return TurnKVCache(model, rows, pool, page_tokens=16, salt=salt.encode(), **settings)


def garbage(form: str, model, pool, device: turnkv.Device, salt: str, prompt: torch.Tensor) -> int:
    """Tokens of `prompt` that anybody would find."""
    found = make(form, model, pool, device, "interrupted", salt).begin(prompt)
    if form != "trimmed":
        found += make(form if form != "batch" else "slab", model, pool, device, None, salt).begin(prompt[:1])
    return found


PREFILLS = [
    (form, place, kind)
    for (number, form), (at, place), (which, kind) in itertools.product(enumerate(FORMS), enumerate(PLACES), enumerate(KINDS))
    if (number + at) % len(KINDS) == which
]
"""Every place in every form, each kind somewhere; `test_families` can try all."""


@pytest.mark.parametrize(("form", "place", "kind"), PREFILLS)
def test_a_prefill_that_did_not_end_is_not_stored(
    roomy_server: Server, device: turnkv.Device, form: str, place: str, kind: str
) -> None:
    model, pool, salt = tiny_model(), roomy_server.pool(), f"{form}{place}{kind}"
    prompt = tokens(150, seed=1, rows=2 if form == "batch" else 1)
    cache = make(form, model, pool, device, "interrupted", salt)
    cache.begin(prompt)
    with interrupted(model, cache, place, kind):
        say(model, prompt, cache)
    report = cache.end_turn(prompt)
    assert report.tokens_offloaded == report.pages_stored == 0, report
    assert report.misses["skipped:interrupted"] == 1, report
    assert garbage(form, model, pool, device, salt, prompt) == 0
    assert cache.begin(prompt) == 0
    plain = say(model, prompt, DynamicCache(config=model.config))
    ours = say(model, prompt, cache)
    assert form == "trimmed" or same(ours, plain), "a new turn is whole again"
    assert cache.end_turn(ours.sequences).pages_stored > 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_a_decoding_step_that_did_not_end_is_not_stored(
    roomy_server: Server, device: turnkv.Device, form: str, place: str
) -> None:
    model, pool, salt = tiny_model(), roomy_server.pool(), f"decode{form}{place}"
    prompt = tokens(100, seed=2, rows=2 if form == "batch" else 1)
    cache = make(form, model, pool, device, "interrupted", salt)
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    stored = cache.end_turn(said)
    more = torch.cat([said, tokens(20, seed=3, rows=prompt.shape[0])], dim=1)
    loaded = cache.begin(more)
    assert loaded > 80, (cache.turn, stored)
    with interrupted(model, cache, place, "ctrl-c", forward=3):
        say(model, more, cache)
    whole = torch.cat([more, tokens(6, seed=4, rows=prompt.shape[0])], dim=1)
    report = cache.end_turn(whole)
    assert report.pages_stored == 0 and report.misses["skipped:interrupted"] == 1, report
    assert cache.begin(more) == loaded, "what was there before is there still"
    kept = DynamicCache(config=model.config)
    plain = say(model, more, kept)
    assert form == "trimmed" or torch.equal(say(model, more, cache).sequences, plain.sequences)


@pytest.mark.parametrize("form", FORMS)
def test_a_turn_goes_on_after_an_exception_only_where_all_layers_agree(
    roomy_server: Server, device: turnkv.Device, form: str
) -> None:
    model, pool, salt = tiny_model(), roomy_server.pool(), f"on{form}"
    prompt = tokens(50, seed=5, rows=2 if form == "batch" else 1)
    cache = make(form, model, pool, device, "on", salt)
    cache.begin(prompt)
    with interrupted(model, cache, "middle", "error"):
        model(input_ids=prompt, past_key_values=cache)
    with pytest.raises(RuntimeError, match=r"did not end.*begin"):
        model(input_ids=prompt, past_key_values=cache)
    cache.begin(prompt)
    with interrupted(model, cache, "after", "error"):
        model(input_ids=prompt, past_key_values=cache)
    if form != "trimmed":
        kept = DynamicCache(config=model.config)
        model(input_ids=prompt, past_key_values=kept)
        more = tokens(5, seed=6, rows=prompt.shape[0])
        ours = model(input_ids=more, past_key_values=cache).logits
        assert torch.equal(ours, model(input_ids=more, past_key_values=kept).logits)
    assert cache.end_turn(torch.cat([prompt, tokens(5, seed=6, rows=prompt.shape[0])], dim=1)).pages_stored == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_begin_that_did_not_end_is_not_stored(
    roomy_server: Server, device: turnkv.Device, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pool, salt = tiny_model(), roomy_server.pool(), f"begin{form}"
    prompt = tokens(100, seed=7, rows=2 if form == "batch" else 1)
    cache = make(form, model, pool, device, "begin", salt)
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    cache.end_turn(said)
    more = torch.cat([said, tokens(20, seed=8, rows=prompt.shape[0])], dim=1)
    layer = cache.layers[1]

    def strike(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(layer), "update" if form == "copying" else "load", strike)
    with pytest.raises(KeyboardInterrupt):
        cache.begin(more)
    monkeypatch.undo()
    report = cache.end_turn(more)
    assert report.pages_stored == 0 and report.misses["skipped:interrupted"] == 1, report


@pytest.mark.parametrize("form", ("slab", "copying", "device"))
def test_layers_that_disagree_are_not_stored(roomy_server: Server, device: turnkv.Device, form: str) -> None:
    """However that came to be: here by a layer cropped alone."""
    model, pool = tiny_model(), roomy_server.pool()
    prompt = tokens(60, seed=9)
    cache = make(form, model, pool, device, "uneven", f"uneven{form}")
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    cache.layers[1].crop(-3)
    report = cache.end_turn(said)
    assert report.pages_stored == 0 and report.misses["skipped:layers"] == 1, report

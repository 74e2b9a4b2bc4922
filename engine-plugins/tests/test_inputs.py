"""What a model is really given decides what is kept: TurnKVCache compares it with what begin and end_turn are told."""

from __future__ import annotations

import copy
import gc
import time

import pytest
import torch
from conftest import Server, tiny_model
from slab import cut, same, tokens
from transformers import DynamicCache, Qwen3ForCausalLM

import turnkv
from turnkv.transformers import TurnKVCache, Unsupported

FORMS = ("slab", "copying", "device")
SETTINGS = {"slab": {}, "copying": {"legacy": True}, "device": {"device": turnkv.Device(kind="host")}}
ALL_FORMS = pytest.mark.parametrize("form", FORMS)


def say(model, prompt: torch.Tensor, cache, **more):
    settings = {"attention_mask": torch.ones_like(prompt), **more}
    return model.generate(
        prompt,
        past_key_values=cache,
        max_new_tokens=6,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **settings,
    )


def make(form: str, model, pool, case: str, session: str | None = "") -> TurnKVCache:
    return TurnKVCache(
        model, case if session == "" else session, pool, page_tokens=16, salt=f"{case}{form}".encode(), **SETTINGS[form]
    )


def is_not_kept(form: str, model, pool, case: str, cache, ids: torch.Tensor, why: str) -> None:
    with pytest.warns(UserWarning, match="not stored"):
        report = cache.end_turn(ids)
    assert report.pages_stored == report.tokens_offloaded == 0 and report.misses[f"skipped:{why}"] == 1, report
    assert make(form, model, pool, case).begin(ids) == 0 == make(form, model, pool, case, None).begin(ids)


def filled(form: str, model, pool, case: str, length: int = 60) -> tuple[TurnKVCache, torch.Tensor]:
    """A second turn that begins with tokens of the pool."""
    cache, prompt = make(form, model, pool, case), tokens(length, seed=length)
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    cache.end_turn(said)
    more = torch.cat([said, tokens(9, seed=1)], dim=1)
    assert cache.begin(more) == length + 5
    return cache, more


# ---- masks, positions, embeddings -----------------------------------------------------------------------------------


def padding(prompt: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(prompt)
    mask[:, :20] = 0
    return mask


@ALL_FORMS
def test_a_mask_that_only_generate_knows(roomy_server: Server, form: str) -> None:
    model, pool, prompt = tiny_model(), roomy_server.pool(), tokens(60, seed=1)
    cache = make(form, model, pool, "mask")
    cache.begin(prompt)
    said = say(model, prompt, cache, attention_mask=padding(prompt))
    kept = say(model, prompt, DynamicCache(config=model.config), attention_mask=padding(prompt))
    assert same(said, kept), "the turn itself is what was asked for"
    is_not_kept(form, model, pool, "mask", cache, said.sequences, "mask")
    with pytest.raises(ValueError, match="padded"):
        cache.begin(prompt, attention_mask=padding(prompt))


@ALL_FORMS
def test_a_mask_for_tokens_of_the_pool_is_refused(roomy_server: Server, form: str) -> None:
    model, pool = tiny_model(), roomy_server.pool()
    cache, more = filled(form, model, pool, "masked-later")
    with pytest.raises(ValueError, match="attention mask"):
        say(model, more, cache, attention_mask=padding(more))
    with pytest.warns(UserWarning, match="not stored"):
        assert cache.end_turn(more).misses["skipped:mask"] == 1
    assert cache.begin(more) == 65, "what was there before is there still"


@ALL_FORMS
def test_padding_that_generate_infers(roomy_server: Server, form: str) -> None:
    model, pool, prompt = tiny_model(), roomy_server.pool(), tokens(60, seed=2)
    prompt[0, :5] = 3
    cache = make(form, model, pool, "inferred")
    cache.begin(prompt)
    said = say(model, prompt, cache, attention_mask=None, pad_token_id=3)
    is_not_kept(form, model, pool, "inferred", cache, said.sequences, "mask")


@ALL_FORMS
@pytest.mark.parametrize("given", ["mask", "short-mask", "positions", "embeds", "image"])
def test_inputs_that_are_no_plain_sequence(roomy_server: Server, form: str, given: str) -> None:
    model, pool, prompt = Picturing(tiny_model().config).eval(), roomy_server.pool(), tokens(60, seed=3)
    cache = make(form, model, pool, given)
    cache.begin(prompt)
    inputs = {
        "mask": {"input_ids": prompt, "attention_mask": torch.ones(60, 60).tril(0)[None, None].bool()},
        "short-mask": {"input_ids": prompt, "attention_mask": torch.ones(1, 30)},
        "positions": {"input_ids": prompt, "position_ids": torch.arange(60)[None] + 1},
        "embeds": {"inputs_embeds": model.get_input_embeddings()(prompt)},
        "image": {"input_ids": prompt, "pixel_values": torch.randn(1, 1, 128)},
    }[given]
    model(past_key_values=cache, use_cache=True, **inputs)
    why = {"short-mask": "mask", "image": "pixel_values"}.get(given, given)
    is_not_kept(form, model, pool, given, cache, prompt, why)


class Picturing(Qwen3ForCausalLM):
    """Sees pictures: they change every embedding."""

    def forward(self, input_ids=None, pixel_values=None, **kwargs):
        if pixel_values is None:
            return super().forward(input_ids=input_ids, **kwargs)
        return super().forward(inputs_embeds=self.get_input_embeddings()(input_ids) + pixel_values, **kwargs)


@ALL_FORMS
def test_a_picture_for_tokens_of_the_pool_is_refused(roomy_server: Server, form: str) -> None:
    model, pool = Picturing(tiny_model().config).eval(), roomy_server.pool()
    cache, more = filled(form, model, pool, "picture")
    with pytest.raises(ValueError, match="pixel_values"):
        model(input_ids=more[:, 65:], past_key_values=cache, pixel_values=torch.randn(1, 1, 128))


@ALL_FORMS
def test_text_before_the_first_picture_is_served_and_nothing_after_it(roomy_server: Server, form: str) -> None:
    model, pool = Picturing(tiny_model().config).eval(), roomy_server.pool()
    model.config.image_token_id = 511
    text, after = tokens(40, seed=4), tokens(60, seed=5)
    text[text == 511] = after[after == 511] = 1
    prompt = torch.cat([text, torch.full((1, 4), 511), after], dim=1)
    cache = make(form, model, pool, "before")
    for _ in range(2):
        assert cache.begin(prompt) == 0
        model(input_ids=prompt, past_key_values=cache, pixel_values=torch.randn(1, 1, 128))
        is_not_kept(form, model, pool, "before", cache, prompt, "images")
    cache.begin(text)
    cache.end_turn(say(model, text, cache).sequences)
    assert cache.begin(prompt) == 32, "plain text that another turn kept"
    model(input_ids=prompt[:, 32:], past_key_values=cache, pixel_values=torch.randn(1, 1, 128))


# ---- tokens ---------------------------------------------------------------------------------------------------------


@ALL_FORMS
def test_a_reply_that_was_altered(roomy_server: Server, form: str) -> None:
    model, pool, prompt = tiny_model(), roomy_server.pool(), tokens(60, seed=6)
    cache = make(form, model, pool, "altered")
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    said[0, 62] = (said[0, 62] + 1) % 512
    is_not_kept(form, model, pool, "altered", cache, said, "tokens")


@ALL_FORMS
def test_a_prompt_that_is_not_what_was_begun(roomy_server: Server, form: str) -> None:
    model, pool, prompt = tiny_model(), roomy_server.pool(), tokens(60, seed=7)
    cache = make(form, model, pool, "other-prompt")
    cache.begin(prompt)
    say(model, tokens(60, seed=8), cache)
    is_not_kept(form, model, pool, "other-prompt", cache, torch.cat([prompt, tokens(6, seed=9)], dim=1), "tokens")


@ALL_FORMS
@pytest.mark.parametrize("whose", ["another", "copy"])
def test_k_and_v_of_another_model(roomy_server: Server, form: str, whose: str) -> None:
    model, pool, prompt = tiny_model(), roomy_server.pool(), tokens(60, seed=10)
    cache = make(form, model, pool, whose)
    other = copy.deepcopy(model) if whose == "copy" else tiny_model(seed=1)
    hooked = TurnKVCache(other, None, pool, page_tokens=16)  # its model is watched too, but not for the first cache
    cache.begin(prompt)
    said = say(other, prompt, cache).sequences
    is_not_kept(form, model, pool, whose, cache, said, "unseen")
    del hooked


@ALL_FORMS
def test_a_sequence_that_was_cropped_and_went_on_otherwise_is_kept(roomy_server: Server, form: str) -> None:
    model, pool, prompt = tiny_model(), roomy_server.pool(), tokens(60, seed=11)
    cache = make(form, model, pool, "cropped")
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    cache.crop(40 - cache.get_seq_length())
    branch = torch.cat([said[:, :40], tokens(30, seed=12)], dim=1)
    kept = cut(say(model, prompt, None).past_key_values, 40)
    ours = say(model, branch, cache)
    assert same(ours, say(model, branch, kept))
    assert cache.end_turn(ours.sequences).tokens_offloaded == 75
    assert make(form, model, pool, "cropped", None).begin(branch) == 64


@ALL_FORMS
@pytest.mark.parametrize("way", ["chunks", "by hand", "positional", "decoder"])
def test_every_way_to_call_a_model_is_seen(roomy_server: Server, form: str, way: str) -> None:
    model, pool, prompt = tiny_model(), roomy_server.pool(), tokens(60, seed=13)
    cache = make(form, model, pool, way)
    cache.begin(prompt)
    if way == "chunks":
        prompt = say(model, prompt, cache, prefill_chunk_size=16).sequences
    elif way == "by hand":
        for start in range(0, 60, 25):
            model(input_ids=prompt[:, start : start + 25], past_key_values=cache)
    elif way == "positional":
        model(prompt, torch.ones_like(prompt), None, cache)
    else:
        model.model(input_ids=prompt, past_key_values=cache)
    assert cache.end_turn(prompt).tokens_offloaded == cache.totals.tokens_offloaded >= 60


# ---- candidates -----------------------------------------------------------------------------------------------------


@ALL_FORMS
@pytest.mark.parametrize("kind", ["assistant", "lookup"])
def test_assisted_decoding(roomy_server: Server, form: str, kind: str) -> None:
    """Exact and kept when a turn begins with nothing; refused when it begins with tokens of the pool."""
    model, pool, prompt = tiny_model(), roomy_server.pool(), tokens(60, seed=14)
    prompt[:, 30:] = prompt[:, :30]
    settings = {"prompt_lookup_num_tokens": 3} if kind == "lookup" else {"assistant_model": tiny_model(seed=0)}
    cache = make(form, model, pool, kind)
    cache.begin(prompt)
    said = say(model, prompt, cache, **settings).sequences
    assert torch.equal(said, say(model, prompt, DynamicCache(config=model.config)).sequences)
    assert cache.end_turn(said).pages_stored > 0
    more = torch.cat([said, tokens(9, seed=15)], dim=1)
    assert cache.begin(more) >= 64
    with pytest.raises(Unsupported, match="assisted"):
        say(model, more, cache, **settings)
    kept = DynamicCache(config=model.config)
    say(model, prompt, kept)
    assert torch.equal(say(model, more, cache).sequences, say(model, more, cut(kept, 65)).sequences)


# ---- lengths --------------------------------------------------------------------------------------------------------


@ALL_FORMS
def test_positions_that_depend_on_the_length(roomy_server: Server, form: str) -> None:
    config = copy.deepcopy(tiny_model().config)
    config.max_position_embeddings = 100
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    torch.manual_seed(0)
    model, pool = Qwen3ForCausalLM(config).eval(), roomy_server.pool()
    room = {"capacity_tokens": 200} if form == "slab" else {}
    cache = TurnKVCache(model, "dynamic", pool, page_tokens=16, salt=f"dynamic{form}".encode(), **SETTINGS[form], **room)
    prompt = tokens(60, seed=16)
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    assert cache.end_turn(said).pages_stored > 0, "within the length all is as ever"
    long = torch.cat([said, tokens(60, seed=17)], dim=1)
    assert cache.begin(long) == 0, "a call beyond it turns all positions another way"
    ours = say(model, long, cache)
    is_not_kept(form, model, pool, "dynamic", cache, ours.sequences, "rope")
    model(input_ids=prompt)  # a short call turns them back
    assert cache.begin(torch.cat([said, tokens(5, seed=18)], dim=1)) >= 64


# ---- hooks ----------------------------------------------------------------------------------------------------------


def hooks(model) -> int:
    return sum(len(part._forward_pre_hooks) + len(part._forward_hooks) for part in model.modules())


def test_hooks_go_with_the_last_cache(roomy_server: Server) -> None:
    model, pool = tiny_model(), roomy_server.pool()
    caches = [make(form, model, pool, "hooks") for form in FORMS]
    once = hooks(model)
    assert once == 4, "two for the model, two for its decoder, however many caches there are"
    prompt = tokens(40, seed=19)
    for cache in caches:  # each sees its own
        cache.begin(prompt)
        cache.end_turn(say(model, prompt, cache).sequences)
        assert not [miss for miss in cache.turn.misses if miss.startswith("skipped")]
    del caches[1:], cache
    gc.collect()
    assert hooks(model) == once
    caches.clear()
    gc.collect()
    assert hooks(model) == 0
    TurnKVCache(model, None, pool, page_tokens=16)
    gc.collect()
    assert hooks(model) == 0


def test_a_compiled_model_is_seen(roomy_server: Server) -> None:
    model, pool, prompt = tiny_model(), roomy_server.pool(), tokens(60, seed=20)
    cache = make("copying", model, pool, "compiled")
    cache.begin(prompt)
    torch.compile(model, backend="eager")(input_ids=prompt, past_key_values=cache)
    assert cache.end_turn(prompt).tokens_offloaded == 60


def test_looking_costs_little(roomy_server: Server) -> None:
    """Of a step of decoding, by the time that looking takes by itself: microseconds, where a model takes milliseconds."""
    model, pool, prompt = tiny_model(), roomy_server.pool(), tokens(2000, seed=21)
    cache = make("slab", model, pool, "cost")
    cache.begin(prompt)
    model(input_ids=prompt, past_key_values=cache)
    inputs = {
        "input_ids": prompt[:, :1],
        "attention_mask": torch.ones(1, 2001, dtype=torch.long),
        "past_key_values": cache,
        "position_ids": torch.tensor([[2000]]),
        "use_cache": True,
        "return_dict": True,
        "logits_to_keep": 1,
    }
    witness, best = cache.witness, 1.0
    for _ in range(50):
        started = time.perf_counter()
        witness.enter(model, inputs, cache.get_seq_length(), cache.is_even)
        witness.leave(model)
        best = min(best, time.perf_counter() - started)
        witness._follow(2000)
    assert best < 200e-6, best

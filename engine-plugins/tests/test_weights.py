"""Pages belong to the weights that made them: TurnKVCache notices changed weights, adapters and configuration, however late."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
import slab
import torch
from conftest import Server, tiny_model
from slab import same, tokens
from transformers import DynamicCache

import turnkv
from turnkv.fingerprint import model_check, model_fingerprint
from turnkv.transformers import TurnKVCache

FORMS = ("slab", "copying", "device")
SETTINGS = {"slab": {}, "copying": {"legacy": True}, "device": {"device": turnkv.Device(kind="host"), "gpu_bytes": 1 << 22}}


def say(model, prompt: torch.Tensor, cache):
    return slab.say(model, prompt, cache, 6)


def make(form: str, model, pool, session: str | None = "weights", **more) -> TurnKVCache:
    return TurnKVCache(model, session, pool, page_tokens=16, salt=f"weights{form}".encode(), **SETTINGS[form], **more)


def merge(model) -> None:
    """As PEFT merges an adapter: behind the back of the counter of in-place changes."""
    weight = model.model.layers[1].self_attn.k_proj.weight
    weight.data += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)).to(weight.dtype)


@pytest.mark.parametrize("form", FORMS)
def test_weights_changed_by_data_are_noticed_by_a_cache_made_earlier(roomy_server: Server, form: str) -> None:
    model, pool, prompt = tiny_model(seed=11), roomy_server.pool(), tokens(100, seed=1)
    cache = make(form, model, pool)
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    cache.end_turn(said)
    more = torch.cat([said, tokens(9, seed=2)], dim=1)
    merge(model)
    assert cache.begin(more) == 0 == make(form, model, pool, None).begin(more), "other weights' pages"
    ours = say(model, more, cache)
    assert same(ours, say(model, more, DynamicCache(config=model.config)))
    assert cache.end_turn(ours.sequences).pages_stored > 0
    assert cache.begin(torch.cat([ours.sequences, prompt], dim=1)) > 100, "the new weights' pages are found"
    cache.drop()
    assert make(form, tiny_model(seed=11), pool, None).begin(more) == 96, "the old weights' pages are the old weights'"


@pytest.mark.parametrize("form", FORMS)
def test_weights_changed_within_a_turn_store_nothing(roomy_server: Server, form: str) -> None:
    model, pool, prompt = tiny_model(seed=12), roomy_server.pool(), tokens(60, seed=3)
    cache = make(form, model, pool, "within")
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    merge(model)
    with pytest.warns(UserWarning, match="weights"):
        report = cache.end_turn(said)
    assert report.pages_stored == 0 and report.misses["skipped:weights"] == 1, report
    assert make(form, tiny_model(seed=12), pool, None).begin(said) == 0 == cache.begin(said)


class Adapted(torch.nn.Module):
    """A linear layer with two adapters, with the attributes of a PEFT layer: which one works is no weight."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base_layer, self._active_adapter, self._disable_adapters, self.merged_adapters = base, ["a"], False, []
        self.scaling = {"a": 1.0, "b": 1.0}
        maker = torch.Generator().manual_seed(5)
        self.deltas = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(0.05 * torch.randn(base.weight.shape, generator=maker)) for name in "ab"}
        )

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out = self.base_layer(given)
        for name in [] if self._disable_adapters else self._active_adapter:
            out = out + self.scaling[name] * torch.nn.functional.linear(given, self.deltas[name])
        return out


SWITCHES: dict[str, Callable[[Adapted], None]] = {
    "other adapter": lambda layer: setattr(layer, "_active_adapter", ["b"]),
    "no adapter": lambda layer: setattr(layer, "_disable_adapters", True),
    "stronger": lambda layer: layer.scaling.update(a=2.0),
}


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("form", FORMS)
def test_adapters_switched_between_turns(roomy_server: Server, form: str, switch: str) -> None:
    model, pool, prompt = tiny_model(seed=13), roomy_server.pool(), tokens(100, seed=6)
    model.model.layers[0].self_attn.v_proj = layer = Adapted(model.model.layers[0].self_attn.v_proj)
    cache = make(form, model, pool, f"adapter-{switch}")
    assert cache.begin(prompt) in (0, 96)  # the other switches begin with the same adapter
    said = say(model, prompt, cache).sequences
    cache.end_turn(said)
    SWITCHES[switch](layer)
    assert cache.begin(said) == 0
    ours = say(model, said, cache)
    assert same(ours, say(model, said, DynamicCache(config=model.config)))
    cache.end_turn(ours.sequences)
    layer._active_adapter, layer._disable_adapters, layer.scaling["a"] = ["a"], False, 1.0
    assert cache.begin(said) == 105 - 105 % 16 or cache.begin(said) >= 96, "back to the first one's pages"


@pytest.mark.parametrize("form", FORMS)
def test_adapters_of_one_call(roomy_server: Server, form: str) -> None:
    """`adapter_names` of PEFT's generate: hooks on its layers while the call runs, and no trace in any state."""
    model, pool, prompt = tiny_model(seed=19), roomy_server.pool(), tokens(100, seed=9)
    model.model.layers[0].self_attn.v_proj = layer = Adapted(model.model.layers[0].self_attn.v_proj)
    cache = make(form, model, pool, "one-call")
    cache.begin(prompt)
    hook = layer.register_forward_pre_hook(lambda *_: None)
    said = say(model, prompt, cache).sequences
    hook.remove()
    with pytest.warns(UserWarning, match="adapter_names"):
        report = cache.end_turn(said)
    assert report.pages_stored == 0 and report.misses["skipped:adapter_names"] == 1, report
    cache.begin(prompt)
    cache.end_turn(say(model, prompt, cache).sequences)
    assert cache.begin(said) > 0
    hook = layer.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(ValueError, match="adapter_names"):
        say(model, said, cache)


def test_what_is_too_small_to_be_noticed_can_be_said(roomy_server: Server) -> None:
    model, pool, prompt = tiny_model(seed=14), roomy_server.pool(), tokens(100, seed=7)
    big = model.model.embed_tokens.weight  # 512 x 128 floats: looked at here and there
    cache, named = make("slab", model, pool), make("slab", model, pool, "named", model_id="first")
    for each in (cache, named):
        each.begin(prompt)
        each.end_turn(say(model, prompt, each).sequences)
    check = model_check(model)
    big.data[3, 9] += 1.0
    assert model_check(model) == check, "one number among many"
    cache.weights_changed()
    assert cache.begin(prompt) == 0
    assert cache.begin(prompt) == 0, "and it stays so"
    with pytest.raises(ValueError, match="model_id"):
        named.weights_changed()
    with pytest.raises(ValueError, match="no model_id"):
        cache.weights_changed("second")
    assert named.begin(prompt) == 96
    named.weights_changed("second")
    assert named.begin(prompt) == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_model_that_is_gone_keeps_nothing(roomy_server: Server, form: str) -> None:
    model, pool, prompt = tiny_model(seed=15), roomy_server.pool(), tokens(60, seed=8)
    cache = make(form, model, pool, "gone")
    cache.begin(prompt)
    said = say(model, prompt, cache).sequences
    del model
    gc.collect()
    with pytest.warns(UserWarning, match="model is gone"):
        assert cache.end_turn(said).misses["skipped:model"] == 1


@pytest.mark.parametrize("change", range(5))
def test_every_byte_has_a_part_in_the_name(change: int) -> None:
    model = tiny_model(torch.bfloat16 if change % 2 else torch.float32, seed=16)
    model.register_buffer("odd", torch.arange(13, dtype=torch.uint8))
    model.register_parameter("turned", torch.nn.Parameter(torch.randn(40, 30).t()))
    before = model_fingerprint(model)
    tensors = [("odd", model.odd), ("turned", model.turned), *model.named_parameters()]
    name, tensor = tensors[(change * 7) % len(tensors)]
    raw = tensor.data if tensor.is_contiguous() else tensor.data.t()
    raw = raw.reshape(-1).view(torch.uint8)
    at = [0, raw.numel() - 1, raw.numel() // 2, raw.numel() // 3, 5][change]
    raw[at] ^= 1
    from turnkv.fingerprint import forget

    forget(model)
    assert model_fingerprint(model) != before, (name, at)
    raw[at] ^= 1
    forget(model)
    assert model_fingerprint(model) == before


def test_exchanged_rows_are_noticed() -> None:
    model = tiny_model(seed=17)
    check, weight = model_check(model), model.model.layers[2].mlp.up_proj.weight.data
    weight[[3, 200]] = weight[[200, 3]]
    assert model_check(model) != check


def test_the_check_is_cheap() -> None:
    """A GiB of weights: a small part of the time that reading it once takes."""
    model = tiny_model(seed=18)
    model.register_parameter("much", torch.nn.Parameter(torch.zeros(1 << 26)))  # 256 MiB
    model_check(model)

    def fastest(work: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        return min(times)

    assert fastest(lambda: model_check(model)) < fastest(model.much.sum) + 0.02

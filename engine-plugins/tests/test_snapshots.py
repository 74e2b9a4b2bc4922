"""A conversation goes on in a new pool, out of a snapshot, after its own pool and its disk are gone: the same tokens and logits.

With models that no other test uses.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch
import transformers as hf
from conftest import Server
from slab import say, tokens
from transformers import DynamicCache

from turnkv.transformers import TurnKVCache

SIZES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MODELS: dict[str, tuple[int, torch.dtype, Callable[[], torch.nn.Module]]] = {
    "olmo2": (600, torch.float32, lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**SIZES))),
    "stablelm": (1500, torch.float32, lambda: hf.StableLmForCausalLM(hf.StableLmConfig(**SIZES))),
    "granite": (4000, torch.bfloat16, lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**SIZES))),
}
"""Tokens of the prompt, dtype, the model."""


def equal(ours, theirs) -> bool:
    return torch.equal(ours.sequences, theirs.sequences) and all(map(torch.equal, ours.logits, theirs.logits))


@pytest.mark.parametrize("form", ["slab", "copying"])
@pytest.mark.parametrize("name", MODELS)
def test_a_session_goes_on_in_a_new_pool(
    make_server: Callable[..., Server], tmp_path: pathlib.Path, name: str, form: str
) -> None:
    prompt_tokens, dtype, build = MODELS[name]
    torch.manual_seed(0)
    model = build().to(dtype).eval()
    kept, prompt = DynamicCache(config=model.config), tokens(prompt_tokens, seed=1)

    def cache_at(server: Server, session: str) -> TurnKVCache:
        return TurnKVCache(model, session, server.pool(), page_tokens=64, legacy=form == "copying")

    first = make_server(archive=tmp_path / "archive")
    cache = cache_at(first, "chat")
    assert cache.begin(prompt) == 0
    said = say(model, prompt, cache, 8)
    assert equal(said, say(model, prompt, kept, 8))
    cache.end_turn(said.sequences)
    transcript = tmp_path / "tokens"
    transcript.write_text(" ".join(map(str, said.sequences[0].tolist())))
    made = first.snapshot("create", "--session", "chat", "--tokens", str(transcript))
    assert made["missing_pages"] == 0 and made["pages"] >= prompt_tokens // 64
    first.destroy()

    second = make_server(archive=tmp_path / "archive")
    back = second.snapshot("restore", made["snapshot"])
    assert back["restored_sessions"] == ["chat"] and back["stored_pages"] == made["pages"]
    # Whoever has no transcript finds it in the snapshot; the last token that was said has no K and V yet.
    known = second.snapshot("show", made["snapshot"], "--sequence", "chat")["tokens"]
    assert known == said.sequences[0, : len(known)].tolist() and len(known) >= prompt_tokens
    going_on = torch.cat([torch.tensor([known]), said.sequences[:, len(known) :], tokens(40, seed=2)], dim=1)
    cache = cache_at(second, "chat")
    found = cache.begin(going_on)
    assert found == len(known), cache.turn
    ours = say(model, going_on, cache, 8)
    kept.crop(min(found - kept.get_seq_length(), 0))
    assert equal(ours, say(model, going_on, kept, 8))
    assert cache.end_turn(ours.sequences).pages_stored > 0

"""What the tests of the cache's forms share. Owns: prompts, comparisons, the pool's figures. Must not know: what is tested."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Server
from transformers import DynamicCache

NEW_TOKENS = 40
PROMPTS = (50, 131, 300)
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])


def tokens(count: int, seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randint(0, 512, (rows, count), generator=torch.Generator().manual_seed(seed))


def say(model, prompt: torch.Tensor, cache, new_tokens: int = NEW_TOKENS):
    return model.generate(
        prompt,
        past_key_values=cache,
        max_new_tokens=new_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        attention_mask=torch.ones_like(prompt),  # token 0 is a token, not padding
    )


def same(ours, theirs) -> bool:
    """Tokens and all logits, bit for bit."""
    return torch.equal(ours.sequences, theirs.sequences) and all(
        torch.equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True)
    )


def cut(cache: DynamicCache, length: int) -> DynamicCache:
    if surplus := cache.get_seq_length() - length:
        cache.crop(-surplus)
    return cache


def converse(model, next_cache: Callable[[], Any], first: int, turns: int, between: Callable[[], None], new_tokens: int) -> Any:
    """A conversation from the pool beside one that is never dropped; returns the last turn's cache."""
    kept = DynamicCache(config=model.config)
    conversation = tokens(first, seed=first)
    for turn in range(turns):
        cache = next_cache()
        loaded = cache.begin(conversation)
        ours = say(model, conversation, cache, new_tokens)
        if turn:
            assert loaded >= conversation.shape[1] - 40 - 16, (turn, loaded, cache.turn)
        theirs = say(model, conversation, cut(kept, loaded), new_tokens)
        assert same(ours, theirs), f"turn {turn}: {cache.turn}"
        report = cache.end_turn(ours.sequences)
        assert report.pages_declined == 0 and not [m for m in report.misses if m != "absent"], report
        assert cache.get_seq_length() == 0
        conversation = torch.cat([ours.sequences, tokens(33, seed=turn)], dim=1)
        between()
    return cache


def page(dtype: torch.dtype) -> int:
    """The smallest page of the tiny model whose K of one layer is a memory page."""
    return 16 if dtype == torch.float32 else 32


def dram(server: Server) -> dict[str, int]:
    return next(tier for tier in server.pool().stats()["tiers"] if tier["tier"] == "dram")


def eventually(true: Callable[[], bool], why: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)

"""The demo's engine: a real Qwen3-architecture model on the CPU, greedy decoding, and the uninterrupted run to compare with.

Owns: the model, generation, reference caches. Must not know: the server, the table.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from calibrate import Choice
from transformers import DynamicCache, Qwen3ForCausalLM


@dataclass
class Reply:
    """What the model said."""

    tokens: list[int]
    first_logits: torch.Tensor
    """Of the first sampled token, over the vocabulary."""

    def same_as(self, other: Reply) -> bool:
        """Token for token, and the first logits bit for bit."""
        return self.tokens == other.tokens and torch.equal(self.first_logits, other.first_logits)


class Engine:
    """Random weights from a seed: nothing to download, and any wrong byte of KV changes its words."""

    def __init__(self, choice: Choice, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.config = choice.size.config()
        self.model = Qwen3ForCausalLM(self.config).to(choice.dtype).eval()
        self.model(input_ids=torch.randint(0, self.config.vocab_size, (1, 64)))  # warm
        self._kept: dict[int, DynamicCache] = {}
        self._origin: int | None = None

    @property
    def parameters(self) -> int:
        """How many the model has."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token, all layers."""
        values = 2 * self.config.num_hidden_layers * self.config.num_key_value_heads * self.config.head_dim
        return values * self.model.dtype.itemsize

    def reply(self, cache: DynamicCache, prompt: list[int], tokens: int) -> Reply:
        """Computes what `cache` lacks of `prompt`, then samples greedily."""
        ids = torch.tensor([prompt[cache.get_seq_length() :]])
        logits = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
        reply = Reply([int(logits.argmax())], logits.clone())
        while len(reply.tokens) < tokens:
            ids = torch.tensor([reply.tokens[-1:]])
            logits = self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0, -1]
            reply.tokens.append(int(logits.argmax()))
        return reply

    def prefill_ms(self, tokens: list[int]) -> float:
        """What computing these tokens from nothing takes: the price of a turn without a pool."""
        started = time.perf_counter()
        cache = DynamicCache(config=self.config)
        self.model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        return (time.perf_counter() - started) * 1e3

    def uninterrupted(self, session: int, prompt: list[int], cut: int, tokens: int) -> Reply:
        """The same turn in a run whose caches are never dropped, cut where the pool's prefix ended.

        A session's first turn has no cache of its own: what the pool had then came from the session that computed the
        shared beginning first, so the uninterrupted run starts from that one's cache.
        """
        kept = self._kept.get(session)
        if kept is None:
            kept = DynamicCache(config=self.config)
            if cut and self._origin is not None:
                for target, source in zip(kept.layers, self._kept[self._origin].layers, strict=True):
                    target.update(source.keys[..., :cut, :].clone(), source.values[..., :cut, :].clone())
            elif self._origin is None:
                self._origin = session
            self._kept[session] = kept
        surplus = kept.get_seq_length() - cut
        if surplus < 0:
            raise AssertionError(f"session {session}: the pool served {cut} tokens, {-surplus} more than were ever computed")
        if surplus:
            kept.crop(-surplus)
        return self.reply(kept, prompt, tokens)

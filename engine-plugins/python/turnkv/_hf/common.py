"""What both forms of the cache share: the turn's report, token ids, a model's shape.

Owns: checks of what a user hands in. Must not know: tensors' memory, spans.
"""

from __future__ import annotations

import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

import turnkv

DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
"""Of K and V; torch's name -> TurnKV's."""


class Unsupported(ValueError):
    """This model's cache is not of a kind that TurnKVCache can keep. Said when the cache is made, never later."""


class MappingLost(RuntimeError):
    """What this turn was given turns out not to be good: pages mapped here that are not this process's any more, or pages
    that came damaged while the model ran. Nothing computed from them is kept: begin the turn again."""


@dataclass
class TurnReport:
    """What the pool did for one turn (`cache.turn`), or for all so far (`cache.totals`). Times are milliseconds."""

    turn: int = 0
    prompt_tokens: int = 0
    tokens_loaded: int = 0
    """Tokens whose K and V came from the pool; the model computes the others."""
    tokens_from_gpu: int = 0
    """From the GPU tier (device form with `gpu_bytes` only)."""
    tokens_from_dram: int = 0
    tokens_from_nvme: int = 0
    reload_ms: float = 0.0
    """All of `begin`: naming the pages, asking, copying."""
    tokens_offloaded: int = 0
    """Tokens in the pool after `end_turn`, found there or stored now."""
    pages_stored: int = 0
    pages_present: int = 0
    pages_declined: int = 0
    durable: bool = False
    """It was asked for, and every page of this turn is on NVMe and flushed."""
    pages_mapped: int = 0
    """Pages read where they lie in the pool: not copied (slab form only)."""
    pages_in_place: int = 0
    """Of `pages_stored`, those that lay in the pool's memory already: not copied (slab form only)."""
    pages_copied: int = 0
    """Pages copied at either end of the turn; the slab form copies only where it must."""
    tails_copied: int = 0
    """Partial pages copied to be written on (slab form only)."""
    offload_ms: float = 0.0
    misses: Counter[str] = field(default_factory=Counter)
    """Why something was not served or not kept: absent, checksum, io, busy, declined:<why>, error:<kind>, skipped:<why>; and,
    once a call, not_durable:<why> (no_tier, timeout, changed, lost, device) where `durable` was asked for and is not so."""

    def forget_loaded(self) -> None:
        """What was loaded is of no use."""
        self.tokens_loaded = self.tokens_from_gpu = self.tokens_from_dram = self.tokens_from_nvme = 0

    def add(self, turn: TurnReport) -> None:
        """Adds a turn to the totals."""
        self.turn = turn.turn
        for item in fields(self):
            if item.name not in ("turn", "durable", "misses"):
                setattr(self, item.name, getattr(self, item.name) + getattr(turn, item.name))
        self.misses.update(turn.misses)


def one_sequence(ids: Any) -> array.array:
    """One sequence of token ids as u32."""
    if isinstance(ids, torch.Tensor):
        if ids.dim() == 2 and ids.shape[0] == 1:
            ids = ids[0]
        if ids.dim() != 1 or ids.is_floating_point():
            raise ValueError(f"one sequence of token ids is needed, [tokens] or [1, tokens], not {tuple(ids.shape)} of {ids.dtype}")
        ids = ids.tolist()
    elif isinstance(ids, (list, tuple)) and len(ids) == 1 and isinstance(ids[0], (list, tuple)):
        ids = ids[0]
    if not isinstance(ids, Iterable):
        raise ValueError(f"token ids are a tensor or a list, not {type(ids).__name__}")
    try:
        return array.array("I", ids)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"token ids are integers from 0 to 2**32 - 1: {error}") from None


def packed(tokens: array.array) -> bytes:
    """u32 little-endian, as hashes are made of."""
    if array.array("I", [1]).tobytes()[0] != 1:
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()


def view(tensor: torch.Tensor, first: int) -> tuple[int, int, int, int, int]:
    """K or V of one layer, [1, heads, tokens, dim], from token `first` on, as the binding takes it."""
    size = tensor.element_size()
    at = tensor.data_ptr() + first * tensor.stride(-2) * size
    return at, tensor.shape[1], tensor.stride(1) * size, tensor.stride(-2) * size, tensor.shape[-1] * size


def named(session: str | None) -> str | None:
    """A session's name, checked."""
    if session is not None and not (session.isprintable() and 1 <= len(session.encode()) <= 128):
        raise ValueError("a session's name is 1 to 128 bytes without control characters")
    return session

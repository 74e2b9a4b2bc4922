"""What both forms of the cache share: the turn's report, token ids, a model's shape.

Owns: checks of what a user hands in. Must not know: tensors' memory, spans.
"""

from __future__ import annotations

import array
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

import turnkv

DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
"""Of K and V; torch's name -> TurnKV's."""


PLACEHOLDER = re.compile(r"(image|video|audio|vision|speech|boi|eoi|boa|eoa).*_token_(id|index)$")
"""Names in a configuration of tokens that stand for something that is no text."""
NOT_KEPT = {
    "interrupted": "a forward (or begin) did not end",
    "layers": "its layers have K and V of different tokens",
    "mask": "the model was given an attention mask that hides tokens, or position_ids of its own",
    "positions": "the model was given position_ids other than 0, 1, 2, ...",
    "tokens": "the model was given other tokens than end_turn",
    "unseen": "its K and V came from something else than forwards of the cache's model",
    "embeds": "the model was given inputs_embeds, which have no name",
    "images": "its prompt has images or sounds, of which the token ids say nothing",
    "rope": "it is longer than the length up to which this model's positions depend on the tokens alone",
    "weights": "the model's weights, adapters or configuration changed within it",
    "model": "the cache's model is gone",
}
"""Why a turn is not stored: what users are told, once a place of their code. Others are the name of an input."""


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
    """Why something was not served or not kept: absent, checksum, io, busy, declined:<why>, error:<kind>, skipped:<why>
    (interrupted, layers, mask, positions, tokens, unseen, embeds, images, rope, weights, model, batch, empty, or an input's
    name); and, once a call, not_durable:<why> (no_tier, timeout, changed, lost, device) where `durable` was asked for and is
    not so."""

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


def say_not_kept(why: str, stacklevel: int) -> None:
    """Tells the user that a turn is not stored."""
    reason = NOT_KEPT.get(why, f"the model was given {why}, of which the token ids say nothing")
    warnings.warn(
        f"turnkv: this turn is not stored: {reason} (turn.misses has skipped:{why}; see the documentation's troubleshooting)",
        stacklevel=stacklevel + 1,
    )


def say_no_pool(error: turnkv.Error, stacklevel: int) -> None:
    """Tells the user that there is no pool, or none for this caller, and how to have one."""
    if error.kind == "unavailable":
        warnings.warn(
            f"turnkv: there is no pool, so nothing is kept and the model computes everything: {error}", stacklevel=stacklevel + 1
        )
    say_refused(error, stacklevel + 1)


def say_refused(error: turnkv.Error, stacklevel: int) -> None:
    """Tells the user that the pool serves others, and what this caller lacks."""
    if error.kind == "permission_denied":
        warnings.warn(
            f"turnkv: the pool refuses this caller, so nothing is kept: {error} (is `tenant` what its certificate names?)",
            stacklevel=stacklevel + 1,
        )


def refuse_gpu_settings(gpu_bytes: int) -> None:
    """Raises ValueError where a model on the CPU is to have memory of a GPU."""
    if gpu_bytes:
        raise ValueError("gpu_bytes is of the device form: this model is on the CPU; move it to the GPU, or leave gpu_bytes out")


def refuse_padding(attention_mask: Any) -> None:
    """Raises ValueError for a mask that hides tokens."""
    if attention_mask is not None and not bool(torch.as_tensor(attention_mask).all()):
        raise ValueError("padded rows cannot be kept: their K and V are at other positions; begin rows of one length")


def config_of(model: torch.nn.Module) -> Any:
    """A model's configuration; a wrapper hands on that of the model in it."""
    return model.config


def placeholders(config: Any) -> frozenset[int]:
    """Tokens of a model that stand for images, videos or sounds."""
    found = (value for name, value in vars(config).items() if PLACEHOLDER.match(name))
    return frozenset(value for value in found if isinstance(value, int))


def even(layers: Iterable[Any]) -> bool:
    """Whether all of transformers' own layers have K and V of as many tokens."""
    lengths = set()
    for layer in layers:
        for tensor in (layer.keys, layer.values):
            lengths.add(0 if tensor is None or tensor.numel() == 0 else tensor.shape[-2])
    return len(lengths) <= 1


def one_sequence(ids: Any) -> array.array[int]:
    """One sequence of token ids as u32."""
    if isinstance(ids, torch.Tensor):
        if ids.dim() == 2 and ids.shape[0] == 1:
            ids = ids[0]
        if ids.dim() != 1 or ids.is_floating_point():
            raise ValueError(
                f"one sequence of token ids is needed, [tokens] or [1, tokens], not {tuple(ids.shape)} of {ids.dtype}"
            )
        ids = ids.tolist()
    elif isinstance(ids, (list, tuple)) and len(ids) == 1 and isinstance(ids[0], (list, tuple)):
        ids = ids[0]
    if not isinstance(ids, Iterable):
        raise ValueError(f"token ids are a tensor or a list, not {type(ids).__name__}")
    try:
        return array.array("I", ids)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"token ids are integers from 0 to 2**32 - 1: {error}") from None


def packed(tokens: array.array[int]) -> bytes:
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

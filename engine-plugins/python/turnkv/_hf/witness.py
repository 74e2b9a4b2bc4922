"""What a model is really given while a cache is with it: the cache's K and V are of these tokens and no others.

Owns: what the inputs of each forward say, whether each forward ended, why a turn cannot be kept. Must not know: pages, the
pool, how hooks come to a model.

    reset -> [at work] -> ready -> enter -> leave -> enter -> leave ... -> broken, differs
                                     \\-> an exception: no leave: "interrupted" until the next reset
"""

from __future__ import annotations

import array
import weakref
from collections.abc import Mapping
from typing import Any

import torch

PLAIN_INPUTS = frozenset(
    {
        "input_ids",
        "inputs_embeds",
        "attention_mask",
        "position_ids",
        "cache_position",
        "past_key_values",
        "logits_to_keep",
        "labels",
    }
)
"""What is looked at by itself, or says nothing about K and V."""
ZERO_IS_TEXT = frozenset({"token_type_ids", "mm_token_type_ids"})
"""Inputs that change nothing while they are zero."""
PENDING_MAX = 256
"""Pieces of token ids that are kept on a device before they are put together there."""
UNFINISHED = (
    "the last forward of this cache did not end, and its layers have K and V of different tokens: start the turn again with "
    "begin()"
)


class Witness:
    """What one cache's model was given since the turn began."""

    def __init__(self, modules: frozenset[int], rows: int) -> None:
        """`modules`: the ids of those whose forwards count; `rows`: sequences of the cache."""
        self._modules, self._count = modules, rows
        self.adapter: weakref.ref[torch.nn.Module] | None = None
        """A layer of the model's adapters. PEFT puts hooks on them while one call uses others than the active ones."""
        self.reset()

    def reset(self, at_work: bool = False) -> None:
        """The cache is empty. `at_work`: somebody fills it; until `ready` nothing in it is whole."""
        self.why: str | None = "interrupted" if at_work else None
        self._open: list[int] = []
        self._rows = [array.array("I") for _ in range(self._count)]
        self._pending: list[torch.Tensor] = []  # of ids on a device, [rows, tokens]
        self._tokens = 0  # that `_rows` and `_pending` have
        self._fine: torch.Tensor | None = None  # on a device: whether all masks and positions were right
        self._first = False
        self.loaded = 0  # tokens that the turn began with

    def ready(self, rows: list[array.array[int]], why: str | None) -> None:
        """The cache has the K and V of these tokens. `why` the turn cannot be kept, if that is known already."""
        self._rows, self._tokens, self.why = rows, len(rows[0]), why
        self.loaded = self._tokens
        self._first = self._tokens > 0

    # ---- the model at work ----------------------------------------------------------------------------------------

    def enter(self, module: torch.nn.Module, given: Mapping[str, Any], past: int, even: Any) -> None:
        """A forward begins with `past` tokens in the cache. Raises where it could only go wrong."""
        key = id(module)
        if key not in self._modules:
            return  # another model's: its tokens stay unseen
        if self._open:
            if key not in self._open:
                self._open.append(key)  # within the forward that is seen already
                return
            self._open.clear()
            self.why = "interrupted"
        self._open.append(key)
        if self.why == "interrupted" and not even():
            raise RuntimeError(UNFINISHED)
        if self.why is None:
            self._note(given, past)

    def leave(self, module: torch.nn.Module) -> None:
        """A forward ended."""
        key = id(module)
        if key in self._open:
            if self._open[-1] != key:
                self.why = "interrupted"  # one within did not end, and somebody caught the exception
            del self._open[self._open.index(key) :]

    def _note(self, given: Mapping[str, Any], past: int) -> None:
        first, self._first = self._first, False
        self._follow(past)
        if self._tokens < past:
            self.why = "unseen"
            return
        why = self._wrong(given, past)
        if why is None and first and not self._was_fine():
            why = "mask"
        if first and why not in (None, "batch", "embeds"):
            self.why = why
            self._open.clear()  # this forward does not take place
            raise ValueError(
                f"this turn began with {past} tokens of the pool, which were computed without padding, at positions 0, 1, 2, "
                f"..., from token ids alone, by the active adapters, but the model is given something else ({why}): give "
                "begin() the attention mask that generate() gets, no position_ids of your own, no images for text that was "
                "begun without, no adapter_names; and use no assisted decoding or prompt lookup in a turn that begins with "
                "tokens of the pool"
            )
        self.why = why
        if why is None:
            self._take(given["input_ids"])

    def _wrong(self, given: Mapping[str, Any], past: int) -> str | None:
        """Why these inputs cannot be K and V of a plain sequence of tokens."""
        ids = given.get("input_ids")
        if ids is None:
            return "embeds"
        if ids.dim() != 2 or ids.shape[0] != self._count:
            return "batch"
        end = past + ids.shape[1]
        mask = given.get("attention_mask")
        if mask is not None and not (
            isinstance(mask, torch.Tensor) and mask.dim() == 2 and mask.shape[-1] >= end and self._hold(mask.all())
        ):
            return "mask"
        for name in ("position_ids", "cache_position"):
            positions = given.get(name)
            if positions is not None:
                if positions.shape[-1] != ids.shape[1]:
                    return "positions"
                right = past if ids.shape[1] == 1 else torch.arange(past, end, device=positions.device)
                if not self._hold((positions == right).all()):
                    return "positions"
        for name, value in given.items():
            if name in PLAIN_INPUTS or value is None or isinstance(value, (bool, int, float, str)):
                continue
            if not (name in ZERO_IS_TEXT and self._hold(~value.any())):
                return name
        layer = self.adapter() if self.adapter is not None else None
        return "adapter_names" if layer is not None and layer._forward_pre_hooks else None

    def _hold(self, verdict: torch.Tensor) -> bool:
        """Whether a condition holds; one on a device is looked at later, so that nothing waits for it here."""
        if verdict.device.type == "cpu":
            return bool(verdict)
        self._fine = verdict if self._fine is None else self._fine & verdict
        return True

    def _was_fine(self) -> bool:
        fine, self._fine = self._fine, None
        return fine is None or bool(fine)

    def _take(self, ids: torch.Tensor) -> None:
        """Notes the tokens that the model is given."""
        self._tokens += ids.shape[1]
        if ids.device.type == "cpu":
            for row, new in zip(self._rows, ids.tolist(), strict=True):
                row.extend(new)
            return
        self._pending.append(ids.clone())
        if len(self._pending) == PENDING_MAX:
            self._pending = [torch.cat(self._pending, dim=1)]

    def _follow(self, tokens: int) -> None:
        """The cache has so many tokens now: it may have been cropped."""
        if tokens >= self._tokens:
            return
        self._gather()
        for row in self._rows:
            del row[tokens:]
        self._tokens = tokens

    def _gather(self) -> None:
        pending, self._pending = self._pending, []
        if pending:
            for row, new in zip(self._rows, torch.cat(pending, dim=1).tolist(), strict=True):
                row.extend(new)

    # ---- the turn's end -------------------------------------------------------------------------------------------

    def broken(self, even: bool) -> str | None:
        """Why the cache itself is not whole; `even`: its layers have K and V of the same tokens."""
        if self._open:
            self.why = "interrupted"
        if self.why == "interrupted" or even:
            return "interrupted" if self.why == "interrupted" else None
        return "layers"

    def same(self, rows: list[array.array[int]]) -> bool:
        """Whether the model was given exactly these tokens."""
        self._follow(len(rows[0]))
        self._gather()
        return self._rows == rows

    def differs(self, rows: list[array.array[int]]) -> str | None:
        """Why the cache, whose tokens are said to be `rows`, cannot be kept."""
        if self.why is None and not self._was_fine():
            self.why = "mask"
        if self.why is None and not self.same(rows):
            self.why = "unseen" if self._tokens < len(rows[0]) else "tokens"
        return self.why

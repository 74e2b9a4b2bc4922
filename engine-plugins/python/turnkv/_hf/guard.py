"""Whether what a cache holds may be kept under its model's name: what its forms share.

Owns: the witness and the model's name of one cache, which prompts can be served. Must not know: pages, tensors, the pool.
"""

from __future__ import annotations

import array
from typing import Any

import torch

from turnkv.fingerprint import rope_limit

from . import hooks
from .common import Unsupported, config_of, placeholders
from .weights import Weights
from .witness import Witness


class Guard:
    """See the head of this file."""

    def __init__(self, model: torch.nn.Module, model_id: str | None, rows: int) -> None:
        self._parts = hooks.watched(model)
        self._limit = rope_limit(config_of(model).get_text_config(decoder=True))
        self._placeholders = placeholders(config_of(model))
        self._weights = Weights(model, model_id)
        self.witness = Witness(frozenset(map(id, self._parts)), rows)
        self.witness.adapter = self._weights.adapter()
        self.name = self._weights.name() or ""
        """Of the model, as of the last look."""

    def watch(self, cache: Any) -> None:
        """Looks at the forwards that `cache` is with, while it lives."""
        hooks.watch(cache, self._parts)
        del self._parts  # the cache keeps no model alive

    def is_renamed(self) -> bool:
        """Looks at the model again: whether its name is another one now."""
        self.witness.adapter = self._weights.adapter()
        name = self._weights.name()
        if name is None or name == self.name:
            return False
        self.name = name
        return True

    def loadable(self, prompts: list[array.array[int]]) -> tuple[list[array.array[int]], str | None]:
        """The parts of these prompts that pages may be loaded for, and why the turn cannot be kept if that is known now."""
        if self._limit is not None and len(prompts[0]) > self._limit:
            return [prompt[:1] for prompt in prompts], "rope"
        first = min((self._plain(prompt) for prompt in prompts), default=0)
        if first == len(prompts[0]):
            return prompts, None
        return [prompt[: first + 1] for prompt in prompts], "images"

    def why_not(self, rows: list[array.array[int]]) -> str | None:
        """Why a whole cache, whose tokens are said to be `rows`, cannot be kept."""
        why = self.witness.differs(rows)
        if why is None and self._limit is not None and len(rows[0]) > self._limit:
            why = "rope"
        return why if why is not None or not rows[0] else self._weights.why_not()

    def refuse_assistance(self) -> None:
        """Raises `Unsupported` for assisted decoding of a turn that begins with tokens of the pool."""
        if self.witness.loaded:
            raise Unsupported(
                "assisted decoding and prompt lookup give the model the whole prompt again, also what came from the pool: "
                "generate without, or call drop() first"
            )

    def weights_changed(self, model_id: str | None) -> None:
        """See the caches' `weights_changed`."""
        self._weights.changed(model_id)

    def _plain(self, prompt: array.array[int]) -> int:
        """Where the first token is that stands for something else than text."""
        if not self._placeholders or self._placeholders.isdisjoint(prompt):
            return len(prompt)
        return next(at for at, token in enumerate(prompt) if token in self._placeholders)

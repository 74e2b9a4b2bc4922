"""One layer of the slab form: a transformers cache layer over the views of a group.

Owns: writing new K and V into place, what attention sees, masks' sizes. Must not know: pages, the pool.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from .common import Unsupported
from .group import Group, GroupShape

NO_BEAMS = (
    "the slab form keeps one sequence a session where it lies: beams and parallel samples need copies of it. "
    "Use TurnKVCache(..., legacy=True), or num_beams=1 and num_return_sequences=1"
)


class SlabLayer(CacheLayerMixin):
    """K and V of one layer, in the pool's memory."""

    is_compileable = False
    supports_early_init = False

    def __init__(self, shape: GroupShape, number: int, find: Callable[[GroupShape], Group]) -> None:
        super().__init__()
        self.shape, self._find = shape, find
        self.is_sliding = shape.exact
        self.is_croppable = shape.window is None
        self._leads, self._ends = number == 0, number == len(shape.layers) - 1
        self._number, self._seen = number, 0
        self._group: Group | None = None
        self._pending: tuple[torch.Tensor, torch.Tensor] | None = None
        self.is_initialized = True

    @property
    def group(self) -> Group:
        """The memory, made when it is first needed."""
        return self._group if self._group is not None else self.attach(self._find(self.shape))

    def attach(self, group: Group) -> Group:
        """This layer's memory is in `group` from now on."""
        self._group, self._all = group, (group.kv[2 * self._number], group.kv[2 * self._number + 1])
        group.members.append(weakref.ref(self))
        self.load(0)
        return group

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the memory is there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes K and V after those that are there; returns all that the new tokens may see."""
        group, count, seen = self.group, key_states.shape[-2], self._seen
        if key_states.shape[0] != group.rows:
            raise Unsupported(f"a batch of {key_states.shape[0]} for {group.rows} session(s): {NO_BEAMS}")
        size = (group.rows, self.shape.kv_heads, count, self.shape.head_dim)
        if key_states.shape != size or value_states.shape != size:
            raise Unsupported(f"K of {tuple(key_states.shape)} and V of {tuple(value_states.shape)} for layers of {size}")
        if self._leads:
            group.fits = group.prepare(seen, count)
        elif group.length != seen + count:
            raise RuntimeError("the layers of this cache were updated out of step")
        past = group.shape.visible(seen)
        if not group.fits:
            return self._overflow(key_states, value_states, past)
        at = group.token_at(seen)
        for whole, new in zip(self._all, (key_states, value_states), strict=True):
            whole[:, :, at : at + count].copy_(new)
        self._seen = seen + count  # only now: an exception before this leaves the layer as it was
        self.keys, self.values = (whole[:, :, at - past : at + count] for whole in self._all)
        return self.keys, self.values

    def is_whole(self) -> bool:
        """Whether nothing that was begun here is unfinished."""
        return self._pending is None and (self._group is None or not self._group.torn)

    def load(self, seen: int) -> None:
        """`seen` tokens were put into place."""
        self._seen = seen
        self.keys, self.values = self._view(seen)

    def get_seq_length(self) -> int:
        """Tokens seen, kept or not: positions go on from here."""
        return self._seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many tokens attention will see, and the position that the mask is to give the first of them."""
        past = self.shape.visible(self._seen)
        return past + query_length, self._seen - past

    def get_max_length(self) -> int:
        """-1: no bound that generation must know."""
        return self.shape.window if self.shape.exact and self.shape.window is not None else -1

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last tokens; a negative number, as in transformers."""
        left = self._seen + tokens_to_remove
        self.check_crop(tokens_to_remove)
        if self._ends and tokens_to_remove:
            self.group.drop_after(left)
        self.load(left)

    def check_crop(self, tokens_to_remove: int) -> None:
        """Raises ValueError for what `crop` cannot do."""
        if tokens_to_remove > 0:
            raise ValueError("crop takes a negative number: how many tokens to remove from the end")
        left = self._seen + tokens_to_remove
        if left < 0 or self.shape.first(left) < self.group.first:
            raise ValueError(f"crop({tokens_to_remove}) would need tokens that were trimmed: begin the turn again")

    def reset(self) -> None:
        """Forgets everything."""
        if self._leads:
            self.group.release()
        self.load(0)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Refused."""
        raise Unsupported(NO_BEAMS)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refused, unless there is nothing to do."""
        if repeats != 1:
            raise Unsupported(NO_BEAMS)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Refused, unless there is nothing to do."""
        if indices.tolist() != list(range(self.group.rows)):
            raise Unsupported(NO_BEAMS)

    def _view(self, seen: int) -> tuple[torch.Tensor, torch.Tensor]:
        past = self.group.shape.visible(seen)
        at = self.group.token_at(seen)
        keys, values = (whole[:, :, at - past : at] for whole in self._all)
        return keys, values

    def _overflow(self, keys: torch.Tensor, values: torch.Tensor, past: int) -> tuple[torch.Tensor, torch.Tensor]:
        """More tokens than are kept: this call sees all of them, the last layer's one stores what stays."""
        shape, before = self.group.shape, self._seen
        total = before + keys.shape[-2]
        size, first = shape.page_tokens, shape.first(total) * shape.page_tokens
        sinks = max(shape.sink_pages * size - before, 0)
        skip = max(first - before, 0)
        kept = (torch.cat([new[:, :, :sinks], new[:, :, max(skip, sinks) :]], dim=-2) for new in (keys, values))
        self._pending = next(kept), next(kept)
        self._seen = total
        seen = keys, values
        if past:
            old = self._view(before)
            seen = torch.cat([old[0], keys], dim=-2), torch.cat([old[1], values], dim=-2)
        if self._ends:
            self.group.length = before
            self.group.settle(total)
            for layer in self.group.members:
                layer().store_pending(before, sinks)
            self.group.length = total
        return seen

    def store_pending(self, before: int, sinks: int) -> None:
        """Puts what an oversized call left behind into its places."""
        if self._pending is None:
            return
        shape = self.group.shape
        first = max(shape.first(self._seen) * shape.page_tokens, before)
        for whole, new in zip(self._all, self._pending, strict=True):
            if sinks:
                at = self.group.token_at(before)
                whole[:, :, at : at + sinks].copy_(new[:, :, :sinks])
            first = max(first, before + sinks)
            at = self.group.token_at(first)
            whole[:, :, at : at + self._seen - first].copy_(new[:, :, sinks:])
        self._pending = None
        self.keys, self.values = self._view(self._seen)

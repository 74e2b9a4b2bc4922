"""One layer of the device form: K and V of one sequence, in memory that grows in place.

Owns: that memory, appending to it. Must not know: pages, the pool, devices' streams.

Tokens lie one after another, all heads of one together, so that K of a page is one run of memory. A `DynamicLayer` copies
everything at every token; this one copies only when its room is used up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from .turns import Shape

ROOM_TOKENS_MIN = 257
"""Beyond what is there, for the reply. Odd, so that K, V and the next layer never lie against one another as one run."""
ROOM_SHARE = 8
"""And at least one token for so many that are there."""


class DeviceLayer(DynamicLayer):
    """See the head of this file. `arrive` is called before what was loaded is read: it makes the reader's stream wait."""

    def __init__(self, shape: Shape, device: torch.device, arrive: Callable[[], None]) -> None:
        super().__init__()
        self._shape, self._device, self._arrive = shape, device, arrive
        self._memory: torch.Tensor | None = None

    def prepare(self, tokens: int) -> None:
        """Takes memory for so many tokens and some more; what they are is undefined."""
        self._memory = self._room(tokens)
        self.dtype, self.device, self.is_initialized = self._shape.dtype, self._device, True
        self.load(tokens)

    def load(self, tokens: int) -> None:
        """So many tokens are, or will be, in place."""
        assert self._memory is not None
        self.keys, self.values = (half[:tokens].transpose(0, 1).unsqueeze(0) for half in self._memory)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends; beams and parallel samples are copied, as in `DynamicLayer`."""
        self._arrive()
        length, count = self.get_seq_length(), key_states.shape[-2]
        if key_states.shape[0] > 1:
            if length == 0:
                self.lazy_initialization(key_states, value_states)
            return super().update(key_states, value_states, *args, **kwargs)
        if self._memory is None:
            self.prepare(count)
        elif length + count > self._memory.shape[1] or not self._is_ours(length):
            self._move(length, count)
        assert self._memory is not None
        for half, new in zip(self._memory, (key_states, value_states), strict=True):
            half[length : length + count].copy_(new[0].transpose(0, 1))
        self.load(length + count)
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._memory = None

    def _is_ours(self, length: int) -> bool:
        """Whether K and V still are where this layer put them: transformers may have replaced them."""
        if length == 0:
            return True
        assert self.keys is not None and self._memory is not None
        return self.keys.data_ptr() == self._memory[0].data_ptr() and self.keys.shape[0] == 1

    def _move(self, length: int, count: int) -> None:
        """What is there goes to larger memory."""
        memory = self._room(length + count)
        if length:
            assert self.keys is not None and self.values is not None
            for half, old in zip(memory, (self.keys, self.values), strict=True):
                half[:length].copy_(old[0].transpose(0, 1))
        self._memory = memory

    def _room(self, tokens: int) -> torch.Tensor:
        shape = self._shape
        room = tokens + max(ROOM_TOKENS_MIN, tokens // ROOM_SHARE | 1)
        if room % shape.page_tokens == 0:
            room += 1
        return torch.empty((2, room, shape.kv_heads, shape.head_dim), dtype=shape.dtype, device=self._device)

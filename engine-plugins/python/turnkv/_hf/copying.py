"""The copying form of `TurnKVCache`, for models on the CPU: pages are copied from and to the pool at the ends of a turn.

Owns: tensors in CPU memory <-> pages. Must not know: which pages a turn needs, sessions.
"""

from __future__ import annotations

from typing import Any

import torch

import turnkv

from .common import Unsupported, refuse_gpu_settings, view
from .turns import Brought, TurnCache, shape_of

PAGE_TOKENS = 16
"""Unless the user says otherwise."""


class CopyingCache(TurnCache, form="copying"):
    """See `TurnKVCache`, which looks at `legacy` and `device`."""

    def __init__(
        self,
        model: torch.nn.Module,
        session: str | None,
        pool: turnkv.Pool | str | None = None,
        *,
        legacy: bool = False,
        device: turnkv.Device | None = None,
        overlap: bool = True,
        gpu_bytes: int = 0,
        page_tokens: int | None = None,
        **settings: Any,
    ) -> None:
        place = next(model.parameters()).device
        if place.type != "cpu":
            raise Unsupported(f"this form is for models on the CPU, this one is on {place}")
        refuse_gpu_settings(gpu_bytes)
        shape = shape_of(model, PAGE_TOKENS if page_tokens is None else page_tokens)
        super().__init__(model, session, pool, shape=shape, layout="layer_kv_head_token", **settings)

    def _bring(self, pages: turnkv.Namespace, hashes: bytes, tokens: int) -> Brought:
        """Copies pages into new tensors: [layers, 2, 1, kv heads, tokens, head dim]."""
        shape = self._shape
        stack = torch.empty((shape.layers, 2, 1, shape.kv_heads, tokens, shape.head_dim), dtype=shape.dtype)
        target = turnkv.Strided([view(tensor, 0) for layer in stack.unbind(0) for tensor in layer.unbind(0)], tokens)
        report = pages.reload(hashes, target, session=self.session, deadline_ms=self._deadline_ms)
        loaded = min(report.pages * shape.page_tokens, tokens)
        if loaded:
            for layer, (keys, values) in zip(self.layers, stack[..., :loaded, :].unbind(0), strict=True):
                layer.update(keys, values)
        return Brought(report.pages, 0, report.from_dram, report.from_nvme, report.miss)

    def _send(self, pages: turnkv.Namespace, hashes: bytes, first: int, tokens: int, **settings: Any) -> turnkv.OffloadReport:
        tensors = [_rows(tensor) for layer in self.layers for tensor in (layer.keys, layer.values)]
        source = turnkv.Strided([view(tensor, first) for tensor in tensors], tokens - first)
        return pages.offload(hashes, source, **settings)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, each row of it contiguous."""
    tensor = tensor.detach()
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()

"""Where the bytes of a block lie: an engine's cache tensors as runs of memory.

Owns: address arithmetic, calls with a pool for memory that the CPU reaches. Must not know: torch, engines. A page is the
layers of a group one after another, each in the engine's own order: what happens inside a block is not our business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import turnkv


@dataclass(frozen=True)
class Part:
    """One contiguous piece of every block: block `b` has it at `base + b * stride`."""

    base: int
    stride: int
    length: int


@dataclass(frozen=True)
class Layer:
    """One layer's share of a page."""

    offset: int
    """Of its first byte within the page."""
    bases: np.ndarray
    strides: np.ndarray
    lengths: list[int]


class BlockRuns:
    """The memory of one group's blocks, layer by layer."""

    def __init__(self, layers: dict[str, list[Part]]) -> None:
        if not layers or not all(layers.values()):
            raise ValueError("a group of blocks needs at least one layer with memory")
        self.layers: dict[str, Layer] = {}
        offset = 0
        for name, parts in layers.items():
            self.layers[name] = _layer(offset, parts)
            offset += sum(part.length for part in parts)
        self.page_bytes = offset
        self._whole = _layer(0, _joined([part for parts in layers.values() for part in parts]))

    @property
    def lengths(self) -> list[int]:
        """Bytes of each run of a page, the same for every page."""
        return self._whole.lengths

    def addresses(self, blocks: Sequence[int]) -> np.ndarray:
        """Addresses of the runs of these blocks, block after block."""
        return _addresses(self._whole, blocks)

    def offload(
        self, pages: turnkv.Namespace, names: Sequence[bytes], blocks: Sequence[int], **settings: Any
    ) -> turnkv.OffloadReport:
        """Stores these blocks under these names. Raises turnkv.Error."""
        return pages.offload_runs(names, self.addresses(blocks), self.lengths, **settings)

    def reload(
        self, pages: turnkv.Namespace, names: Sequence[bytes], blocks: Sequence[int], **settings: Any
    ) -> turnkv.ReloadReport:
        """Fills these blocks with the leading pages that are there; they are in place on return. Raises turnkv.Error."""
        return pages.reload_runs(names, self.addresses(blocks), self.lengths, **settings)

    def mark(self, stream: Any = None) -> None:
        """What moves from here on comes after all that the compute stream was given: on a CPU that is done already."""

    def layer_addresses(self, layer: str, blocks: Sequence[int]) -> np.ndarray:
        """The same for one layer's share of the blocks."""
        return _addresses(self.layers[layer], blocks)


def parts_of(
    base: int, shape: Sequence[int], strides: Sequence[int], item_bytes: int, per_block: int = 1
) -> list[Part]:
    """The pieces of a block of one layer's tensor.

    `strides` in items, blocks first. `per_block`: how many of the tensor's leading rows make one block. Dimensions that
    lie dense in memory, in whatever order, are one piece; each step of any other is a piece of its own.
    """
    dims = [(stride * item_bytes, size) for stride, size in zip(strides[1:], shape[1:]) if size > 1]
    block_stride = strides[0] * item_bytes
    if per_block > 1:
        dims.append((block_stride, per_block))
        block_stride *= per_block
    length, outer = item_bytes, []
    for stride, size in sorted(dims):
        if stride == length and not outer:
            length *= size
        else:
            outer.append((stride, size))
    offsets = [0]
    for stride, size in reversed(outer):
        offsets = [offset + step * stride for offset in offsets for step in range(size)]
    return [Part(base + offset, block_stride, length) for offset in offsets]


def _joined(parts: list[Part]) -> list[Part]:
    """Neighbours in page order that are neighbours in memory become one: with blocks outermost a page is one run."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and last.base + last.length == part.base and last.stride == part.stride:
            joined[-1] = Part(last.base, last.stride, last.length + part.length)
        else:
            joined.append(part)
    return joined


def _layer(offset: int, parts: list[Part]) -> Layer:
    bases = np.array([part.base for part in parts], dtype=np.uint64)
    strides = np.array([part.stride for part in parts], dtype=np.uint64)
    return Layer(offset, bases, strides, [part.length for part in parts])


def _addresses(layer: Layer, blocks: Sequence[int]) -> np.ndarray:
    index = np.asarray(blocks, dtype=np.uint64)
    return np.ascontiguousarray(layer.bases[None, :] + index[:, None] * layer.strides[None, :]).reshape(-1)

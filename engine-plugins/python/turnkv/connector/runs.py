"""Where the bytes of a block lie: an engine's cache tensors as runs of memory.

Owns: address arithmetic, calls with a pool for memory that the CPU reaches. Must not know: torch, engines. A shard of a page
is the layers of a group one after another, each in the engine's own order: what happens inside is not our business. A rank
holds one shard of every page, or several neighbours, cut out of its blocks at equal distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import turnkv


@dataclass(frozen=True)
class Shards:
    """Which shards of a page one rank holds: `count` neighbours, from `first` on."""

    first: int = 0
    count: int = 1


ONE_SHARD = Shards()
"""A page that is not cut."""


@dataclass(frozen=True)
class Part:
    """One contiguous piece of every block: shard `s` of block `b`, counted from the rank's first one, has it at
    `base + b * stride + s * step`."""

    base: int
    stride: int
    length: int
    step: int = 0


@dataclass(frozen=True)
class Layer:
    """One layer's share of a shard."""

    offset: int
    """Of its first byte within the shard."""
    bases: np.ndarray
    strides: np.ndarray
    steps: np.ndarray
    lengths: list[int]


class BlockRuns:
    """The memory of one group's blocks, layer by layer."""

    load_bytes_max = 16 << 20
    """Of one reload: a call copies with one thread, so a large load is spread over several in pieces of this size."""

    def __init__(self, layers: dict[str, list[Part]], shards: Shards = ONE_SHARD) -> None:
        if not layers or not all(layers.values()):
            raise ValueError("a group of blocks needs at least one layer with memory")
        self.shards = shards
        self.layers: dict[str, Layer] = {}
        offset = 0
        for name, parts in layers.items():
            self.layers[name] = _layer(offset, parts)
            offset += sum(part.length for part in parts)
        self.shard_bytes = offset
        self.page_bytes = offset * shards.count
        """Of what a rank holds of a page."""
        self._whole = _layer(0, _joined([part for parts in layers.values() for part in parts]))

    @property
    def lengths(self) -> list[int]:
        """Bytes of each run of a shard, the same for every shard of every page."""
        return self._whole.lengths

    def addresses(self, blocks: Sequence[int]) -> np.ndarray:
        """Addresses of the runs of these blocks, block after block, and of each its shards one after another."""
        return self._addresses(self._whole, blocks)

    def offload(
        self, pages: turnkv.Namespace, names: Sequence[bytes], blocks: Sequence[int], **settings: Any
    ) -> turnkv.OffloadReport:
        """Stores these blocks under these names. Raises turnkv.Error."""
        return pages.offload(names, turnkv.Runs(self.addresses(blocks), self.lengths), **self._named, **settings)

    def reload(
        self, pages: turnkv.Namespace, names: Sequence[bytes], blocks: Sequence[int], **settings: Any
    ) -> turnkv.ReloadReport:
        """Fills these blocks with the leading pages that are there; they are in place on return. Raises turnkv.Error."""
        return pages.reload(names, turnkv.Runs(self.addresses(blocks), self.lengths), **self._named, **settings)

    def lease(self, pages: turnkv.Namespace, names: Sequence[bytes], **settings: Any) -> turnkv.Lease:
        """Leases these pages' shards, `shards.count` positions a page. Raises turnkv.Error."""
        return pages.lease(names, **self._named, **settings)

    def mark(self, stream: Any = None) -> None:
        """What moves from here on comes after all that the compute stream was given: on a CPU that is done already."""

    def layer_addresses(self, layer: str, blocks: Sequence[int]) -> np.ndarray:
        """The same for one layer's share of the blocks."""
        return self._addresses(self.layers[layer], blocks)

    @property
    def _named(self) -> dict[str, Any]:
        return {"shard": self.shards.first, "shards": self.shards.count}

    def _addresses(self, layer: Layer, blocks: Sequence[int]) -> np.ndarray:
        block = np.asarray(blocks, dtype=np.uint64)[:, None, None] * layer.strides
        shard = np.arange(self.shards.count, dtype=np.uint64)[None, :, None] * layer.steps
        return np.ascontiguousarray(layer.bases + block + shard).reshape(-1)


def parts_of(
    base: int,
    shape: Sequence[int],
    strides: Sequence[int],
    item_bytes: int,
    per_block: int = 1,
    cut: tuple[int, int] = (0, 1),
) -> list[Part]:
    """The pieces of a block of one layer's tensor.

    `strides` in items, blocks first. `per_block`: how many of the tensor's leading rows make one block. `cut`: a dimension,
    and into how many shards it is cut; the pieces are those of the first. Dimensions that lie dense in memory, in whatever
    order, are one piece; each step of any other is a piece of its own. Pieces are in the order of memory, slowest first.
    """
    axis, shards = cut
    step = 0
    if shards > 1:
        shape = [size // shards if at == axis else size for at, size in enumerate(shape)]
        step = shape[axis] * strides[axis] * item_bytes
    dims = [(stride * item_bytes, size) for stride, size in zip(strides[1:], shape[1:], strict=True) if size > 1]
    block_stride = strides[0] * item_bytes
    if per_block > 1:
        dims.append((block_stride, per_block))
        block_stride *= per_block
    length = item_bytes
    outer: list[tuple[int, int]] = []
    for stride, size in sorted(dims):
        if stride == length and not outer:
            length *= size
        else:
            outer.append((stride, size))
    offsets = [0]
    for stride, size in reversed(outer):
        offsets = [offset + step * stride for offset in offsets for step in range(size)]
    return [Part(base + offset, block_stride, length, step) for offset in offsets]


def _joined(parts: list[Part]) -> list[Part]:
    """Neighbours in a shard's order that are neighbours in memory become one: with blocks outermost a page that is not cut
    is one run."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        alike = last is not None and (last.stride, last.step) == (part.stride, part.step)
        if last is not None and alike and last.base + last.length == part.base:
            joined[-1] = Part(last.base, last.stride, last.length + part.length, last.step)
        else:
            joined.append(part)
    return joined


def _layer(offset: int, parts: list[Part]) -> Layer:
    bases = np.array([part.base for part in parts], dtype=np.uint64)
    strides = np.array([part.stride for part in parts], dtype=np.uint64)
    steps = np.array([part.step for part in parts], dtype=np.uint64)
    return Layer(offset, bases, strides, steps, [part.length for part in parts])

"""Blocks that lie in device memory: the pool's client copies them itself, between its slots and the device.

Owns: the device of a tensor, what the compute stream had been given when it was marked, keeping tensors alive while they
are copied. Must not know: engines, requests, how copies are made.

    save   compute stream --mark--> marker --event--> the client's own stream: blocks -> slots
    load   compute stream --mark--> marker --event--> the client's own stream: slots -> blocks

No thread waits for the compute stream: the marker is a stream that waits for it, and the copies wait for the marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import turnkv

from .runs import ONE_SHARD, BlockRuns, Part, Shards, parts_of


class Marker:
    """What a device's compute stream had been given when it was last marked: a stream of ours that has waited for just that."""

    def __init__(self, place: torch.device, device: turnkv.Device) -> None:
        self._place = place
        self._stream = turnkv.DeviceStream(device) if place.type == "cuda" else None
        self._refused: turnkv.Error | None = None

    def mark(self, stream: Any = None) -> None:
        """From here on all that `stream` (None: the current one) has been given so far counts, and nothing later. Never raises:
        where that cannot be said, nothing moves until it can."""
        if self._stream is None:
            return
        compute = stream if stream is not None else torch.cuda.current_stream(self._place)
        try:
            self._stream.wait(int(compute.cuda_stream))
            self._refused = None
        except turnkv.Error as error:
            self._refused = error

    @property
    def handle(self) -> int | None:
        """The stream to come after; None where there are no streams. Raises turnkv.Error where the last mark was refused."""
        if self._refused is not None:
            raise self._refused
        return None if self._stream is None else self._stream.handle


def current(device: torch.device) -> int | None:
    """The handle of the stream that a device computes on just now; None where there are no streams."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else None


class DeviceRuns(BlockRuns):
    """One group's blocks in device memory: the same pages as `BlockRuns` has of them in CPU memory."""

    load_bytes_max = 256 << 20
    """The device copies by itself: what costs is a call's request and its wait for the end, so calls are as large as what the
    client leases at once."""

    def __init__(
        self,
        caches: Mapping[str, torch.Tensor],
        device: turnkv.Device,
        *,
        blocks: int,
        shards: Shards = ONE_SHARD,
        axis: int = 0,
    ) -> None:
        """`caches`: each layer's tensor, whose leading rows are `blocks` blocks of one or more rows each. Several `shards` are
        cut along `axis`."""
        places = {cache.device for cache in caches.values()}
        if len(places) > 1:
            raise ValueError(f"the layers of a group lie on several devices: {', '.join(map(str, places))}")
        cut = (axis, shards.count)
        super().__init__({name: _parts(cache, blocks, cut) for name, cache in caches.items()}, shards)
        self._device, self._tensors = device, tuple(caches.values())
        self.place = places.pop()
        """Where the tensors are, in torch's words."""
        self._marker = Marker(self.place, device)

    def mark(self, stream: Any = None) -> None:
        """What moves from here on comes after all that the compute stream (None: the current one) was given."""
        self._marker.mark(stream)

    def offload(
        self, pages: turnkv.Namespace, names: Sequence[bytes], blocks: Sequence[int], **settings: Any
    ) -> turnkv.OffloadReport:
        """See `BlockRuns`."""
        return pages.offload(names, self._placed(self.addresses(blocks), self.lengths), **self._named, **settings)

    def reload(
        self, pages: turnkv.Namespace, names: Sequence[bytes], blocks: Sequence[int], **settings: Any
    ) -> turnkv.ReloadReport:
        """See `BlockRuns`."""
        target = self._placed(self.addresses(blocks), self.lengths)
        return pages.reload(names, target, **self._named, **settings).result()

    def begin_layers(
        self, pages: turnkv.Namespace, names: Sequence[bytes], blocks: Sequence[int], **settings: Any
    ) -> turnkv.DeviceReload:
        """Begins to fill these blocks layer by layer, in the order of the caches; their streams wait for each."""
        target = self._placed(*self._by_layer(blocks), layers=len(self.layers))
        return pages.reload(names, target, **self._named, **settings)

    def check_layers(self) -> None:
        """Raises ValueError where a page cannot be brought layer by layer."""
        if len({len(layer.lengths) for layer in self.layers.values()}) > 1:
            raise ValueError(
                "the layers of this model lie in memory in different ways, so pages cannot be brought layer "
                'by layer: use load="async"'
            )

    def _placed(self, addresses: np.ndarray, lengths: list[int], layers: int = 0) -> turnkv.OnDevice:
        """These runs, behind what the compute stream had been given when it was marked. Raises turnkv.Error."""
        runs = turnkv.Runs(addresses, lengths)
        return turnkv.OnDevice(self._device, runs, stream=self._marker.handle, layers=layers, keep=self._tensors)

    def _by_layer(self, blocks: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        """As `addresses` and `lengths`, but no run holds more than one layer."""
        shards = len(blocks) * self.shards.count
        rows = [self.layer_addresses(name, blocks).reshape(shards, -1) for name in self.layers]
        lengths = [length for layer in self.layers.values() for length in layer.lengths]
        return np.ascontiguousarray(np.concatenate(rows, axis=1)).reshape(-1), lengths


def memory_of(
    caches: Mapping[str, torch.Tensor],
    *,
    blocks: int,
    staging_bytes: int | None = None,
    shards: Shards = ONE_SHARD,
    axis: int = 0,
) -> BlockRuns:
    """A group's blocks, wherever they lie; several `shards` are cut along `axis`. Raises ValueError for memory that nobody
    here can reach."""
    device = device_of(next(iter(caches.values())), staging_bytes)
    if device is not None:
        return DeviceRuns(caches, device, blocks=blocks, shards=shards, axis=axis)
    return BlockRuns({name: _parts(cache, blocks, (axis, shards.count)) for name, cache in caches.items()}, shards)


def device_of(tensor: torch.Tensor, staging_bytes: int | None = None) -> turnkv.Device | None:
    """The device that a tensor lies on; None: the CPU reaches it. Raises turnkv.Error for a device that cannot be used."""
    if tensor.device.type == "cpu":
        return None
    if tensor.device.type != "cuda":
        raise ValueError(f"memory on {tensor.device} cannot be reached: the CPU's and CUDA's can")
    index = tensor.device.index
    return turnkv.shared_device(torch.cuda.current_device() if index is None else index, staging_bytes=staging_bytes)


def _parts(cache: torch.Tensor, blocks: int, cut: tuple[int, int]) -> list[Part]:
    if blocks < 1 or cache.shape[0] % blocks:
        raise ValueError(f"a cache of {cache.shape[0]} rows is not {blocks} blocks")
    per_block = cache.shape[0] // blocks
    return parts_of(cache.data_ptr(), cache.shape, cache.stride(), cache.element_size(), per_block, cut)

"""The GPU tier of the device form: the latest pages of all caches of a model, in memory of the model's device.

Owns: one `GpuPagePool` a device and namespace, shared by the caches that name its size. Must not know: tensors, turns.
It lives as long as one of its caches does.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any

import turnkv

_tiers: weakref.WeakValueDictionary[tuple[Any, ...], Tier] = weakref.WeakValueDictionary()


class Tier:
    """See the head of this file."""

    def __init__(self, device: turnkv.Device, page_bytes: int, gpu_bytes: int) -> None:
        self.gpu_bytes = gpu_bytes
        self._device = device  # its id stays its own as long as this lives
        self.pages = turnkv.GpuPagePool(device, page_bytes, gpu_bytes // page_bytes)

    @staticmethod
    def shared(device: turnkv.Device, spec: Mapping[str, Any], page_bytes: int, gpu_bytes: int) -> Tier:
        """The tier for these pages, made at first use. Raises ValueError for a size that cannot be meant, and turnkv.Error
        (kind "device") where the device has not so much memory free."""
        if gpu_bytes < page_bytes:
            raise ValueError(f"gpu_bytes={gpu_bytes} has no room for one page of {page_bytes} bytes")
        # Names of pages are those of their tokens: only pages of one namespace may share a tier.
        key = (os.getpid(), id(device), *sorted(spec.items()))
        tier = _tiers.get(key)
        if tier is None:
            tier = _tiers[key] = Tier(device, page_bytes, gpu_bytes)
        elif tier.gpu_bytes != gpu_bytes:
            raise ValueError(f"gpu_bytes={gpu_bytes}, but this model's tier on this device has {tier.gpu_bytes} already")
        return tier

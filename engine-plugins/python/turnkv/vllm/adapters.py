"""LoRA adapters as part of a page's name: vLLM's block hashes have an adapter's name and path, not what lies there.

Owns: digesting adapters beside the scheduler's work, mixing them into names. Must not know: pools, requests' lives.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from turnkv.checkpoint import WeightsName, weights_path

from . import compat

ADAPTERS_MAX = 1024
"""Adapters remembered; the one asked for longest ago makes room."""
WAIT_SECONDS = 0.05
"""How long an adapter's first request may wait for its digest; if it takes longer that request moves no pages."""


class Adapters:
    """The adapters of one engine, each as it lay on disk when its first request came."""

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[int, str], WeightsName | None] = OrderedDict()

    def root_of(self, lora_request: Any) -> bytes | None:
        """What the names of this adapter's pages are mixed with; None: vLLM's hashes say all that is known.

        Raises turnkv.Error while its files are being digested.
        """
        if lora_request is None:
            return None
        key = (lora_request.lora_int_id, lora_request.lora_path)
        if key not in self._names:
            path = weights_path(lora_request.lora_path, None)
            fresh = None if path is None else WeightsName.of("adapter:", [path], compat.logger)
            self._names[key] = fresh
            while len(self._names) > ADAPTERS_MAX:
                self._names.popitem(last=False)
            if fresh is not None:
                fresh.wait(WAIT_SECONDS)
        self._names.move_to_end(key)
        name = self._names[key]
        return None if name is None else hashlib.sha256(name.get().encode()).digest()


def mixed(root: bytes | None, names: Sequence[bytes]) -> list[bytes]:
    """Names of pages that depend on `root`, too."""
    return list(names) if root is None else [hashlib.sha256(root + name).digest() for name in names]

"""The plugins as the tests load them into the engine: the real ones, which write their counts to a file as they go.

Owns: looking on, and spoiling loaded pages when the test asks for it. Must not know: how the plugins work.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import threading
import time
from typing import Any

from turnkv.sglang import HiCacheBackend, Linker

FOLDER = pathlib.Path(os.environ["TURNKV_TEST_WATCH"])
LOOK_SECONDS = 0.1


def _watch(plugin: Any, under_way: Any) -> None:
    """Writes the plugin's counts, and for how long they have not changed."""

    def look() -> None:
        last, since = None, time.monotonic()
        while True:
            counts = plugin.counts.get() | {"under_way": under_way()}
            if counts != last:
                last, since = counts, time.monotonic()
            partial = FOLDER / "counts.partial"
            partial.write_text(json.dumps(counts | {"quiet_ms": int((time.monotonic() - since) * 1e3)}))
            partial.rename(FOLDER / "counts")
            time.sleep(LOOK_SECONDS)

    threading.Thread(target=look, daemon=True).start()


def _spoil(addresses: Any, length: int) -> None:
    """Other numbers of about the same size, in place of K and V."""
    if (FOLDER / "spoil").exists():
        for at, address in enumerate(addresses):
            values = (ctypes.c_float * (length // 4)).from_address(int(address))
            for index in range(0, len(values), 3):
                values[index] = float((at * 7 + index) % 5 - 2)


class WatchedBackend(HiCacheBackend):
    """`HiCacheBackend`, looked on."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        _watch(self, lambda: 0)

    def batch_get_v1(self, keys: Any, host_indices: Any, extra_info: Any = None) -> list[bool]:
        """As it is, then spoilt on demand."""
        loaded = super().batch_get_v1(keys, host_indices, extra_info)
        runs = self._pages["kv"].runs
        _spoil(runs.addresses(host_indices), runs.lengths[0])
        return loaded


class WatchedLinker(Linker):
    """`Linker`, looked on."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        spec = self._pages["kv"].door.spec
        (FOLDER / "namespace").write_text(json.dumps(spec | {"salt": spec["salt"].hex()}))
        _watch(self, lambda: self._busy)

    def load(self, rid: str, transfers: Any) -> bool:
        """As it is; its pages are spoilt on demand once they are in place."""
        self._spoilable = [(self._pages["kv"].runs, transfer.device_indices) for transfer in transfers]
        return super().load(rid, transfers)

    def _copy(self, index: int, loads: Any) -> None:
        if (FOLDER / "spoil").exists():
            for load in loads:
                for layer in range(self._group.num_layers):
                    load.copy_layer(layer, self._threads)
            for runs, indices in self._spoilable:
                _spoil(runs.addresses(indices), runs.lengths[0])
            for load in loads:
                load.finish()
            for layer in range(self._group.num_layers):
                self.layer_done_counter.complete(index, layer)
            return
        super()._copy(index, loads)

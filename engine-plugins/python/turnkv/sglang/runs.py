"""Where a page's bytes lie in SGLang's memory, as runs for the pool's gather and scatter calls.

Owns: page numbers -> addresses, the order of a page's bytes. Must not know: keys, pools.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy
import torch

LAYER_FIRST = "layer_first"
KV_LAYER_TOKEN = "kv_layer_token_head"
"""K of every layer, then V of every layer, each [token, head, dim]: what layer_first (its runs put in this order) and
page_first_direct hold alike, and a device pool too, so they can load one another's pages."""


class PoolRuns(Protocol):
    """The runs of any page of one memory pool."""

    lengths: list[int]
    """Bytes of each run of a page."""
    layout: str
    """Names the order of a page's bytes; part of the namespace."""
    page_slots: int
    """Indices of SGLang that one page takes."""

    def addresses(self, indices: torch.Tensor) -> numpy.ndarray:
        """uint64 addresses, page after page; as many pages as `indices` has whole ones."""


class HostRuns:
    """Runs of a HiCache host pool.

    A pool describes its pages one index at a time, in Python. All its layouts put page n at base + n * step, so two
    pages are asked for and a third is checked; a pool that is not of this kind is asked for every page.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.page_slots = int(getattr(pool, "page_size", 1) or 1)
        base, self.lengths = self._ask(0)
        self._order = numpy.arange(len(base))
        self.layout = f"{type(pool).__name__}:{getattr(pool, 'layout', None)}"
        tag = getattr(pool, "storage_format_tag", None)
        if tag:
            self.layout += f":{tag}"
        if type(pool).__name__ == "MHATokenToKVPoolHost" and pool.layout in (LAYER_FIRST, "page_first_direct"):
            self.layout = KV_LAYER_TOKEN
            if pool.layout == LAYER_FIRST:  # K and V of layer 0, K and V of layer 1, ...
                self._order = self._order.reshape(-1, 2).T.reshape(-1)
                self.lengths = [self.lengths[at] for at in self._order]
        self._base = base[self._order]
        self._step = self._steps(base)

    def addresses(self, indices: torch.Tensor) -> numpy.ndarray:
        """See `PoolRuns`."""
        pages = indices.numel() // self.page_slots
        first = indices.numpy()[: pages * self.page_slots : self.page_slots].astype(numpy.int64)
        if self._step is None:
            asked = [self._ask(int(slot) // self.page_slots)[0][self._order] for slot in first]
            return numpy.concatenate(asked) if asked else numpy.empty(0, numpy.uint64)
        rows = (first // self.page_slots).astype(numpy.uint64)[:, None]
        return numpy.ascontiguousarray(self._base[None, :] + rows * self._step[None, :]).reshape(-1)

    def _ask(self, page: int) -> tuple[numpy.ndarray, list[int]]:
        """The addresses and lengths of one page, in the pool's own order."""
        slots = torch.arange(page * self.page_slots, (page + 1) * self.page_slots)
        pointers, sizes = self._pool.get_page_buffer_meta(slots)
        return numpy.array(pointers, numpy.uint64), [int(size) for size in sizes]

    def _steps(self, base: numpy.ndarray) -> numpy.ndarray | None:
        """Bytes from a page to the next in each run; None when pages are not evenly spaced."""
        pages = int(getattr(self._pool, "page_num", 0) or getattr(self._pool, "size", 0) // self.page_slots)
        if getattr(self._pool, "shared_allocation_domain", None) is not None or pages < 2:
            return None
        step = self._ask(1)[0] - base
        last = self._ask(pages - 1)[0]
        return step[self._order] if numpy.array_equal(base + numpy.uint64(pages - 1) * step, last) else None


class DeviceRuns:
    """Runs of one entry of SGLang's device pool group, with what each layer needs of a page."""

    def __init__(self, entry: Any, layout: str) -> None:
        self._entry = entry
        self.layout, self.page_slots = layout, int(entry.page_size)
        buffers = [buffer for component in entry.buffer_meta for buffer in component]
        self.lengths = [int(size) for _, _, size in buffers]
        self._base = numpy.array([at for at, _, _ in buffers], numpy.uint64)
        self._step = numpy.array([step for _, step, _ in buffers], numpy.uint64)
        self._offsets = numpy.concatenate(([0], numpy.cumsum(self.lengths)))
        self._by_layer = self._runs_by_layer(entry)

    def addresses(self, indices: torch.Tensor) -> numpy.ndarray:
        """See `PoolRuns`; raises ValueError for indices that are no whole pages of the pool."""
        return self._at(self._rows(indices), self._base, self._step)

    def layer(self, rows: numpy.ndarray, layer: int) -> list[tuple[int, numpy.ndarray, int]]:
        """What `layer` needs: (offset in the page, an address for each of `rows`, bytes), run by run."""
        return [
            (int(self._offsets[run]), self._at(rows, self._base[[run]], self._step[[run]]), self.lengths[run])
            for run in self._by_layer.get(layer, ())
        ]

    def rows(self, indices: torch.Tensor) -> numpy.ndarray:
        """Page numbers for `layer`, checked once for all of them."""
        return self._rows(indices)

    def _rows(self, indices: torch.Tensor) -> numpy.ndarray:
        return numpy.array(self._entry.prepare_locations(indices), numpy.uint64)

    @staticmethod
    def _at(rows: numpy.ndarray, base: numpy.ndarray, step: numpy.ndarray) -> numpy.ndarray:
        return numpy.ascontiguousarray(base[None, :] + rows[:, None] * step[None, :]).reshape(-1)

    @staticmethod
    def _runs_by_layer(entry: Any) -> dict[int, list[int]]:
        """layer -> numbers of its runs, over all components."""
        starts = [0]
        for component in entry.buffer_meta:
            starts.append(starts[-1] + len(component))
        by_layer = {}
        for layer, mapped in entry.layer_mapping.items():
            buffers = [mapped] if isinstance(mapped, int) else list(mapped)
            by_layer[layer] = [start + buffer for start in starts[:-1] for buffer in buffers]
        return by_layer

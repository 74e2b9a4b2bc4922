"""The device form of `TurnKVCache`, for models on a GPU: pages move between the pool's memory and the model's own tensors.

Owns: tensors on a device <-> pages, which stream waits for what, whether what was read can be trusted. Must not know: which
pages a turn needs, sessions, how copies are made.

    begin     pages -> tensors, layer by layer, on the client's stream     the model's layer l waits for layer l, on the device
    last layer of the first forward pass: all pages are verified, or MappingLost is raised before a token comes of them
    end_turn  tensors -> pages, behind what the model's stream was given
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, NoReturn

import torch

import turnkv
from turnkv.connector.devices import current, device_of

from .common import MappingLost, Unsupported, view
from .device_layers import DeviceLayer
from .tier import Tier
from .turns import Brought, Shape, TurnCache, shape_of

RUN_BYTES = 128 << 10
"""K of a layer in one page, unless the user says otherwise: large enough for a copy engine's full rate."""
PAGE_TOKENS_MIN, PAGE_TOKENS_MAX = 16, 128


class DeviceCache(TurnCache, form="device"):
    """See `TurnKVCache`, which looks at `legacy`.

    `device`: the `turnkv.Device` of the model; by default the one that its tensors are on. `overlap`: the model may begin
    before all pages are there. `gpu_bytes`: of a tier in device memory; 0: none.
    """

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
        places = {parameter.device for parameter in model.parameters()}
        if len(places) > 1:
            raise Unsupported(f"a model on several devices is not supported: {', '.join(sorted(map(str, places)))}")
        self._place = places.pop()
        shape = shape_of(model, PAGE_TOKENS_MIN if page_tokens is None else page_tokens)
        if page_tokens is None:
            shape = _with_long_runs(shape)
        found = device if device is not None else device_of(next(model.parameters()))
        if found is None:
            raise Unsupported("this form is for models on a GPU: give it a device, or leave it out")
        self._device, self._overlap = found, overlap
        self._hit: turnkv.GpuHit | None = None
        self._flight: turnkv.DeviceReload | None = None
        self._brought = Brought(0)
        super().__init__(model, session, pool, shape=shape, layout="layer_kv_token_head", **settings)
        self._gpu_bytes = gpu_bytes
        self._tier = self._shared_tier()

    def drop(self) -> None:
        """Empties this cache and lets its memory go; what the pool has stays there."""
        self._hit = self._flight = None  # copies under way keep the tensors until they have ended
        super().drop()

    # ---- what the turn asks for -----------------------------------------------------------------------------------

    def _rename(self) -> None:
        super()._rename()
        self._tier = None  # the old name's pages make room for the new one's
        self._tier = self._shared_tier()

    def _shared_tier(self) -> Tier | None:
        if not self._gpu_bytes:
            return None
        page_bytes = 2 * self._shape.layers * self._shape.row_bytes * self._shape.page_tokens
        return Tier.shared(self._device, self._spec, page_bytes, self._gpu_bytes)

    def _held(self, hashes: bytes) -> int:
        return self._tier.pages.lookup(hashes) if self._tier is not None else 0

    def _bring(self, pages: turnkv.Namespace, hashes: bytes, tokens: int) -> Brought:
        for layer in self.layers:
            layer.prepare(tokens)
        layers = self._shape.layers if self._overlap else 0
        near = 0
        if self._tier is not None:
            self._hit = self._tier.pages.get(pages, hashes, self._memory(0, tokens, layers))
            near = self._hit.pages
        begun = near
        if near * 32 < len(hashes):
            first = near * self._shape.page_tokens
            self._flight = pages.reload(
                hashes[near * 32 :], self._memory(first, tokens, layers), session=self.session, deadline_ms=self._deadline_ms
            )
            begun += self._flight.pages_begun
        self._brought = Brought(begun, near)
        if not self._overlap:
            self._brought = self._ended()
        loaded = min(self._brought.pages * self._shape.page_tokens, tokens)
        for layer in self.layers:
            layer.load(loaded)
        return self._brought

    def _keep_near(self, pages: turnkv.Namespace, hashes: bytes, tokens: int) -> None:
        if self._tier is None:
            return
        try:
            self._tier.pages.put(pages, hashes, self._memory(0, tokens))
        except turnkv.Error as error:
            self.turn.misses[f"tier:{error.kind}"] += 1

    def _send(self, pages: turnkv.Namespace, hashes: bytes, first: int, tokens: int, **settings: Any) -> turnkv.OffloadReport:
        return pages.offload(hashes, self._memory(first, tokens), **settings)

    def _fresh_layers(self) -> list[Any]:
        ours = weakref.ref(self)  # no cycle: a cache that nobody wants gives its memory back at once

        def arrive(number: int) -> None:
            cache = ours()
            if cache is not None:
                cache._arrive(number)

        layers = range(self._shape.layers)
        return [DeviceLayer(self._shape, self._place, functools.partial(arrive, number)) for number in layers]

    # ---- what was begun -------------------------------------------------------------------------------------------

    def _arrive(self, number: int) -> None:
        """The model is about to read a layer. The last one tells whether all of them were good."""
        stream = current(self._place)
        try:
            for copies in (self._hit, self._flight):
                if copies is not None:
                    copies.wait_layer(number, stream)
        except turnkv.Error as error:
            self._give_up(f"error:{error.kind}")
        if number == self._shape.layers - 1:
            self._settle()

    def _settle(self) -> None:
        """Raises MappingLost if what was loaded is not what was promised."""
        if self._hit is None and self._flight is None:
            return
        promised = self._brought.pages
        try:
            self._brought = self._ended()
        except turnkv.Error as error:
            self._give_up(f"error:{error.kind}")
        if self._brought.miss is not None:
            self.turn.misses[self._brought.miss] += 1
        if self._brought.pages < promised:
            self._give_up(self._brought.miss or "absent")
        self._count_tiers(self._brought)

    def _ended(self) -> Brought:
        """Waits for all copies: what came of them."""
        hit, flight, self._hit, self._flight = self._hit, self._flight, None, None
        near = hit.result() if hit is not None else 0
        if flight is None:
            return Brought(near, near)
        report = flight.result()
        return Brought(near + report.pages, near, report.from_dram, report.from_nvme, report.miss)

    def _give_up(self, cause: str) -> NoReturn:
        self.turn.misses[f"lost:{cause}"] += 1
        self.turn.forget_loaded()
        self.drop()
        raise MappingLost(f"pages came damaged or too late ({cause}): start the turn again with begin()")

    def _memory(self, first: int, tokens: int, layers: int = 0) -> turnkv.OnDevice:
        """K and V from token `first` on, behind what the model's stream was given; the tensors stay while they are copied."""
        tensors = tuple(tensor for layer in self.layers for tensor in (layer.keys, layer.values))
        pages = turnkv.Strided([view(tensor, first) for tensor in tensors], tokens - first)
        return turnkv.OnDevice(self._device, pages, stream=current(self._place), layers=layers, keep=tensors)


def _with_long_runs(shape: Shape) -> Shape:
    """Pages of as many tokens as a good run takes."""
    tokens = PAGE_TOKENS_MIN
    while tokens < PAGE_TOKENS_MAX and tokens * shape.row_bytes < RUN_BYTES:
        tokens *= 2
    return Shape(shape.layers, shape.kv_heads, shape.head_dim, tokens, shape.dtype)
